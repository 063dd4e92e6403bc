"""JSON lines on standard output, from structlog and from the libraries' loggers alike.

Keys: namespace, name, uid, generation. Never manifests, Secrets, tokens or headers. One line per change of state, none per poll.
"""

from __future__ import annotations

import logging
import sys

import structlog

from pdd_operator.api.v1alpha1 import LogLevel

_LIBRARIES = ("kopf", "kubernetes", "urllib3", "aiohttp", "asyncio")
_QUIET = logging.WARNING


def set_up(level: LogLevel) -> None:
    """Once, before anything logs. Libraries say warnings and worse only, unless ``level`` is debug."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    number = logging.getLevelNamesMapping()[level.value.upper()]
    root.setLevel(number)
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # warns that it leaves signals to us
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(number if level is LogLevel.DEBUG else max(number, _QUIET))
