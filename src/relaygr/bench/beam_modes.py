"""`bench beam-modes`: attention of many beams on one prompt in every mode, and what `auto` makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch

from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.core.errors import ConfigError
from relaygr.kernels.beam_modes import BeamShape, ModeCell
from relaygr.kernels.beam_select import choose_beams, time_modes
from relaygr.kernels.beams import Mode
from relaygr.kernels.select import DTYPES
from relaygr.kernels.threads import serve_with_threads

# Beams x prompt tokens up to which every beam gets its copy of the prompt: 2 GiB a layer at 8 heads of 128.
REPLICATE_PAIRS = 1 << 20


@dataclass(frozen=True, slots=True)
class BeamsSpec:
    """What to measure.

    Attributes:
        heads, kv_heads, dim: of one layer.
        depth: slots a beam owns, its own among them.
        widths, prompts: W and P of the grid.
        rounds: runs of each mode, which take turns; the best counts.
        threads: 0 leaves one core free, as a server does.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    heads: int = 4
    kv_heads: int = 2
    dim: int = 64
    dtype: str = "bf16"
    depth: int = 2
    widths: tuple[int, ...] = (50, 128, 256, 512, 1000)
    prompts: tuple[int, ...] = (64, 256, 300, 512, 1024, 2465, 4096, 5000)
    rounds: int = 7
    threads: int = 0

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "dim", "depth", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')}", f"{getattr(self, name)} must be at least 1")
        if self.heads % self.kv_heads:
            raise ConfigError("--heads", f"{self.heads} must be a multiple of --kv-heads, {self.kv_heads}")
        if self.dtype not in DTYPES:
            raise ConfigError("--dtype", f"{self.dtype!r} is not one of {', '.join(DTYPES)}")
        for option, sizes in (("--widths", self.widths), ("--prompts", self.prompts)):
            if not sizes or min(sizes) < 1:
                raise ConfigError(option, f"{sizes} must be numbers of at least 1")


class BeamsCell(msgspec.Struct, frozen=True, kw_only=True):
    """One (W, P): milliseconds of a layer's step.

    Attributes:
        auto: the mode that the table measured at start gives here.
        replicate_ms: None where the copies would be too large to measure.
        gflop: of the two products, 4 W Hq d (P + t).
    """

    width: int
    prompt_tokens: int
    split_ms: float
    joint_ms: float
    replicate_ms: float | None
    auto: str
    gflop: float

    @property
    def auto_ms(self) -> float:
        return self.joint_ms if self.auto == "joint" else self.split_ms

    @property
    def auto_over_best(self) -> float:
        return self.auto_ms / min(self.joint_ms, self.split_ms)

    @property
    def sharing_gain(self) -> float | None:
        """Times faster than with a copy of the prompt for every beam."""
        return None if self.replicate_ms is None else self.replicate_ms / self.auto_ms


class BeamsReport(msgspec.Struct, frozen=True, kw_only=True):
    """All cells, and the table that `auto` goes by with the reason of its route."""

    shape: BeamShape
    reason: str
    measured: tuple[ModeCell, ...]
    cells: tuple[BeamsCell, ...]
    rounds: int
    cores: int
    cpu: str
    torch: str

    @property
    def worst_auto(self) -> BeamsCell:
        """Where the automatic choice loses most."""
        return max(self.cells, key=lambda c: c.auto_over_best)

    def growth(self, width: int) -> tuple[float, float]:
        """(time ratio, FLOP ratio) of the longest prompt to the shortest, at one width."""
        row = sorted((c for c in self.cells if c.width == width), key=lambda c: c.prompt_tokens)
        return row[-1].auto_ms / row[0].auto_ms, row[-1].gflop / row[0].gflop


def bench_beams(spec: BeamsSpec, tell: Callable[[str], None]) -> BeamsReport:
    """Measure the table as a server does at start, then every cell of the grid."""
    threads = serve_with_threads(spec.threads)
    dtype = DTYPES[spec.dtype]
    tell("measuring the table")
    choice = choose_beams(spec.heads, spec.kv_heads, spec.dim, dtype, depth=spec.depth)
    assert choice.table is not None
    shape = BeamShape(
        spec.heads, spec.kv_heads, spec.dim, spec.depth, str(dtype).removeprefix("torch."), threads
    )
    cells = []
    for width in spec.widths:
        for tokens in spec.prompts:
            tell(f"W {width}, P {tokens}")
            modes: tuple[Mode, ...] = ("split", "joint")
            split, joint = time_modes(choice.kernel, shape, dtype, width, tokens, modes, spec.rounds)
            replicate = None
            if width * tokens <= REPLICATE_PAIRS:
                runs = min(spec.rounds, 3)
                (replicate,) = time_modes(choice.kernel, shape, dtype, width, tokens, ("replicate",), runs)
            flop = 4 * width * spec.heads * spec.dim * (tokens + spec.depth)
            cells.append(
                BeamsCell(
                    width=width,
                    prompt_tokens=tokens,
                    split_ms=split,
                    joint_ms=joint,
                    replicate_ms=replicate,
                    auto=choice.table.decide(width, tokens),
                    gflop=flop / 1e9,
                )
            )
    return BeamsReport(
        shape=shape,
        reason=choice.reason,
        measured=choice.table.cells,
        cells=tuple(cells),
        rounds=spec.rounds,
        cores=usable_cores(),
        cpu=cpu_model(),
        torch=str(torch.__version__),
    )
