"""Command line of the builder and checker: prints one side's JSON, or what is wrong with a pair."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pdd_connector.kv_transfer_config import (
    PairSettings,
    Platform,
    Role,
    build_kv_transfer_config,
    check_kv_transfer_config,
    check_pair,
)
from pdd_connector.settings import SettingsError, parse_settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pdd_connector.kv_transfer_config",
        description="Build the value of vLLM's --kv-transfer-config for one side, or check it for a pair.",
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--role", choices=["prefill", "decode"], help="print the configuration of this side as JSON")
    action.add_argument(
        "--check",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="check the configuration of one side, or of prefill and decode; exits with 1 if anything is wrong",
    )
    parser.add_argument(
        "--settings", type=Path, metavar="FILE", help="JSON with the connector's settings (default: every default)"
    )
    parser.add_argument("--platform", choices=[item.value for item in Platform], default=Platform.CUDA.value)
    parser.add_argument("--claim-port", type=int, metavar="PORT", help="claim channel of this side, if not both's")
    parser.add_argument(
        "--router-ttl-seconds", type=float, metavar="S", help="how long the router remembers a handle (with --check)"
    )
    return parser


def _read_object(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return value


def _check(paths: list[Path], router_ttl_seconds: float | None) -> int:
    configs = [_read_object(path) for path in paths]
    if len(configs) == 1:
        problems = check_kv_transfer_config(configs[0])
    elif len(configs) == 2:
        problems = check_pair(configs[0], configs[1], router_ttl_seconds=router_ttl_seconds)
    else:
        raise ValueError("--check takes one file, or prefill's and decode's")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _build(arguments: argparse.Namespace) -> int:
    own = _read_object(arguments.settings) if arguments.settings else {}
    pair = PairSettings(settings=parse_settings(own), platform=Platform(arguments.platform))
    role = Role(arguments.role.capitalize())
    config = build_kv_transfer_config(pair, role, claim_port=arguments.claim_port)
    problems = check_kv_transfer_config(config)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    print(json.dumps(config, indent=2))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0 fine, 1 refused, 2 unusable input."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.check:
            return _check(arguments.check, arguments.router_ttl_seconds)
        return _build(arguments)
    except SettingsError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
