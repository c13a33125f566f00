"""What one check compared and counted, and how far apart two ways of serving a request may be."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from relaygr.engine.requests import Path, PrefetchResult

Floats = npt.NDArray[np.floating]

FP32_TOLERANCE = 1e-5
"""Any two ways in fp32, and fp32 against the dense kernel in fp64, times max(1, largest |logit|)."""

BF16_PATH_TOLERANCE = 2.0**-6
"""Two ways of serving one request in bf16, times max(1, largest |logit|).

The head rounds logits to bf16, where one step is up to 2^-7 of the value; another order of summation may
move a logit by a step. Measured: at most one step, 0.0065 of the scale, and mostly none, over hstu-tiny
trained and random and hstu-small random, up to 4,055 events and logits of 15. Two steps are allowed.
"""

BF16_REFERENCE_TOLERANCE = 6e-2
"""bf16 against the dense formula in float64, times max(1, largest |logit|).

Measured on the same models: at most 0.018 of the scale. About three times that is allowed, because the
error grows with layers and width.
"""

TOP = 10
_KEPT_PROBLEMS = 5


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the verdict.

    Attributes:
        comparisons: requests whose scores were compared.
        largest: largest difference of a logit.
        tolerance: what was allowed at the request with the largest share of it used.
        used: the largest share of its tolerance that a request used; above 1 the check fails.
        reused, computed: history tokens taken from the cache and computed in this check's calls.
        same_order, same_top: requests with exactly the same ranking, and with the same ten best items.
        problems: the first few differences and wrong counters, as text; `problem_count` counts all.
        note: what this check could not do, or what it saw besides.
    """

    name: str
    title: str
    comparisons: int
    largest: float
    tolerance: float
    used: float
    reused: int
    computed: int
    same_order: int
    same_top: int
    problem_count: int
    problems: tuple[str, ...]
    note: str

    @property
    def ok(self) -> bool:
        return self.problem_count == 0


@dataclass(slots=True)
class Tally:
    """Collects one check.

    `factor` times max(1, largest |logit| of the request) is the tolerance; 0 asks for equal bits.
    """

    name: str
    title: str
    factor: float
    comparisons: int = 0
    largest: float = 0.0
    tolerance: float = 0.0
    used: float = 0.0
    reused: int = 0
    computed: int = 0
    same_order: int = 0
    same_top: int = 0
    problem_count: int = 0
    problems: list[str] = field(default_factory=list)
    note: str = ""

    def fail(self, problem: str) -> None:
        self.problem_count += 1
        if len(self.problems) < _KEPT_PROBLEMS:
            self.problems.append(problem)

    def compare(self, who: str, wanted: Floats, got: Floats) -> None:
        """Logits [m, tasks] of one request, served in two ways."""
        self.comparisons += 1
        tolerance = self.factor * max(1.0, float(np.abs(wanted).max(initial=0.0)))
        difference = float(np.abs(wanted.astype(np.float64) - got).max(initial=0.0))
        self.largest = max(self.largest, difference)
        used = difference / tolerance if tolerance else float(difference > 0)
        if used >= self.used:
            self.used, self.tolerance = used, tolerance
        if not difference <= tolerance:
            self.fail(f"{who}: scores differ by {difference:.3g}, tolerance {tolerance:.3g}")
        before, after = ranking(wanted), ranking(got)
        self.same_order += bool(np.array_equal(before, after))
        self.same_top += set(before[:TOP].tolist()) == set(after[:TOP].tolist())

    def served(self, who: str, served: PrefetchResult, cached: int, computed: int) -> None:
        """Check that exactly `cached` tokens came from the cache and `computed` ran through the model."""
        self.reused += served.tokens_cached
        self.computed += served.tokens_computed
        path = Path.FULL if not cached else Path.RESUMED if computed else Path.HIT
        got = (served.path, served.tokens_cached, served.tokens_computed)
        if got != (path, cached, computed):
            self.fail(
                f"{who}: served {got[0]} with {got[1]} tokens reused and {got[2]} computed, "
                f"expected {path} with {cached} and {computed}"
            )

    def result(self) -> CheckResult:
        return CheckResult(
            name=self.name,
            title=self.title,
            comparisons=self.comparisons,
            largest=self.largest,
            tolerance=self.tolerance or self.factor,
            used=self.used,
            reused=self.reused,
            computed=self.computed,
            same_order=self.same_order,
            same_top=self.same_top,
            problem_count=self.problem_count,
            problems=tuple(self.problems),
            note=self.note,
        )


def ranking(logits: Floats) -> npt.NDArray[np.int64]:
    """Candidate positions by the first task, best first; equal scores keep request order."""
    return np.argsort(-logits[:, 0], kind="stable")
