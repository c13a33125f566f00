"""`relaygr deploy ray` without Ray: configurations of Serve and KubeRay, what is refused, who loads it."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from relaygr.cli.deploy import deploy_app
from relaygr.config.load import load_config
from relaygr.config.ray import RayConfig
from relaygr.config.settings import Config
from relaygr.core.errors import ConfigError
from relaygr.serving.front.ray import RAY_VERSION, drain_s, kuberay, sent_along, serve_config, settings_of

ROOT = Path(__file__).resolve().parents[2]
MEMORY = "store.url=sqlite://memory"


def config(*sets: str) -> Config:
    return load_config(overrides=[MEMORY, *sets])


def deployments(*sets: str) -> dict[str, Any]:
    [app] = serve_config(config(*sets))["applications"]
    return {one["name"]: one for one in app["deployments"]}


def test_what_running_replicas_follow_is_not_among_what_starts_them_anew() -> None:
    some = ("serving.model=/m/1", "ray.replicas=3", "ray.ongoing_max=9", "serving.port=1234")
    other = (
        "serving.model=/m/2",
        "ray.replicas=5",
        "ray.ongoing_max=7",
        "ray.replicas_max=8",
        "serving.port=1",
    )
    assert sent_along(config(*some)) == sent_along(config(*other)) == {"store": {"url": "sqlite://memory"}}
    rankers = deployments(*some)["Ranker"]
    assert rankers["user_config"] == {"model": "/m/1"}
    assert (rankers["num_replicas"], rankers["max_ongoing_requests"]) == (3, 9)
    assert "autoscaling_config" not in rankers
    scaled = deployments(*other)["Ranker"]
    assert "num_replicas" not in scaled
    assert (scaled["autoscaling_config"]["min_replicas"], scaled["autoscaling_config"]["max_replicas"]) == (
        5,
        8,
    )


def test_settings_arrive_as_they_were_and_variables_win(tmp_path: Path) -> None:
    file = tmp_path / "relaygr.toml"
    file.write_text(
        '[serving]\nkeys = [{key = "a-key-of-sixteen-", tenant = "t"}]\n[engine]\nthreads = 3\n'
        '[router]\nhash = "mix64"\n[store]\nurl = "redis://there:6379/0"\n[budgets]\ndrain_ms = 3000\n'
    )
    wanted = load_config(file)
    sent = json.loads(json.dumps(sent_along(wanted)))
    found = settings_of(sent, {})
    assert found == wanted
    assert drain_s(found) == 3.0
    assert settings_of(sent, {"RELAYGR_STORE__URL": "redis://:secret@x/1"}).store.url.endswith("@x/1")
    with pytest.raises(ConfigError, match=r"engine\.threds: unknown key; did you mean 'engine\.threads'"):
        settings_of({"engine": {"threds": 1}}, {})


def test_a_replica_has_time_to_drain() -> None:
    for sets in ((), ("budgets.t_life_ms=4000",), ("serving.drain_s=120", "serving.drain_delay_s=5")):
        rankers, settings = deployments(*sets)["Ranker"], config(*sets)
        assert rankers["graceful_shutdown_wait_loop_s"] == drain_s(settings)
        least = drain_s(settings) + settings.serving.drain_s + settings.serving.drain_delay_s
        assert rankers["graceful_shutdown_timeout_s"] > least


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["store.url=sqlite:///x.db"], r"store\.url: 'sqlite:///x\.db' is of one machine.*redis://HOST"),
        (["stream.url=redis://x"], r"stream\.url: .*is not read"),
        (["serving.calibration=/c.json"], r"serving\.calibration: '/c\.json' must be empty"),
        (["host.snapshot_path=/s"], r"host\.snapshot_path: '/s' must be empty"),
        (["serving.port=0"], r"serving\.port: 0 must be a port"),
    ],
)
def test_what_makes_no_sense_on_ray_is_refused(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serve_config(config(*sets))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("ray.replicas=0", r"ray\.replicas: 0 must be in \[1, 4096\]"),
        ("ray.take_ms=0", r"ray\.take_ms: 0.* must be in \[1, 600000\]"),
        ("ray.replicas_max=1", r"ray\.replicas_max: 1 must be 0 or at least ray\.replicas = 2"),
    ],
)
def test_settings_have_ranges(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(option)


def run(*words: str) -> int:
    found = deploy_app(["ray", *words], exit_on_error=False, result_action="return_value")
    assert isinstance(found, int)
    return found


def test_the_command_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"--address: no Ray dashboard at 'http://127\.0\.0\.1:1'.*ray start"
    ):
        run("--address", "http://127.0.0.1:1", "--set", MEMORY)
    with pytest.raises(ConfigError, match=r"--wait-s: 0.* must be in \[1, 86400\]"):
        run("--wait-s", "0", "--set", MEMORY)
    if importlib.util.find_spec("ray") is not None:
        with pytest.raises(ConfigError, match=r"serving\.model: '/no/model' is no folder of this machine"):
            run("--address", "local", "--model", "/no/model", "--set", MEMORY)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--address: 'local' needs Ray: pip install 'relaygr\[ray\]'"):
        run("--address", "local", "--set", MEMORY)


def test_files_are_written_without_ray(tmp_path: Path) -> None:
    out, service = tmp_path / "serve.yaml", tmp_path / "service.yaml"
    assert run("--out", str(out), "--kuberay", str(service), "--replicas", "4", "--set", MEMORY) == 0
    assert yaml.safe_load(out.read_text()) == serve_config(config("ray.replicas=4"))
    told = yaml.safe_load(service.read_text())
    assert yaml.safe_load(told["spec"]["serveConfigV2"]) == serve_config(config("ray.replicas=4"))


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("redis://:secret@there:6379/1", "redis://there:6379/1"),
        ("rediss://me:se:cr@t@[::1]/1", "rediss://me@[::1]/1"),
        ("redis://me@there/1", "redis://me@there/1"),
    ],
)
def test_files_hold_no_password(
    url: str, written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, service = tmp_path / "serve.yaml", tmp_path / "service.yaml"
    assert run("--out", str(out), "--kuberay", str(service), "--set", f"store.url={url}") == 0
    said = capsys.readouterr().out
    serve = yaml.safe_load(out.read_text())
    assert serve["applications"][0]["args"]["settings"]["store"] == {"url": written}
    assert yaml.safe_load(yaml.safe_load(service.read_text())["spec"]["serveConfigV2"]) == serve
    assert ("RELAYGR_STORE__URL" in said) == ("RELAYGR_STORE__URL" in out.read_text()) == (url != written)
    # What is sent to a cluster has it: nobody else brings it there.
    assert sent_along(load_config(overrides=[f"store.url={url}"]))["store"] == {"url": url}


def test_nothing_else_loads_ray() -> None:
    code = (
        "import sys, relaygr.engine, relaygr.serving.run, relaygr.serving.gateway, relaygr.serving.ingress,"
        "relaygr.serving.crew, relaygr.cli.deploy, relaygr.cli.serve, relaygr.bench.cluster;"
        "print([name for name in sys.modules if name.partition('.')[0] == 'ray'])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_extra_is_of_the_version_that_is_deployed() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["ray"]
    assert f"ray[serve]=={RAY_VERSION}" in extra


def service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "rayservice.yaml").read_text())
    return found


def test_the_rayservice_is_what_the_documented_command_writes(tmp_path: Path) -> None:
    [command] = re.findall(
        r"relaygr (deploy ray --kuberay (?:.|\n)*?)\n\n", (ROOT / "docs/ray.md").read_text()
    )
    words = shlex.split(command.replace("\\\n", " "))[2:]
    out = tmp_path / "out.yaml"
    words[words.index("--kuberay") + 1] = str(out)
    assert run(*words) == 0
    assert out.read_text() == (ROOT / "deploy" / "rayservice.yaml").read_text()


def test_the_rayservice_is_whole() -> None:
    """KubeRay's own schema is not at hand: its fields are checked by name, the pods by Kubernetes' schema."""
    spec = service()["spec"]
    assert (service()["apiVersion"], service()["kind"]) == ("ray.io/v1", "RayService")
    serve = yaml.safe_load(spec["serveConfigV2"])
    rankers = {one["name"]: one for one in serve["applications"][0]["deployments"]}["Ranker"]
    cluster = spec["rayClusterConfig"]
    assert cluster["rayVersion"] == RAY_VERSION
    [workers] = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == rankers["num_replicas"] <= workers["maxReplicas"]
    head, pod = cluster["headGroupSpec"]["template"], workers["template"]
    for name, template in (("head", head), ("worker", pod)):
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **template}
        kubernetes_validate.validate(manifest, "1.37", strict=True)
        [container] = template["spec"]["containers"]
        ports = {one["name"]: one["containerPort"] for one in container["ports"]}
        assert ports["serve"] == serve["http_options"]["port"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > rankers["graceful_shutdown_timeout_s"]
    [container] = pod["spec"]["containers"]
    mounted = [Path(one["mountPath"]) for one in container["volumeMounts"]]
    assert Path(rankers["user_config"]["model"]).parent in mounted
    assert [one["name"] for one in container["env"]] == ["RELAYGR_STORE__URL"]


def test_kuberay_workers_hold_what_a_ranker_may_take() -> None:
    told = yaml.safe_load(kuberay(config("engine.device_bytes=20GiB", "ray.ranker_cpus=3.5"), "image"))
    [container] = told["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "4", "memory": "24Gi"}


def test_defaults() -> None:
    assert load_config().ray == RayConfig()
