"""Progress of a command that works in named steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Steps:
    """One progress bar per step, on standard error; `show` takes the share done, 0 to 1."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, TextColumn("{task.fields[shown]}"), console=Console(stderr=True))
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Steps:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, step: str, done: float, words: str) -> None:
        if step not in self._tasks:
            self._tasks[step] = self._bar.add_task(escape(step), total=1.0, shown="")
        self._bar.update(self._tasks[step], completed=done, shown=escape(words))


@contextmanager
def telling(first: str) -> Iterator[Callable[[str], None]]:
    """Say on standard error what is being done: in a line that changes, or in a file in a line each."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    with console.status(first) as status:
        yield lambda text: status.update(escape(text))
