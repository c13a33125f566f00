"""Sizes and constants that every source has: heads, the divisor, tasks."""

from __future__ import annotations

from dataclasses import dataclass

from relaygr.core.errors import ConfigError
from relaygr.models.imports.ledger import Ledger, Told
from relaygr.models.imports.notes import Notes
from relaygr.models.imports.settings import Settings, Task


@dataclass(frozen=True, slots=True)
class Heads:
    """H, A and E."""

    count: int
    qk_dim: int
    v_dim: int


def need(settings: Settings, *names: str) -> None:
    """Raise ConfigError for the settings that are not given and that no shape tells."""
    absent = [name for name in names if getattr(settings, name) is None]
    if absent:
        one = absent[0]
        raise ConfigError(
            "config", f"{', '.join(absent)}: shapes do not tell; give in --config, or as --set {one}=..."
        )


def split_heads(
    ledger: Ledger, settings: Settings, keys: int, values: int, count: int | None = None
) -> Heads:
    """Heads of H A = `keys` and H E = `values`; one of H, A and E has to be given."""
    qk_dim, v_dim = settings.qk_dim, settings.v_dim
    given = settings.num_heads if count is None else count
    if settings.num_heads not in (None, given):
        ledger.problems.append(
            f"num_heads: {settings.num_heads} in the configuration, but the output norms are of {given} heads"
        )
    if given is None and v_dim:
        given = max(values // v_dim, 1)
    elif given is None and qk_dim:
        given = max(keys // qk_dim, 1)
    if given is None:
        need(settings, "num_heads")
    heads = 1 if given is None else given
    if heads < 1 or keys % heads or values % heads or keys < heads:
        ledger.problems.append(
            f"num_heads: {heads} does not divide {keys} query and {values} value numbers of a token"
        )
        return Heads(1, keys, values)
    for name, wanted, told in (("qk_dim", qk_dim, keys // heads), ("v_dim", v_dim, values // heads)):
        if wanted is not None and wanted != told:
            ledger.problems.append(
                f"{name}: {wanted} in the configuration, but the shapes with {heads} heads make it {told}"
            )
    return Heads(heads, keys // heads, values // heads)


def divisor(settings: Settings, asked: int | None, fixed: int | None, notes: Notes) -> int:
    """The model's N.

    Args:
        asked: of the command line.
        fixed: what the source itself divides by; None if that depends on the batch.

    Raises:
        ConfigError: nothing fixes it, or two values do.
    """
    given = settings.scaling_seqlen if settings.scaling_seqlen not in (-1, None) else None
    for name, value in (("--scaling-seqlen", asked), ("config.scaling_seqlen", given)):
        if value is not None and value < 1:
            raise ConfigError(name, f"{value} must be at least 1")
    values = {asked, given, fixed} - {None}
    if len(values) > 1:
        raise ConfigError(
            "--scaling-seqlen",
            f"{_or_none(asked)}, but the configuration says {_or_none(given)} "
            f"and the source {_or_none(fixed)}",
        )
    if not values:
        raise ConfigError(
            "--scaling-seqlen",
            "this model divides attention by the longest row of each batch, and no fixed number is given; "
            "choose one, best the longest row of training (history, slots and candidates)",
        )
    (number,) = values
    assert number is not None
    if fixed is None and asked is not None:
        notes.warnings.append(
            f"attention was divided by the longest row of each batch and is divided by {number} now; "
            "scores equal those of batches whose longest row is that long; the training maximum fits best"
        )
    return number


def task_names(ledger: Ledger, settings: Settings, notes: Notes, told: Told | None) -> tuple[str, ...]:
    """Names of the outputs, binary ones first, checked against the head's shape in `told`."""
    tasks = [Task(one) if isinstance(one, str) else one for one in settings.tasks or ()]
    if not tasks and settings.num_tasks:
        tasks = [Task(f"task_{i}") for i in range(min(settings.num_tasks, 1024))]
        notes.assumed.append(f"tasks are called {', '.join(one.task_name for one in tasks)}")
    if settings.num_tasks is not None and settings.num_tasks != len(tasks):
        ledger.problems.append(
            f"num_tasks: {settings.num_tasks}, but {len(tasks)} tasks in the configuration"
        )
    if told is not None and told.value not in (None, len(tasks)):
        ledger.problems.append(f"tasks: {len(tasks)} in the configuration, but {told.words}")
    kinds = [one.regression for one in tasks]
    if kinds != sorted(kinds):
        raise ConfigError("config.tasks", f"{[one.task_name for one in tasks]}: binary tasks must come first")
    return tuple(one.task_name for one in tasks)


def regressions(settings: Settings) -> tuple[str, ...]:
    """Names of the outputs that are values, not logits."""
    tasks = [one for one in settings.tasks or () if not isinstance(one, str)]
    return tuple(one.task_name for one in tasks if one.regression)


def _or_none(value: int | None) -> str:
    return "nothing" if value is None else str(value)
