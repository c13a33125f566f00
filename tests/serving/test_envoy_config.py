"""The configuration of Envoy: the file in deploy/ is what the command makes, Envoy takes it, and it fits."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy_processes import settings, validated

from relaygr.cli.main import main
from relaygr.config.settings import Config
from relaygr.core.errors import ConfigError
from relaygr.serving.app import OPERATIONS
from relaygr.serving.front.envoy import render

FILE = Path(__file__).resolve().parents[2] / "deploy" / "envoy.yaml"
ONE = {"a": "http://10.0.0.1:8080"}


def run(*arguments: str) -> int:
    try:
        main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def manager(shown: dict[str, Any]) -> dict[str, Any]:
    [listener] = shown["static_resources"]["listeners"]
    found: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def cluster(shown: dict[str, Any]) -> dict[str, Any]:
    [found] = shown["static_resources"]["clusters"]
    assert isinstance(found, dict)
    return found


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def test_the_file_is_what_its_command_makes(tmp_path: Path) -> None:
    command = FILE.read_text().splitlines()[1].removeprefix("#").strip()
    words = shlex.split(command)
    assert words[:3] == ["relaygr", "deploy", "envoy"]
    assert run(*words[1:], "--out", str(tmp_path / "envoy.yaml")) == 0
    assert (tmp_path / "envoy.yaml").read_text() == FILE.read_text(), f"run: {command} --out {FILE.name}"


def test_envoy_takes_the_file_and_finds_nothing_deprecated() -> None:
    assert "eprecated" not in validated(FILE)


def test_printed_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("deploy", "envoy", "--member", "a=http://h:1", "--set", "serving.keep_alive_s=100") == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    options = cluster(shown)["typed_extension_protocol_options"]
    [kept] = [one["common_http_protocol_options"]["idle_timeout"] for one in options.values()]
    assert seconds(kept) == 80


def test_it_fits_the_instances() -> None:
    config = Config()
    shown = yaml.safe_load(render(settings({**ONE, "b": "http://b.local"}), budget_ms=200))
    http, upstream = manager(shown), cluster(shown)
    routes = {one["name"]: one for one in http["route_config"]["virtual_hosts"][0]["routes"]}
    budgeted = routes["ranking"]["route"]
    tries = 1 + budgeted["retry_policy"]["num_retries"]
    assert seconds(budgeted["timeout"]) == 0.2
    assert tries * seconds(budgeted["retry_policy"]["per_try_timeout"]) <= seconds(budgeted["timeout"])
    for name in ("events_with_key", "generation", "deletion", "safe"):
        route = routes[name]["route"]
        each_s = seconds(route["retry_policy"]["per_try_timeout"])
        assert 2 * each_s <= seconds(route["timeout"]) < seconds(routes["once"]["route"]["timeout"]), name
    generated = routes["generation"]["route"]["retry_policy"]
    assert seconds(generated["per_try_timeout"]) > config.generator.deadline_ms / 1000
    assert "reset" not in routes["events"]["route"]["retry_policy"]["retry_on"]
    longest_s = config.scheduler.deadline_max_ms / 1000
    assert seconds(routes["once"]["route"]["timeout"]) > longest_s
    assert "reset" not in routes["once"]["route"]["retry_policy"]["retry_on"]
    assert seconds(http["common_http_protocol_options"]["max_stream_duration"]) > longest_s
    [check] = upstream["health_checks"]
    assert check["http_health_check"]["path"] in {one.path for one in OPERATIONS}
    [limits] = upstream["circuit_breakers"]["thresholds"]
    assert limits["max_requests"] == 2 * config.serving.requests_max
    assert all("hash_policy" in one["route"] for one in routes.values() if "route" in one)
    assert shown["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    [buffer] = [one for one in http["http_filters"] if one["name"] == "envoy.filters.http.buffer"]
    assert buffer["typed_config"]["max_request_bytes"] == config.serving.body_limit_bytes
    logged = http["access_log"][0]["typed_config"]["log_format"]["json_format"]
    assert not any("PATH" in one or "SESSION" in one for one in logged.values())


def test_members_of_every_kind(tmp_path: Path) -> None:
    urls = {'odd"id\\{}#': "http://[::1]:81/", "plain": "http://host.example"}
    text = render(settings(urls))
    (tmp_path / "envoy.yaml").write_text(text)
    validated(tmp_path / "envoy.yaml")
    [group] = cluster(yaml.safe_load(text))["load_assignment"]["endpoints"]
    told = [
        (
            one["metadata"]["filter_metadata"]["envoy.lb"]["hash_key"],
            *one["endpoint"]["address"]["socket_address"].values(),
        )
        for one in group["lb_endpoints"]
    ]
    assert told == [('odd"id\\{}#', "::1", 81), ("plain", "host.example", 80)]


@pytest.mark.parametrize(
    ("urls", "more", "said"),
    [
        ({}, {}, "router.members: is empty"),
        ({"a": "https://h:1"}, {}, r"router.members\[0\].url: 'https://h:1' must begin with http://"),
        ({"a": "http://h:99999"}, {}, r"router.members\[0\].url: 'http://h:99999': Port"),
        ({"a": "http://u@h:1"}, {}, r"router.members\[0\].url"),
        ({"a": "http://%zz"}, {}, r"'http://%zz' must be http://HOST:PORT, HOST an IP address or a name"),
        ({"a": "http://h:0"}, {}, "and PORT from 1 to 65535"),
        ({"a": "http://[::1"}, {}, r"router.members\[0\].url: 'http://\[::1'"),
        (ONE, {"admin_port": Config().serving.port}, "--admin-port: .* must be another port than --port"),
        (ONE, {"budget_ms": 0.5}, "--budget-ms: 0.5 must be in"),
        (ONE, {"admin_port": 0}, "--admin-port: 0 must be in"),
    ],
)
def test_wrong_settings_are_named(urls: dict[str, str], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        render(settings(urls), **more)


@pytest.mark.parametrize("host", ["0.0.0.0\n#", 'a"b', "localhost", "", "fe80::1%\nx", "0.0.0.0:80"])
def test_what_cannot_be_listened_on_is_refused(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("deploy", "envoy", "--member", "a=http://h:1", "--listen", host) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--listen: " in said.err
    assert "must be an IP address" in said.err
