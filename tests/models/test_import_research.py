"""Meta research checkpoints: scores of the published formula, and refusals that name what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from import_formulas import research
from import_states import Random, State, difference, doubled, imported, refusal, save, scores, user

from relaygr.models.hstu import HstuConfig
from relaygr.models.imports.names import NAMES
from relaygr.models.imports.settings import FIELDS
from relaygr.models.weights import load_config

D, H, A, E, N, ITEMS = 16, 2, 8, 12, 9, 11
LAYERS = "_hstu._attention_layers."
PLACES = "_input_features_preproc._pos_emb.weight"
ITEM = "_embedding_module._item_emb.weight"
SETS = (f"num_heads={H}", f"dv={E}")
ROWS = [
    user([], [5, 1, 7, 5], [1_700_000_000, 1_700_000_050, 1_700_090_000, 1_700_090_000], [0] * 4, [2, 5, 10],
         1_700_100_000),
    user([], [4], [1_699_999_990], [0], [8], 1_700_100_007),
    user([], range(1, 10), range(1_700_000_000, 1_700_900_000, 100_000), [0] * 9, [3, 3], 1_700_900_000),
]  # fmt: skip


def state(seed: int = 0, parts: int = 1, timed: bool = True) -> State:
    r = Random(seed)
    out: State = {"_attn_mask": torch.triu(torch.ones(N, N, dtype=torch.bool), diagonal=1)}
    for i in range(2):
        name = f"{LAYERS}{i}."
        out |= {
            f"{name}_uvqk": r(D, 2 * H * (A + E), scale=0.3),
            f"{name}_o.weight": r(D, parts * H * E, scale=0.3),
            f"{name}_o.bias": r(D, scale=0.3),
            f"{name}_rel_attn_bias.{'_pos_w' if timed else '_w'}": r(2 * N - 1),
        }
        if timed:
            out[f"{name}_rel_attn_bias._ts_w"] = r(129)
    out[PLACES] = r(N, D)
    out[ITEM] = r(ITEMS, D)
    return out


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("activation", ["silu", "none"])
def test_scores(tmp_path: Path, parts: int, timed: bool, activation: str) -> None:
    values = state(parts=parts, timed=timed)
    file = save({f"module.{name}": value for name, value in values.items()}, tmp_path / "c.pth")
    more = (f"linear_activation={activation}", f"concat_ua={'true' if parts == 3 else 'false'}")
    report = imported("research", file, tmp_path / "m", *SETS, *more)
    want = [research(doubled(values), row, H, E, N, activation == "silu") for row in ROWS]
    assert difference(scores(tmp_path / "m", ROWS), want) <= 1e-10
    assert (report.variant, report.cacheable, report.scaling_seqlen) == ("meta_research", "append", N)
    assert report.ignored_tensors == ("_attn_mask",)
    assert report.golden_difference <= 1e-9


def test_defaults_of_the_published_code_are_told(tmp_path: Path) -> None:
    report = imported("research", save(state(), tmp_path / "c.pt"), tmp_path / "m", f"num_heads={H}")
    assert set(report.assumed) == {"linear_activation = silu", "concat_ua = false"}
    config = load_config(tmp_path / "m")
    assert isinstance(config, HstuConfig)
    assert (config.qk_dim, config.v_dim, config.max_seq_len, config.tasks) == (A, E, N, ("similarity",))
    assert config.items is not None
    assert config.items.first == 1  # row 0 is padding


def test_every_tensor_is_asked_for(tmp_path: Path) -> None:
    values = state()
    for i, name in enumerate(sorted(values.keys() - {"_attn_mask"})):
        rest = {other: value for other, value in values.items() if other != name}
        text = refusal("research", save(rest, tmp_path / "a.pt"), tmp_path / f"a{i}", *SETS)
        assert "missing" in text
        assert name in text
        wrong = values | {name: torch.zeros(*values[name].shape, 1)}
        text = refusal("research", save(wrong, tmp_path / "b.pt"), tmp_path / f"b{i}", *SETS)
        assert f"{name} has shape" in text
        wrong = values | {name: torch.full_like(values[name], torch.nan)}
        text = refusal("research", save(wrong, tmp_path / "c.pt"), tmp_path / f"c{i}", *SETS)
        assert f"not finite: {name}" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("_input_features_preproc._rating_emb.weight", "ratings as part of an event"),
        ("_ndp_module._mol.weight", "a learned similarity"),
        ("_output_postproc.layer.weight", "a learned postprocessor"),
        ("_embedding_module._category_emb.weight", "embeddings of something else"),
        (f"{LAYERS}0._kqv", "unexpected"),
    ],
)
def test_unsupported_features_are_named(tmp_path: Path, name: str, words: str) -> None:
    text = refusal(
        "research", save(state() | {name: torch.zeros(2)}, tmp_path / "c.pt"), tmp_path / "m", *SETS
    )
    assert name in text
    assert words in text


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("embedding_dim=32",), "hidden_size: 32 in the configuration"),
        (("num_blocks=1",), "num_layers: 1 in the configuration"),
        (("dqk=9",), "qk_dim: 9 in the configuration"),
        (("max_sequence_len=8",), "max_sequence_len + max_output_len: 8 in the configuration, but"),
        (("normalization=softmax_rel_bias",), "these layers have no softmax"),
        (("user_embedding_norm=layer_norm",), "divided by its length"),
        (("item_l2_norm=false",), "divided by their lengths"),
        (("linear_activation=gelu",), "neither 'silu' nor 'none'"),
        (("concat_ua=true",), "concat_ua"),
        (("num_block=1",), "did you mean 'num_blocks'"),
    ],
)
def test_settings_that_contradict(tmp_path: Path, sets: tuple[str, ...], words: str) -> None:
    file = save(state(), tmp_path / "c.pt")
    if sets == ("concat_ua=true",):  # the shapes then give other heads
        words = "v_dim: 12 in the configuration, but the shapes with 2 heads make it 4"
    assert words in refusal("research", file, tmp_path / "m", *SETS, *sets)


def test_the_divisor_is_the_padded_length(tmp_path: Path) -> None:
    file = save(state(), tmp_path / "c.pt")
    text = refusal("research", file, tmp_path / "m", *SETS, scaling_seqlen=8)
    assert f"8, but the configuration says nothing and the source {N}" in text
    imported("research", file, tmp_path / "m", *SETS, scaling_seqlen=N)


def test_wrong_kinds_of_numbers(tmp_path: Path) -> None:
    for value, words in (
        (torch.zeros(ITEMS, D, dtype=torch.int8), "holds int8, wanted floating point"),
        (torch.zeros(ITEMS, D).to_sparse(), "is not a plain tensor"),
    ):
        text = refusal("research", save(state() | {ITEM: value}, tmp_path / "c.pt"), tmp_path / "m", *SETS)
        assert f"{ITEM} {words}" in text
    values = state() | {ITEM: state()[ITEM].double()}
    report = imported("research", save(values, tmp_path / "d.pt"), tmp_path / "m", *SETS)
    assert "float64 tensors were rounded to float32" in report.warnings


SECTION_11 = {
    "embedding_dim": "hidden_size",
    "item_embedding_dim": "hidden_size",
    "num_blocks": "num_layers",
    "num_heads": "num_heads",
    "dqk": "qk_dim",
    "attention_dim": "qk_dim",
    "dv": "v_dim",
    "linear_dim": "v_dim",
    "max_sequence_len": "max_seq_len",
    "concat_ua": "concat_ua",
}


def test_every_published_name_is_known(tmp_path: Path) -> None:
    for name, field in SECTION_11.items():
        assert NAMES["research"].aliases.get(name, (name,)) == (field,)
        assert field in FIELDS
    config = dict(zip(SECTION_11, (D, D, 2, H, A, A, E, E, N - 2, False), strict=True))
    config |= {"normalization": "rel_bias", "max_output_len": 2, "linear_dropout_rate": 0.2}
    (tmp_path / "c.toml").write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items())
    )
    report = imported(
        "research", save(state(), tmp_path / "c.pt"), tmp_path / "m", config=tmp_path / "c.toml"
    )
    assert report.aliases["dv"] == "v_dim"
    assert set(report.unused_settings) == {"normalization", "linear_dropout_rate"}
