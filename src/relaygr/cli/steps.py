"""Progress bars of a command that works in named steps."""

from __future__ import annotations

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
