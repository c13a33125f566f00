"""An engine alone in a process: what the machine gives where neither HTTP nor a router takes part.

For each line of standard input, a number of seconds, the process prints how many rankings a second it made.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from relaygr.bench.cluster_visit import Asked, drawn
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import BackendError
from relaygr.engine import Engine, RankRequest, UserHistory

_READY = "ready"


class Engines:
    """Some of these processes; idle ones wait and compute nothing."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes
        for one in processes:
            if (said := self._read(one)) != _READY:
                raise BackendError(f"an engine alone did not start: {said}")

    def rps(self, count: int, seconds: float) -> float:
        """Rankings a second of the first `count` at once, together; BackendError if one of them ends."""
        for one in self._processes[:count]:
            assert one.stdin is not None
            one.stdin.write(f"{seconds}\n")
            one.stdin.flush()
        return sum(float(self._read(one)) for one in self._processes[:count])

    def _read(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        if not (said := process.stdout.readline()):
            raise BackendError(f"an engine alone ended with status {process.wait()}")
        return said.strip()


@contextmanager
def engines(count: int, model: Path, config: EngineConfig, asked: Asked) -> Iterator[Engines]:
    """Start `count` of them; BackendError if one does not start."""
    told = [msgspec.json.encode(one).decode() for one in (config, asked)]
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-m", "relaygr.bench.cluster_engine", str(model), *told],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        yield Engines(processes)


def main(model: Path, config: EngineConfig, asked: Asked) -> None:
    """Until standard input ends; every ranking is of a new user, in two laps."""
    engine = Engine.load(model, config)
    numbers = itertools.count()

    def visit() -> None:
        items, times, candidates = drawn(asked, next(numbers))
        history = UserHistory("user", items, times)
        engine.prefetch(history)
        engine.rank(RankRequest(history, candidates))

    visit()
    _say(_READY)
    for line in sys.stdin:
        count, begin_s = 0, time.perf_counter()
        while time.perf_counter() - begin_s < float(line):
            visit()
            count += 1
        _say(str(count / (time.perf_counter() - begin_s)))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        msgspec.json.decode(sys.argv[2], type=EngineConfig),
        msgspec.json.decode(sys.argv[3], type=Asked),
    )
