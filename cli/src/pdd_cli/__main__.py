"""Entry point of the `pdd` command: turns what went wrong into one line and an exit code."""

import sys
from contextlib import suppress

from rich.markup import escape
from typer.exceptions import TyperException

from pdd_cli import streams
from pdd_cli.app import app
from pdd_cli.console import SafeConsole
from pdd_cli.errors import CliError
from pdd_cli.interrupts import InterruptedBySignalError

_INTERRUPTED = 130
_FAILED = 1


def main() -> int:
    """Exit codes: 0 fine, 1 output cannot be written, 2 bad command line, 130 interrupted, others in `pdd_cli.errors`."""
    streams.prepare()
    try:
        return _run()
    except BrokenPipeError:
        return _FAILED  # whoever read it, as `head`, has enough
    except OSError as problem:
        _say(_described(problem))
        return _FAILED
    finally:
        streams.settle()


def _run() -> int:
    try:
        result = app(prog_name="pdd", standalone_mode=False)
        streams.flush()
    except (CliError, TyperException) as problem:
        message = problem.format_message() if isinstance(problem, TyperException) else str(problem)
        if message:  # `pdd` alone shows its help and has nothing more to say
            _say(message)
        return problem.exit_code
    except InterruptedBySignalError as interruption:
        return interruption.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return result if isinstance(result, int) else 0


def _say(message: str) -> None:
    with suppress(OSError):  # standard error may be full too
        SafeConsole(stderr=True).print(f"[bold red]pdd:[/] {escape(message)}", highlight=False, soft_wrap=True)


def _described(problem: OSError) -> str:
    """Most likely of standard output, which has no name."""
    where = f"{problem.filename}: " if problem.filename else "output cannot be written: "
    return f"{where}{problem.strerror or problem}"


if __name__ == "__main__":
    sys.exit(main())
