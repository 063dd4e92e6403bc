"""preflight.py, run as the init container runs it, in a root of fakes: one thing missing at a time, each named."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic_core._pydantic_core
import pytest

from pdd_operator.render.payloads import script

DEVICES, PAGES_MIB = 4, 2560
LOADABLE = Path(pydantic_core._pydantic_core.__file__)
MEMINFO = "MemTotal: 100 kB\nHugePages_Total:    1280\nHugepagesize:       2048 kB\n"
LIMITS = "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         {}            {}            bytes\n"


@dataclass
class Node:
    """A root directory in which everything is as EFA needs it."""

    root: Path

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        target.chmod(mode)

    def remove(self, path: str) -> None:
        target = self.root / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    @property
    def plugin(self) -> Path:
        return self.root / "usr/lib/python3/site-packages/.nixl_cu13.libs/plugins/libplugin_LIBFABRIC.so"

    def run(self, *arguments: str, **environment: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, termination message, transport file."""
        program = self.root / "preflight.py"
        program.write_text(script("preflight.py"), encoding="utf-8")
        transport, message = self.root / "transport", self.root / "message"
        command = [sys.executable, str(program), "--root", str(self.root), "--interface", "lo"]
        command += ["--transport-file", str(transport), "--termination-file", str(message), *arguments]
        # Folders of the module path are looked up below the root.
        paths = {"PYTHONPATH": "/usr/lib/python3/site-packages", "PATH": "/nowhere"}
        ended = subprocess.run(command, env=paths | environment, check=False, capture_output=True, text=True)
        assert "Traceback" not in ended.stderr, ended.stderr
        report = json.loads(message.read_text(encoding="utf-8"))
        return ended.returncode, report, transport.read_text(encoding="utf-8") if transport.exists() else ""

    def run_efa(self, fallback: str = "Refuse", **environment: str) -> tuple[int, dict[str, Any], str]:
        wanted = ("--efa-devices", str(DEVICES), "--huge-pages-mib", str(PAGES_MIB))
        return self.run("--backend", "EFA", "--fallback", fallback, *wanted, **environment)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path / "root")
    for index in range(DEVICES):
        node.write(f"sys/class/infiniband/rdmap{index}/node_type", "1")
        node.write(f"dev/infiniband/uverbs{index}", "")
    node.write("sys/class/net/lo/address", "")
    node.write("sys/class/net/ens5/address", "")
    node.write("proc/meminfo", MEMINFO)
    node.write("proc/self/limits", LIMITS.format("unlimited", "unlimited"))
    node.write("proc/self/status", "CapEff:\t0000000000000000\n")
    node.write("opt/amazon/efa/bin/fi_info", '#!/bin/sh\n[ "$1 $2" = "-p efa" ] && echo "provider: efa"\n', 0o755)
    node.plugin.parent.mkdir(parents=True)
    node.plugin.symlink_to(LOADABLE)
    return node


def test_a_whole_node_is_efa(node: Node) -> None:
    code, report, transport = node.run_efa()
    assert (code, transport, report["transport"], report["reason"]) == (0, "EFA", "EFA", "EFAReady")


BROKEN: dict[str, tuple[Callable[[Node], None], str, str]] = {
    "a card is missing": (lambda n: n.remove("sys/class/infiniband/rdmap0"), "EFADevicesMissing", "3 EFA devices, 4"),
    "no card at all": (lambda n: n.remove("sys/class/infiniband"), "EFADevicesMissing", "instance type with EFA"),
    "a device was not given": (lambda n: n.remove("dev/infiniband/uverbs1"), "EFADevicesNotGiven", "device plugin"),
    "no huge pages": (
        lambda n: n.write("proc/meminfo", MEMINFO.replace("1280", "1000")),
        "HugePagesMissing",
        "2000 MiB",
    ),
    "huge pages of 1 GiB": (
        lambda n: n.write("proc/meminfo", MEMINFO.replace("2048 kB", "1048576 kB")),
        "HugePagesMissing",
        "vm.nr_hugepages",
    ),
    "locked memory limited": (
        lambda n: n.write("proc/self/limits", LIMITS.format("8388608", "8388608")),
        "LockedMemoryLimited",
        "LimitMEMLOCK",
    ),
    "no fi_info": (lambda n: n.remove("opt/amazon/efa/bin/fi_info"), "EFASoftwareMissing", "engine.image"),
    "fi_info finds nothing": (
        lambda n: n.write("opt/amazon/efa/bin/fi_info", "#!/bin/sh\necho 'fi_getinfo: -61'; exit 61\n", 0o755),
        "EFAProviderUnavailable",
        "fi_getinfo: -61",
    ),
    "fi_info finds another provider": (
        lambda n: n.write("opt/amazon/efa/bin/fi_info", "#!/bin/sh\necho 'provider: tcp'\n", 0o755),
        "EFAProviderUnavailable",
        "provider: tcp",
    ),
    "fi_info cannot run": (
        lambda n: n.write("opt/amazon/efa/bin/fi_info", "no program", 0o644),
        "EFAProviderUnavailable",
        "Permission denied",
    ),
    "no plugin": (lambda n: n.plugin.unlink(), "NIXLPluginMissing", "NIXL 1.5"),
    "the CUDA runtime of the packages does not load": (
        lambda n: n.write("usr/lib/python3/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12", "no library"),
        "NIXLPluginUnloadable",
        "libcudart.so.12",
    ),
    "the plugin does not load": (
        lambda n: (n.plugin.unlink(), n.plugin.write_text("no library"))[0],
        "NIXLPluginUnloadable",
        "libfabric",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_missing_is_refused_by_name(node: Node, what: str) -> None:
    break_it, reason, phrase = BROKEN[what]
    break_it(node)
    code, report, transport = node.run_efa()
    assert (code, transport, report["transport"], report["reason"]) == (1, "", "", reason)
    assert phrase in report["message"]


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_missing_falls_back_where_that_is_allowed(node: Node, what: str) -> None:
    break_it, reason, phrase = BROKEN[what]
    break_it(node)
    code, report, transport = node.run_efa("Socket")
    assert (code, transport, report["transport"], report["reason"]) == (0, "Socket", "Socket", reason)
    assert "transport.fallback" in report["message"]
    assert phrase in report["message"]


def test_nothing_to_fall_back_to_is_refused(node: Node) -> None:
    node.remove("sys/class/infiniband")
    node.remove("sys/class/net/lo")
    code, report, transport = node.run_efa("Socket")
    assert (code, transport, report["reason"]) == (1, "", "InterfaceMissing")
    assert "0 EFA devices" in report["message"]


def test_the_cuda_runtime_of_the_packages_is_loaded_first(node: Node) -> None:
    runtime = node.root / "usr/lib/python3/site-packages/nvidia/cu13/lib/libcudart.so.13"
    runtime.parent.mkdir(parents=True)
    runtime.symlink_to(LOADABLE)
    assert node.run_efa()[1]["reason"] == "EFAReady"


def test_the_capability_lifts_the_limit_of_locked_memory(node: Node) -> None:
    node.write("proc/self/limits", LIMITS.format("8388608", "8388608"))
    node.write("proc/self/status", f"CapEff:\t{1 << 14:016x}\n")
    assert node.run_efa()[1]["reason"] == "EFAReady"


def test_fi_info_and_the_plugin_are_found_elsewhere(node: Node, tmp_path: Path) -> None:
    shutil.move(node.root / "opt/amazon/efa/bin/fi_info", tmp_path / "fi_info")
    node.plugin.unlink()
    (tmp_path / node.plugin.name).symlink_to(LOADABLE)
    assert node.run_efa(PATH=str(tmp_path), NIXL_PLUGIN_DIR=str(tmp_path))[1]["reason"] == "EFAReady"


def test_libraries_of_the_efa_installer_are_on_the_path_of_what_is_tried(node: Node) -> None:
    node.write("opt/amazon/efa/bin/fi_info", '#!/bin/sh\necho "efa $LD_LIBRARY_PATH" >&2; exit 1\n', 0o755)
    message = node.run_efa(LD_LIBRARY_PATH="/cuda")[1]["message"]
    assert f"{node.root}/opt/amazon/efa/lib:" in message
    assert ":/cuda" in message


def test_sockets_need_an_interface_and_ask_nothing_of_efa(tmp_path: Path) -> None:
    node = Node(tmp_path / "root")
    node.write("sys/class/net/lo/address", "")
    code, report, transport = node.run("--backend", "Socket", "--fallback", "Refuse")
    assert (code, transport, report["reason"]) == (0, "Socket", "SocketReady")
    code, report, _ = node.run("--backend", "Socket", "--fallback", "Refuse", "--interface", "eth0")
    assert (code, report["reason"]) == (1, "InterfaceMissing")
    assert "it has: lo" in report["message"]


def test_an_interface_without_address_is_refused_and_ipv6_is_an_address(node: Node) -> None:
    # "pddtest0" is in no kernel of a test machine, so it has no IPv4 address.
    node.write("sys/class/net/pddtest0/address", "")
    arguments = ("--backend", "Socket", "--fallback", "Refuse", "--interface", "pddtest0")
    code, report, _ = node.run(*arguments)
    assert (code, report["reason"]) == (1, "InterfaceWithoutAddress")
    node.write("proc/net/if_inet6", "fd000000000000000000000000000001 02 40 00 80 pddtest0\n")
    assert node.run(*arguments)[1]["reason"] == "SocketReady"


@pytest.mark.parametrize("name", ["preflight.py", "drain.py"])
def test_scripts_are_python_3_9_and_stand_alone(name: str) -> None:
    tree = ast.parse(script(name), feature_version=(3, 9))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module.split(".")[0] for module in modules} <= set(sys.stdlib_module_names)
    assert "__future__" in modules  # annotations are not evaluated: `X | None` is 3.10
