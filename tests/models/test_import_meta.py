"""Meta production checkpoints: scores of the published formula, and refusals that name what is wrong."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from import_formulas import meta
from import_states import (
    Random,
    State,
    difference,
    doubled,
    imported,
    refusal,
    save,
    scores,
    user,
)
from safetensors.torch import save_file

D, H, A, E, WIDTH, MIDDLE = 16, 2, 8, 12, 10, 14
T = "_hstu_transducer."
LAYERS = f"{T}_stu_module._stu_layers."
IN = f"{T}_input_preprocessor."
OUT = f"{T}_output_postprocessor."
C = "_embedding_collection.embeddings."
LONGEST = 11
SETS = (
    "max_seq_len=64",
    f"hstu_num_heads={H}",
    'multitask_configs=[{"task_name": "click", "task_weight": 1}, {"task_name": "like", "task_weight": 4}]',
    'contextual_feature_to_max_length={"user": 1, "place": 2}',
    "uih_post_id_feature_name=item",
)
SLOTS = ["user", "place", "place"]
ROWS = [
    user([3, 1, 0], [5, 0, 7, 5], [1_700_000_000, 1_700_000_050, 1_700_090_000, 1_700_090_000], [1, 6, 0, 4],
         [2, 5, 8, 1], 1_700_100_000),
    user([0, 2, 2], [4], [1_699_999_990], [7], [8], 1_700_100_007),
]  # fmt: skip


def state(seed: int = 0, group: bool = False, post: str = "time", actions: bool = True) -> State:
    r = Random(seed)
    out: State = {}
    for i in range(2):
        name, norm = f"{LAYERS}{i}.", H if group else H * E
        out |= {
            f"{name}_uvqk_weight": r(D, 2 * H * (A + E), scale=0.3),
            f"{name}_uvqk_beta": r(2 * H * (A + E), scale=0.3),
            f"{name}_input_norm_weight": 1 + r(D, scale=0.2),
            f"{name}_input_norm_bias": r(D, scale=0.2),
            f"{name}_output_weight": r(3 * H * E, D, scale=0.3),
            f"{name}_output_norm_weight": 1 + r(norm, scale=0.2),
            f"{name}_output_norm_bias": r(norm, scale=0.2),
        }
    out |= {
        f"{T}_positional_encoder._position_embeddings_weight": r(9, D),
        f"{T}_positional_encoder._timestamp_embeddings_weight": r(31, D),
        f"{IN}_batched_contextual_linear_weights": r(3, WIDTH, D, scale=0.3),
        f"{IN}_batched_contextual_linear_bias": r(3, D),
        f"{C}item.weight": r(9, WIDTH),
        f"{C}user.weight": r(5, WIDTH),
        f"{C}place.weight": r(4, WIDTH),
    }
    out |= r.stack(f"{IN}_content_embedding_mlp", WIDTH, MIDDLE, D)
    # The published module exists without additional features, with no inputs.
    out |= r.stack(f"{IN}_additional_embedding_mlp", 1, MIDDLE, D)
    out[f"{IN}_additional_embedding_mlp.0.weight"] = torch.zeros(MIDDLE, 0)
    if actions:
        out |= {
            f"{IN}_action_encoder._action_embedding_table": r(3, 8),
            f"{IN}_action_encoder._target_action_embedding_table": r(1, 24),
            f"{IN}_action_encoder._combined_action_weights": torch.tensor([1, 2, 4]),
        }
        out |= r.stack(f"{IN}_action_embedding_mlp", 24, MIDDLE, D)
    if post != "none":
        out |= r.norm(f"{OUT}_layer_norm", D)
    if post == "time":
        out |= r.linear(f"{OUT}_time_feature_combiner", D + 4, D)
        out |= {
            f"{OUT}_period_units": torch.tensor([[3600.0, 86400.0]]),
            f"{OUT}_units_per_period": torch.tensor([[24.0, 7.0]]),
        }
    out |= r.stack("_item_embedding_mlp", WIDTH, 20, D)
    return out | r.stack("_multitask_module._prediction_module", D, 20, 2, normed=False)


def check(values: State, out: Path, **formula: object) -> None:
    want = meta(doubled(values), ROWS, H, SLOTS, [0, 0, 0], **formula)  # type: ignore[arg-type]
    assert difference(scores(out, ROWS), want) <= 1e-10


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize(
    ("post", "said"),
    [
        ("time", ()),
        ("norm", ("use_layer_norm_postprocessor=true",)),
        ("none", ("enable_postprocessor=false",)),
    ],
)
def test_scores_of_a_padded_batch(tmp_path: Path, group: bool, post: str, said: tuple[str, ...]) -> None:
    values = state(group=group, post=post)
    file = save(
        {f"module.{name}": value for name, value in values.items()}, tmp_path / "c.ckpt", "dense_dict"
    )
    report = imported("meta", file, tmp_path / "m", *SETS, *said, scaling_seqlen=LONGEST)
    check(values, tmp_path / "m")
    assert (report.variant, report.cacheable, report.scaling_seqlen) == ("meta_stu", "request", LONGEST)
    assert report.golden_difference <= 1e-9
    assert any("longest row" in text for text in report.warnings)
    assert f"{IN}_additional_embedding_mlp.0.weight" in report.ignored_tensors
    written = json.loads((tmp_path / "m" / "import.json").read_text())
    assert written["fingerprint"] == report.fingerprint
    assert written["aliases"]["hstu_num_heads"] == "num_heads"
    assert [one["path"] for one in written["files"]] == [str(file)]


def test_other_switches(tmp_path: Path) -> None:
    values = state(actions=False)
    file = save(values, tmp_path / "c.pt", None)
    more = ("action_mode=none", "attn_alpha=0.25", "max_attn_len=2", "time_bucket_limit=embedding_dim")
    imported("meta", file, tmp_path / "m", *SETS, *more, scaling_seqlen=LONGEST)
    check(values, tmp_path / "m", window=2, alpha=0.25, time_limit=D - 1)


def test_thresholds_of_slots(tmp_path: Path) -> None:
    """Where candidates do not tip the balance; the published rule counts them in."""
    values = state()
    file = save(values, tmp_path / "c.pt", None)
    least = 'contextual_feature_to_min_uih_length={"user": 4, "place": 0}'
    report = imported("meta", file, tmp_path / "m", *SETS, least, scaling_seqlen=LONGEST)
    want = meta(doubled(values), ROWS, H, SLOTS, [4, 0, 0])
    assert difference(scores(tmp_path / "m", ROWS), want) <= 1e-10
    assert any("threshold" in text for text in report.warnings)
    text = refusal("meta", file, tmp_path / "n", *SETS, 'slot_min_history={"usr": 4}', scaling_seqlen=LONGEST)
    assert "usr: no such slots" in text


def test_folder_with_sharded_tables(tmp_path: Path) -> None:
    values, folder = state(), tmp_path / "ckpt"
    tables = {name: value for name, value in values.items() if name.startswith(C)}
    save({n: v for n, v in values.items() if n not in tables}, folder / "non_sparse.ckpt", "dense_dict")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a single process
        dcp.save(
            {"sparse_dict": tables}, storage_writer=dcp.FileSystemWriter(folder / "sparse"), no_dist=True
        )
    report = imported("meta", folder, tmp_path / "m", *SETS, scaling_seqlen=LONGEST)
    check(values, tmp_path / "m")
    assert {Path(one.path).name for one in report.files} == {"non_sparse.ckpt", ".metadata", "__0_0.distcp"}


def test_tables_of_other_files(tmp_path: Path) -> None:
    values = state()
    item, person, place = (values.pop(f"{C}{name}.weight") for name in ("item", "user", "place"))
    file = save(values, tmp_path / "c.pt", None)
    np.save(tmp_path / "item.npy", item.numpy())
    save_file({"other": item, "user.weight": person}, tmp_path / "two.safetensors")
    save({"deep": place}, tmp_path / "place.pt", None)
    text = refusal("meta", file, tmp_path / "m", *SETS, scaling_seqlen=LONGEST)
    for name in ("item", "user", "place"):
        assert f"missing table '{name}'" in text
        assert f"--tables {name}=FILE" in text
    tables = (
        f"item={tmp_path / 'item.npy'}",
        f"user={tmp_path / 'two.safetensors'}",
        f"place={tmp_path / 'place.pt'}:deep",
    )
    report = imported("meta", file, tmp_path / "m", *SETS, scaling_seqlen=LONGEST, tables=tables)
    check(
        values | {f"{C}item.weight": item, f"{C}user.weight": person, f"{C}place.weight": place},
        tmp_path / "m",
    )
    assert len(report.files) == 4
    for bad, words in (
        (("item",), "must have the form"),
        ((tables[0], tables[0]), "given twice"),
        ((f"item={tmp_path / 'two.safetensors'}:no",), "has no tensor 'no'"),
        ((*tables, f"extra={tmp_path / 'item.npy'}"), f"unexpected {C}extra.weight"),
    ):
        assert words in refusal("meta", file, tmp_path / "n", *SETS, scaling_seqlen=LONGEST, tables=bad)


def test_every_tensor_is_asked_for(tmp_path: Path) -> None:
    """Each one that is absent, of another shape, or not finite, is named; so is one more."""
    values = state()
    spare = {name for name in values if "_additional_" in name or name.endswith(("_units", "_per_period"))}
    for i, name in enumerate(sorted(values.keys() - spare)):
        rest = {other: value for other, value in values.items() if other != name}
        text = refusal(
            "meta", save(rest, tmp_path / "a.pt", None), tmp_path / f"a{i}", *SETS, scaling_seqlen=9
        )
        assert name in text
        assert "missing" in text
        if values[name].is_floating_point():
            wrong = values | {name: torch.zeros(*values[name].shape, 1)}
            text = refusal(
                "meta", save(wrong, tmp_path / "b.pt", None), tmp_path / f"b{i}", *SETS, scaling_seqlen=9
            )
            assert f"{name} has shape" in text
            shape = values[name].shape
            assert f"wanted {list(shape)}" in text or f"wanted {len(shape)} axes" in text or C in name
            wrong = values | {name: torch.full_like(values[name], torch.inf)}
            text = refusal(
                "meta", save(wrong, tmp_path / "c.pt", None), tmp_path / f"c{i}", *SETS, scaling_seqlen=9
            )
            assert f"not finite: {name}" in text
    more = save(values | {"more": torch.zeros(2)}, tmp_path / "d.pt", None)
    text = refusal("meta", more, tmp_path / "d", *SETS, scaling_seqlen=9)
    assert "unexpected more [2]" in text


def test_several_problems_at_once(tmp_path: Path) -> None:
    values = state()
    del values[f"{LAYERS}1._uvqk_beta"], values["_item_embedding_mlp.3.bias"]
    values[f"{LAYERS}0._output_norm_bias"] = torch.zeros(3)
    values["stranger"] = torch.zeros(1)
    text = refusal("meta", save(values, tmp_path / "c.pt", None), tmp_path / "m", *SETS, scaling_seqlen=9)
    for words in (
        f"missing {LAYERS}1._uvqk_beta [80]",
        "missing _item_embedding_mlp.3.bias [16]",
        f"{LAYERS}0._output_norm_bias has shape [3], wanted [24]",
        "unexpected stranger [1]",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        (f"{IN}_additional_embedding_mlp.0.weight", (MIDDLE, WIDTH), "additional embedding features"),
        ("_item_embedding_mlp.0.weight", (20, 2 * WIDTH), "2 tables a candidate"),
        (f"{OUT}surface_mlp.0.weight", (D, D), "heads by type of surface"),
        (f"{IN}_content_embedding_mlp._dense_features_compress.weight", (D, D), "contextualised networks"),
        (f"{OUT}_period_units", (1, 2), "only [3600.0, 86400.0] is supported"),
        (f"{IN}_action_encoder._action_embedding_table", (2, 8), "has shape [2, 8], wanted [3, 8]"),
    ],
)
def test_unsupported_features_are_named(
    tmp_path: Path, name: str, shape: tuple[int, ...], words: str
) -> None:
    values = state() | {name: torch.zeros(*shape)}
    text = refusal("meta", save(values, tmp_path / "c.pt", None), tmp_path / "m", *SETS, scaling_seqlen=9)
    assert name in text
    assert words in text
