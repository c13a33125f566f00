"""What `relaygr deploy ray` does to a cluster that others use, and how it finds out which model is served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ray_dashboard import Dashboard, dashboard

from relaygr.cli.deploy import deploy_app
from relaygr.core.errors import ConfigError
from relaygr.serving.front.ray_model import deployed_model, serves
from relaygr.serving.snapshot import folder_digest

OTHER = {"name": "other", "route_prefix": "/other", "import_path": "other:app", "args": {"secret": 7}}


@pytest.fixture
def cluster() -> Iterator[Dashboard]:
    with dashboard() as found:
        yield found


def deploy(cluster: Dashboard, *words: str, model: str = "/m/new") -> int:
    given = ["ray", "--address", cluster.url, "--model", model, "--set", "store.url=sqlite://memory", *words]
    found = deploy_app(given, exit_on_error=False, result_action="return_value")
    assert isinstance(found, int)
    return found


def serve(cluster: Dashboard, model: str) -> None:
    cluster.folders = dict.fromkeys(("a1", "b2"), folder_digest(model))
    host, _, port = cluster.url.removeprefix("http://").rpartition(":")
    cluster.told["http_options"] = {"host": host, "port": int(port)}


def names(cluster: Dashboard) -> list[str]:
    return [one["name"] for one in cluster.sent[-1]["applications"]]


def test_other_applications_are_sent_again_as_they_were(
    cluster: Dashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("other", source="declarative", route_prefix="/other", deployed_app_config=OTHER)
    cluster.run("coded", source="imperative", route_prefix="/coded", deployed_app_config=None)
    cluster.run("leaves", source="declarative", status="DELETING", deployed_app_config=None)
    cluster.told["target_capacity"] = 50.0
    serve(cluster, "/m/new")
    for _ in range(2):  # its own application is never sent twice
        assert deploy(cluster) == 0
        assert cluster.sent[-1]["applications"][0] == OTHER
        assert names(cluster) == ["other", "relaygr"]
        assert cluster.sent[-1]["target_capacity"] == 50.0
    assert {"other", "coded"} < set(cluster.told["applications"])
    assert "other applications that stay: coded, other" in capsys.readouterr().out


def test_an_application_that_cannot_be_sent_again_is_not_deleted(
    cluster: Dashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("other", source="declarative", route_prefix="/other", deployed_app_config=OTHER)
    cluster.run("lost", source="declarative", deployed_app_config=None)
    serve(cluster, "/m/new")
    with pytest.raises(
        ConfigError, match=r"--address: application 'lost' would be deleted.*--replace-others"
    ):
        deploy(cluster)
    assert cluster.sent == []
    assert deploy(cluster, "--replace-others") == 0
    assert names(cluster) == ["relaygr"]
    assert "other applications that are deleted: lost, other" in capsys.readouterr().out


@pytest.mark.parametrize("source", ["declarative", "imperative"])
def test_an_application_at_the_same_route_is_in_the_way(source: str, cluster: Dashboard) -> None:
    theirs = {**OTHER, "route_prefix": "/"}
    cluster.run("other", source=source, route_prefix="/", deployed_app_config=theirs)
    with pytest.raises(ConfigError, match=r"--address: application 'other' has the route '/' there"):
        deploy(cluster)
    assert cluster.sent == []


def test_serve_that_runs_keeps_its_options(cluster: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    serve(cluster, "/m/new")
    cluster.told |= {"proxy_location": "HeadOnly", "grpc_options": {"port": 9001}}
    cluster.told["http_options"]["keep_alive_timeout_s"] = 5
    assert deploy(cluster, "--port", "1234") == 0
    sent = cluster.sent[-1]
    assert sent["http_options"] == cluster.told["http_options"]
    assert (sent["proxy_location"], sent["grpc_options"]) == ("HeadOnly", {"port": 9001})
    port = cluster.told["http_options"]["port"]
    said = capsys.readouterr().out
    assert f"Serve runs there already: port stays {port}, not 1234" in said
    assert "keep_alive_timeout_s stays 5, not 75" in said


def test_the_first_deployment_brings_its_own_options(cluster: Dashboard) -> None:
    assert deploy(cluster, "--port", "1234", "--front", "none") == 0
    sent: dict[str, Any] = cluster.sent[-1]
    assert (sent["http_options"]["port"], sent["proxy_location"]) == (1234, "EveryNode")
    assert "target_capacity" not in sent


def test_a_model_that_nobody_could_load_is_an_error(
    cluster: Dashboard, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaygr.serving.front.ray_model._SETTLE_S", 0.2)
    serve(cluster, "/m/old")
    assert deploy(cluster, model="/m/old") == 0
    assert deployed_model(cluster.url) == "/m/old"
    cluster.folders["b2"] = folder_digest("/m/bad")
    assert deploy(cluster, model="/m/bad") == 1
    said = capsys.readouterr().out
    assert "1 of 2 rankers do not serve the model '/m/bad': they go on with the one they had" in said
    assert "to go back, deploy again with --model /m/old" in said
    assert deploy(cluster, "--front", "none", model="/m/bad") == 0


def test_rankers_that_do_not_say_are_an_error(
    cluster: Dashboard, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaygr.serving.front.ray_model._SETTLE_S", 0.2)
    assert deploy(cluster, "--front", cluster.url) == 1
    said = capsys.readouterr().out
    assert "2 of 2 rankers did not say which model they serve" in said
    assert cluster.url in said
    assert "--front URL" in said
    cluster.folders = dict.fromkeys(("a1", "b2"), folder_digest("/m/new"))
    assert deploy(cluster, "--front", cluster.url) == 0


def test_proxies_anywhere_are_asked_where_their_nodes_are(cluster: Dashboard) -> None:
    said: list[str] = []
    serve(cluster, "/m/new")
    assert deploy(cluster) == 0
    cluster.told["http_options"]["host"] = "0.0.0.0"
    cluster.told["proxies"] = {"n": {"node_ip": "127.0.0.1", "status": "HEALTHY"}}
    assert serves(cluster.url, "/m/new", None, said.append)
    assert not serves(cluster.url, "", None, said.append, settle_s=0.0)
    assert len(said) == 1


def test_paths_are_told_apart_without_being_shown() -> None:
    found = {folder_digest(path) for path in ("/m/1", "/m/2", "/m/1/", "")}
    assert len(found) == 4
    assert folder_digest("") == ""
    assert "m" not in folder_digest("/m/1")
