"""Settings of Meta production checkpoints: contradictions, what is asked for, published names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from import_states import imported, refusal, save
from test_import_meta import SETS, A, D, E, H, state

from relaygr.models.hstu import HstuConfig
from relaygr.models.imports.names import NAMES
from relaygr.models.imports.settings import FIELDS
from relaygr.models.weights import load_config


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("hstu_transducer_embedding_dim=32",), "hidden_size: 32 in the configuration, but "),
        (("num_layers=3",), "num_layers: 3 in the configuration"),
        (("hstu_attn_qk_dim=7",), "qk_dim: 7 in the configuration, but the shapes with 2 heads make it 8"),
        (("hstu_attn_linear_dim=9",), "v_dim: 9 in the configuration"),
        (("hstu_embedding_table_dim=9",), "table_dim: 9 in the configuration"),
        (("num_position_buckets=8",), "position_buckets: 8 in the configuration"),
        (("num_time_buckets=31",), "time_buckets: 31 in the configuration"),
        (("action_weights=[1,2,8]",), "action_weights: [1, 2, 8] in the configuration"),
        (('tasks=["a"]',), "tasks: 1 in the configuration"),
        (('contextual=["user"]',), "contextual: 1 slots in the configuration"),
        (("hstu_num_heads=3",), "num_heads: 3 does not divide"),
        (("hstu_group_norm=true",), "_output_norm_weight has shape [24], wanted [2]"),
        (("hstu_num_head=3",), "unknown key; did you mean 'hstu_num_heads'?"),
        (("hstu_num_heads=x",), "config.hstu_num_heads: 'x' is not valid"),
        (
            ("use_group_norm=true", "hstu_group_norm=false"),
            "config.hstu_group_norm: False, but use_group_norm",
        ),
        (("causal=false",), "config.causal: False is not supported"),
        (('watchtime_feature_name="t"',), "watch times are not read"),
        (("uih_post_id_feature_name=film",), "missing table 'film'"),
        (('unknown={"usr": "hash"}',), "config.unknown: 'usr' is none of the tables"),
        (('tasks=[{"task_name": "w", "task_type": 1}, "a"]',), "binary tasks must come first"),
        (("nonsense",), "must have the form key=value"),
    ],
)
def test_settings_that_contradict(tmp_path: Path, sets: tuple[str, ...], words: str) -> None:
    file = save(state(), tmp_path / "c.pt", None)
    kept = [one for one in SETS if one.split("=")[0] not in {s.split("=")[0] for s in sets}]
    text = refusal("meta", file, tmp_path / "m", *_without_alias(kept, sets), *sets, scaling_seqlen=9)
    assert words in text


def _without_alias(kept: list[str], sets: tuple[str, ...]) -> list[str]:
    """Drop settings that `sets` give under another name."""
    aliases = NAMES["meta"].aliases
    given = {target for one in sets for target in aliases.get(one.split("=")[0], (one.split("=")[0],))}
    return [one for one in kept if not given & set(aliases.get(one.split("=")[0], (one.split("=")[0],)))]


def test_what_shapes_cannot_tell_is_asked_for(tmp_path: Path) -> None:
    file = save(state(), tmp_path / "c.pt", None)
    assert "max_seq_len, tasks: shapes do not tell" in refusal("meta", file, tmp_path / "m")
    text = refusal("meta", file, tmp_path / "m", "max_seq_len=9", 'tasks=["a","b"]')
    assert "num_heads: shapes do not tell" in text
    text = refusal("meta", file, tmp_path / "m", *SETS)
    assert "longest row of each batch" in text
    assert "longest row of training" in text
    text = refusal("meta", file, tmp_path / "m", *SETS, "scaling_seqlen=8", scaling_seqlen=9)
    assert "--scaling-seqlen: 9, but the configuration says 8" in text
    assert "0 must be at least 1" in refusal("meta", file, tmp_path / "m", *SETS, scaling_seqlen=0)


def test_group_norm_tells_the_heads(tmp_path: Path) -> None:
    file = save(state(group=True), tmp_path / "c.pt", None)
    imported("meta", file, tmp_path / "m", *SETS[:1], *SETS[2:], scaling_seqlen=9)
    assert load_config(tmp_path / "m").num_heads == H
    text = refusal("meta", file, tmp_path / "n", *SETS[:1], *SETS[2:], "num_heads=4", scaling_seqlen=9)
    assert "num_heads: 4 in the configuration, but the output norms are of 2 heads" in text


def test_policies_names_and_bits(tmp_path: Path) -> None:
    file = save(state(), tmp_path / "c.pt", None)
    more = ('unknown={"item": "hash", "user": "default"}', 'unknown_rows={"place": 3}', "tables={}")
    imported("meta", file, tmp_path / "m", *SETS, *more, scaling_seqlen=9)
    config = load_config(tmp_path / "m")
    assert isinstance(config, HstuConfig)
    assert config.items is not None
    assert (config.items.unknown, [t.unknown for t in config.slot_tables]) == (
        "hash",
        ["default", "unknown_row", "unknown_row"],
    )
    assert config.contextual == ("user", "place.0", "place.1")
    assert config.action_bits == ("click", "bit1", "like")
    assert (config.tasks, config.time_buckets, config.position_buckets) == (("click", "like"), 30, 9)


def test_a_regression_is_kept_as_one(tmp_path: Path) -> None:
    file = save(state(), tmp_path / "c.pt", None)
    sets = [one for one in SETS if not one.startswith("multitask")]
    tasks = 'tasks=["click", {"task_name": "watch", "task_type": "REGRESSION"}]'
    imported("meta", file, tmp_path / "m", *sets, tasks, scaling_seqlen=9)
    assert load_config(tmp_path / "m").regressions == ("watch",)


SECTION_11 = {
    "hstu_transducer_embedding_dim": "hidden_size",
    "embedding_dim": "hidden_size",
    "hstu_attn_num_layers": "num_layers",
    "hstu_num_heads": "num_heads",
    "hstu_attn_qk_dim": "qk_dim",
    "attention_dim": "qk_dim",
    "hstu_attn_linear_dim": "v_dim",
    "hidden_dim": "v_dim",
    "max_seq_len": "max_seq_len",
    "max_num_candidates": "max_num_candidates",
    "max_num_candidates_inference": "max_num_candidates_inference",
    "contextual_feature_to_max_length": "contextual",
    "contextual_feature_to_min_uih_length": "slot_min_history",
    "uih_post_id_feature_name": "items",
    "uih_action_time_feature_name": "timestamps",
    "uih_weight_feature_name": "actions",
    "action_weights": "action_weights",
    "max_attn_len": "window",
    "min_full_attn_seq_len": "full_tail",
    "attn_alpha": "alpha",
    "multitask_configs": "tasks",
    "hstu_group_norm": "group_norm",
    "use_group_norm": "group_norm",
    "eps": "norm_eps",
}


def test_every_published_name_is_known(tmp_path: Path) -> None:
    for name, field in SECTION_11.items():
        assert NAMES["meta"].aliases.get(name, (name,)) == (field,)
        assert field in FIELDS
    file = save(state(), tmp_path / "c.pt", None)
    config = {
        "hstu_transducer_embedding_dim": D,
        "embedding_dim": D,
        "hstu_attn_num_layers": 2,
        "hstu_num_heads": H,
        "hstu_attn_qk_dim": A,
        "attention_dim": A,
        "hstu_attn_linear_dim": E,
        "hidden_dim": E,
        "max_seq_len": 64,
        "max_num_candidates": 10,
        "max_num_candidates_inference": 20,
        "contextual_feature_to_max_length": {"user": 1, "place": 2},
        "contextual_feature_to_min_uih_length": {},
        "uih_post_id_feature_name": "item",
        "uih_action_time_feature_name": "time",
        "uih_weight_feature_name": "weight",
        "action_weights": [1, 2, 4],
        "max_attn_len": None,
        "min_full_attn_seq_len": None,
        "attn_alpha": None,
        "multitask_configs": [{"task_name": name, "task_weight": 1, "task_type": 0} for name in "ab"],
        "hstu_group_norm": False,
        "use_group_norm": False,
        "position": {"num_position_buckets": 9, "num_time_buckets": 30, "use_time_encoding": True},
        "eps": 1e-6,
        "hstu_linear_dropout_rate": 0.1,
    }
    assert config.keys() >= SECTION_11.keys()
    (tmp_path / "c.json").write_text(json.dumps(config))
    report = imported("meta", file, tmp_path / "m", config=tmp_path / "c.json", scaling_seqlen=9)
    assert set(report.aliases) >= {name for name, field in SECTION_11.items() if name != field}
    assert "hstu_linear_dropout_rate" in report.unused_settings
    assert load_config(tmp_path / "m").max_num_candidates == 20
    assert report.files[-1].path == str(tmp_path / "c.json")
