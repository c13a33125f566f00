"""Verify on a user's own checkpoint and events that no way of serving a request changes its scores."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch

from relaygr.bench.verify_checks import Checks, Engines
from relaygr.bench.verify_probe import Full
from relaygr.bench.verify_sample import sample_cases
from relaygr.bench.verify_tally import CheckResult
from relaygr.config.settings import EngineConfig, TrainConfig
from relaygr.core.units import GIB, MIB
from relaygr.data.dataset import Events
from relaygr.engine.engine import Engine
from relaygr.kernels.select import choose
from relaygr.memory.layout import KvLayout
from relaygr.models.presets import AnyConfig
from relaygr.models.weights import open_ranker

MICROBATCH = 7
GROUP_USERS = 8
# What the score matrix of one head takes in float64; the dense formula holds a few of them.
_DENSE_BYTES = 128 * MIB
_MAX_POOL_BYTES = 4 * GIB

Observe = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What to check.

    Attributes:
        users: how many, half of them the longest.
        candidates: of each request.
        max_history: events used before each cut; 0 uses all, of which the model sees its window.
        threads: of the matrix products; 0 leaves torch's number.
        bitwise: serve with fixed row tiles, and accept equal bits only.
    """

    users: int = 32
    candidates: int = 64
    dtype: Literal["fp32", "bf16", "auto"] = "fp32"
    seed: int = 0
    max_history: int = 0
    threads: int = 1
    bitwise: bool = False


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict.

    Attributes:
        fingerprint: of the weights, hexadecimal.
        kernel: back-end and why it was chosen.
        cacheable: how far this model's prefixes may be reused; unless `append`, nothing may be reused.
        cases: requests checked, each in every way.
        longest, median: history tokens of a case.
        largest_logit: largest |logit| of a full pass.
        dense_rounding: largest difference of the dense formula between float32 and float64.
        edit_effect: largest change of a logit that the edits of check `edited` cause.
    """

    model: str
    fingerprint: str
    events: str
    dtype: str
    kernel: str
    cacheable: str
    users: int
    cases: int
    candidates: int
    longest: int
    median: float
    seed: int
    threads: int
    bitwise: bool
    largest_logit: float
    dense_rounding: float
    edit_effect: float
    seconds: float
    checks: tuple[CheckResult, ...]
    ok: bool


def verify(
    model: Path, events: Events, options: VerifyOptions, observe: Observe | None = None
) -> VerifyReport:
    """Run every check on a sample of real users.

    Args:
        observe: called with a step's name, how much of it is done and its size.

    Raises:
        ConfigError: the model, the events or an option is wrong.
    """
    EngineConfig.LIMITS["threads"].check("threads", options.threads)
    TrainConfig.LIMITS["seed"].check("seed", options.seed)
    begun = time.monotonic()
    tell = observe or _ignore
    if options.threads:
        torch.set_num_threads(options.threads)
    engines = _engines(model, options)
    config = engines.main.model_config
    cases = sample_cases(events, config, options.users, options.candidates, options.seed, options.max_history)
    checks = Checks(engines)
    fulls: list[Full] = []
    for done, case in enumerate(cases):
        tell("one request at a time", done, len(cases))
        fulls.append(checks.full(case))
        checks.case(fulls[-1])
    groups = _groups(fulls)
    for done, group in enumerate(groups):
        tell("in batches", done, len(groups))
        checks.group(group)
    longest = _one_per_user(fulls)
    for done, full in enumerate(longest):
        tell("dense formula", done, len(longest))
        checks.dense_case(full.case)
    _notes(checks, engines)
    results = tuple(tally.result() for tally in checks.tallies)
    return VerifyReport(
        model=str(model),
        fingerprint=engines.main.model_fp.hex(),
        events=str(events.path),
        dtype=engines.main.choice.dtype_name,
        kernel=f"{engines.main.choice.kernel.name}: {engines.main.choice.reason}",
        cacheable=config.cacheable,
        users=len(longest),
        cases=len(fulls),
        candidates=options.candidates,
        longest=max(full.tokens for full in fulls),
        median=float(np.median([full.tokens for full in fulls])),
        seed=options.seed,
        threads=torch.get_num_threads(),
        bitwise=options.bitwise,
        largest_logit=max(float(np.abs(full.logits).max()) for full in fulls),
        dense_rounding=checks.rounding,
        edit_effect=checks.edit_effect,
        seconds=time.monotonic() - begun,
        checks=results,
        ok=all(result.ok for result in results),
    )


def _ignore(step: str, done: int, total: int) -> None:
    pass


def _engines(model: Path, options: VerifyOptions) -> Engines:
    choice = choose("auto", options.dtype, options.bitwise)
    # Read once: a training run may replace the files meanwhile.
    single, model_fp = open_ranker(model)
    ranker = single if choice.dtype == torch.float32 else deepcopy(single).cast(choice.dtype)
    config = ranker.config

    def engine(users: int, microbatch: int) -> Engine:
        settings = EngineConfig(
            device_bytes=_pool_bytes(config, choice.dtype, users),
            microbatch=microbatch,
            dtype=options.dtype,
            bitwise=options.bitwise,
        )
        return Engine(ranker, model_fp, choice, settings)

    per_head = int((_DENSE_BYTES / (8 * config.num_heads)) ** 0.5)
    return Engines(
        # One user more than a batch: a version being written stands beside the one it replaces.
        main=engine(GROUP_USERS + 1, EngineConfig().microbatch),
        micro=engine(2, MICROBATCH),
        small=engine(0, EngineConfig().microbatch),
        dense32=single,
        dense64=deepcopy(single).cast(torch.float64),
        dense_tokens=max(min(per_head // config.tokens_per_event, config.max_history), 1),
    )


def _pool_bytes(config: AnyConfig, dtype: torch.dtype, users: int) -> int:
    """Room for `users` rows of full length, at least the smallest pool there is."""
    page_tokens = EngineConfig().page_tokens
    layout = KvLayout(config.num_layers, config.num_heads, config.qk_dim, config.v_dim, dtype, page_tokens)
    wanted = users * layout.pages_for(config.max_seq_len) * layout.page_bytes
    return min(max(wanted, MIB, layout.page_bytes), _MAX_POOL_BYTES)


def _groups(fulls: list[Full]) -> list[list[Full]]:
    """Batches of different users: the first cuts of all users, then the second ones, and so on."""
    by_user = [list(group) for _, group in groupby(fulls, key=lambda full: full.user)]
    deepest = max(len(cuts) for cuts in by_user)
    rounds = [[cuts[turn] for cuts in by_user if turn < len(cuts)] for turn in range(deepest)]
    return [turn[i : i + GROUP_USERS] for turn in rounds for i in range(0, len(turn), GROUP_USERS)]


def _one_per_user(fulls: list[Full]) -> list[Full]:
    return [next(group) for _, group in groupby(fulls, key=lambda full: full.user)]


def _notes(checks: Checks, engines: Engines) -> None:
    if engines.main.model_config.cacheable != "append":
        for tally in (checks.cached, checks.appended, checks.resumed, checks.shorter, checks.edited):
            tally.note = "this model's K/V cannot outlive a request: checked that nothing is reused"
    if not checks.private.comparisons:
        pages = engines.small.cache_stats().total_pages
        tokens = pages * engines.small.config.page_tokens
        checks.private.note = f"not exercised: no batch needs more than the smallest pool, {tokens} tokens"
    checks.edited.note = checks.edited.note or f"the edits move scores by up to {checks.edit_effect:.2g}"
    checks.dense.note = (
        f"histories cut to {engines.dense_tokens} tokens; float32 alone rounds by {checks.rounding:.1g}"
    )
