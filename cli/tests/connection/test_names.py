"""What becomes part of a URL is a name, or the command line is refused before anybody is asked."""

from collections.abc import Callable
from pathlib import Path

import pytest
from api_servers import answering, kubeconfig
from ran import Done
from rendering import ROOT

from pdd_cli.errors import InvalidUsageError
from pdd_cli.names import check_name, check_namespace

Pdd = Callable[..., Done]
RENDER = ("render", "-f", str(ROOT / "docs" / "samples" / "cpu-sockets.yaml"))
NO_NAMES = ("q/r", "x?a=b", "..", "A", "-a", "a-", "a b", "a%2fb", "ä", "a\n")


@pytest.mark.parametrize("name", ["", "a..b", "a." * 127, *NO_NAMES])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(InvalidUsageError, match="NAME must be a DNS name"):
        check_name(name)


@pytest.mark.parametrize("namespace", ["", "a.b", "a" * 64, *NO_NAMES])
def test_what_is_no_namespace(namespace: str) -> None:
    with pytest.raises(InvalidUsageError, match="--namespace must be a DNS label"):
        check_namespace(namespace)


def test_names() -> None:
    check_name("glm-5.1")
    check_namespace("a" * 63)
    check_namespace(None)


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", ""),
        ("status", "x?a=b"),
        ("status", "one", "-n", "q/r"),
        ("status", "one", "-n", ""),
        ("doctor", "-n", "q/r"),
        (*RENDER, "-n", "q/r"),
    ],
)
def test_commands_refuse_them_and_ask_nobody(pdd: Pdd, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with answering(b"{}") as server:
        given = () if arguments[0] == "render" else ("--kubeconfig", str(kubeconfig(tmp_path, server.url)))
        done = pdd(*arguments, *given)
    assert (done.code, done.out) == (2, "")
    assert "must be a DNS" in done.err
    assert not server.authorizations


def test_a_namespace_of_a_context_too(pdd: Pdd, tmp_path: Path) -> None:
    with answering(b"{}") as server:
        done = pdd("status", "one", "--kubeconfig", str(kubeconfig(tmp_path, server.url, namespace="q/r")))
    assert done.code == 1
    assert "'q/r', which is none" in done.err
    assert not server.authorizations
