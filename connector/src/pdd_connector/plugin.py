"""Entry point `vllm.general_plugins`: runs once in every process of every vLLM in this environment.

Most of those never use our connector, so it must be cheap, must not fail and must change nothing that they would
notice. In a vLLM that is none of ours it says so and does nothing; the connector itself then refuses to be constructed.
"""

import logging
from typing import Final

from pdd_connector import streaming
from pdd_connector.version import check_versions, installed_nixl, installed_vllm, streams_need_wrapping

_logger: Final = logging.getLogger(__name__)


def register() -> None:
    """Install what the API server needs; safe to call again."""
    vllm = installed_vllm()
    problem = check_versions(vllm, installed_nixl())
    if problem is not None or vllm is None:
        _logger.error("%s; an engine without PddConnector is not affected", problem)
        return
    if streams_need_wrapping(vllm):
        streaming.install()
