"""Structured logs: one JSON object a line on standard error. Nothing a client sent, no key and no salt may be a value."""

from __future__ import annotations

import logging
import sys
import traceback

import structlog

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure_logs(level: str) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(sort_keys=True),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # Libraries' own loggers quote what they choke on (aiohttp: request lines and headers), so only their names come through.
    logging.basicConfig(handlers=[_NamesOnly()], level=logging.WARNING, force=True)


class _NamesOnly(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0] if record.exc_info else None
        structlog.get_logger(record.name).warning(
            "Library message withheld", level_name=record.levelname, exception=kind.__name__ if kind else None
        )


def frames_of(error: BaseException) -> list[str]:
    """Where an unexpected error came from, without its message: that may quote a prompt."""
    return [f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
