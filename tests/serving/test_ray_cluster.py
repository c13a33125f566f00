"""Ray Serve for real: both laps on one replica, nothing lost while replicas go, come and change models.

`RELAYGR_RAY_TURNS=10` does everything so many times on one cluster.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import pytest
from api_checks import CHECKS, Check
from ray_load import Load
from serving_apps import offline, save_model

from relaygr.bench.cluster_ray import RayShape
from relaygr.bench.cluster_shape import Setup
from relaygr.bench.cluster_tally import Visit, affinity_share, hit_share, owners
from relaygr.bench.soak_check import wrong_rankings
from relaygr.core.errors import BackendError
from relaygr.core.ids import DEFAULT_TENANT, session_key
from relaygr.relay.rendezvous import preference
from relaygr.serving.front.ray_api import details
from relaygr.serving.front.ray_model import deployed_model

pytest.importorskip("ray", reason="Ray is not installed: pip install 'relaygr[ray]'")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(280)]
TURNS = range(int(os.environ.get("RELAYGR_RAY_TURNS", "1")))
REPLICAS, USERS, SOME = 3, 1000, 300


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    found = [tmp_path_factory.mktemp("model") for _ in range(2)]
    for seed, folder in enumerate(found):
        save_model(folder, seed)
    return found


@pytest.fixture(scope="module")
def cluster(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayShape]:
    """Patient: a machine that is busy with other tests must not look like replicas that are down."""
    settings = (
        f"serving.model={models[0]}",
        "serving.calibrate_s=0",
        "serving.log_level=warning",
        "store.url=sqlite://memory",
        "engine.dtype=fp32",
        "engine.kernel=reference",
        "engine.threads=1",
        "engine.device_bytes=64MiB",
        "trigger.admit_all=true",
        "router.feedback_max_age_s=15",
        "router.down_after=10",
        "router.load_factor=100",
        "ray.take_ms=8000",
    )
    setup = Setup(
        folder=tmp_path_factory.mktemp("cluster"), settings=settings, count=REPLICAS, budget_ms=30_000
    )
    # Its processes find `ray_other`, too.
    places = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(place for place in places if place))
        with RayShape(setup) as shape:
            yield shape


def failures(visits: list[Visit]) -> list[str]:
    return [one.error for one in visits if one.error]


def members(shape: RayShape) -> list[dict[str, object]]:
    found: list[dict[str, object]] = httpx.get(f"{shape.addresses[0]}/v1/members", timeout=30).json()[
        "members"
    ]
    return found


def first_choices(users: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    order = preference("blake2b", dict.fromkeys(names, 1.0))
    return {user: order.ids[order.owner(session_key(DEFAULT_TENANT, user))] for user in users}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_api_is_that_of_one_server(cluster: RayShape, check: Check) -> None:
    with httpx.Client(base_url=cluster.addresses[0], timeout=60) as client:
        check(client)


def test_pages_are_of_all_replicas_or_of_one(cluster: RayShape) -> None:
    with httpx.Client(base_url=cluster.addresses[0], timeout=60) as client:
        names = {str(one["id"]) for one in members(cluster)}
        text = client.get("/metrics").text
        assert all(
            f'relaygr_ready{{replica="{name}"' in text or f'replica="{name}"' in text for name in names
        )
        for name in names:
            answer = client.get("/v1/status", params={"replica": name})
            assert (answer.status_code, answer.headers["x-relay-owner"]) == (200, name)
        assert client.get("/v1/status", params={"replica": "nobody"}).status_code == 404


@pytest.mark.parametrize("turn", TURNS)
def test_both_laps_of_every_request_are_on_one_replica(cluster: RayShape, turn: int) -> None:
    with Load(cluster.addresses[0], USERS, first=turn * USERS, limit=USERS, at_once=6) as load:
        load.wait()
    share, hits = affinity_share(load.visits), hit_share(load.visits)
    print(json.dumps({"users": USERS, "one_replica": share, "hits": hits, "hung": load.hung}))
    assert (failures(load.visits), load.hung, len(load.visits)) == ([], 0, USERS)
    assert share == 1.0
    assert hits is not None
    assert hits >= 0.99
    by_owner = owners(load.visits)
    assert len(set(by_owner.values())) == REPLICAS
    # Nothing is left in flight: what was sent has come back, and what was admitted was ranked.
    assert [one["in_flight"] for one in members(cluster)] == [0] * REPLICAS


@pytest.mark.parametrize("turn", TURNS)
def test_killing_a_replica_under_load_loses_no_ranking(cluster: RayShape, turn: int) -> None:
    with Load(cluster.addresses[0], 150) as load:
        load.more(60)
        cluster.kill()
        load.more(40)
        recovered = load.more(120)
    print(json.dumps({"visits": len(load.visits), "recovered": hit_share(recovered), "hung": load.hung}))
    assert (failures(load.visits), load.hung) == ([], 0)
    assert affinity_share(recovered) == 1.0
    hits = hit_share(recovered)
    assert hits is not None
    assert hits >= 0.98
    assert len({one.second for one in recovered}) == REPLICAS


@pytest.mark.parametrize("turn", TURNS)
def test_a_replica_that_is_added_gets_its_share(cluster: RayShape, turn: int) -> None:
    with Load(cluster.addresses[0], SOME, at_once=6) as load:
        before = owners(load.more(SOME + 10))
        cluster.scale(REPLICAS + 1)
        load.more(60)
        after = owners(load.more(SOME + 10))
        both = before.keys() & after.keys()
        moved = [user for user in both if before[user] != after[user]]
        print(json.dumps({"users": len(both), "moved": len(moved) / len(both)}))
        [newcomer] = set(after.values()) - set(before.values())
        # Only to the one that came.
        assert {after[user] for user in moved} == {newcomer}
        assert len(both) >= SOME - 5
        # A fourth of the users: of 300, three and a half standard deviations are 0.0875.
        assert abs(len(moved) / len(both) - 1 / (REPLICAS + 1)) < 0.0875
        # And just those whom rendezvous hashing gives to it.
        assert before == first_choices(before, set(before.values()))
        assert after == first_choices(after, set(after.values()))
        # One of four leaves while it serves: it finishes what it has.
        cluster.scale(REPLICAS)
        left = load.more(120)
    assert (failures(load.visits), load.hung) == ([], 0)
    assert len({one.second for one in left[-80:]}) == REPLICAS


@pytest.mark.parametrize("turn", TURNS)
def test_a_model_that_changes_under_load_mixes_nothing(
    cluster: RayShape, models: list[Path], turn: int
) -> None:
    engines = [offline(folder) for folder in models]
    fingerprints = [engine.model_fp.hex() for engine in engines]
    new = (turn + 1) % 2
    pids = sorted(cluster.pids)
    with Load(cluster.addresses[0], 150) as load:
        load.more(60)
        cluster.deploy(models[new])
        load.more(60)
        after = len(load.samples)
        load.more(60)
    assert (failures(load.visits), load.hung) == ([], 0)
    assert {one.model for one in load.samples} == set(fingerprints)
    assert {one.model for one in load.samples[after + 10 :]} == {fingerprints[new]}
    assert wrong_rankings(load.samples, dict(zip(fingerprints, engines, strict=True))) == []
    # In place: nobody was started anew.
    assert sorted(cluster.pids) == pids


def test_another_application_stays_and_a_bad_model_is_an_error(cluster: RayShape) -> None:
    address, pids = f"{cluster.dashboard}/api/serve/applications/", sorted(cluster.pids)
    told = httpx.get(address, timeout=30).json()
    ours = told["applications"]["relaygr"]["deployed_app_config"]
    other = {"name": "other", "route_prefix": "/other", "import_path": "ray_other:app"}
    sent = {"applications": [ours, other], "http_options": told["http_options"]}
    httpx.put(address, json=sent, timeout=60).raise_for_status()
    end = time.monotonic() + 60
    while details(cluster.dashboard).applications["other"].status != "RUNNING":
        assert time.monotonic() < end
        time.sleep(0.5)
    theirs = details(cluster.dashboard).applications["other"]
    model = deployed_model(cluster.dashboard)
    assert model is not None
    with Load(cluster.addresses[0], 50) as load:
        load.more(20)
        with pytest.raises(BackendError, match=r"3 of 3 rankers do not serve the model '/no/model'"):
            cluster.deploy(Path("/no/model"))
        load.more(20)
        cluster.deploy(Path(model))
        load.more(20)
    assert (failures(load.visits), load.hung) == ([], 0)
    assert len({one.model for one in load.samples}) == 1
    # Nobody was started anew, of ours or of theirs.
    assert sorted(cluster.pids) == pids
    now = details(cluster.dashboard).applications["other"]
    assert now.deployments["Other"].replicas == theirs.deployments["Other"].replicas
    assert httpx.get(f"{cluster.addresses[0]}/other", timeout=30).text == "other"
