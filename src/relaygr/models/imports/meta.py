"""Meta production (DLRM-v3) checkpoints: `non_sparse.ckpt` and tables beside it."""

from __future__ import annotations

import re
from typing import Literal

from relaygr.core.errors import ConfigError
from relaygr.models.hstu import HstuConfig
from relaygr.models.imports.layout import META_LAYERS, Detected
from relaygr.models.imports.ledger import Ledger, transposed
from relaygr.models.imports.notes import Notes
from relaygr.models.imports.settings import Settings
from relaygr.models.imports.sizes import Heads, divisor, need, regressions, split_heads, task_names
from relaygr.models.imports.stacks import move_linear, move_norm, move_normed_stack, move_stack
from relaygr.models.imports.tables import Slot, check_policies, feature_name, move_table, slots
from relaygr.models.switches import LayerSwitches, Table

_IN = "_hstu_transducer._input_preprocessor."
_OUT = "_hstu_transducer._output_postprocessor."
_PLACE = "_hstu_transducer._positional_encoder."
_ACTION = f"{_IN}_action_encoder."
_ITEM_HEAD = "_item_embedding_mlp."
_PREDICT = "_multitask_module._prediction_module."


def convert(
    ledger: Ledger, settings: Settings, detected: Detected, asked: int | None, notes: Notes
) -> HstuConfig:
    """Move all tensors of a checkpoint and work out its configuration."""
    need(settings, "max_seq_len", "tasks")
    layers = ledger.layers(META_LAYERS, settings.num_layers)
    size = ledger.size(
        "hidden_size",
        settings.hidden_size,
        [ledger.axis(f"{META_LAYERS}{i}._uvqk_weight", 0, 2) for i in range(layers)]
        + [ledger.axis(f"{_PLACE}_position_embeddings_weight", 1, 2)],
    )
    heads, grouped = _heads(ledger, settings, layers)
    for i in range(layers):
        _layer(ledger, i, size, heads, grouped)
    content = f"{_IN}_content_embedding_mlp."
    width = ledger.size(
        "table_dim",
        settings.table_dim,
        [ledger.axis(f"{content}0.weight", 1, 2), ledger.axis(f"{_ITEM_HEAD}0.weight", 1, 2)],
    )
    middle = ledger.size(
        "stack_size",
        settings.stack_size,
        [
            ledger.axis(f"{content}2.weight", 1, 2),
            ledger.axis(f"{content}0.bias", 0, 1),
            ledger.axis(f"{content}0.weight", 0, 2),
        ],
    )
    move_normed_stack(ledger, f"{_IN}_content_embedding_mlp.", "tokens.content", (width, middle, size))
    types, dim, weights = _actions(ledger, settings, middle, size)
    profile = slots(settings)
    tables = _slots(ledger, settings, profile, width, size)
    features = [slot.feature for slot in profile]
    item = feature_name(ledger, settings, "items", features)
    items = move_table(ledger, settings, item, "tokens.item.weight", width)
    check_policies(settings, [settings.table_of(one) for one in (item, *features)])
    buckets, ages = _places(ledger, settings, size)
    post = _postprocessor(ledger, settings, size)
    tasks = task_names(ledger, settings, notes, ledger.axis(f"{_PREDICT}2.weight", 0, 2))
    head = _head(ledger, settings, width, size, len(tasks))
    _rest(ledger)
    number = divisor(settings, asked, None, notes)
    ledger.close()
    return HstuConfig(
        variant="meta_stu",
        layer=LayerSwitches(alpha=settings.alpha, output_norm="group" if grouped else "affine"),
        hidden_size=size,
        num_layers=layers,
        num_heads=heads.count,
        qk_dim=heads.qk_dim,
        v_dim=heads.v_dim,
        max_seq_len=1 if settings.max_seq_len is None else settings.max_seq_len,
        max_num_candidates=settings.max_num_candidates_inference or settings.max_num_candidates,
        scaling_seqlen=number,
        norm_eps=1e-6 if settings.norm_eps is None else settings.norm_eps,
        window=settings.window,
        full_tail=settings.full_tail,
        contextual=tuple(slot.name for slot in profile),
        slot_tables=tables,
        slot_min_history=_least(settings, profile, notes),
        position="backward_time",
        position_buckets=buckets,
        time_buckets=ages,
        time_bucket_limit="embedding_dim" if settings.time_bucket_limit == "embedding_dim" else "rows",
        action_mode="add" if types else "none",
        action_weights=weights,
        action_dim=dim,
        action_bits=_bit_names(settings, weights),
        tasks=tasks,
        regressions=regressions(settings),
        items=items,
        embedding_dim=width,
        stack_size=middle,
        head_size=head,
        postprocess=post,
    )


def _heads(ledger: Ledger, settings: Settings, layers: int) -> tuple[Heads, bool]:
    """Heads, and whether each head is normalised by itself: then its norm holds one number a head."""
    names = [f"{META_LAYERS}{i}." for i in range(layers)]
    rows = ledger.size("3 v_dim num_heads", None, [ledger.axis(f"{n}_output_weight", 0, 2) for n in names])
    columns = ledger.size("uvqk", None, [ledger.axis(f"{n}_uvqk_weight", 1, 2) for n in names])
    norm = ledger.size("output norm", None, [ledger.axis(f"{n}_output_norm_weight", 0, 1) for n in names])
    values, keys = rows // 3, columns // 2 - rows // 3
    grouped = norm != values if settings.group_norm is None else settings.group_norm
    if rows % 3 or columns % 2 or keys < 1:
        ledger.problems.append(
            f"{names[0]}_output_weight has {rows} rows and {names[0]}_uvqk_weight {columns} columns, "
            "wanted 3 H E and 2 H (E + A)"
        )
        return Heads(1, 1, 1), grouped
    return split_heads(ledger, settings, keys, values, norm if grouped and norm < values else None), grouped


def _layer(ledger: Ledger, index: int, size: int, heads: Heads, grouped: bool) -> None:
    name, target = f"{META_LAYERS}{index}.", f"layers.{index}."
    values, keys = heads.count * heads.v_dim, heads.count * heads.qk_dim
    norm = heads.count if grouped else values
    ledger.move(f"{name}_uvqk_weight", f"{target}uvqk.weight", (size, 2 * (values + keys)), transposed)
    ledger.move(f"{name}_uvqk_beta", f"{target}uvqk.bias", (2 * (values + keys),))
    ledger.move(f"{name}_output_weight", f"{target}output.weight", (3 * values, size), transposed)
    for kind in ("weight", "bias"):
        ledger.move(f"{name}_input_norm_{kind}", f"{target}input_norm.{kind}", (size,))
        ledger.move(f"{name}_output_norm_{kind}", f"{target}output_norm.{kind}", (norm,))


def _actions(ledger: Ledger, settings: Settings, middle: int, size: int) -> tuple[int, int, tuple[int, ...]]:
    """Action types, the width of their table and their bit masks; 0 types if the model reads no actions."""
    if settings.action_mode == "none" and not ledger.any(_ACTION):
        return 0, 8, ()
    dim = ledger.axis(f"{_ACTION}_action_embedding_table", 1, 2).value or 8
    stored = ledger.integers(f"{_ACTION}_combined_action_weights")
    weights = stored or settings.action_weights
    if weights is None:
        ledger.problems.append(f"missing {_ACTION}_combined_action_weights (or action_weights in --config)")
        weights = (1,)
    if settings.action_weights not in (None, weights):
        ledger.problems.append(
            f"action_weights: {list(settings.action_weights or ())} in the configuration, but "
            f"{_ACTION}_combined_action_weights holds {list(weights)}"
        )
    if any(not 0 < one < 1 << 63 for one in weights):
        ledger.problems.append(f"action_weights: {list(weights)} holds a mask without bits or a negative one")
    count = len(weights)
    ledger.move(f"{_ACTION}_action_embedding_table", "tokens.action.table", (count, dim))
    ledger.move(
        f"{_ACTION}_target_action_embedding_table",
        "tokens.action.target",
        (1, count * dim),
        lambda tensor: tensor.flatten(),
    )
    move_normed_stack(
        ledger, f"{_IN}_action_embedding_mlp.", "tokens.action.stack", (count * dim, middle, size)
    )
    return count, dim, weights


def _bit_names(settings: Settings, weights: tuple[int, ...]) -> tuple[str, ...]:
    """Names of the bits of an event's action: as given, by the task of the bit, or by number."""
    if settings.action_bits:
        return settings.action_bits
    tasks = [one for one in settings.tasks or () if not isinstance(one, str) and not one.regression]
    called = {one.task_weight: one.task_name for one in tasks}
    bits = max((one.bit_length() for one in weights), default=1)
    return tuple(called.get(1 << bit, f"bit{bit}") for bit in range(bits))


def _slots(
    ledger: Ledger, settings: Settings, profile: tuple[Slot, ...], width: int, size: int
) -> tuple[Table, ...]:
    """Tables of the profile slots and their matrices [C, D_in, D]."""
    name = f"{_IN}_batched_contextual_linear_"
    stored = ledger.shape(f"{name}weights")
    if not profile:
        reason = "profile slots need their features: contextual_feature_to_max_length in --config"
        ledger.refuse(f"{name}.*", reason)
        return ()
    if stored and stored[0] != len(profile):
        ledger.problems.append(
            f"contextual: {len(profile)} slots in the configuration, but {name}weights has shape "
            f"{list(stored)}"
        )
    ledger.move(f"{name}weights", "tokens.slot_weight", (len(profile), width, size))
    ledger.move(f"{name}bias", "tokens.slot_bias", (len(profile), size))
    moved = {
        feature: move_table(ledger, settings, feature, "tokens.slot_tables.{}.weight", width)
        for feature in dict.fromkeys(slot.feature for slot in profile)
    }
    return tuple(moved[slot.feature] for slot in profile)


def _least(settings: Settings, profile: tuple[Slot, ...], notes: Notes) -> tuple[int, ...]:
    given = settings.slot_min_history or {}
    unknown = given.keys() - {slot.feature for slot in profile}
    if unknown:
        raise ConfigError(
            "config.slot_min_history",
            f"{', '.join(sorted(unknown))}: no such slots; there are {[slot.feature for slot in profile]}",
        )
    if not any(given.values()):
        return ()
    notes.warnings.append(
        "a slot is zero while the history is shorter than its threshold; the published code adds the number "
        "of candidates to the history, so scores differ where only both together reach it"
    )
    return tuple(given.get(slot.feature, 0) for slot in profile)


def _places(ledger: Ledger, settings: Settings, size: int) -> tuple[int, int]:
    """Rows of the position table, and age buckets, one less than their table has rows."""
    rows = []
    for key, given, name, more, target in (
        ("position_buckets", settings.position_buckets, "_position_embeddings_weight", 0, "tokens.position"),
        ("time_buckets", settings.time_buckets, "_timestamp_embeddings_weight", 1, "tokens.time"),
    ):
        shape = ledger.shape(f"{_PLACE}{name}")
        count = shape[0] if shape else (given or 0) + more
        if given is not None and given + more != count:
            ledger.problems.append(
                f"{key}: {given} in the configuration, but {_PLACE}{name} has shape {list(shape)}"
            )
        ledger.move(f"{_PLACE}{name}", target, (count, size))
        rows.append(count - more)
    return rows[0], rows[1]


def _postprocessor(ledger: Ledger, settings: Settings, size: int) -> Literal["norm", "time_norm", "l2"]:
    """What is absent has to be said: a checkpoint that lost these tensors must not become another model."""
    if settings.enable_postprocessor is False:
        return "l2"
    ledger.refuse(re.escape(_OUT) + r"(surface_mlp|shared_mlp|_gating_mlp)\..*", "heads by type of surface")
    move_norm(ledger, f"{_OUT}_layer_norm", "head.post_norm", size)
    if settings.use_layer_norm_postprocessor:
        return "norm"
    ledger.expect(f"{_OUT}_period_units", (3600.0, 86400.0))
    ledger.expect(f"{_OUT}_units_per_period", (24.0, 7.0))
    move_linear(ledger, f"{_OUT}_time_feature_combiner", "head.combine", size + 4, size)
    return "time_norm"


def _head(ledger: Ledger, settings: Settings, width: int, size: int, tasks: int) -> int:
    """Hidden width of the head's two stacks."""
    middle = ledger.size(
        "head_size", None, [ledger.axis(f"{name}0.weight", 0, 2) for name in (_ITEM_HEAD, _PREDICT)]
    )
    inputs = ledger.axis(f"{_ITEM_HEAD}0.weight", 1, 2)
    if inputs.value is not None and inputs.value > width and not inputs.value % width:
        ledger.problems.append(
            f"{inputs.words}: {inputs.value // width} tables a candidate are not supported, items have one"
        )
    move_stack(ledger, _ITEM_HEAD, "head.item", (width, middle, size))
    move_norm(ledger, f"{_ITEM_HEAD}3", "head.item_norm", size)
    move_stack(ledger, _PREDICT, "head.predict", (size, middle, tasks))
    return middle


def _rest(ledger: Ledger) -> None:
    """The stack for additional features exists without any, with inputs of width 0."""
    name = f"{_IN}_additional_embedding_mlp."
    pattern = re.escape(name) + ".*"
    if ledger.shape(f"{name}0.weight")[1:] == (0,):
        parts = [f"{name}{i}.{kind}" for i in range(4) for kind in ("weight", "bias")]
        ledger.problems += [f"missing {part}" for part in parts if not ledger.has(part)]
        ledger.ignore("|".join(map(re.escape, parts)))
    ledger.refuse(pattern, "additional embedding features of an item; items have one table")
    ledger.refuse(
        re.escape(_IN) + r"(.*\.)?(_mlp|_dense_features_compress|_attn_\w+|_res_weights)\..*",
        "contextualised networks of the interleaving preprocessor",
    )
