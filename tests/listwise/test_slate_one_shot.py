"""The distilled generator: its net against a slow one, the day-0 order, and files."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from slate_cases import ATTRIBUTES, HEADS, free_budget, random_scene

from relaygr.core.errors import ConfigError, RequestError
from relaygr.listwise.errors import SlateNanError
from relaygr.listwise.generators.one_shot import OneShot, OneShotConfig, shapes
from relaygr.listwise.pool import MISSING, Head
from relaygr.listwise.scene import Scene
from relaygr.listwise.step import HeadSpec

CONFIG = OneShotConfig(
    heads=tuple(HeadSpec(name=head.name, kind=head.kind) for head in HEADS),
    attributes=ATTRIBUTES[:2],
    width=6,
    blocks=2,
)


def distilled(seed: int = 0) -> OneShot:
    random = np.random.default_rng(seed)
    zero = OneShot.zero(CONFIG, seed)
    return OneShot(
        CONFIG,
        {
            name: values + 0.4 * random.standard_normal(values.shape).astype(np.float32)
            for name, values in zero.tensors.items()
        },
    )


def slow_scores(model: OneShot, scene: Scene) -> tuple[list[float], list[list[float]]]:
    """Scores and repulsions, one candidate, one unit at a time, in Python's floats."""
    arrays = {name: values.astype(np.float64).tolist() for name, values in model.tensors.items()}
    C, D = len(scene), model.config.width
    vectors = scene.pool.vectors.astype(np.float64)  # type: ignore[union-attr]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = (vectors @ vectors.T).tolist()
    shown = scene.ask.shown
    mean, spread = float(scene.value.mean()), float(scene.value.std())

    def through(weight: list[list[float]], x: list[float]) -> list[float]:
        return [sum(w * each for w, each in zip(row, x, strict=True)) for row in weight]

    states = []
    for i in range(C):
        x = [(float(scene.value[i]) - mean) / spread, i / C]
        like, complete, watch = scene.pool.outputs[i].tolist()
        x += [like, complete, math.log1p(watch)]
        better = cosine[i][:i]
        x += [max(better, default=-1.0), sum(better) / max(i, 1), -1.0]
        if shown is not None:
            seen = shown.vectors.astype(np.float64)  # type: ignore[union-attr]
            seen /= np.linalg.norm(seen, axis=1, keepdims=True)
            x[-1] = float((seen @ vectors[i]).max())
        for name in model.config.attributes:
            values = scene.pool.attributes[name].tolist()
            before = [] if shown is None else shown.attributes[name].tolist()
            mine = values[i] if values[i] != MISSING else "nothing"
            x += [math.log1p(values[:i].count(mine)), math.log1p(before.count(mine))]
        states.append(
            [
                math.tanh(a + b)
                for a, b in zip(through(arrays["in.weight"], x), arrays["in.bias"], strict=True)
            ]
        )
    for block in range(model.config.blocks):
        part = {name.removeprefix(f"blocks.{block}."): each for name, each in arrays.items()}
        q, k, v = ([through(part[f"{n}.weight"], h) for h in states] for n in "qkv")
        after = []
        for i in range(C):
            logits = [
                sum(a * b for a, b in zip(q[i], k[j], strict=True)) / math.sqrt(D)
                + part["cosine"][0] * cosine[i][j]
                + part["better"][0] * (j < i)
                for j in range(C)
            ]
            top = max(logits)
            weights = [math.exp(each - top) for each in logits]
            mixed = [sum(w * v[j][d] for j, w in enumerate(weights)) / sum(weights) for d in range(D)]
            h = [a + b for a, b in zip(states[i], through(part["o.weight"], mixed), strict=True)]
            up = [
                math.tanh(a + b) for a, b in zip(through(part["up.weight"], h), part["up.bias"], strict=True)
            ]
            after.append([a + b for a, b in zip(h, through(part["down.weight"], up), strict=True)])
        states = after
    scores = [
        arrays["base"][0] * (float(scene.value[i]) - mean) / spread
        + through(arrays["out.weight"], states[i])[0]
        for i in range(C)
    ]
    losses = [
        [a + b for a, b in zip(through(arrays["repel.weight"], h), arrays["repel.bias"], strict=True)]
        for h in states
    ]
    return scores, losses


def slow_list(model: OneShot, scene: Scene) -> list[int]:
    """Position by position from nothing."""
    scores, losses = slow_scores(model, scene)
    picks: list[int] = []
    for _ in range(scene.length):
        worth = {}
        for i in range(len(scene)):
            near = [float(scene.cosine[i, j]) for j in picks[-model.config.window :]]
            worth[i] = scores[i] - losses[i][0] * max([0.0, *near])
            for at, name in enumerate(model.config.attributes, 1):
                values = scene.pool.attributes[name]
                alike = sum(values[i] == values[j] and values[i] != MISSING for j in picks)
                worth[i] -= losses[i][at] * alike
        picks.append(max((i for i in worth if i not in picks), key=lambda i: (worth[i], -i)))
    return picks


@pytest.mark.parametrize("shown", [0, 3])
def test_net_is_the_slow_one(shown: int) -> None:
    for seed in range(3):
        scene = random_scene(seed, candidates=9, length=4, shown=shown)
        model = distilled(seed)
        scores, repulsion = model.scores(scene)
        slow, losses = slow_scores(model, scene)
        assert scores == pytest.approx(slow, abs=2e-5)
        assert pytest.approx(np.array(losses), abs=2e-5) == repulsion.T
        made = model.propose(scene, free_budget())[0]
        assert made.picks.tolist() == slow_list(model, scene)
        assert made.generator == "one_shot"


def test_undistilled_order_is_the_pointwise_one() -> None:
    for seed in range(10):
        scene = random_scene(seed, candidates=9, length=5, ties=bool(seed % 2))
        made = OneShot.zero(CONFIG).propose(scene, free_budget())[0]
        assert made.picks.tolist() == list(range(5))


def test_only_the_top_and_the_fallback_are_looked_at() -> None:
    scene = random_scene(3, candidates=12, length=3)
    narrow = OneShotConfig(heads=CONFIG.heads, attributes=CONFIG.attributes, width=6, blocks=2, top=4)
    made = OneShot(narrow, distilled().tensors).propose(scene, free_budget())[0]
    top = scene.top(4)
    inner = distilled().propose(scene.narrow(top), free_budget())[0]
    assert made.picks.tolist() == top[inner.picks].tolist()
    assert set(made.picks.tolist()) <= set(top.tolist())
    with pytest.raises(ConfigError, match="top"):
        OneShot(OneShotConfig(heads=CONFIG.heads, top=0), {})


def test_saved_and_loaded(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = distilled()
    model.save(tmp_path)
    again = OneShot.load(tmp_path)
    assert again.version == model.version
    scene = random_scene(0, candidates=9, length=4)
    for mine, other in zip(again.scores(scene), model.scores(scene), strict=True):
        assert mine.tolist() == other.tolist()


def test_what_does_not_fit_is_told() -> None:
    scene = random_scene(0, candidates=6, length=3)

    def with_pool(**change: object) -> Scene:
        pool = replace(scene.pool, **change)  # type: ignore[arg-type]
        return Scene(scene.ask, pool, scene.value, scene.walk, scene.columns)

    with pytest.raises(RequestError, match="heads"):
        distilled().scores(with_pool(heads=(Head("a"), Head("b"), Head("c"))))
    with pytest.raises(RequestError, match="author"):
        distilled().scores(with_pool(attributes={}))
    with pytest.raises(RequestError, match="vectors"):
        distilled().scores(with_pool(vectors=None))
    with pytest.raises(ConfigError, match="missing"):
        OneShot(CONFIG, {})
    with pytest.raises(ConfigError, match="format_version"):
        OneShot(OneShotConfig(heads=CONFIG.heads, format_version=1), {})
    tensors = dict(distilled().tensors)
    tensors["base"] = np.array([3e38], dtype=np.float32)
    tensors["out.weight"] = np.full((1, 6), 3e38, dtype=np.float32)
    with np.errstate(all="ignore"), pytest.raises(SlateNanError):
        OneShot(CONFIG, tensors).scores(scene)
    assert shapes(CONFIG)["in.weight"] == (6, 12)
