"""`verify` agrees on a sound engine and catches stale prefixes, wrong reuse and drifting kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from relaygr.bench.verify import VerifyOptions, VerifyReport, verify
from relaygr.bench.verify_sample import sample_cases, unseen_item
from relaygr.cache import books
from relaygr.core.errors import ConfigError
from relaygr.core.state import Ref
from relaygr.data.dataset import Events
from relaygr.data.synth import SynthSpec, synthesize
from relaygr.data.write import write_events
from relaygr.kernels.cpu import BlockedKernel
from relaygr.kernels.interface import Plan
from relaygr.models.hstu import HstuConfig
from relaygr.models.ranker import Ranker
from relaygr.models.weights import save_ranker

# 2 KiB of K/V a token: the smallest pool, 1 MiB, holds no batch of the sample.
CONFIG = HstuConfig(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    qk_dim=64,
    v_dim=64,
    max_seq_len=160,
    scaling_seqlen=64,
    position_buckets=160,
    embedding_dim=16,
    item_rows=512,
    action_bits=("engage", "like", "long_view"),
    tasks=("engage", "like"),
)
OPTIONS = VerifyOptions(users=8, candidates=16)


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Events:
    spec = SynthSpec(users=20, mean_length=120, min_length=2, max_length=300, items=300, clusters=10)
    return write_events(tmp_path_factory.mktemp("d") / "e", synthesize(spec), name="t", source="", licence="")


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    def save(**changes: object) -> Path:
        torch.manual_seed(0)
        save_ranker(Ranker(msgspec.structs.replace(CONFIG, **changes)), tmp_path / "model")
        return tmp_path / "model"

    return save


def failed(report: VerifyReport) -> set[str]:
    return {check.name for check in report.checks if not check.ok}


def test_a_sound_engine_agrees_in_every_way(model: Callable[..., Path], events: Events) -> None:
    steps: list[str] = []
    report = verify(model(), events, OPTIONS, lambda step, done, total: steps.append(step))
    assert report.ok, [check.problems for check in report.checks]
    assert all(check.comparisons for check in report.checks)
    by_name = {check.name: check for check in report.checks}
    assert by_name["cached"].reused * 2 == by_name["cached"].computed
    assert by_name["no pool"].reused == 0
    assert by_name["edited"].comparisons == 2 * report.cases
    assert report.edit_effect > 1e-4
    assert report.longest <= CONFIG.max_seq_len
    assert len(set(steps)) == 3


@pytest.mark.parametrize(
    "changes",
    [{"contextual": ("age", "city")}, {"window": 40}, {"score_time_bias": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_other_switches_agree(model: Callable[..., Path], events: Events, changes: dict[str, object]) -> None:
    report = verify(model(**changes), events, VerifyOptions(users=4, candidates=16))
    assert report.ok, [check.problems for check in report.checks]
    assert report.cacheable == "append"


def test_bf16_agrees_within_its_own_bounds(model: Callable[..., Path], events: Events) -> None:
    report = verify(model(), events, VerifyOptions(users=4, candidates=16, dtype="bf16"))
    assert report.ok, [check.problems for check in report.checks]
    assert report.dtype == "bf16"


def test_a_model_that_cannot_be_appended_to_reuses_nothing(
    model: Callable[..., Path], events: Events
) -> None:
    two_way = model(contextual=("age", "city"), contextual_two_way=True)
    report = verify(two_way, events, VerifyOptions(users=4, candidates=16))
    assert report.ok, [check.problems for check in report.checks]
    assert report.cacheable == "request"
    assert sum(check.reused for check in report.checks) == 0
    assert "nothing is reused" in report.checks[0].note


def test_a_match_that_ignores_the_content_is_caught(
    model: Callable[..., Path], events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(stored: Ref, wanted: Ref) -> int:
        return min(stored.tokens, wanted.tokens)

    monkeypatch.setattr(books, "longest_match", blind)
    report = verify(model(), events, VerifyOptions(users=4, candidates=16))
    assert "edited" in failed(report)
    assert "dense fp64" not in failed(report)


def test_a_match_that_gives_tokens_away_is_caught(
    model: Callable[..., Path], events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = books.longest_match

    def timid(stored: Ref, wanted: Ref) -> int:
        return max(honest(stored, wanted) - 8, 0)

    monkeypatch.setattr(books, "longest_match", timid)
    report = verify(model(), events, VerifyOptions(users=4, candidates=16))
    assert {"cached", "appended", "resumed"} <= failed(report)
    by_name = {check.name: check for check in report.checks}
    assert by_name["cached"].largest <= by_name["cached"].tolerance  # only the counters tell
    assert any("tokens reused" in problem for problem in by_name["cached"].problems)


def test_a_kernel_that_drifts_on_hits_is_caught(
    model: Callable[..., Path], events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = BlockedKernel.run

    def drifting(
        self: BlockedKernel,
        plan: Plan,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        out = honest(self, plan, layer, q, k, v, bias)
        # The last layer of a full pass has no history rows either.
        hit = layer == 0 and any(segment.cached and not segment.history for segment in plan.segments)
        return out + 1e-3 if hit else out

    monkeypatch.setattr(BlockedKernel, "run", drifting)
    report = verify(model(), events, VerifyOptions(users=4, candidates=16))
    assert {"cached", "appended"} <= failed(report)
    assert "dense fp64" not in failed(report)
    assert any("scores differ by" in problem for problem in report.checks[0].problems)


def test_cases_hold_what_they_promise(events: Events) -> None:
    cases = sample_cases(events, CONFIG, users=6, candidates=16, seed=1, max_history=50)
    lengths = np.diff(events.offsets)
    assert len({case.history.user for case in cases}) == 6
    assert max(len(case.history) for case in cases) == min(50, int(lengths.max()) - 1)
    unseen = unseen_item(np.unique(events.item_ids))
    for case in cases:
        assert 0 < case.earlier < len(case.history)
        assert len(case.candidates) == 16
        assert len(np.unique(case.candidates)) < 16
        assert unseen in case.candidates
        assert case.query_time >= case.history.timestamps[-1]
    again = sample_cases(events, CONFIG, users=6, candidates=16, seed=1, max_history=50)
    assert all(np.array_equal(a.candidates, b.candidates) for a, b in zip(cases, again, strict=True))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"users": 0}, "users: 0 must be at least 1"),
        ({"candidates": 7}, "candidates: 7 is outside"),
        ({"max_history": 2}, "max_history: 2 must be 0 or at least 3"),
    ],
)
def test_bad_options(events: Events, arguments: dict[str, int], words: str) -> None:
    given = {"users": 4, "candidates": 16, "seed": 0, **arguments}
    with pytest.raises(ConfigError, match=words):
        sample_cases(events, CONFIG, **given)


def test_fixed_row_tiles_give_equal_bits(model: Callable[..., Path], events: Events) -> None:
    """H2 on a whole model: every way of serving, bit for bit."""
    report = verify(model(), events, VerifyOptions(users=4, candidates=16, bitwise=True))
    assert report.ok, [check.problems for check in report.checks]
    *paths, dense = report.checks
    assert dense.name == "dense fp64"
    assert [check.largest for check in paths] == [0.0] * len(paths)
    assert [check.same_order for check in paths] == [check.comparisons for check in paths]
