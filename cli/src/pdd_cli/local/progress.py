"""What long work reports to: a narrow Protocol, so that engines and models know nothing of terminals."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Task(Protocol):
    """One piece of work that is going on."""

    def note(self, text: str) -> None:
        """Replace what is said about the work (one short line)."""


class Progress(Protocol):
    def task(self, title: str) -> AbstractContextManager[Task]:
        """The work lasts as long as the context; leaving it by an exception shows it as failed."""


class Silent:
    """Says nothing: tests and benches."""

    def note(self, text: str) -> None:
        """Nobody listens."""

    @contextmanager
    def task(self, title: str) -> Iterator["Silent"]:
        yield self
