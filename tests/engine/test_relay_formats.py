"""An engine whose host tier rounds: close scores, more users in the same bytes, and answers that say so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_models import dense_logits
from relay_rig import CANDIDATES, FULL, PAGE_BYTES, Rig, longer, rig, user

from relaygr.cache.interface import HostStats
from relaygr.cache.lease import ReadLease
from relaygr.config.host import HostConfig
from relaygr.core.errors import ConfigError
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import Admission
from relaygr.engine.requests import Path, RankRequest
from relaygr.memory import formats

ONE = user("one")
# On the difference of a logit, of these models: 1 % of the largest is far below what random ones show.
BOUNDS = {"same": 1e-5, "bf16": 3e-3, "int8": 1e-2, "fp8": 4e-2}
each_rounding = pytest.mark.parametrize("name", ["bf16", "int8", "fp8"])


def host_of(name: str, **more: Any) -> dict[str, Any]:
    return {"host_bytes": 4 << 20, "clean_target": 0.4, "host_dtype": name, **more}


def spilled(r: Rig, one: UserHistory = ONE, crowd: int = 0) -> None:
    """The user was ranked, and others needed the room."""
    r.rank(one)
    r.crowd(3, crowd)
    r.rest()
    assert r.cached(one) == (0, len(one))


def difference(r: Rig, one: UserHistory) -> float:
    request = RankRequest(one, CANDIDATES)
    return float(np.abs(r.engine.rank(request).logits - dense_logits(r.engine, request)).max())


def pages(r: Rig, one: UserHistory) -> tuple[torch.Tensor, torch.Tensor]:
    """What the device has of a user, all layers."""
    ref = r.engine.ref(one)
    assert ref is not None
    tiers = r.engine._tiers
    lease = tiers.books.lease(ref, ref.tokens, "reader", 0.0, 1e9)
    assert isinstance(lease, ReadLease)
    whole = list(lease.pages)
    found = [
        pool[:, :, whole].flatten(2, 3)[:, :, : ref.tokens] for pool in (tiers.pool.keys, tiers.pool.values)
    ]
    lease.release()
    return found[0], found[1]


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("signalled", [False, True])
def test_scores_after_a_reload_are_within_the_bound_of_the_format(name: str, signalled: bool) -> None:
    with rig(host=host_of(name)) as r:
        r.bound = BOUNDS[name]
        spilled(r)
        if signalled:
            assert r.prepare(ONE).admission is Admission.ADMITTED
        answer = r.rank(ONE)
        rounded = 0 if name == "same" else FULL
        assert (answer.served.path, answer.served.tokens_cached) == (Path.HIT, FULL)
        assert answer.served.tokens_quantized == rounded
        assert all(bool(part.isfinite().all()) for part in pages(r, ONE))
        read, stored = r.engine.copied_bytes
        assert read == FULL * r.engine.host_format.token_bytes(r.engine.layout)
        assert stored >= read
        off = difference(r, ONE)
        assert off <= BOUNDS[name]
        assert (off > BOUNDS["same"]) is (name != "same")


@each_rounding
def test_answers_say_so_as_long_as_rounded_tokens_are_used(name: str) -> None:
    with rig(host=host_of(name)) as r:
        r.bound = BOUNDS[name]
        assert r.rank(ONE).served.tokens_quantized == 0
        spilled(r)
        more = longer(ONE, 6)
        answer = r.rank(more)  # loads what there is, computes the rest
        assert (answer.served.tokens_cached, answer.served.tokens_computed) == (FULL, 6)
        assert answer.served.tokens_quantized == FULL
        answer = r.rank(more)
        assert (answer.served.path, answer.served.tokens_loaded) == (Path.HIT, 0)
        assert answer.served.tokens_quantized == FULL
        half = UserHistory("one", more.items[:40], more.timestamps[:40], more.actions[:40])
        assert r.rank(half).served.tokens_quantized == 40
        r.engine.forget("default", "one")
        assert r.rank(more).served.tokens_quantized == 0


@each_rounding
def test_fifty_turns_round_once(name: str) -> None:
    """The first tokens are the same bits after fifty trips, and newer ones rest on them."""
    with rig(host=host_of(name)) as r:
        one, engine = user("one", 40), r.engine
        engine.rank(RankRequest(one, CANDIDATES))
        first: list[torch.Tensor] = []
        for turn in range(50):
            while engine.spill_step(1.0, 1 << 30, lambda _: True):
                pass
            assert r.cached(one) == (0, len(one))
            one = longer(one, 2, seed=turn)
            served = engine.rank(RankRequest(one, CANDIDATES)).served
            assert (served.path, served.tokens_computed) == (Path.RESUMED, 2)
            assert served.tokens_quantized == len(one) - 2
            first = first or [part[:, :, :40].clone() for part in pages(r, one)]
        for before, after in zip(first, pages(r, one), strict=True):
            assert torch.equal(before, after[:, :, :40])
            assert bool(after.isfinite().all())
        assert BOUNDS["same"] < difference(r, one) <= BOUNDS[name]


def stats(r: Rig) -> HostStats:
    found = r.engine.cache_stats().host
    assert found is not None
    return found


@each_rounding
def test_m38_more_users_in_the_same_bytes(name: str) -> None:
    held, chunks = {}, {}
    users = [user(f"u{number}", 96) for number in range(24)]
    for kind in ("same", name):
        room = {"host_bytes": 12 * PAGE_BYTES, "clean_target": 0.9, "run_chunk_tokens": 32}
        with rig(host=host_of(kind, **room)) as r:
            r.bound = BOUNDS[kind]
            for one in users:
                r.rank(one)
            assert stats(r).total_chunks * stats(r).chunk_bytes <= 12 * PAGE_BYTES
            carrier = r.engine._tiers._carrier
            assert carrier is not None
            assert carrier._mover.host.nbytes <= 12 * PAGE_BYTES
            held[kind], chunks[kind] = stats(r).entries, stats(r).total_chunks
    # 96 tokens are three chunks; a twentieth of them is kept free.
    assert (chunks["same"], held["same"]) == (12, 4)
    assert chunks[name] == {"bf16": 24, "int8": 45, "fp8": 45}[name]  # 32 values take 34 bytes, not 128
    assert held[name] == {"bf16": 7, "int8": 14, "fp8": 14}[name]


@each_rounding
def test_what_was_rounded_is_not_compared_with_uncached_scores(name: str) -> None:
    """The difference would be that of the format, and turn the cache off."""
    with rig(host=host_of(name), relay={"shadow_rate": 1.0}) as r:
        r.bound = BOUNDS[name]
        spilled(r)
        before = len(r.ears.differences)
        assert r.rank(ONE).served.tokens_quantized == FULL
        r.rank(longer(ONE, 3))
        assert len(r.ears.differences) == before
        r.rank(user("two"))
        r.rank(user("two"))
        assert len(r.ears.differences) == before + 1
        assert r.relay.state().enabled


@each_rounding
def test_damage_is_found_and_computed_anew(name: str) -> None:
    with rig(host=host_of(name)) as r:
        r.bound = BOUNDS[name]
        spilled(r)
        carrier = r.engine._tiers._carrier
        assert carrier is not None
        carrier._mover.host.keys.view(torch.uint8).bitwise_xor_(1 << 4)
        answer = r.rank(ONE)
        assert (answer.served.path, answer.served.tokens_quantized) == (Path.FULL, 0)
        assert stats(r).damaged == 1
        r.bound = BOUNDS["same"]
        r.rank(ONE)


def test_a_format_that_torch_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "FP8", None)
    with pytest.raises(ConfigError, match=r"host\.host_dtype: 'fp8': torch has no float8_e4m3fn"):
        Rig({"host": host_of("fp8")})
    with rig(host=host_of("fp8", host_bytes=0)) as r:  # there is no host tier to have a format
        assert r.engine.host_format.exact


def test_settings() -> None:
    with pytest.raises(ConfigError, match=r"host\.quant_scale: 'page_head' would drift"):
        HostConfig(quant_scale="page_head")
    for limit in (0.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match=r"host\.drift_limit"):
            HostConfig(drift_limit=limit)


def test_bf16_of_a_bf16_model_is_what_it_has() -> None:
    with rig(host=host_of("bf16")) as r:
        assert not r.engine.host_format.exact
        half = replace(r.engine.choice, dtype=torch.bfloat16)
        host = HostConfig(host_dtype="bf16")
        engine = Engine(r.engine.model, r.engine.model_fp, half, r.engine.config, r.clock, host)
        assert engine.host_format.exact
