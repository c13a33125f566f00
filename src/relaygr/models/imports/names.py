"""Names of settings in published configurations: aliases, keys that scores do not depend on, fixed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Source = Literal["meta", "research", "nvidia"]
SOURCES: tuple[Source, ...] = ("meta", "research", "nvidia")

Only = tuple[tuple[object, ...], str]


@dataclass(frozen=True, slots=True)
class Names:
    """Keys of one source.

    Attributes:
        fields: canonical names that mean something for this source.
        aliases: published name -> canonical names.
        only: keys that must have one of some values, and why; these may have an alias, too.
        unused: keys that do not change what the model computes, or that name its inputs.
    """

    fields: frozenset[str]
    aliases: dict[str, tuple[str, ...]]
    only: dict[str, Only]
    unused: frozenset[str]


# Tables that only group other keys.
NESTED = frozenset({"position", "position_encoding_config", "hstu_preprocessing_config", "history"})

_EPS = {"eps": ("norm_eps",), "epsilon": ("norm_eps",)}

_COMMON = (
    "hidden_size num_layers num_heads qk_dim v_dim max_seq_len max_num_candidates items timestamps tables "
    "unknown unknown_rows scaling_seqlen tasks position_buckets norm_eps"
)

_META = Names(
    fields=frozenset(
        f"{_COMMON} table_dim stack_size max_num_candidates_inference contextual slot_min_history actions "
        "action_bits action_weights action_mode window full_tail alpha time_buckets time_bucket_limit "
        "group_norm enable_postprocessor use_layer_norm_postprocessor".split()
    ),
    aliases={
        "num_position_buckets": ("position_buckets",),
        "num_time_buckets": ("time_buckets",),
        **_EPS,
        "hstu_transducer_embedding_dim": ("hidden_size",),
        "embedding_dim": ("hidden_size",),
        "hstu_attn_num_layers": ("num_layers",),
        "hstu_num_heads": ("num_heads",),
        "hstu_attn_qk_dim": ("qk_dim",),
        "attention_dim": ("qk_dim",),
        "hstu_attn_linear_dim": ("v_dim",),
        "hidden_dim": ("v_dim",),
        "hstu_embedding_table_dim": ("table_dim",),
        "hstu_preprocessor_hidden_dim": ("stack_size",),
        "contextual_feature_to_max_length": ("contextual",),
        "contextual_feature_to_min_uih_length": ("slot_min_history",),
        "uih_post_id_feature_name": ("items",),
        "uih_action_time_feature_name": ("timestamps",),
        "uih_weight_feature_name": ("actions",),
        "max_attn_len": ("window",),
        "min_full_attn_seq_len": ("full_tail",),
        "attn_alpha": ("alpha",),
        "multitask_configs": ("tasks",),
        "hstu_group_norm": ("group_norm",),
        "use_group_norm": ("group_norm",),
    },
    only={
        "action_mode": (("add", "none"), "actions are added to items, or absent"),
        "time_bucket_limit": (("rows", "embedding_dim"), "ages stop at the table's rows, or at its width"),
        "causal": ((True,), "only causal rows are served"),
        "target_aware": ((True,), "candidates must not see each other"),
        "contextual_seq_len": ((0,), "the published stack is built with contextual length 0"),
        "hstu_ultra_stack_name": ((None, ""), "another stack of layers"),
        "use_time_encoding": ((True,), "positions of this source come with ages"),
        "watchtime_feature_name": ((None, ""), "watch times are not read; set the action bits beforehand"),
        "watchtime_to_action_thresholds_and_weights": (
            (None, []),
            "watch times are not read; set the action bits beforehand",
        ),
    },
    unused=frozenset(
        {
            "hstu_input_dropout_ratio",
            "hstu_linear_dropout_rate",
            "output_dropout_ratio",
            "causal_multitask_weights",
            "candidates_weight_feature_name",
            "candidates_watchtime_feature_name",
            "candidates_querytime_feature_name",
            "user_embedding_feature_names",
            "item_embedding_feature_names",
            "hstu_uih_feature_names",
            "hstu_candidate_feature_names",
            "merge_uih_candidate_feature_mapping",
            "action_embedding_init_std",
            "recompute_normed_x",
            "recompute_uvqk",
            "recompute_y",
            "sort_by_length",
            "fp8_addmm_fwd",
            "hstu_fp8_addmm_fwd",
        }
    ),
)

_RESEARCH = Names(
    fields=frozenset(f"{_COMMON} max_output_len concat_ua linear_activation".split()),
    aliases={
        **_EPS,
        "num_position_buckets": ("position_buckets",),
        "embedding_dim": ("hidden_size",),
        "item_embedding_dim": ("hidden_size",),
        "num_blocks": ("num_layers",),
        "dqk": ("qk_dim",),
        "attention_dim": ("qk_dim",),
        "dv": ("v_dim",),
        "linear_dim": ("v_dim",),
        "max_sequence_len": ("max_seq_len",),
        "max_sequence_length": ("max_seq_len",),
    },
    only={
        "normalization": (("rel_bias", "hstu_rel_bias"), "these layers have no softmax"),
        "enable_relative_attention_bias": ((True,), "the published layer needs its bias"),
        "linear_config": (("uvqk",), "another projection"),
        "user_embedding_norm": (("l2_norm",), "the user's row is divided by its length here"),
        "item_l2_norm": ((True,), "items are divided by their lengths here"),
        "alpha": ((None, 1, 1.0), "the published layer does not scale scores"),
    },
    unused=frozenset(
        {
            "linear_dropout_rate",
            "attn_dropout_rate",
            "dropout_rate",
            "temperature",
            "l2_norm_eps",
            "verbose",
            "main_module",
            "interaction_module_type",
            "top_k_method",
        }
    ),
)

_NVIDIA = Names(
    fields=frozenset(
        f"{_COMMON} table_dim slot_dim prediction_head_arch max_history contextual contextual_max_seqlen "
        "actions action_bits action_mode contextual_two_way disable_contextual_mask num_tasks residual "
        "learnable_input_layernorm learnable_output_layernorm add_uvqk_bias prediction_head_bias".split()
    ),
    aliases={
        **_EPS,
        "num_position_buckets": ("position_buckets",),
        "num_attention_heads": ("num_heads",),
        "head_dim": ("qk_dim", "v_dim"),
        "kv_channels": ("qk_dim", "v_dim"),
        "max_history_seqlen": ("max_history",),
        "contextual_feature_names": ("contextual",),
        "item_feature_name": ("items",),
        "action_feature_name": ("actions",),
        "layernorm_epsilon": ("norm_eps",),
        "norm_epsilon": ("norm_eps",),
        "item_embedding_dim": ("table_dim",),
        "contextual_embedding_dim": ("slot_dim",),
    },
    only={
        "action_mode": (("interleave", "none"), "actions are tokens of their own, or absent"),
        "is_causal": ((True,), "only causal rows are served"),
        "use_time_encoding": ((False,), "ages of tokens are not part of this source's rows here"),
        "window": ((0, None), "targets are not clamped, so scores would depend on the order of candidates"),
        "max_attn_len": (
            (0, None),
            "targets are not clamped, so scores would depend on the order of candidates",
        ),
        "full_tail": ((0, None), "there is no window"),
        "target_group_size": ((1,), "candidates must not see each other"),
        "enable_relative_attention_bias": ((False,), "this bias is not published"),
        "prediction_head_act_type": (("relu",), "another activation of the head"),
        "tensor_model_parallel_size": ((1,), "one shard is not the model"),
        "pipeline_model_parallel_size": ((1,), "one shard is not the model"),
        "user_embedding_norm": (("l2_norm",), "candidate rows are divided by their lengths here"),
        "backbone": (("hstu",), "another backbone"),
        "alpha": ((None, 0), "fixed at 1 / sqrt(head_dim)"),
    },
    unused=frozenset(
        {
            "hstu_layer_type",
            "kernel_backend",
            "hidden_dropout",
            "bf16",
            "fp16",
            "max_batch_size",
            "eval_metrics",
            "embedding_backend",
            "export_mode",
            "num_time_buckets",  # of a table that exists with use_time_encoding only
            "static_max_seq_len",
            "fuse_norm_mul_dropout",
            "sequence_parallel",
            "context_parallel_size",
            "recompute_input_layernorm",
            "recompute_input_silu",
            "item_l2_norm",
            "dtype_str",
            "is_inference",
        }
    ),
)

NAMES: dict[Source, Names] = {"meta": _META, "research": _RESEARCH, "nvidia": _NVIDIA}
