"""Builder and checker of `--kv-transfer-config`, for both sides of a pair from one set of settings.

Must import neither vLLM nor torch: operator, router tests and command line run it where those are not installed.
`python -m pdd_connector.kv_transfer_config --help` is the same thing for a shell.
"""

from pdd_connector.kv_transfer_config.build import PairSettings, Role, build_kv_transfer_config
from pdd_connector.kv_transfer_config.check import check_kv_transfer_config, load_settings
from pdd_connector.kv_transfer_config.facts import EngineFacts, Fabric, Platform
from pdd_connector.kv_transfer_config.pair import check_pair

__all__ = [
    "PairSettings",
    "Role",
    "build_kv_transfer_config",
    "EngineFacts",
    "Fabric",
    "Platform",
    "check_kv_transfer_config",
    "check_pair",
    "load_settings",
]
