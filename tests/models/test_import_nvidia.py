"""NVIDIA checkpoints of three kinds: scores of the published formula, layouts told apart, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from import_formulas import nvidia
from import_states import Random, State, difference, doubled, imported, refusal, save, scores, user

from relaygr.models.hstu import HstuConfig
from relaygr.models.imports.names import NAMES
from relaygr.models.imports.settings import FIELDS
from relaygr.models.weights import load_config

D, H, A = 16, 2, 8
LAYERS = "_hstu_block._attention_layers."
BEFORE = "_hstu_block._preprocessor."
C = "_embedding_collection.embeddings."
PLACES = f"{BEFORE}_positional_encoder._position_embeddings_weight"
SETS = (
    f"num_attention_heads={H}",
    "max_seq_len=64",
    'tasks=["click", "like", "share"]',
    "item_feature_name=item",
    "action_feature_name=action",
    "scaling_seqlen=32",
)
SLOTS = ('contextual_feature_names=["user", "place"]',)
ROWS = [
    user([], [5, 0, 7, 5], range(100, 104), [1, 3, 0, 4], [2, 5, 8, 1], 200),
    user([], [4], [100], [2], [8], 200),
]
WITH_SLOTS = [
    user([3, 1], [5, 0, 7, 5], range(100, 104), [1, 3, 0, 4], [2, 5, 8, 1], 200),
    user([0, 2], [4], [100], [2], [8], 200),
]


def layer(r: Random, name: str, kind: str, size: int) -> State:
    """One layer as the fused, native or inference module stores it."""
    keys = H * A
    joint, out = r(4 * keys, D, scale=0.3), r(D, keys, scale=0.3)
    norm = "_output_ln_dropout_mul." if kind == "native" else "_output_layernorm_"
    state = {
        f"{name}_input_layernorm_weight": 1 + r(D, scale=0.2),
        f"{name}_input_layernorm_bias": r(D, scale=0.2),
        f"{name}{norm}weight": 1 + r(keys, scale=0.2),
        f"{name}{norm}bias": r(keys, scale=0.2),
    }
    bias = r(4 * keys, scale=0.3)
    if kind == "fused":
        return state | {
            f"{name}_linear_uvqk_weight": joint.T.contiguous(),
            f"{name}_linear_uvqk_bias": bias,
            f"{name}_linear_proj_weight": out.T.contiguous(),
        }
    return state | {
        f"{name}_linear_uvqk.weight": joint,
        f"{name}_linear_uvqk.bias": bias,
        f"{name}_linear_proj.weight": out,
    }


def network(r: Random, name: str, sizes: tuple[int, ...], nested: bool) -> State:
    state: State = {}
    for i in range(len(sizes) - 1):
        at = f"{name}_mlp._mlp.{i}._linear" if nested else f"{name}_mlp.{2 * i}"
        state |= r.linear(at, sizes[i], sizes[i + 1])
    return state


def state(kind: str = "fused", nested: bool = False, slots: bool = False, mlp: int = 0) -> State:
    r = Random(1)
    out: State = {}
    for i in range(2):
        out |= layer(r, f"{LAYERS}{i}.", kind, D)
    width = mlp or D
    out |= {PLACES: r(7, D), f"{C}item.weight": r(9, width), f"{C}action.weight": r(6, width)}
    out |= network(r, "_mlp.", (D, 12, 3), nested)
    if mlp:
        out |= network(r, f"{BEFORE}_item_mlp.", (mlp, 13, D), nested)
    if slots:
        out |= {f"{C}user.weight": r(5, 11), f"{C}place.weight": r(4, 11)}
        out |= network(r, f"{BEFORE}_contextual_mlp.", (11, 14, D), nested)
    return out


@pytest.mark.parametrize("kind", ["fused", "native", "inference"])
@pytest.mark.parametrize("nested", [False, True])
def test_scores(tmp_path: Path, kind: str, nested: bool) -> None:
    values = state(kind, nested)
    folder = tmp_path / "ckpt"
    save(values, folder / "torch_module" / "model.0.pth")
    report = imported("nvidia", folder, tmp_path / "m", *SETS)
    want = [nvidia(doubled(values), row, H, 32, [], per_head=kind == "native") for row in ROWS]
    assert difference(scores(tmp_path / "m", ROWS), want) <= 1e-10
    assert report.detected == f"an NVIDIA {kind} checkpoint"
    assert report.projection == ("per_head" if kind == "native" else "block")
    assert (report.variant, report.cacheable, report.scaling_seqlen) == ("nvidia", "append", 32)
    assert any("never negative" in text for text in report.warnings) == nested
    config = load_config(tmp_path / "m")
    assert isinstance(config, HstuConfig)
    assert (config.relu_last, config.head_sizes, config.action_mode) == (nested, (12,), "interleave")


def test_the_native_layout_is_another_model(tmp_path: Path) -> None:
    """The two readings of the same projection differ, so the test above tells them apart."""
    values = doubled(state("native"))
    one, other = (nvidia(values, ROWS[0], H, 32, [], per_head=per_head) for per_head in (True, False))
    assert float((one - other).abs().max()) > 0.01


@pytest.mark.parametrize("kind", ["fused", "native", "inference"])
@pytest.mark.parametrize("two_way", [False, True])
def test_slots_and_networks(tmp_path: Path, kind: str, two_way: bool) -> None:
    values = state(kind, nested=True, slots=True, mlp=10)
    said = f"disable_contextual_mask={'false' if two_way else 'true'}"
    report = imported("nvidia", save(values, tmp_path / "c.pth"), tmp_path / "m", *SETS, *SLOTS, said)
    want = [
        nvidia(doubled(values), row, H, 32, ["user", "place"], two_way, per_head=kind == "native")
        for row in WITH_SLOTS
    ]
    assert difference(scores(tmp_path / "m", WITH_SLOTS), want) <= 1e-10
    assert report.cacheable == ("request" if two_way else "append")


def test_the_mask_of_slots_has_to_be_known(tmp_path: Path) -> None:
    for kind in ("fused", "native"):
        file = save(state(kind, slots=True), tmp_path / "c.pth")
        report = imported("nvidia", file, tmp_path / kind, *SETS, *SLOTS)
        assert report.assumed == ("contextual_two_way = true",)
    file = save(state("inference", slots=True), tmp_path / "c.pth")
    text = refusal("nvidia", file, tmp_path / "m", *SETS, *SLOTS)
    assert "say which mask the weights were trained with" in text
    text = refusal("nvidia", file, tmp_path / "m", *SETS)
    assert "contextual_feature_names" in text
    assert f"unexpected {C}user.weight" in text


def test_switches_that_take_tensors_away(tmp_path: Path) -> None:
    values = {
        name: value
        for name, value in state("fused").items()
        if "_input_layernorm_" not in name and "_uvqk_bias" not in name and name != PLACES
    }
    values = {
        name: value for name, value in values.items() if not name.startswith("_mlp.") or "bias" not in name
    }
    file = save(values, tmp_path / "c.pt")
    text = refusal("nvidia", file, tmp_path / "m", *SETS)
    for part in ("_input_layernorm_weight [16]", "_linear_uvqk_bias [64]"):
        assert f"missing {LAYERS}1.{part}" in text
    assert f"missing {PLACES}" in text
    assert "missing _mlp._mlp.2.bias [3]" in text
    said = (
        "learnable_input_layernorm=false",
        "add_uvqk_bias=false",
        "residual=false",
        "prediction_head_bias=false",
    )
    imported(
        "nvidia", file, tmp_path / "m", *SETS, *said, "position_encoding_config={}", "num_position_buckets=0"
    )
    zeros = {"_mlp._mlp.0.bias": torch.zeros(12), "_mlp._mlp.2.bias": torch.zeros(3)}
    want = [nvidia(doubled(values | zeros), row, H, 32, [], residual=False) for row in ROWS]
    assert difference(scores(tmp_path / "m", ROWS), want) <= 1e-10


@pytest.mark.parametrize("kind", ["fused", "native", "inference"])
def test_every_tensor_is_asked_for(tmp_path: Path, kind: str) -> None:
    values = state(kind, slots=True, mlp=10)
    told = (*SETS, *SLOTS, "contextual_two_way=false")
    for i, name in enumerate(sorted(values)):
        rest = {other: value for other, value in values.items() if other != name}
        text = refusal("nvidia", save(rest, tmp_path / "a.pt"), tmp_path / f"a{i}", *told)
        assert name in text
        assert "missing" in text
        wrong = values | {name: torch.zeros(*values[name].shape, 1)}
        text = refusal("nvidia", save(wrong, tmp_path / "b.pt"), tmp_path / f"b{i}", *told)
        assert f"{name} has shape" in text or "_mlp" in name
        wrong = values | {name: torch.full_like(values[name], torch.nan)}
        text = refusal("nvidia", save(wrong, tmp_path / "c.pt"), tmp_path / f"c{i}", *told)
        assert f"not finite: {name}" in text


def test_kinds_that_names_do_not_tell(tmp_path: Path) -> None:
    native, inference = state("native"), state("inference")
    bare = {name: value for name, value in native.items() if "_output_" not in name}
    for values in (bare, native | inference, state("fused") | native):
        text = refusal("nvidia", save(values, tmp_path / "c.pt"), tmp_path / "m", *SETS)
        assert "the order of the projection's rows cannot be told" in text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({f"{BEFORE}_positional_encoder._timestamp_embeddings_weight": (5, D)}, "ages of tokens"),
        ({f"{LAYERS}0._linear_uvqk._extra_state_": (1,)}, "the order of the projection's rows"),
        ({"_mlp._mlp._mlp.0._linear.weight": (12, D)}, "_mlp._mlp._mlp.0._linear.bias"),
        ({f"{BEFORE}_item_mlp._mlp._mlp.0._linear.weight": (13, 10)}, "wanted two layers to 16"),
        ({"_loss_module.weight": (1,)}, "unexpected _loss_module.weight [1]"),
    ],
)
def test_unsupported_features_are_named(tmp_path: Path, more: dict[str, tuple[int, ...]], words: str) -> None:
    values = state("fused") | {name: torch.zeros(*shape) for name, shape in more.items()}
    text = refusal("nvidia", save(values, tmp_path / "c.pt"), tmp_path / "m", *SETS)
    assert words in text


def test_one_shard_of_a_model_is_no_model(tmp_path: Path) -> None:
    """Of two: half of the projections' heads, and the output norm of all."""
    values = state("native")
    for i in range(2):
        name = f"{LAYERS}{i}."
        values[f"{name}_linear_uvqk.weight"] = values[f"{name}_linear_uvqk.weight"][: 2 * H * A]
        values[f"{name}_linear_uvqk.bias"] = values[f"{name}_linear_uvqk.bias"][: 2 * H * A]
        values[f"{name}_linear_proj.weight"] = values[f"{name}_linear_proj.weight"][:, : H * A // 2]
    text = refusal("nvidia", save(values, tmp_path / "c.pt"), tmp_path / "m", *SETS)
    assert f"{LAYERS}0._output_ln_dropout_mul.weight has shape [16], wanted [8]" in text


def test_state_of_quantising_layers_is_dropped(tmp_path: Path) -> None:
    values: dict[str, object] = dict(state("native"))
    values[f"{LAYERS}0._linear_uvqk._extra_state"] = None
    values[f"{LAYERS}1._linear_proj._extra_state"] = torch.zeros(0, dtype=torch.uint8)
    report = imported("nvidia", save(values, tmp_path / "c.pt"), tmp_path / "m", *SETS)  # type: ignore[arg-type]
    assert len(report.ignored_tensors) == 2


def test_wrapped_collections(tmp_path: Path) -> None:
    values = {
        name.replace(C, "_embedding_collection._data_parallel_embedding_collection.embeddings."): value
        for name, value in state().items()
    }
    imported("nvidia", save(values, tmp_path / "c.pt"), tmp_path / "m", *SETS)
    want = [nvidia(doubled(state()), row, H, 32, []) for row in ROWS]
    assert difference(scores(tmp_path / "m", ROWS), want) <= 1e-10


def test_the_divisor(tmp_path: Path) -> None:
    file, sets = save(state(), tmp_path / "c.pt"), SETS[:-1]
    for more in ((), ("scaling_seqlen=-1",)):
        assert "longest row of each batch" in refusal("nvidia", file, tmp_path / "m", *sets, *more)
    report = imported("nvidia", file, tmp_path / "m", *sets, "scaling_seqlen=-1", scaling_seqlen=32)
    assert any("is divided by 32 now" in text for text in report.warnings)
    want = [nvidia(doubled(state()), row, H, 32, []) for row in ROWS]
    assert difference(scores(tmp_path / "m", ROWS), want) <= 1e-10
    assert "31, but the configuration says 32" in refusal(
        "nvidia", file, tmp_path / "n", *SETS, scaling_seqlen=31
    )


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("max_attn_len=8",), "scores would depend on the order of candidates"),
        (("window=8",), "scores would depend on the order of candidates"),
        (("target_group_size=2",), "candidates must not see each other"),
        (("is_causal=false",), "only causal rows"),
        (("use_time_encoding=true",), "ages of tokens"),
        (("tensor_model_parallel_size=2",), "one shard is not the model"),
        (("prediction_head_act_type=gelu",), "another activation"),
        (("head_dim=4",), "qk_dim: 4 in the configuration, but the shapes with 2 heads make it 8"),
        (("hidden_size=32",), "hidden_size: 32 in the configuration"),
        (("prediction_head_arch=[12,4]",), "prediction_head_arch: [12, 4] in the configuration"),
        (("num_position_buckets=8",), "position_buckets: 8 in the configuration"),
        (("contextual_max_seqlen=3",), "3, but there are 0 slots"),
        (("max_history_seqlen=64",), "128 tokens, more than max_seq_len 64"),
        (
            ("disable_contextual_mask=true", "contextual_two_way=true"),
            "True, but disable_contextual_mask is True",
        ),
        (("head_dims=8",), "did you mean 'head_dim'"),
    ],
)
def test_settings_that_contradict(tmp_path: Path, sets: tuple[str, ...], words: str) -> None:
    assert words in refusal("nvidia", save(state(), tmp_path / "c.pt"), tmp_path / "m", *SETS, *sets)


SECTION_11: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size",),
    "num_layers": ("num_layers",),
    "num_heads": ("num_heads",),
    "num_attention_heads": ("num_heads",),
    "head_dim": ("qk_dim", "v_dim"),
    "kv_channels": ("qk_dim", "v_dim"),
    "max_seq_len": ("max_seq_len",),
    "max_history_seqlen": ("max_history",),
    "max_num_candidates": ("max_num_candidates",),
    "contextual_feature_names": ("contextual",),
    "contextual_max_seqlen": ("contextual_max_seqlen",),
    "item_feature_name": ("items",),
    "action_feature_name": ("actions",),
    "scaling_seqlen": ("scaling_seqlen",),
    "num_tasks": ("num_tasks",),
    "prediction_head_arch": ("prediction_head_arch",),
    "layernorm_epsilon": ("norm_eps",),
}


def test_every_published_name_is_known(tmp_path: Path) -> None:
    for name, fields in SECTION_11.items():
        assert NAMES["nvidia"].aliases.get(name, (name,)) == fields
        assert set(fields) <= FIELDS.keys()
    shown = (D, 2, H, H, A, A, 64, 20, 99, ["user", "place"], 2, "item", "action", 32, 3, [12, 3], 1e-5)
    config: dict[str, object] = dict(zip(SECTION_11, shown, strict=True))
    config["max_attn_len"] = None
    config["position_encoding_config"] = {
        "num_position_buckets": 7,
        "num_time_buckets": 2049,
        "use_time_encoding": False,
    }
    (tmp_path / "c.json").write_text(json.dumps(config))
    file = save(state(slots=True), tmp_path / "c.pt")
    report = imported("nvidia", file, tmp_path / "m", config=tmp_path / "c.json")
    assert "tasks are called task_0, task_1, task_2" in report.assumed
    made = load_config(tmp_path / "m")
    assert (made.max_seq_len, made.max_num_candidates) == (2 + 2 * 20, 99)
