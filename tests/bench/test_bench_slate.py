"""`bench slate`: cells, figures and the random requests of its check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from relaygr.bench import slate, slate_rules
from relaygr.bench.slate import SlateSpec, bench_slate, quick_report
from relaygr.bench.slate_openings import measure_openings
from relaygr.bench.slate_world import SlateWorld
from relaygr.cli.main import app
from relaygr.core.errors import ConfigError
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.slates import Slates
from relaygr.training.slate.gain_rows import GainOptions, GainsReport
from relaygr.training.slate.gains import gains

TINY = SlateSpec(
    candidates=40, length=4, widths=(1, 2), tops=(10,), requests=3, checked=5, beside=0, openings=0, worlds=0
)


def test_a_cell_for_each_setting_and_figures_by_name() -> None:
    told: list[str] = []
    report = bench_slate(TINY, told.append)
    assert [(cell.rules, cell.width) for cell in report.cells] == [
        (rules, width) for rules in ("none", "two", "four") for width in (1, 2)
    ]
    assert all(0 < cell.p50_ms <= cell.p99_ms for cell in report.cells)
    assert all("fallback" in cell.stage_ms and "explanation" in cell.stage_ms for cell in report.cells)
    assert report.main.steps == 4 * 2 * 10
    assert report.rule_violations == 0
    assert report.lists_checked > 5
    figures = quick_report(report)
    assert figures["p99_ms"] == report.main.p99_ms
    assert (figures["rule_violations"], figures["extra_share"]) == (0, None)
    assert figures["gain_over_pointwise"] is None
    assert any("random requests" in text for text in told)


def test_rules_are_opened_with_a_limit_of_time_and_without() -> None:
    told: list[str] = []
    cells = tuple(measure_openings(1, told.append))
    assert [(cell.candidates, cell.length, cell.limit_ms > 0, cell.hidden) for cell in cells] == [
        (candidates, length, limited, hidden)
        for candidates, length, hidden in ((80, 10, True), (300, 20, True), (300, 30, True), (300, 30, False))
        for limited in (False, True)
    ]
    assert all(0 < cell.p50_ms <= cell.most_ms for cell in cells)
    assert all(cell.relaxed == 0 for cell in cells if cell.hidden and not cell.limit_ms)
    assert len(told) == len(cells)


def test_gains_are_in_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the default trained on the long log, and of the best parameter of each re-ranker."""
    asked: list[GainOptions] = []

    def measured(seeds: Sequence[int], options: GainOptions, observe: object, workers: int) -> GainsReport:
        asked.append(options)
        assert (list(seeds), workers) == ([3, 4], 2)
        return gains(seeds, GainOptions(requests=3, lists=(50,), oracle=False))

    monkeypatch.setattr(slate, "gains", measured)
    monkeypatch.setattr(slate, "LOGGED", 50)
    spec = msgspec.structs.replace(TINY, widths=(1,), checked=0, worlds=2, users=3, seed=3, compared=False)
    report = bench_slate(spec, lambda text: None)
    figures = quick_report(report)
    assert asked[0].lists == (50,)
    assert report.gains is not None
    assert figures["gain_over_pointwise"] == report.gains.row("default", 50).gain
    assert figures["gain_mmr"] == next(row.gain for row in report.gains.rows if row.method[:4] == "mmr(")
    assert {"gain_dpp", "gain_ssd"} < figures.keys()
    full = slate._gain_options(msgspec.structs.replace(spec, compared=True))
    assert full.lists == (50, 600)
    assert full.free
    assert full.members == 5
    assert full.probed


def test_a_broken_list_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists whose last pick is the first once more."""
    serve = Slates.serve

    def broken(self: Slates, ask: SlateAsk, pool: object) -> object:
        result = serve(self, ask, pool)  # type: ignore[arg-type]
        return replace(result, picks=np.concatenate([result.picks[:-1], result.picks[:1]]))

    monkeypatch.setattr(Slates, "serve", broken)
    violations, _ = slate_rules.count_violations(5, lambda done: None)
    assert violations >= 3


def test_worlds_repeat() -> None:
    first, second = SlateWorld(30, 4), SlateWorld(30, 4)
    ask = SlateAsk(request_id="r", length=5, rules=first.rules("four"))
    lists = [world.slates(4, 20).serve(ask, world.pool(3)).items.tolist() for world in (first, second)]
    assert lists[0] == lists[1]


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"length": 0}, "--length"),
        ({"widths": ()}, "--widths"),
        ({"tops": (0,)}, "--tops"),
        ({"users": 0}, "--users"),
    ],
)
def test_wrong_settings_are_named(change: dict[str, object], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SlateSpec(**change)  # type: ignore[arg-type]
    assert caught.value.path == option


def test_the_command_writes_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.json"
    small = "--candidates 30 --length 3 --widths 2 --tops 8 --requests 2 --checked 2 --beside 1"
    small += " --worlds 1 --users 2 --processes 1"
    monkeypatch.setattr(
        slate,
        "_gain_options",
        lambda spec: GainOptions(requests=spec.users, lists=(20,), free=True, members=1, probed=1),
    )
    app(
        ["bench", "slate", *small.split(), "--json", str(file)],
        exit_on_error=False,
        result_action="return_value",
    )
    found = msgspec.json.decode(file.read_bytes())
    assert len(found["cells"]) == 3
    assert found["beside"]["slate_ms"] > 0
    assert {"default", "bound of 1", "over-fitted bound of 1"} < {
        row["method"] for row in found["gains"]["rows"]
    }
    assert found["gains"]["margins"]
    assert len(found["gains"]["cells"]) == 12
    out = capsys.readouterr().out
    assert "rules broken" in out
    assert "hstu-small" in out
    assert "True utility over pointwise" in out
    assert "Predicted over true utility" in out
    assert "less that of others" in out
