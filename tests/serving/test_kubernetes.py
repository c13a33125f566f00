"""The Kubernetes manifests are valid and true of the service: routes, ports, settings, metrics."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from metric_cases import tell_everything

from relaygr.config.load import load_config
from relaygr.config.settings import Config
from relaygr.config.sizes import parse_bytes
from relaygr.core.clock import ManualClock
from relaygr.serving.app import OPERATIONS
from relaygr.serving.gateway import Gateway
from relaygr.serving.metrics import Metrics
from relaygr.serving.process import _LAST_RESORT_S

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
K8S = DEPLOY / "k8s"
VERSIONS = ("1.34", "1.35", "1.36", "1.37")
# A server of a small model beside its pools: docs/operating.md.
PROCESS_BYTES = parse_bytes("1228MiB")
Manifest = dict[str, Any]


def of_file(file: Path) -> list[Manifest]:
    return [one for one in yaml.safe_load_all(file.read_text()) if one]


FILES = sorted(file for file in K8S.glob("*.yaml") if file.name != "kustomization.yaml")
MANIFESTS = [one for file in FILES for one in of_file(file)]
WORKLOADS = [one for one in MANIFESTS if one["kind"] in ("StatefulSet", "Deployment")]


def name_of(manifest: Manifest) -> str:
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


def of_kind(kind: str) -> list[Manifest]:
    return [one for one in MANIFESTS if one["kind"] == kind]


def named(kind: str, name: str) -> Manifest:
    [found] = [one for one in of_kind(kind) if one["metadata"]["name"] == name]
    return found


def pod_of(workload: Manifest) -> Manifest:
    found: Manifest = workload["spec"]["template"]["spec"]
    return found


def labels_of(workload: Manifest) -> dict[str, str]:
    found: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return found


def container_of(workload: Manifest) -> Manifest:
    [found] = pod_of(workload)["containers"]
    assert isinstance(found, dict)
    return found


def settings_of(workload: Manifest, folder: Path) -> Config:
    """The settings with which the container starts, from the file that its arguments name."""
    container = container_of(workload)
    path = Path(container["args"][container["args"].index("--config") + 1])
    [mount] = [one for one in container["volumeMounts"] if Path(one["mountPath"]) == path.parent]
    [volume] = [one for one in pod_of(workload)["volumes"] if one["name"] == mount["name"]]
    told = named("ConfigMap", volume["configMap"]["name"])["data"][path.name]
    (folder / path.name).write_text(told)
    variables = {one["name"]: one.get("value", "redis://store:6379/0") for one in container.get("env", [])}
    return load_config(folder / path.name, variables)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=name_of)
def test_valid(manifest: Manifest, version: str) -> None:
    assert kubernetes_validate.validate(manifest, version, strict=True).startswith(version)


def test_the_validation_can_fail() -> None:
    wrong = {**named("StatefulSet", "relaygr"), "spec": {"serviceName": 3, "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_everything_is_applied() -> None:
    [customization] = of_file(K8S / "kustomization.yaml")
    assert sorted(customization["resources"]) == [file.name for file in FILES]
    images = {container_of(one)["image"].partition(":")[0] for one in WORKLOADS}
    assert {one["name"] for one in customization["images"]} == images
    [namespace] = of_kind("Namespace")
    assert namespace["metadata"]["name"] == customization["namespace"]
    version = re.search(r'^version = "(.+)"$', (DEPLOY.parent / "pyproject.toml").read_text(), re.M)
    assert version
    assert [one["newTag"] for one in customization["images"]] == [f"{version[1]}-cpu"]


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_ports_probes_and_annotations(workload: Manifest, tmp_path: Path) -> None:
    config, container = settings_of(workload, tmp_path), container_of(workload)
    [port] = container["ports"]
    assert port["containerPort"] == config.serving.port
    assert config.serving.host == "0.0.0.0"
    routes = {one.path for one in OPERATIONS if one.method == "GET" and one.open}
    probes = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert probes.keys() == {"startupProbe", "readinessProbe", "livenessProbe"}
    assert all(one["port"] == port["name"] and one["path"] in routes for one in probes.values())
    assert probes["readinessProbe"]["path"] == "/readyz"
    # One that drains, or has no instances, must not be killed for it.
    assert probes["livenessProbe"]["path"] == "/healthz"
    told = workload["spec"]["template"]["metadata"]["annotations"]
    assert (told["prometheus.io/path"], told["prometheus.io/port"]) == ("/metrics", str(config.serving.port))


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_there_is_time_to_drain(workload: Manifest, tmp_path: Path) -> None:
    config, readiness = settings_of(workload, tmp_path), container_of(workload)["readinessProbe"]
    serving = config.serving
    ends_s = serving.drain_delay_s + serving.drain_s + _LAST_RESORT_S
    assert pod_of(workload)["terminationGracePeriodSeconds"] > ends_s
    # Nobody sends anything any more when work is refused.
    assert serving.drain_delay_s > readiness["periodSeconds"] * readiness["failureThreshold"]
    assert serving.drain_delay_s > config.router.poll_s * config.router.down_after


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_pods_have_few_rights_and_set_limits(workload: Manifest) -> None:
    pod, container = pod_of(workload), container_of(workload)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    assert pod["serviceAccountName"] in {one["metadata"]["name"] for one in of_kind("ServiceAccount")}
    own = container["securityContext"]
    assert own["readOnlyRootFilesystem"]
    assert not own["allowPrivilegeEscalation"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"].keys() == {"requests", "limits"}
    user = re.search(r"^USER (\d+):(\d+)$", (DEPLOY.parent / "Dockerfile").read_text(), re.M)
    assert user
    ids = pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]
    assert ids == (int(user[1]), int(user[2]))
    # Whatever is mounted is there, and whatever is there is mounted.
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    for one in pod["topologySpreadConstraints"]:
        assert one["labelSelector"]["matchLabels"] == labels_of(workload)


def test_memory_and_threads_fit_the_pod(tmp_path: Path) -> None:
    workload = named("StatefulSet", "relaygr")
    config, resources = settings_of(workload, tmp_path), container_of(workload)["resources"]
    taken = config.engine.device_bytes + config.host.host_bytes + config.serving.users_bytes
    assert taken + PROCESS_BYTES < parse_bytes(resources["limits"]["memory"] + "B")
    assert resources["requests"] == resources["limits"]
    assert config.engine.threads == int(resources["limits"]["cpu"]) - 1
    assert config.engine.dtype != "auto"
    mounts = [one["mountPath"] for one in container_of(workload)["volumeMounts"]]
    assert any(config.serving.model.startswith(f"{mount}/") for mount in mounts)
    # A second store of its own would be empty wherever a user moves to.
    told = tomllib.loads(named("ConfigMap", "relaygr-instance")["data"]["relaygr.toml"])
    assert "store" not in told
    assert config.store.url.startswith("redis://")


def test_the_gateway_knows_every_pod_that_may_be(tmp_path: Path) -> None:
    instances, [scaler] = named("StatefulSet", "relaygr"), of_kind("HorizontalPodAutoscaler")
    name, service = instances["metadata"]["name"], instances["spec"]["serviceName"]
    port = container_of(instances)["ports"][0]["containerPort"]
    gateway = settings_of(named("Deployment", "relaygr-gateway"), tmp_path)
    assert [(one.id, one.url) for one in gateway.router.members] == [
        (f"{name}-{place}", f"http://{name}-{place}.{service}:{port}")
        for place in range(scaler["spec"]["maxReplicas"])
    ]
    assert Gateway(gateway).fleet.config is gateway.router
    each = settings_of(instances, tmp_path).serving.requests_max
    assert gateway.serving.requests_max == each * scaler["spec"]["maxReplicas"]
    headless = named("Service", service)["spec"]
    assert headless["clusterIP"] == "None"
    # Else the name of a pod that drains is gone while its rankings still go there.
    assert headless["publishNotReadyAddresses"]
    assert "replicas" not in instances["spec"]
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (instances["kind"], name)


def test_selectors_find_their_pods() -> None:
    by_labels = {tuple(sorted(labels_of(one).items())): one for one in WORKLOADS}
    assert len(by_labels) == len(WORKLOADS)

    def found(labels: dict[str, str]) -> Manifest:
        return by_labels[tuple(sorted(labels.items()))]

    for workload in WORKLOADS:
        assert found(workload["spec"]["selector"]["matchLabels"]) is workload
    for service in of_kind("Service"):
        ports = {one["name"] for one in container_of(found(service["spec"]["selector"]))["ports"]}
        assert {one["targetPort"] for one in service["spec"]["ports"]} <= ports
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        hit = [found(one["spec"][key]["matchLabels"]) for one in of_kind(kind)]
        assert sorted(map(name_of, hit)) == sorted(map(name_of, WORKLOADS)), kind
    for policy in of_kind("NetworkPolicy"):
        rules = [*policy["spec"]["ingress"], *policy["spec"]["egress"]]
        peers = [one for rule in rules for one in (*rule.get("from", []), *rule.get("to", []))]
        assert all(found(one["podSelector"]["matchLabels"]) for one in peers if "podSelector" in one)


def test_whoever_may_read_a_stream_reaches_redis() -> None:
    for policy in of_kind("NetworkPolicy"):
        ports = [
            port["port"] for rule in policy["spec"]["egress"] if "to" not in rule for port in rule["ports"]
        ]
        assert ports == [6379], name_of(policy)


def test_what_scales_is_measured() -> None:
    """Metrics of the autoscaler come from rules, and the service has their series and labels."""
    [scaler], [adapter] = of_kind("HorizontalPodAutoscaler"), of_file(DEPLOY / "prometheus-adapter.yaml")
    rules = {one["name"]["as"]: one for one in adapter["rules"]["custom"]}
    asked = {one["pods"]["metric"]["name"] for one in scaler["spec"]["metrics"]}
    assert asked == set(rules)
    told = Metrics(ManualClock(1000.0))
    tell_everything(told, 1000.0)
    samples = [sample for family in told.registry.collect() for sample in family.samples]
    for rule in rules.values():
        found = re.fullmatch(r"(\w+)\{(.*)\}", rule["seriesQuery"])
        assert found
        assert rule["name"]["matches"] == f"^{found[1]}$"
        wanted = dict(re.findall(r'(\w+)="([^"]+)"', found[2]))
        hits = [one for one in samples if one.name == found[1] and wanted.items() <= one.labels.items()]
        assert hits, rule["seriesQuery"]
        assert all(f'{label}="{value}"' in rule["metricsQuery"] for label, value in wanted.items())


def test_the_scaler_is_slow_to_take_away() -> None:
    [scaler] = of_kind("HorizontalPodAutoscaler")
    down = scaler["spec"]["behavior"]["scaleDown"]
    assert [(one["type"], one["value"]) for one in down["policies"]] == [("Pods", 1)]
    placements_s = Config().router.placement_ttl_s
    assert down["policies"][0]["periodSeconds"] >= placements_s
    assert down["stabilizationWindowSeconds"] >= placements_s
