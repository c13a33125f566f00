"""The dense pass in a process of its own, with the C library's memory handling as a PyTorch user has it.

The serving process keeps freed activations (`kernels.cpu.heap`); a dense pass run there gains more from that
than the blocked one. So it is timed both ways, here as it would run without this project.
"""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Self

import msgspec
import torch

from relaygr.bench.cell import random_ranker, random_row
from relaygr.bench.naive import dense_pass
from relaygr.core.errors import BackendError
from relaygr.kernels.select import DTYPES
from relaygr.models.presets import preset


class StockJob(msgspec.Struct, frozen=True, kw_only=True):
    """Which dense pass to run once."""

    preset: str
    dtype: str
    seed: int
    history: int
    candidates: int


class StockProcess:
    """A child that runs dense passes on demand; ends with the `with` block.

    Raises:
        BackendError: the child died; what it wrote to standard error is on the terminal.
    """

    def __init__(self, threads: int) -> None:
        command = [sys.executable, "-m", "relaygr.bench.stock", str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, job: StockJob) -> None:
        """One pass; returns when it is done. The first one of a shape also builds model and mask."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(job) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise BackendError("the dense pass's process ended") from error
        if self._process.stdout.readline() != b"done\n":
            raise BackendError("the dense pass's process ended")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


@torch.inference_mode()
def serve(threads: int) -> None:
    """Read jobs from standard input until it ends; answer each with a line."""
    torch.set_num_threads(threads)
    model, model_key = None, None
    naive, naive_key = None, None
    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=StockJob)
        if model is None or model_key != (job.preset, job.dtype, job.seed):
            model = random_ranker(preset(job.preset), DTYPES[job.dtype], job.seed)
            model_key, naive = (job.preset, job.dtype, job.seed), None
        row = random_row(model.config, job.history, job.candidates, job.seed)
        if naive is None or naive_key != (job.history, job.candidates):
            naive, naive_key = dense_pass(model, job.history, job.candidates), (job.history, job.candidates)
        naive(row)
        sys.stdout.buffer.write(b"done\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
