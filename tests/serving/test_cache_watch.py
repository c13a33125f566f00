"""What is counted for whom: by model, never downwards."""

from __future__ import annotations

from pathlib import Path

from relay_apps import metric, quiet
from serving_apps import App, running, save_model
from test_cache_metrics import rank, with_host

from relaygr.cache.policies import PolicySettings
from relaygr.cache.policy import Weight
from relaygr.cache.shadow import Trial
from relaygr.cache.speeds import Compute, MeasuredCompute
from relaygr.cache.tally import Found, Tally


def whole(app: App, model: str) -> float:
    return metric(app, f'relaygr_cache_whole_total{{model="{model[:12]}",kind="request"}}')


def test_each_model_has_counts_of_its_own(model_folder: Path, tmp_path: Path) -> None:
    with running(with_host(model_folder)) as app:
        first = app.service.served.model
        rank(app, "one")
        rank(app, "one")
        quiet(app)
        assert whole(app, first) == 2
        save_model(tmp_path / "other", 77)
        app.post("/v1/models/reload", {"path": str(tmp_path / "other")})
        second = app.service.served.model
        assert second != first
        assert whole(app, second) == 0
        rank(app, "one")
        quiet(app)
        assert whole(app, second) == 1
        app.post("/v1/models/reload", {"path": str(model_folder)})
        assert whole(app, first) == 2


def test_savings_are_never_negative() -> None:
    """Measured speeds need not be monotone in the work."""
    speed = MeasuredCompute(Compute(0.01, 0.0))
    for _ in range(50):
        speed.observe([(100, 0, 0)], 0.5)  # type: ignore[list-item]
    for _ in range(50):
        speed.observe([(4, 96, 0)], 0.6)  # type: ignore[list-item]
    tally = Tally(lambda new, cached: speed.pass_ms(new, cached, 0))
    for turn in range(10):
        reused = 96 if turn else 0
        tally.visit("u", Found(100, reused, 0, 0, reused))
    counts = tally.counts()
    assert all(sums.cost_ms >= 0 for sums in counts.kinds.values())
    assert counts.ceilings is not None
    assert 0 <= counts.ceilings.cost <= 1


def test_a_trial_saves_no_more_than_there_is_whatever_speeds_do() -> None:
    price = [1.0]

    def weigh(tokens: int) -> Weight:
        return Weight(tokens, tokens, price[0] * tokens, 0.0)

    trial, spent = Trial("lru", 10_000, weigh, PolicySettings()), 0.0
    for turn in range(20):
        price[0] = 1.0 if turn == 0 else 0.1
        for user in range(50):
            trial.visit(user, weigh(100))
            spent += weigh(100).rec_ms
    assert 0 < trial.saved_ms <= spent
