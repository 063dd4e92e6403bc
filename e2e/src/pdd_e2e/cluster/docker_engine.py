"""A Docker engine on this machine: one that runs is used, else one is installed from Debian's packages and started.

Only what was started here is ended here: its process id lies in the state folder. Must not touch an engine of somebody else's.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.shell import run, succeeds
from pdd_e2e.control_plane.binaries import Say

NODE_FILES = Path(__file__).parents[3] / "kind" / "node"
RUNC = "runc-without-sys-resource"
# Debian's packages by the programs that are looked for.
_ENGINE = {"dockerd": "docker.io", "iptables": "iptables", "ip": "iproute2"}
_TOOLS = {"debootstrap": "debootstrap", "jq": "jq"}  # images are made with them, whoever's the engine is
_WHERE = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_CAP_SYS_RESOURCE = 24
_SETTINGS = Path("/etc/docker/daemon.json")
_WRAPPER = Path("/usr/local/sbin") / RUNC
_START_TIMEOUT_SECONDS = 60
_POLL_SECONDS = 0.3


def ensure_docker(state: Path, say: Say) -> None:
    """Returns when `docker info` answers, and what images are made with is there. Raises ClusterError where that cannot be had."""
    answers = succeeds(["docker", "info"])
    if not answers and os.geteuid() != 0:
        raise ClusterError("no Docker engine answers: start one, or run this as root on Debian to have one installed")
    _install(_TOOLS if answers else _ENGINE | _TOOLS, say)
    if answers:
        return
    _configure()
    say("starting a Docker engine")
    log, pid_file = state / "dockerd.log", _pid_file(state)
    pid_file.unlink(missing_ok=True)  # of one that was killed: dockerd would take whoever has its id now for itself
    # Nobody's child: it outlives the run. It writes and removes the file itself.
    detached = ["setsid", "--fork", "dockerd", "--pidfile", str(pid_file)]
    with log.open("w") as file:
        subprocess.run(detached, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=True)  # noqa: S603  # Debian's dockerd, from PATH
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while not succeeds(["docker", "info"]):
        if time.monotonic() > deadline:
            raise ClusterError(f"dockerd did not start; its log is {log}: {log.read_text()[-1000:]}")
        time.sleep(_POLL_SECONDS)


def stop_docker(state: Path, say: Say) -> None:
    """Ends the engine that `ensure_docker` started, if it did and it still runs."""
    file = _pid_file(state)
    if not file.exists():
        return
    pid = int(file.read_text())
    if _is_dockerd(pid):
        say("stopping the Docker engine that was started for this")
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while _is_dockerd(pid) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if _is_dockerd(pid):
            raise ClusterError(f"dockerd ({pid}) does not end")
    file.unlink(missing_ok=True)


def lacks_sys_resource(status: str) -> bool:
    """Whether a process with this /proc/PID/status can never have CAP_SYS_RESOURCE."""
    bounding = next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd:"))
    return not int(bounding, 16) >> _CAP_SYS_RESOURCE & 1


def _pid_file(state: Path) -> Path:
    return state / "dockerd.pid"


def _is_dockerd(pid: int) -> bool:
    try:
        parts = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return parts[0].endswith(b"dockerd") and ") Z " not in stat


def _install(wanted: Mapping[str, str], say: Say) -> None:
    missing = [package for program, package in wanted.items() if shutil.which(program, path=_WHERE) is None]
    if not missing:
        return
    names = ", ".join(missing)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ClusterError(f"missing: {names}. Install them, or run this as root on Debian")
    say(f"installing {names}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], timeout_seconds=300)
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], env=quiet, timeout_seconds=600)


def _configure() -> None:
    if not lacks_sys_resource(Path("/proc/self/status").read_text()):
        return
    shutil.copy(NODE_FILES / RUNC, _WRAPPER)
    _WRAPPER.chmod(0o755)
    if _SETTINGS.exists():
        return
    _SETTINGS.parent.mkdir(exist_ok=True)
    runtime = {"runtimes": {RUNC: {"path": str(_WRAPPER)}}, "default-runtime": RUNC}
    _SETTINGS.write_text(json.dumps(runtime))
