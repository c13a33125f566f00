"""Budgets are numbers or `auto`, in every source."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from relaygr.config.load import load_config
from relaygr.config.settings import MAX_BUDGET_MS, BudgetConfig, Config
from relaygr.core.errors import ConfigError


def test_everything_is_auto_unless_named() -> None:
    values = msgspec.structs.asdict(load_config().budgets)
    assert values.pop("t_life_slack_ms") == 50.0
    assert set(values.values()) == {"auto"}
    assert set(BudgetConfig.LIMITS) == set(BudgetConfig.__struct_fields__)


def test_numbers_and_auto_from_every_source(tmp_path: Path) -> None:
    toml = tmp_path / "relaygr.toml"
    toml.write_text('[budgets]\nb_rank_ms = 50\nguard_ms = "auto"\nchunk_ms = 4\n')
    environ = {"RELAYGR_BUDGETS__LEAD_P99_MS": "150.5", "RELAYGR_BUDGETS__CHUNK_MS": "auto"}
    budgets = load_config(toml, environ, ["budgets.guard_ms=0", "budgets.t_life_ms=auto"]).budgets
    assert (budgets.b_rank_ms, budgets.guard_ms, budgets.chunk_ms) == (50.0, 0.0, "auto")
    assert (budgets.lead_p99_ms, budgets.t_life_ms) == (150.5, "auto")


@pytest.mark.parametrize("value", ["soon", "1ms", "", "Auto", "true"])
def test_other_words_are_refused(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[f"budgets.b_rank_ms={value}"])
    assert str(caught.value) == f"budgets.b_rank_ms: {value!r} must be a number or 'auto' (in --set)"


@pytest.mark.parametrize("name", BudgetConfig.LIMITS)
def test_both_ends_of_every_range(name: str) -> None:
    limit = BudgetConfig.LIMITS[name]
    assert getattr(BudgetConfig(**{name: limit.high}), name) == MAX_BUDGET_MS
    outside = [-1.0, limit.high + 1, math.nan, math.inf]
    if limit.open_low:
        outside.append(0.0)
    else:
        assert getattr(BudgetConfig(**{name: 0.0}), name) == 0.0
    for value in outside:
        with pytest.raises(ConfigError, match=rf"budgets\.{name}: .* must be in "):
            BudgetConfig(**{name: value})


def test_every_section_can_be_loaded() -> None:
    """A section that the loader does not know would be a setting that cannot be set."""
    for field in msgspec.structs.fields(Config):
        default = field.type()
        # A table of tables, as the members of a fleet, is no text.
        name = next(name for name in field.type.__struct_fields__ if getattr(default, name) != ())
        text = str(getattr(default, name)).lower()
        config = load_config(overrides=[f"{field.name}.{name}={text}"])
        assert getattr(config, field.name) == field.type()
