"""Logs: JSON lines, and nothing that a library quotes."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from pdd_router.logs import configure_logs, frames_of


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("restored")
def test_what_libraries_say_is_withheld(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info")
    try:
        raise ValueError("canary in an exception")
    except ValueError:
        logging.getLogger("aiohttp.server").exception("Error handling %s", "canary in an argument")
    structlog.get_logger().info("Said something", number=1)
    structlog.get_logger().debug("Not said at this level")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["Library message withheld", "Said something"]
    assert lines[0]["exception"] == "ValueError"
    assert "canary" not in str(lines)


def test_frames_say_where_and_not_what() -> None:
    try:
        raise ValueError("canary")
    except ValueError as error:
        frames = frames_of(error)
    assert "test_frames_say_where_and_not_what" in frames[0]
    assert "canary" not in str(frames)
