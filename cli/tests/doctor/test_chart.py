"""What the doctor and the other commands say of the chart is what the chart says."""

from pathlib import Path

import yaml

from pdd_cli.cluster.installing import INSTALL, OPERATOR_NAMESPACE, UPGRADE
from pdd_cli.doctor.cluster_checks import LEADER_ELECTION, LEAST_VERSION
from pdd_operator import __version__

CHART = Path(__file__).parents[3] / "charts" / "pdd-operator"


def test_version_and_command() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["kubeVersion"] == f">={'.'.join(map(str, LEAST_VERSION))}.0-0"
    assert chart["appVersion"] == __version__
    assert INSTALL in (CHART / "README.md").read_text(encoding="utf-8")
    assert all(OPERATOR_NAMESPACE in command for command in (INSTALL, UPGRADE))


def test_variable_of_leader_election() -> None:
    assert LEADER_ELECTION in (CHART / "templates" / "_environment.tpl").read_text(encoding="utf-8")
