"""Generation over HTTP by a decoder with linear layers: its prompts are user states like anybody's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from generation_apps import SHAPE, generating, save_catalogue
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from serving_apps import App, running

from relaygr.config.settings import Config
from relaygr.core.units import MIB
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.huggingface import save_decoder
from relaygr.models.decoder.linear_config import LinearConfig

GRAIN = 64


def hybrid(folder: Path, seed: int = 0) -> Config:
    config = generating(folder, host_bytes=4 * MIB, state_snapshot_tokens=64)
    linear = LinearConfig(
        layer_types=("linear_attention", "full_attention"), key_heads=2, value_heads=4, key_dim=8, value_dim=8
    )
    shape = replace(SHAPE, family="qwen3_next", linear=linear)
    save_decoder(Decoder(shape).init_weights(seed, 0.3), folder / "decoder")
    return config


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with running(hybrid(tmp_path_factory.mktemp("hybrid"))) as app:
        yield app


def append(app: App, user: str, items: list[int], at: int = 1_700_000_000) -> None:
    app.post("/v1/events", {"user": user, "items": items, "timestamps": [at + i for i in range(len(items))]})


def value(app: App, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(app.call("GET", "/metrics").text)
    samples = [one for family in families for one in family.samples if one.name == f"relaygr_generate_{name}"]
    return sum(one.value for one in samples if labels.items() <= one.labels.items())


def test_a_users_prompt_is_kept_grown_from_a_snapshot_and_deleted(app: App) -> None:
    append(app, "ann", list(range(1, 51)))
    before = value(app, "state_tokens_total", outcome="saved")
    first = app.post("/v1/generate", {"user": "ann", "beam_width": 6})
    assert (first["prompt_tokens"], first["cached_tokens"]) == (150, 0)
    again = app.post("/v1/generate", {"user": "ann", "beam_width": 6})
    assert again["cached_tokens"] == 150
    assert again["results"] == first["results"]
    append(app, "ann", [50, 51], 1_700_001_000)
    more = app.post("/v1/generate", {"user": "ann"})
    assert (more["prompt_tokens"], more["cached_tokens"]) == (156, 2 * GRAIN)
    assert value(app, "state_tokens_total", outcome="saved") - before == 150 + 128
    assert value(app, "state_bytes", **{"class": "kept"}) + value(
        app, "state_bytes", **{"class": "host_kept"}
    )
    assert value(app, "state_bytes", **{"class": "working"}) == 0
    # The same items without a user are another prompt, with the same answer to the bit.
    anew = app.post("/v1/generate", {"history": [*range(1, 51), 50, 51]})
    assert (anew["cached_tokens"], anew["results"]) == (0, more["results"])
    snapshots = value(app, "state_snapshots")
    app.call("DELETE", "/v1/users/ann")
    assert value(app, "state_snapshots") < snapshots
    append(app, "ann", list(range(1, 51)))
    assert app.post("/v1/generate", {"user": "ann", "beam_width": 6})["cached_tokens"] == 0


def test_a_signal_encodes_ahead_and_a_catalogue_swap_keeps_what_still_holds(app: App, tmp_path: Path) -> None:
    append(app, "bob", list(range(100, 150)))
    app.post("/v1/prefix", {"user": "bob", "generate": True})
    for _ in range(200):
        answer = app.post("/v1/generate", {"user": "bob", "beam_width": 1})
        if answer["cached_tokens"]:
            break
    assert app.post("/v1/generate", {"user": "bob", "beam_width": 1})["cached_tokens"] == 150
    save_catalogue(tmp_path / "other", seed=1)
    served = app.post("/v1/catalogues/load", {"path": str(tmp_path / "other")})
    other = app.post("/v1/generate", {"user": "bob", "beam_width": 1})
    assert other["catalog_version"] == served["serving"] != answer["catalog_version"]
    assert other["cached_tokens"] == 0  # its items have other codes now
    back = app.post("/v1/catalogues/rollback", {})
    assert back["serving"] == answer["catalog_version"]
    assert app.post("/v1/generate", {"user": "bob", "beam_width": 1})["results"] == answer["results"]


def test_other_weights_are_another_models_states(tmp_path: Path) -> None:
    asked = {"history": list(range(1, 51)), "beam_width": 4}
    with running(hybrid(tmp_path)) as app:
        first = app.post("/v1/generate", asked)
    with running(hybrid(tmp_path, seed=1)) as app:
        second = app.post("/v1/generate", asked)
        assert second["cached_tokens"] == 0
    assert second["model_version"] != first["model_version"]
    assert second["results"] != first["results"]
