"""NVIDIA recsys-examples checkpoints: `torch_module/model.0.pth`, tables apart."""

from __future__ import annotations

import re

import msgspec
import torch
from torch import Tensor

from relaygr.core.errors import ConfigError
from relaygr.models.hstu import HstuConfig
from relaygr.models.imports.layout import NVIDIA_LAYERS, Detected
from relaygr.models.imports.ledger import Change, Ledger, Told, transposed
from relaygr.models.imports.networks import move_input_network, move_network, one_kind
from relaygr.models.imports.notes import Notes
from relaygr.models.imports.settings import Settings
from relaygr.models.imports.sizes import Heads, divisor, need, regressions, split_heads, task_names
from relaygr.models.imports.tables import Slot, check_policies, feature_name, move_table, slots
from relaygr.models.switches import NVIDIA, Table

_BEFORE = "_hstu_block._preprocessor."
_PLACES = f"{_BEFORE}_positional_encoder._position_embeddings_weight"
_AGES = f"{_BEFORE}_positional_encoder._timestamp_embeddings_weight"
_TOKENS = f"{_BEFORE}_item_mlp."
_PROFILE = f"{_BEFORE}_contextual_mlp."
_HEAD = "_mlp."


def convert(
    ledger: Ledger, settings: Settings, detected: Detected, asked: int | None, notes: Notes
) -> HstuConfig:
    """Move all tensors of a checkpoint and work out its configuration."""
    if settings.max_history is None:
        need(settings, "max_seq_len")
    if settings.num_tasks is None:
        need(settings, "tasks")
    fused = detected.nvidia == "fused"
    layers = ledger.layers(NVIDIA_LAYERS, settings.num_layers)
    names = [f"{NVIDIA_LAYERS}{i}." for i in range(layers)]
    projection = "_linear_uvqk_weight" if fused else "_linear_uvqk.weight"
    size = ledger.size(
        "hidden_size",
        settings.hidden_size,
        [ledger.axis(f"{name}{projection}", 0 if fused else 1, 2) for name in names]
        + [ledger.axis(_PLACES, 1, 2)],
    )
    columns = ledger.size(
        "uvqk", None, [ledger.axis(f"{name}{projection}", 1 if fused else 0, 2) for name in names]
    )
    if columns % 4:
        ledger.problems.append(f"{names[0]}{projection} makes {columns} numbers a token, wanted 4 H A")
    heads = split_heads(ledger, settings, columns // 4, columns // 4)
    for i in range(layers):
        _layer(ledger, settings, detected, i, size, heads)
    profile = slots(settings)
    tokens = move_input_network(ledger, _TOKENS, "tokens.token_mlp", size, settings.table_dim)
    slot = move_input_network(ledger, _PROFILE, "tokens.slot_mlp", size, settings.slot_dim)
    if slot is not None and not profile:
        ledger.problems.append(f"{_PROFILE} needs its features: contextual_feature_names in --config")
    width, slot_width = (one.sizes[0] if one else size for one in (tokens, slot))
    items, actions, slot_tables = _tables(ledger, settings, profile, width, slot_width)
    if actions is None and tokens is not None:
        ledger.problems.append(f"{_TOKENS} is not applied by the published code without actions")
    buckets = _places(ledger, settings, size)
    head = move_network(ledger, _HEAD, "head.predict", size, settings.prediction_head_bias is not False)
    tasks = task_names(
        ledger, settings, notes, Told(f"{head.layers[-1]}.weight has {head.sizes[-1]} rows", head.sizes[-1])
    )
    if settings.prediction_head_arch not in (None, head.sizes[1:]):
        ledger.problems.append(
            f"prediction_head_arch: {list(settings.prediction_head_arch or ())} in the configuration, but "
            f"the head's layers have {list(head.sizes[1:])} outputs"
        )
    two_way = _two_way(settings, detected, bool(profile), notes)
    number = divisor(settings, asked, None, notes)
    last = one_kind(ledger, [one for one in (head, tokens, slot) if one is not None], notes)
    ledger.close()
    return HstuConfig(
        variant="nvidia",
        layer=msgspec.structs.replace(
            NVIDIA,
            input_norm="plain" if settings.learnable_input_layernorm is False else "affine",
            output_norm="plain" if settings.learnable_output_layernorm is False else "affine",
            uvqk_bias=settings.add_uvqk_bias is not False,
            residual=settings.residual is not False,
        ),
        hidden_size=size,
        num_layers=layers,
        num_heads=heads.count,
        qk_dim=heads.qk_dim,
        v_dim=heads.v_dim,
        max_seq_len=_length(settings, len(profile), 1 if actions is None else 2),
        max_num_candidates=settings.max_num_candidates,
        scaling_seqlen=number,
        norm_eps=1e-5 if settings.norm_eps is None else settings.norm_eps,
        contextual=tuple(slot.name for slot in profile),
        contextual_two_way=two_way,
        slot_tables=slot_tables,
        position="forward",
        position_buckets=buckets,
        action_mode="none" if actions is None else "interleave",
        action_bits=_bit_names(settings, actions),
        tasks=tasks,
        regressions=regressions(settings),
        items=items,
        actions=actions,
        embedding_dim=width,
        token_mlp=tokens.sizes[1] if tokens else 0,
        slot_mlp=slot.sizes[1] if slot else 0,
        relu_last=last,
        postprocess="l2",
        head_sizes=head.sizes[1:-1],
    )


def per_head(heads: Heads) -> Change:
    """Rows ordered by head, then u, v, q and k, to rows ordered by part, then head."""

    def change(tensor: Tensor) -> Tensor:
        split = tensor.view(heads.count, 4, heads.qk_dim, *tensor.shape[1:])
        return split.transpose(0, 1).flatten(0, 2)

    return change


def _layer(
    ledger: Ledger, settings: Settings, detected: Detected, index: int, size: int, heads: Heads
) -> None:
    name, target = f"{NVIDIA_LAYERS}{index}.", f"layers.{index}."
    keys = heads.count * heads.qk_dim
    fused, rows = detected.nvidia == "fused", per_head(heads) if detected.nvidia == "native" else None
    joint, out = ("_linear_uvqk", "_linear_proj")
    if fused:
        ledger.move(f"{name}{joint}_weight", f"{target}uvqk.weight", (size, 4 * keys), transposed)
        ledger.move(f"{name}{out}_weight", f"{target}output.weight", (keys, size), transposed)
    else:
        ledger.move(f"{name}{joint}.weight", f"{target}uvqk.weight", (4 * keys, size), rows or torch.clone)
        ledger.move(f"{name}{out}.weight", f"{target}output.weight", (size, keys))
    if settings.add_uvqk_bias is not False:
        bias = f"{name}{joint}_bias" if fused else f"{name}{joint}.bias"
        ledger.move(bias, f"{target}uvqk.bias", (4 * keys,), rows or torch.clone)
    norm = "_output_ln_dropout_mul." if detected.nvidia == "native" else "_output_layernorm_"
    for kind in ("weight", "bias"):
        if settings.learnable_input_layernorm is not False:
            ledger.move(f"{name}_input_layernorm_{kind}", f"{target}input_norm.{kind}", (size,))
        if settings.learnable_output_layernorm is not False:
            ledger.move(f"{name}{norm}{kind}", f"{target}output_norm.{kind}", (keys,))


def _tables(
    ledger: Ledger, settings: Settings, profile: tuple[Slot, ...], width: int, slot_width: int
) -> tuple[Table, Table | None, tuple[Table, ...]]:
    """Tables of items, actions and slots; without actions an event is its item alone."""
    features = tuple(dict.fromkeys(one.feature for one in profile))
    action = None
    if settings.action_mode != "none":
        need(settings, "actions")
        action = settings.actions
    known = features if action is None else (*features, action)
    item = feature_name(ledger, settings, "items", known)
    check_policies(settings, [settings.table_of(one) for one in (item, *known)])
    items = move_table(ledger, settings, item, "tokens.item.weight", width)
    actions = None if action is None else move_table(ledger, settings, action, "tokens.action.weight", width)
    moved = {
        feature: move_table(ledger, settings, feature, "tokens.slot_tables.{}.weight", slot_width)
        for feature in features
    }
    wide = {feature: msgspec.structs.replace(table, dim=slot_width) for feature, table in moved.items()}
    return items, actions, tuple(wide[one.feature] for one in profile)


def _places(ledger: Ledger, settings: Settings, size: int) -> int:
    """Rows of the position table; a model without one has to be said to be so."""
    ledger.refuse(re.escape(_AGES), "ages of tokens (use_time_encoding)")
    if settings.position_buckets == 0:
        return 0
    shape = ledger.shape(_PLACES)
    if shape and settings.position_buckets not in (None, shape[0]):
        ledger.problems.append(
            f"position_buckets: {settings.position_buckets} in the configuration, but {_PLACES} has shape "
            f"{list(shape)}"
        )
    ledger.move(_PLACES, "tokens.position", (shape[0] if shape else settings.position_buckets or 0, size))
    return shape[0] if shape else 0


def _length(settings: Settings, slot_count: int, per_event: int) -> int:
    if settings.max_history is None:
        return 1 if settings.max_seq_len is None else settings.max_seq_len
    length = slot_count + per_event * settings.max_history
    if settings.max_seq_len is not None and length > settings.max_seq_len:
        raise ConfigError(
            "config.max_history_seqlen",
            f"{settings.max_history} events and {slot_count} slots are {length} tokens, "
            f"more than max_seq_len {settings.max_seq_len}",
        )
    return length


def _two_way(settings: Settings, detected: Detected, profile: bool, notes: Notes) -> bool:
    """Which mask the weights were trained with; the inference module leaves that open."""
    if settings.contextual_max_seqlen not in (None, len(slots(settings))):
        raise ConfigError(
            "config.contextual_max_seqlen",
            f"{settings.contextual_max_seqlen}, but there are {len(slots(settings))} slots of one value each",
        )
    given, disabled = settings.contextual_two_way, settings.disable_contextual_mask
    if given is not None and disabled is not None and given == disabled:
        raise ConfigError("config.contextual_two_way", f"{given}, but disable_contextual_mask is {disabled}")
    if given is None and disabled is not None:
        given = not disabled
    if not profile:
        return False
    if given is None and detected.nvidia == "inference":
        raise ConfigError(
            "config.contextual_two_way",
            "the inference module lets slots see only what is before them, training lets them see the whole "
            "history unless disable_contextual_mask is set; say which mask the weights were trained with",
        )
    if given is None:
        notes.assumed.append("contextual_two_way = true")
        given = True
    return given


def _bit_names(settings: Settings, actions: Table | None) -> tuple[str, ...]:
    """Any set of bits is a row of the action table."""
    if settings.action_bits:
        return settings.action_bits
    return tuple(f"bit{i}" for i in range(max(actions.rows.bit_length() - 1, 1) if actions else 1))
