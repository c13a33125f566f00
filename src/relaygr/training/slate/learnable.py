"""Whether there is anything to learn from logged lists, before a model is trained on nothing."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.training.slate.logs import LoggedLists


def check_learnable(logs: LoggedLists, whose: str = "the logs", heads: Collection[str] = ()) -> None:
    """Raise ConfigError naming what lists lack.

    Args:
        whose: the lists, in messages.
        heads: which have to have labels.

    Raises:
        ConfigError: no user got to any position; a head has no label; nothing says who left or stayed.
    """
    seen = logs.observed
    if not seen.any():
        raise ConfigError(
            "consumed", f"is 0 in all {len(logs):,} lists of {whose}, so that there is nothing to learn from"
        )
    told = f"in {len(logs):,} lists of {whose} with {int(seen.sum()):,} consumed positions"
    for at, head in enumerate(logs.heads):
        if head.name in heads and not np.isfinite(logs.labels[..., at][seen]).any():
            raise ConfigError("labels", f"of head {head.name!r} there are none {told}")
    if heads and not np.isfinite(logs.leaves()).any():
        raise ConfigError("consumed", f"never says whether a user left or stayed {told}")
