"""What the doctor and the other commands say of the chart is what the chart says."""

from pathlib import Path

import yaml

from pdd_cli.cluster.installing import INSTALL, OPERATOR_NAMESPACE, UPGRADE
from pdd_cli.doctor.cluster_checks import LEADER_ELECTION, LEAST_VERSION
from pdd_operator import __version__

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "pdd-operator"
DOCUMENTS = (CHART / "README.md", ROOT / "README.md", ROOT / "docs" / "install.md")


def test_version_and_command() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["kubeVersion"] == f">={'.'.join(map(str, LEAST_VERSION))}.0-0"
    assert chart["appVersion"] == __version__
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert INSTALL in text and "nobody has published" in text.lower()
        copies = [line for line in text.splitlines() if line.startswith("helm install")]
        assert copies and all(line.startswith(INSTALL) for line in copies), document
    assert all(OPERATOR_NAMESPACE in command for command in (INSTALL, UPGRADE))


def test_variable_of_leader_election() -> None:
    assert LEADER_ELECTION in (CHART / "templates" / "_environment.tpl").read_text(encoding="utf-8")
