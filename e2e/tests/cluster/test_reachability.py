"""Connections are judged by what becomes of them. The programs that run in pods run here instead."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.kind_suite.reachability import LISTENER_PORTS, Reach, Spot, listening, probe_pod, reached, reached_from

HERE = Spot("here", "this", "127.0.0.1")


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    """Its `exec` runs this Python, wherever it is asked to run one."""
    program = tmp_path / "kubectl"
    program.write_text(f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return Kubectl(program, tmp_path / "config", "kind-x")


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return port_of(listener)


def test_a_connection_is_open_or_refused(kubectl: Kubectl, server: socket.socket) -> None:
    there, nothing = HERE.ports([port_of(server), closed_port()])
    verdicts = {there: Reach.OPEN, nothing: Reach.REFUSED}
    assert reached(kubectl, HERE, [there, nothing]) == verdicts
    assert reached_from(kubectl, {"a": HERE, "b": HERE}, [there, nothing]) == {"a": verdicts, "b": verdicts}


def test_a_connection_that_nobody_answers_is_dropped(kubectl: Kubectl, server: socket.socket) -> None:
    """A full backlog answers nobody, as a policy does."""
    server.listen(0)
    with socket.socket() as first, socket.socket() as second:
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        target = HERE.port(port_of(server))
        assert reached(kubectl, HERE, [target]) == {target: Reach.DROPPED}


def test_what_only_the_pod_itself_reaches_is_no_port_of_it(kubectl: Kubectl, server: socket.socket) -> None:
    assert port_of(server) not in listening(kubectl, HERE)


def test_a_probe_is_never_ready_and_keeps_to_the_restricted_profile() -> None:
    spec = probe_pod("p", "image", {"a": "b"})["spec"]
    assert spec["readinessGates"] == [{"conditionType": "pdserve.io/never"}]
    assert spec["containers"][0]["command"][-2:] == [str(port) for port in LISTENER_PORTS]
    assert spec["securityContext"]["runAsNonRoot"] is True
