"""The plugin in real processes: found by vLLM, cheap, harmless, and gone where the version is not ours."""

import logging
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from pdd_connector import plugin, streaming, version

SERVING_MODULES = [stream[0] for stream in streaming.STREAMS]


def _run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_vllm_finds_the_entry_point() -> None:
    (entry,) = [point for point in entry_points(group="vllm.general_plugins") if point.name == "pdd_connector"]
    assert entry.load() is plugin.register


def test_registering_imports_nothing_of_vllm() -> None:
    out = _run(
        "import sys; from pdd_connector.plugin import register; register(); register();"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('vllm', 'torch')))"
    )
    assert out.strip() == "[]"


@pytest.mark.timeout(120)
def test_streams_are_wrapped_once_when_vllm_imports_them() -> None:
    out = _run(
        "import importlib\n"
        "from pdd_connector.plugin import register\n"
        "from pdd_connector.streaming import STREAMS\n"
        "register(); register()\n"
        "for module, owner, method, _ in STREAMS:\n"
        "    found = getattr(getattr(importlib.import_module(module), owner), method)\n"
        "    assert not hasattr(found.__wrapped__, '__wrapped__')\n"
        "    register()\n"
        "    assert getattr(getattr(importlib.import_module(module), owner), method) is found\n"
        "    print('wrapped', found.__name__)\n"
    )
    assert [line for line in out.splitlines() if line.startswith("wrapped")] == [
        "wrapped chat_completion_stream_generator",
        "wrapped completion_stream_generator",
    ]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(streaming, "install", lambda: calls.append("streaming"))
    return calls


def test_0_33_streams_are_left_alone(installed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.register()
    assert installed == ["streaming"]  # the control: 0.32, which is installed, needs it
    monkeypatch.setattr(plugin, "installed_vllm", lambda: "0.33.0")
    plugin.register()
    assert installed == ["streaming"]


def test_another_vllm_starts_all_the_same_and_is_told(
    installed: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "installed_vllm", lambda: "0.34.0")
    with caplog.at_level(logging.ERROR):
        plugin.register()
    assert installed == []
    assert f"vLLM must be {version.SUPPORTED_VLLM}, found 0.34.0" in caplog.text
