"""The formula of a configuration's family and variant."""

from __future__ import annotations

import numpy as np

from formulas import meta, nvidia, relay, research, transformer
from formulas.maths import Arrays, Row
from relaygr.models.presets import AnyConfig
from relaygr.models.transformer import TransformerConfig


def score(p: Arrays, c: AnyConfig, row: Row) -> np.ndarray:
    """Logits [m, tasks] of one user, float64."""
    if isinstance(c, TransformerConfig):
        return transformer.score(p, c, row)
    return {"relay": relay, "meta_stu": meta, "nvidia": nvidia, "meta_research": research}[c.variant].score(
        p, c, row
    )
