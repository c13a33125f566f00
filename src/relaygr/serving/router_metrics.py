"""The router's counts as Prometheus metrics; read when scraped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from relaygr.relay.membership import State
from relaygr.relay.router import Router
from relaygr.serving.forward import Forwarder


class RouterMetrics(Collector):
    """Register it at the process's registry."""

    def __init__(self, router: Router, forwarder: Forwarder) -> None:
        self._router, self._forwarder = router, forwarder

    def collect(self) -> Iterator[Metric]:
        router, counts = self._router, self._router.counts
        requests = _counter("router_requests", "Requests by lap and member", "lap", "member")
        # Copies: the event loop goes on meanwhile.
        for (lap, member), count in dict(counts.requests).items():
            requests.add_metric((lap, member), count)
        yield requests
        spills = _counter("router_spills", "Requests that did not go to the user's own member", "reason")
        for reason, count in dict(counts.spills).items():
            spills.add_metric((reason,), count)
        yield spills
        refused = _counter("router_refused", "Signals and requests that went nowhere", "reason")
        for refusal, count in dict(counts.refusals).items():
            refused.add_metric((refusal,), count)
        yield refused
        hits = _counter("router_hits", "Rankings with a cached prefix, as expected and as answered", "kind")
        for kind, count in self._forwarder.hits.items():
            hits.add_metric((kind,), count)
        yield hits
        yield _counter_of("router_affinity_miss", "Rankings sent elsewhere than their prefix", counts.misses)
        yield _counter_of(
            "build_mismatch", "Members that began to differ from most", router.members.mismatches
        )
        yield _gauge("router_epoch", "Changes of the members, from 1", router.epoch)
        yield _gauge("router_keys_moved_ratio", "Users that the last change moves", router.keys_moved_ratio)
        yield _gauge(
            "router_load_max_over_mean", "Of the last requests, the busiest member's by its fair share",
            router.load_max_over_mean,
        )  # fmt: skip
        yield _gauge("router_placements", "Users whose member is remembered", router.placements)
        yield self._members()

    def _members(self) -> GaugeMetricFamily:
        states = Counter(one.state for one in self._router.members)
        family = GaugeMetricFamily("relaygr_router_members", "Members by state", labels=("state",))
        for state in State:
            family.add_metric((state,), states[state])
        return family


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"relaygr_{name}", text, labels=labels)


def _counter_of(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"relaygr_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"relaygr_{name}", text, value=value)
