"""Nets over whole lists: values that do not depend on other lists, causality, files, the evaluator."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from slate_cases import HEADS, VALUE, list_model, random_scene

from relaygr.core.errors import ConfigError, RequestError
from relaygr.listwise.errors import SlateNanError
from relaygr.listwise.evaluate import Rescore
from relaygr.listwise.folds import Part, Split
from relaygr.listwise.list_net import Arch, BucketQuantile, Calibration, ListNet, ListNetConfig
from relaygr.listwise.pool import Pool
from relaygr.listwise.scene import Scene
from relaygr.listwise.step import HeadSpec
from relaygr.listwise.trained import TrainedEvaluator
from relaygr.listwise.value import Factor, Term, ValueDocument, ValueFunction

CONFIG = ListNetConfig(
    heads=tuple(HeadSpec(name=head.name, kind=head.kind) for head in HEADS),
    features=("similarity:max", "count:topic", "position", "watch"),
    relations=("topic", "author"),
    watch_head="watch_s",
    width=8,
    attention_heads=2,
    members=3,
)
SHAPES = [(arch, causal) for arch in Arch for causal in (True, False)]


def net_of(arch: Arch = Arch.ATTENTION, causal: bool = True, seed: int = 0) -> ListNet:
    """A net whose every array is random, as after training."""
    config = msgspec.structs.replace(CONFIG, arch=arch, causal=causal)
    random = np.random.default_rng(seed)
    tensors = {
        name: values + 0.3 * random.standard_normal(values.shape).astype(np.float32)
        for name, values in ListNet.zero(config).tensors.items()
    }
    return ListNet(config, tensors)


def some_lists(scene: Scene, seed: int, number: int = 6) -> np.ndarray:  # type: ignore[type-arg]
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(len(scene))[: scene.length] for _ in range(number)]).astype(np.int32)


@pytest.mark.parametrize(("arch", "causal"), SHAPES)
def test_a_lists_value_does_not_depend_on_the_others(arch: Arch, causal: bool) -> None:
    evaluator = TrainedEvaluator(net_of(arch, causal), VALUE)
    for seed in range(4):
        scene = random_scene(seed, candidates=12, length=5, shown=seed % 3)
        lists = some_lists(scene, seed)
        together = evaluator.evaluate(scene, lists)
        assert together.shape == (3, 6)
        assert len(np.unique(together)) == together.size
        for at, one in enumerate(lists):
            assert evaluator.evaluate(scene, one[None])[:, 0].tolist() == together[:, at].tolist()


@pytest.mark.parametrize(("arch", "causal"), SHAPES)
def test_later_items_matter_in_grids_alone(arch: Arch, causal: bool) -> None:
    net = net_of(arch, causal)
    random = np.random.default_rng(0)
    context, base = random.standard_normal((1, 6, 4)), np.abs(random.standard_normal((1, 6, 3)))
    relations = random.random((1, net.config.relation_count, 6, 6))
    heads, leave = net(context, base, relations)
    context[:, 4], base[:, 4] = 2.0, 0.5
    relations[..., 4, :], relations[..., 4] = 0.7, 0.1
    other, later = net(context, base, relations)
    assert (heads[..., :4] == other[..., :4]).all() == causal
    assert (leave[..., :4] == later[..., :4]).all() == causal
    assert (heads[..., 5] != other[..., 5]).any()


def test_an_untrained_net_values_by_what_the_ranker_says() -> None:
    step = list_model(size=0.0)
    step.step.tensors["exit.bias"][:] = -2.0
    for arch in Arch:
        net = ListNet.zero(msgspec.structs.replace(CONFIG, arch=arch))
        for seed in range(3):
            scene = random_scene(seed, candidates=10, length=4)
            lists = some_lists(scene, seed)
            mine = TrainedEvaluator(net, VALUE).evaluate(scene, lists)
            # U in closed form from pointwise values and one exit probability.
            value = VALUE(scene.pool.natural())[lists]
            stay = 1.0 - 1.0 / (1.0 + np.exp(2.0))
            wanted = (value * stay ** np.arange(4)).sum(1)
            assert mine == pytest.approx(np.stack([wanted] * 3), rel=1e-12)


def test_saved_and_loaded(tmp_path: Path) -> None:
    net = net_of()
    calibration = Calibration(
        alpha=0.1, pooled=0.4, buckets=(BucketQuantile(length=4, generator="greedy", quantile=0.2),)
    )
    fold = Split().fold(Part.EVALUATOR)
    net = ListNet(msgspec.structs.replace(net.config, calibration=calibration, fold=fold), net.tensors)
    net.save(tmp_path)
    again = ListNet.load(tmp_path)
    assert (again.version, again.config) == (net.version, net.config)
    assert again.lineage.fold == fold
    assert net.version != net_of(seed=1).version
    assert again.config.calibration is not None
    conformal = again.config.calibration.conformal()
    assert conformal(4, ["greedy", "beam4"]).tolist() == [0.2, 0.4]


def test_what_does_not_fit_is_told() -> None:
    net = net_of()
    with pytest.raises(ConfigError, match=r"missing blocks\.0\.none"):
        ListNet(CONFIG, {name: each for name, each in net.tensors.items() if name != "blocks.0.none"})
    for change, said in (
        ({"format_version": 9}, "format_version"),
        ({"width": 9}, "attention_heads"),
        ({"members": 0}, "members"),
        ({"watch_head": None}, "watch_head"),
        ({"heads": ()}, "heads"),
        ({"features": ("position", "position")}, "features"),
    ):
        with pytest.raises(ConfigError, match=said):
            ListNet(msgspec.structs.replace(CONFIG, **change), net.tensors)
    document = ValueDocument(id="v", terms=(Term(weight=1.0, factors=(Factor(head="like"),)),))
    with pytest.raises(ConfigError, match="heads"):
        TrainedEvaluator(net, ValueFunction(document, HEADS[:1]))
    scene = random_scene(0, candidates=8, length=3)
    lists = some_lists(scene, 0)

    def without(**change: object) -> Scene:
        pool: Pool = scene.pool
        fields = {name: getattr(pool, name) for name in ("ids", "heads", "outputs", "attributes", "vectors")}
        made = Pool(**(fields | change))
        return Scene(scene.ask, made, scene.value, scene.walk, scene.columns)

    evaluator = TrainedEvaluator(net, VALUE)
    with pytest.raises(RequestError, match="vectors"):
        evaluator.evaluate(without(vectors=None), lists)
    with pytest.raises(RequestError, match="author"):
        evaluator.evaluate(without(attributes={"topic": scene.pool.attributes["topic"]}), lists)
    bad = dict(net.tensors)
    bad["bias"] = np.full_like(bad["bias"], 3e38)
    document = ValueDocument(id="v", terms=(Term(weight=1.0, factors=(Factor(head="watch_s"),)),))
    open_ended = TrainedEvaluator(ListNet(CONFIG, bad), ValueFunction(document, HEADS))
    with np.errstate(all="ignore"), pytest.raises(SlateNanError):
        open_ended.evaluate(scene, lists)
    assert evaluator.attributes == ("topic", "author")
    assert evaluator.needs_vectors
    assert evaluator.version != Rescore([list_model()]).version
