"""Tokens and passwords reach the API server, and nobody's terminal."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from api_servers import answering, kubeconfig
from ran import Done

Pdd = Callable[..., Done]
COMMANDS = pytest.mark.parametrize("command", [("status", "one"), ("doctor",)])


@COMMANDS
def test_a_file_with_a_token_may_end_in_a_newline(pdd: Pdd, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "token").write_text("secret\n")
    with answering(b"404 page not found\n", 404) as server:
        config = kubeconfig(tmp_path, server.url, {"tokenFile": str(tmp_path / "token")})
        done = pdd(*command, "--kubeconfig", str(config))
    assert server.authorizations
    assert set(server.authorizations) == {"Bearer secret"}
    assert "secret" not in done.out + done.err


@COMMANDS
def test_a_token_that_no_header_may_hold_is_not_shown(pdd: Pdd, tmp_path: Path, command: tuple[str, ...]) -> None:
    with answering(b"{}") as server:
        done = pdd(*command, "--kubeconfig", str(kubeconfig(tmp_path, server.url, {"token": "sec→ret"})))
    assert done.code == 1
    assert "UnicodeEncodeError" in done.err
    assert "u2192" not in done.err


@COMMANDS
def test_userinfo_of_a_server_is_not_shown(pdd: Pdd, tmp_path: Path, command: tuple[str, ...]) -> None:
    done = pdd(*command, "--kubeconfig", str(kubeconfig(tmp_path, "http://me:secret@127.0.0.1:9")))
    assert done.code == 1
    assert "http://127.0.0.1:9 does not answer" in done.err
    assert "secret" not in done.err


def test_an_entry_of_an_odd_shape_is_not_shown(pdd: Pdd, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "http://127.0.0.1:9")
    content = yaml.safe_load(path.read_text())
    content["users"] = [{"name": "u", "token": "secret"}]
    path.write_text(yaml.safe_dump(content))
    done = pdd("status", "one", "--kubeconfig", str(path))
    assert done.code == 1
    assert "Expected key user in" in done.err
    assert "secret" not in done.err
