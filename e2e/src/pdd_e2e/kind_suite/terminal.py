"""A user's terminal: the commands of the documentation and of Helm's notes, in bash, with helm, kubectl and pdd on its PATH.

What it finds in KUBECONFIG is one cluster and one context, so that no command without `--context` can mean another.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.product_images import ROOT

INSTALL_GUIDE = ROOT / "docs" / "install.md"
_COMMAND_SECONDS = 200.0
_LOOK_SECONDS = 0.3
_CTRL_C_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Terminal:
    """`home` keeps its kubeconfig and what its commands write; commands run in `folder`, the checkout's own."""

    home: Path
    path: str
    folder: Path = ROOT

    def __call__(self, command: str, *, timeout_seconds: float = _COMMAND_SECONDS) -> str:
        """What it prints. Raises ClusterError if a line of it fails, or it is late."""
        done = self.run(command, timeout_seconds=timeout_seconds)
        if done.returncode != 0:
            raise ClusterError(f"{command}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def run(self, command: str, *, timeout_seconds: float = _COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
        """However it ends. Raises ClusterError if it does not in time."""
        try:
            return subprocess.run(  # noqa: S603  # what documentation says, on a cluster that is made for it
                _bash(command),
                env=self._env,
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=timeout_seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"{command} took more than {timeout_seconds:.0f} s") from error

    @contextmanager
    def running(self, command: str) -> Iterator["Running"]:
        """While the block runs, one command that does not end by itself; Ctrl-C ends it."""
        output = self.home / f"{time.monotonic_ns()}.txt"
        with (
            output.open("w") as file,
            subprocess.Popen(  # noqa: S603  # as above
                _bash(f"exec {command}"), env=self._env, cwd=self.folder, stdout=file, stderr=file
            ) as process,
        ):
            try:
                yield Running(command, process, output)
            finally:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):  # started in the background, it may not mind Ctrl-C
                    process.wait(_CTRL_C_SECONDS)
                process.kill()

    @property
    def _env(self) -> dict[str, str]:
        return {"PATH": self.path, "HOME": str(self.home), "KUBECONFIG": str(self.home / "kubeconfig")}


@dataclass(frozen=True, slots=True)
class Running:
    """A command that runs, and what it has printed."""

    command: str
    process: "subprocess.Popen[bytes]"
    output: Path

    @property
    def said(self) -> str:
        """Until now, on both streams."""
        return self.output.read_text()

    def wait_for(self, pattern: str, *, timeout_seconds: float) -> None:
        """Until what it says matches, however its lines are wrapped. Raises ClusterError with all of it if that is late, or it ends."""
        deadline = time.monotonic() + timeout_seconds
        while not re.search(pattern, " ".join(self.said.split())):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise ClusterError(f"{self.command} did not say {pattern!r} in {timeout_seconds:.0f} s:\n{self.said}")
            time.sleep(_LOOK_SECONDS)


def open_terminal(kubectl: Kubectl, helm: Path, home: Path) -> Terminal:
    """Raises ClusterError."""
    config = kubectl("config", "view", "--minify", "--flatten", "--raw")
    kubeconfig = home / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(config)
    folders = (Path(sys.executable).parent, helm.parent, kubectl.program.parent)
    return Terminal(home, os.pathsep.join([*map(str, folders), os.defpath]))


def guide_blocks(heading: str, *, language: str = "sh", guide: Path = INSTALL_GUIDE) -> list[str]:
    """Code blocks in one language of the section `heading` of a document. Raises ClusterError if there is no such section."""
    section = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", guide.read_text(), re.MULTILINE | re.DOTALL)
    if section is None:
        raise ClusterError(f"{guide} has no section {heading!r}")
    return re.findall(rf"^```{language}\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL)


def indented_commands(notes: str) -> list[str]:
    """Commands of Helm's notes: lines that begin with three spaces and the name of a program."""
    return re.findall(r"^ {3}((?:kubectl|helm|pdd) .*)$", notes, re.MULTILINE)


def _bash(command: str) -> list[str]:
    return ["/bin/bash", "-euo", "pipefail", "-c", command]
