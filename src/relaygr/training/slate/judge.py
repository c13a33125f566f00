"""An independent judge of lists: another architecture, other users and another seed than any selector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64, Int32
from relaygr.listwise.evaluate import Evaluator
from relaygr.listwise.folds import Lineage, check_judge
from relaygr.listwise.scene import Scene
from relaygr.listwise.trained import TrainedEvaluator
from relaygr.training.bootstrap import interval, resample

_DRAWS_SEED = 0


class JudgedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One policy: mean judged U, and its gain over the first policy in per cent with a 95 % interval.

    Attributes:
        selected: mean U of the same lists by the model that selected them; None if there is none.
        disagreement: selected / judged - 1.
    """

    policy: str
    judged: float
    gain: float
    low: float
    high: float
    selected: float | None = None
    disagreement: float | None = None


class JudgedReport(msgspec.Struct, frozen=True, kw_only=True):
    """Policies on the same requests, valued by one judge."""

    judge: str
    selectors: tuple[str, ...]
    requests: int
    rows: tuple[JudgedRow, ...]

    def row(self, policy: str) -> JudgedRow:
        """Raises KeyError."""
        for one in self.rows:
            if one.policy == policy:
                return one
        raise KeyError(policy)


def judged(
    judge: TrainedEvaluator,
    selectors: Sequence[Lineage],
    scenes: Sequence[Scene],
    users: Sequence[int],
    policies: Mapping[str, Sequence[Int32]],
    believed: Mapping[str, Evaluator] | None = None,
) -> JudgedReport:
    """Value the lists of policies; the first policy is what the others are compared with.

    Args:
        selectors: of every model that proposed or chose lists.
        scenes: [N] requests; users: of each. They should be of the judge's fold.
        policies: name -> one list int32 [L] a request, as columns of the scene.
        believed: name -> what selected the policy's lists.

    Raises:
        ConfigError: the judge is a selector, or not independent of one; no requests, or a number of lists
            that is not theirs; lists of the first policy are worth nothing.
    """
    check_judge(judge.net.lineage, selectors)
    believed = believed or {}
    if not scenes or not policies:
        raise ConfigError("requests", "there are none to judge")
    for name, lists in policies.items():
        if len(lists) != len(scenes):
            raise ConfigError(name, f"{len(lists)} lists for {len(scenes)} requests")
    names = list(policies)
    values = np.stack([valued(judge, scenes, policies[name]) for name in names], axis=1)
    drawn = resample(values, np.asarray(users, dtype=np.int64), per_user=False, seed=_DRAWS_SEED)
    if not drawn.observed[0] or not drawn.draws[:, 0].all():
        raise ConfigError(
            names[0], "its lists are worth 0 to the judge, so that no gain over them is a share"
        )
    rows = []
    for at, name in enumerate(names):
        mean, first = float(drawn.observed[at]), float(drawn.observed[0])
        low, high = interval(100 * (drawn.draws[:, at] - drawn.draws[:, 0]) / np.abs(drawn.draws[:, 0]))
        selected = None
        if name in believed:
            selected = float(valued(believed[name], scenes, policies[name]).mean())
        rows.append(
            JudgedRow(
                policy=name,
                judged=mean,
                gain=100 * (mean - first) / abs(first),
                low=low,
                high=high,
                selected=selected,
                disagreement=None if selected is None or mean == 0 else selected / mean - 1,
            )
        )
    return JudgedReport(
        judge=judge.version,
        selectors=tuple(one.version for one in selectors),
        requests=len(scenes),
        rows=tuple(rows),
    )


def valued(evaluator: Evaluator, scenes: Sequence[Scene], lists: Sequence[Int32]) -> Float64:
    """Mean U over an evaluator's members of one list a scene. [N]"""
    pairs = zip(scenes, lists, strict=True)
    return np.array([float(evaluator.evaluate(scene, one[None]).mean()) for scene, one in pairs])
