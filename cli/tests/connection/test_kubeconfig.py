"""Kubeconfigs that are none: one line that says what is wrong with which file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from api_servers import kubeconfig
from ran import Done

Pdd = Callable[..., Done]


def refused(pdd: Pdd, path: Path) -> str:
    done = pdd("status", "one", "--kubeconfig", str(path))
    assert (done.code, done.out) == (1, "")
    assert len(done.err.strip().splitlines()) == 1
    return done.err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "must be a kubeconfig: a mapping"),
        (b"[]", "must be a kubeconfig: a mapping"),
        (b"just words", "must be a kubeconfig: a mapping"),
        (b"{}\n---\n{}", "must be a kubeconfig: a mapping"),
        (b"a: b\nc: [", "must be YAML: line 2"),
        (b"a: &a {b: *a}", "must be YAML: line 1"),
        (b"a: " + b"[" * 5000, "must be YAML: line 1"),
        (b"a: !!timestamp abc", "`abc` must be of type timestamp"),
        (b"1: a", "a key must be a string"),
        (b"a: b\nc: \xe9", "line 2 is not UTF-8"),
        (b"{}", "Expected key current-context"),
        (b"contexts: 5", "something in it has an odd shape (TypeError)"),
    ],
)
def test_what_is_no_kubeconfig(pdd: Pdd, tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)
    assert says in refused(pdd, path)


def test_a_file_that_is_not_there(pdd: Pdd, tmp_path: Path) -> None:
    path = tmp_path / "nowhere"
    assert f"{path}: file does not exist" in refused(pdd, path)


def test_one_of_several_may_be_absent(pdd: Pdd, tmp_path: Path) -> None:
    both = f"{tmp_path / 'nowhere'}:{kubeconfig(tmp_path, 'http://127.0.0.1:9')}"
    assert "http://127.0.0.1:9 does not answer" in pdd("status", "one", "--kubeconfig", both).err


def test_a_pipe_is_read_once(pdd: Pdd, tmp_path: Path) -> None:
    """As `--kubeconfig <(...)` gives one."""
    content = kubeconfig(tmp_path, "http://127.0.0.1:9").read_bytes()
    reader, writer = os.pipe()
    try:
        os.write(writer, content)
        os.close(writer)
        assert "http://127.0.0.1:9 does not answer" in pdd("status", "one", "--kubeconfig", f"/dev/fd/{reader}").err
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({"client-certificate-data": "!"}, {"server": "https://127.0.0.1:9"}),
        ({}, {"server": 5}),
        ({}, {"server": "https://127.0.0.1:9", "certificate-authority-data": "a"}),
        ({"token": 5}, {"server": "https://127.0.0.1:9", "tls-server-name": []}),
        ({"exec": []}, {"server": "https://127.0.0.1:9"}),
        ({}, {"server": "not a url"}),
        ({}, {"server": "http://127.0.0.1:port"}),
    ],
)
def test_parts_of_an_odd_shape(pdd: Pdd, tmp_path: Path, user: object, cluster: object) -> None:
    path = kubeconfig(tmp_path, "http://127.0.0.1:9")
    content = yaml.safe_load(path.read_text())
    content["users"][0]["user"], content["clusters"][0]["cluster"] = user, cluster
    path.write_text(yaml.safe_dump(content))
    assert "pdd: " in refused(pdd, path)
