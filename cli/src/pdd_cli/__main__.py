"""Entry point of the `pdd` command: turns what went wrong into one line and an exit code."""

import sys

from rich.markup import escape
from typer.exceptions import TyperException

from pdd_cli.app import app
from pdd_cli.console import SafeConsole
from pdd_cli.errors import CliError
from pdd_cli.interrupts import InterruptedBySignalError

_INTERRUPTED = 130


def main() -> int:
    """Exit codes: 0 fine, 2 bad command line, 130 interrupted, others in `pdd_cli.errors`."""
    console = SafeConsole(stderr=True)
    try:
        result = app(prog_name="pdd", standalone_mode=False)
    except (CliError, TyperException) as problem:
        message = problem.format_message() if isinstance(problem, TyperException) else str(problem)
        if message:  # `pdd` alone shows its help and has nothing more to say
            console.print(f"[bold red]pdd:[/] {escape(message)}", highlight=False, soft_wrap=True)
        return problem.exit_code
    except InterruptedBySignalError as interruption:
        return interruption.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
