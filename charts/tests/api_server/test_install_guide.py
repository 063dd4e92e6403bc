"""docs/install.md, word by word: its shell blocks in order, on a real API server, with the operator running and pods that only pretend to."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from chart import Chart, environment
from operator_process import OperatorProcess
from release import CRD, get_or_none, wait_until

from pdd_e2e.control_plane.fake_kubelet import FakeKubelet
from pdd_e2e.control_plane.fixtures import ADMIN_GROUP
from pdd_e2e.control_plane.helm import find_helm
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_e2e.control_plane.pod_scripts import Runs

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "install.md"
PREFLIGHT = '{"transport": "Socket", "reason": "Socket", "message": "sockets, as asked"}'


def blocks(heading: str) -> list[str]:
    """Shell blocks of the section ``heading``."""
    text = GUIDE.read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, heading
    return re.findall(r"^```sh\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL)


@pytest.fixture
def run(control_plane: LocalControlPlane, tmp_path: Path) -> Callable[[str], str]:
    helm = find_helm(say=lambda line: print(line, file=sys.stderr))
    path = os.pathsep.join([str(helm.parent), str(control_plane.binaries.folder), os.defpath])

    def run_block(block: str) -> str:
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", block],
            env={"PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(control_plane.kubeconfig)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run_block


@pytest.mark.timeout(400)
def test_the_guide_leads_from_nothing_to_a_ready_deployment_and_back(
    control_plane: LocalControlPlane, run: Callable[[str], str], tmp_path: Path
) -> None:
    api = control_plane.api
    kubeconfig = control_plane.kubeconfig_for(user="pdd-fake-kubelet", groups=[ADMIN_GROUP])
    helm = find_helm(say=lambda line: print(line, file=sys.stderr))
    settings = environment(Chart(helm).objects(release="pdd-operator"))
    with FakeKubelet(kubeconfig, node_name="guide-node") as kubelet:
        kubelet.script({"pdserve.io/deployment": "small"}, Runs(init_messages={"preflight": PREFLIGHT}))
        for block in blocks("2. The operator"):
            run(block)
        account = control_plane.kubeconfig_for(service_account=("pdd-system", "pdd-operator"))
        with OperatorProcess(settings, namespace="pdd-system", kubeconfig=account, log=tmp_path / "log"):
            said = [run(block) for block in blocks("3. A model")]
            assert "small" in said[1]
            before = api.items("/apis/apps/v1/namespaces/agents/statefulsets")
            for block in blocks("Upgrade"):
                run(block)
            after = api.items("/apis/apps/v1/namespaces/agents/statefulsets")
            assert [item["metadata"]["uid"] for item in after] == [item["metadata"]["uid"] for item in before]
            assert len(before) == 2
            delete, uninstall, forget = blocks("Uninstall")
            run(delete)
            sets = "/apis/apps/v1/namespaces/agents/statefulsets"
            wait_until(lambda: api.items(sets) == [], "the engines to go", 60)
        run(uninstall)
        assert get_or_none(api, CRD) is not None
        run(forget)
    wait_until(lambda: get_or_none(api, CRD) is None, "the definition to go")
