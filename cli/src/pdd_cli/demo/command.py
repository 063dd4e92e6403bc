"""`pdd demo` from its options to its end: a thin shell around `demonstration`."""

from pdd_cli.console import SafeConsole
from pdd_cli.demo.demonstration import Demonstration
from pdd_cli.demo.options import DemoOptions
from pdd_cli.interrupts import InterruptedBySignalError, run_interruptible


def run(options: DemoOptions) -> None:
    """Raises CliError if it cannot be shown or a promise does not hold, InterruptedBySignalError if a signal cut it short."""
    console = SafeConsole()
    demonstration = Demonstration(options, console)

    def say_stopping() -> None:
        console.print("\n[yellow]Stopping everything that was started ...[/]")

    try:
        run_interruptible(demonstration.run(), say_stopping)
    except InterruptedBySignalError:
        if not demonstration.shown:
            raise
    demonstration.judge()
