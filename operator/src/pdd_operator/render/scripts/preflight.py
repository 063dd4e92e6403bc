"""Proves an engine's fabric before the engine starts, and says in one JSON what was found and what to do.

Runs in the engine's image as an init container, with the engine's devices and privileges: Python 3.9 and its standard
library only, no file beside it. Writes the transport (`EFA` or `Socket`) for the start script, and
`{"transport", "reason", "message"}` as the container's termination message, from which the operator makes a condition.
Exits 1 where the engine must not start. It changes nothing else.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

EFA, SOCKET = "EFA", "Socket"
COMMAND_TIMEOUT_SECONDS = 60
CAP_IPC_LOCK = 14
SIOCGIFADDR = 0x8915
PLUGIN = "libplugin_LIBFABRIC.so"
EFA_LIBRARIES = ("/opt/amazon/efa/lib", "/opt/amazon/efa/lib64", "/opt/aws-ofi-nccl/lib")


class Refused(Exception):  # noqa: N818 - what is refused is the transport
    """One thing that is missing: a CamelCase reason, and what to do about it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    transport, reason, message = judge(options)
    print(f"preflight: {reason}: {message}", flush=True)
    if transport:
        Path(options.transport_file).write_text(transport, encoding="utf-8")
    report = {"transport": transport, "reason": reason, "message": message}
    Path(options.termination_file).write_text(json.dumps(report), encoding="utf-8")
    return 0 if transport else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Prove an engine's fabric.")
    parser.add_argument("--backend", choices=(EFA, SOCKET), required=True, help="what the object asks for")
    parser.add_argument("--fallback", choices=("Refuse", SOCKET), required=True, help="where EFA cannot be had")
    parser.add_argument("--interface", required=True, help="network interface of sockets")
    parser.add_argument("--efa-devices", type=int, default=0, help="devices that the pod asked for")
    parser.add_argument("--huge-pages-mib", type=int, default=0, help="huge pages of 2 MiB that the pod asked for")
    parser.add_argument("--transport-file", default="/pdd/run/transport")
    parser.add_argument("--termination-file", default="/dev/termination-log")
    parser.add_argument("--root", type=Path, default=Path("/"), help="where sys, proc, dev and opt are")
    return parser.parse_args(arguments)


def judge(options: argparse.Namespace) -> tuple[str, str, str]:
    """The transport, or an empty one, with reason and message."""
    try:
        if options.backend == SOCKET:
            check_sockets(options)
            return SOCKET, "SocketReady", f"KV moves over TCP on {options.interface}"
        check_efa(options)
        return EFA, "EFAReady", f"{options.efa_devices} EFA devices answer, NIXL can load LIBFABRIC"
    except Refused as refused:
        if options.backend == SOCKET or options.fallback != SOCKET:
            return "", refused.reason, refused.message
        missing = refused
    try:
        check_sockets(options)
    except Refused as refused:
        return "", refused.reason, f"{missing.message}; and no sockets to fall back to: {refused.message}"
    return SOCKET, missing.reason, f"KV moves over TCP, slowly, as transport.fallback allows: {missing.message}"


def check_efa(options: argparse.Namespace) -> None:
    """From the hardware up, so that the first thing missing is the cause of all the rest."""
    check_devices(options.root, options.efa_devices)
    check_huge_pages(options.root, options.huge_pages_mib)
    check_locked_memory(options.root)
    check_provider(options.root)
    check_plugin(options.root)


def check_sockets(options: argparse.Namespace) -> None:
    name = options.interface
    folder = options.root / "sys/class/net"
    if not (folder / name).exists():
        there = ", ".join(names_in(folder)) or "none"
        raise Refused(
            "InterfaceMissing",
            f"the pod has no network interface {name} (it has: {there}); set transport.interface to one of them",
        )
    if not has_address(options.root, name):
        raise Refused(
            "InterfaceWithoutAddress",
            f"network interface {name} has no address; set transport.interface to the pod's own, mostly eth0",
        )


def check_devices(root: Path, wanted: int) -> None:
    cards = names_in(root / "sys/class/infiniband")
    if len(cards) < wanted:
        raise Refused(
            "EFADevicesMissing",
            f"the node shows {len(cards)} EFA devices, {wanted} are needed; use an instance type with EFA, launched with "
            "EFA network interfaces, and load its efa kernel module",
        )
    given = [name for name in names_in(root / "dev/infiniband") if name.startswith("uverbs")]
    if len(given) < wanted:
        raise Refused(
            "EFADevicesNotGiven",
            f"the pod was given {len(given)} of {wanted} EFA devices; install the EFA device plugin "
            "(aws-efa-k8s-device-plugin), and no other that hands out the same devices",
        )


def check_huge_pages(root: Path, wanted_mib: int) -> None:
    if wanted_mib == 0:
        return
    fields = {}
    for line in read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.split()
    page_kib = number(fields.get("Hugepagesize"))
    total_mib = number(fields.get("HugePages_Total")) * page_kib // 1024
    if page_kib != 2048 or total_mib < wanted_mib:
        raise Refused(
            "HugePagesMissing",
            f"the node has {total_mib} MiB of huge pages of {page_kib} KiB, {wanted_mib} MiB of 2048 KiB are needed; "
            "use an EFA AMI, or set vm.nr_hugepages on the nodes",
        )


def check_locked_memory(root: Path) -> None:
    """EFA pins what it transfers: the limit must be lifted, or the capability to ignore it be in effect."""
    for line in read(root / "proc/self/limits").splitlines():
        if line.startswith("Max locked memory"):
            if line.split()[3] == "unlimited":
                return
            break
    for line in read(root / "proc/self/status").splitlines():
        if line.startswith("CapEff:") and int(line.split()[1], 16) >> CAP_IPC_LOCK & 1:
            return
    raise Refused(
        "LockedMemoryLimited",
        "locked memory is limited for this container; start containerd with LimitMEMLOCK=infinity on the nodes, "
        "or set transport.privileges to Privileged",
    )


def check_provider(root: Path) -> None:
    installed = root / "opt/amazon/efa/bin/fi_info"
    program = str(installed) if installed.exists() else shutil.which("fi_info")
    if program is None:
        raise Refused(
            "EFASoftwareMissing",
            "the engine image has no fi_info, hence no libfabric with EFA; set engine.image to one that has the EFA "
            "installer's software (docs/install.md)",
        )
    code, output = run([program, "-p", "efa"], fabric_environment(root))
    if code != 0 or "provider: efa" not in output:
        raise Refused(
            "EFAProviderUnavailable",
            f"`{program} -p efa` finds no EFA ({last_line(output)}); the image's EFA software and the node's driver "
            "must fit each other, and security groups let all traffic to themselves through",
        )


def check_plugin(root: Path) -> None:
    """Loads what NIXL will load, in a process of its own: a library that is missing is named by the loader."""
    plugin = find_plugin(root)
    if plugin is None:
        raise Refused(
            "NIXLPluginMissing",
            f"the engine image has no {PLUGIN}: install NIXL 1.5 or later in it, or set NIXL_PLUGIN_DIR",
        )
    # PyTorch brings the CUDA runtime in a place of its own, and has loaded it before NIXL loads its plugin.
    libraries = [*found_in_packages(root, "nvidia/*/lib/libcudart.so.*"), plugin]
    program = "import ctypes, sys; [ctypes.CDLL(path) for path in sys.argv[1:]]"
    code, output = run([sys.executable, "-c", program, *map(str, libraries)], fabric_environment(root))
    if code != 0:
        raise Refused(
            "NIXLPluginUnloadable",
            f"NIXL's LIBFABRIC plugin cannot be loaded ({last_line(output)}); set engine.image to one that has "
            "libfabric, hwloc and the accelerator's driver libraries (docs/install.md)",
        )


def fabric_environment(root: Path) -> dict[str, str]:
    """As the start script makes it for the engine."""
    environment = dict(os.environ)
    folders = [str(root / folder.lstrip("/")) for folder in EFA_LIBRARIES]
    environment["LD_LIBRARY_PATH"] = ":".join([*folders, environment.get("LD_LIBRARY_PATH", "")]).rstrip(":")
    return environment


def find_plugin(root: Path) -> Path | None:
    """Where NIXL looks: its own variable, then beside its packages on the module path."""
    named = os.environ.get("NIXL_PLUGIN_DIR")
    places = [Path(named) / PLUGIN] if named else []
    places += found_in_packages(root, f"*nixl*/**/{PLUGIN}")
    return next((place for place in places if place.is_file()), None)


def found_in_packages(root: Path, pattern: str) -> list[Path]:
    folders = [root / entry.lstrip("/") for entry in sys.path if entry.startswith("/")]
    return [found for folder in folders if folder.is_dir() for found in sorted(folder.glob(pattern))]


def has_address(root: Path, interface: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            # No IPv4 address; a pod of an IPv6 cluster is listed here.
            lines = read(root / "proc/net/if_inet6").splitlines()
            return any(line.split()[-1] == interface for line in lines if line.split())
    return True


def run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    try:
        ended = subprocess.run(  # noqa: S603 - fixed programs, no shell
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {COMMAND_TIMEOUT_SECONDS} seconds"
    except OSError as error:
        return -1, str(error)
    return ended.returncode, ended.stdout.decode("utf-8", "replace")


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def number(words: list[str] | None) -> int:
    return int(words[0]) if words and words[0].isdigit() else 0


def last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


if __name__ == "__main__":
    sys.exit(main())
