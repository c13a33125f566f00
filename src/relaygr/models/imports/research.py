"""Meta research checkpoints: one file, items compared by similarity."""

from __future__ import annotations

import re

import msgspec

from relaygr.core.errors import ConfigError
from relaygr.models.hstu import HstuConfig
from relaygr.models.imports.layout import RESEARCH_LAYERS, Detected
from relaygr.models.imports.ledger import Ledger, Told, transposed
from relaygr.models.imports.notes import Notes
from relaygr.models.imports.settings import Settings
from relaygr.models.imports.sizes import Heads, divisor, split_heads, task_names
from relaygr.models.imports.tables import check_policies, move_table
from relaygr.models.switches import META_RESEARCH

ITEMS = "_embedding_module._item_emb.weight"

_PLACES = "_input_features_preproc._pos_emb.weight"
_MASK = "_attn_mask"
_TIME_ROWS = 129


def convert(
    ledger: Ledger, settings: Settings, detected: Detected, asked: int | None, notes: Notes
) -> HstuConfig:
    """Move all tensors of a checkpoint and work out its configuration."""
    layers = ledger.layers(RESEARCH_LAYERS, settings.num_layers)
    size = ledger.size(
        "hidden_size",
        settings.hidden_size,
        [ledger.axis(f"{RESEARCH_LAYERS}{i}._uvqk", 0, 2) for i in range(layers)]
        + [ledger.axis(_PLACES, 1, 2), ledger.axis(ITEMS, 1, 2)],
    )
    length = _length(ledger, settings)
    timed = not ledger.names(re.escape(RESEARCH_LAYERS) + r"\d+\._rel_attn_bias\._w")
    heads, parts = _heads(ledger, settings, layers, notes)
    for i in range(layers):
        _layer(ledger, i, size, heads, parts, length, timed)
    items = move_table(ledger, settings, settings.items or "item", "tokens.item.weight", size, ITEMS)
    check_policies(settings, [settings.table_of(settings.items or "item")])
    ledger.move(_PLACES, "tokens.position", (length, size))
    ledger.causal(_MASK)
    _refuse(ledger)
    tasks = task_names(ledger, settings, notes, None) if settings.tasks else ("similarity",)
    number = divisor(settings, asked, length, notes)
    activated = settings.linear_activation or "silu"
    if activated not in ("silu", "none"):
        raise ConfigError("config.linear_activation", f"{activated!r} is neither 'silu' nor 'none'")
    if settings.linear_activation is None:
        notes.assumed.append("linear_activation = silu")
    ledger.close()
    return HstuConfig(
        variant="meta_research",
        layer=msgspec.structs.replace(
            META_RESEARCH,
            silu_on="uvqk" if activated == "silu" else "none",
            relative_bias="position_time" if timed else "position",
            concat="gate" if parts == 1 else "u_z_y",
        ),
        hidden_size=size,
        num_layers=layers,
        num_heads=heads.count,
        qk_dim=heads.qk_dim,
        v_dim=heads.v_dim,
        embedding_dim=size,
        max_seq_len=length,
        max_num_candidates=settings.max_num_candidates,
        scaling_seqlen=number,
        norm_eps=1e-6 if settings.norm_eps is None else settings.norm_eps,
        position_buckets=length,
        action_mode="none",
        postprocess="l2",
        tasks=tasks,
        items=msgspec.structs.replace(items, first=1),
    )


def _length(ledger: Ledger, settings: Settings) -> int:
    """The padded length N: rows of the position table, of the mask, and half the relative positions."""
    said = [ledger.axis(_PLACES, 0, 2), ledger.axis(_MASK, 0, 2)]
    for name in ledger.names(re.escape(RESEARCH_LAYERS) + r"\d+\._rel_attn_bias\._(pos_)?w"):
        told = ledger.axis(name, 0, 1)
        said.append(Told(told.words, None if told.value is None else (told.value + 1) // 2))
    given, more = settings.max_seq_len, settings.max_output_len or 0
    if more < 0:
        raise ConfigError("config.max_output_len", f"{more} must not be negative")
    if given is not None:
        given += more
    length = ledger.size("max_sequence_len + max_output_len", given, said)
    if settings.position_buckets not in (None, length):
        ledger.problems.append(
            f"position_buckets: {settings.position_buckets} in the configuration, but {_PLACES} has shape "
            f"{list(ledger.shape(_PLACES))}"
        )
    return length


def _heads(ledger: Ledger, settings: Settings, layers: int, notes: Notes) -> tuple[Heads, int]:
    """Heads, and how many times H E numbers the output projection reads: 1, or 3 with `concat_ua`."""
    names = [f"{RESEARCH_LAYERS}{i}." for i in range(layers)]
    columns = ledger.size("uvqk", None, [ledger.axis(f"{name}_uvqk", 1, 2) for name in names])
    reads = ledger.size("output", None, [ledger.axis(f"{name}_o.weight", 1, 2) for name in names])
    if settings.concat_ua is not None:
        parts = 3 if settings.concat_ua else 1
    elif settings.num_heads and settings.v_dim:
        parts = max(reads // (settings.num_heads * settings.v_dim), 1)
    else:
        parts = 1 if reads < columns // 2 else 3
        notes.assumed.append(f"concat_ua = {'false' if parts == 1 else 'true'}")
    values, keys = reads // parts, columns // 2 - reads // parts
    if parts not in (1, 3) or reads % parts or columns % 2 or keys < 1:
        ledger.problems.append(
            f"{names[0]}_o.weight reads {reads} numbers and {names[0]}_uvqk makes {columns}, "
            f"wanted {parts} H E and 2 H (E + A)"
        )
        return Heads(1, 1, 1), 1
    return split_heads(ledger, settings, keys, values), parts


def _layer(ledger: Ledger, index: int, size: int, heads: Heads, parts: int, length: int, timed: bool) -> None:
    name, target = f"{RESEARCH_LAYERS}{index}.", f"layers.{index}."
    values, keys = heads.count * heads.v_dim, heads.count * heads.qk_dim
    ledger.move(f"{name}_uvqk", f"{target}uvqk.weight", (size, 2 * (values + keys)), transposed)
    ledger.move(f"{name}_o.weight", f"{target}output.weight", (size, parts * values))
    ledger.move(f"{name}_o.bias", f"{target}output.bias", (size,))
    bias = f"{name}_rel_attn_bias."
    ledger.move(f"{bias}{'_pos_w' if timed else '_w'}", f"{target}relative.position", (2 * length - 1,))
    if timed:
        ledger.move(f"{bias}_ts_w", f"{target}relative.time", (_TIME_ROWS,))


def _refuse(ledger: Ledger) -> None:
    ledger.refuse(r"_input_features_preproc\._rating_emb\..*", "ratings as part of an event")
    ledger.refuse(r"_embedding_module\.(?!_item_emb\.).*", "embeddings of something else than the item id")
    ledger.refuse(r"_ndp_module\..*", "a learned similarity; items are compared by cosine")
    ledger.refuse(r"_output_postproc\..*", "a learned postprocessor; the user's row is divided by its length")
