"""What generation counts, as Prometheus series; hears the scheduler as its observer.

Every series has the label `model`, the first twelve digits of the fingerprint of the decoder's weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relaygr.core.errors import RelayError
from relaygr.engine.generation.interface import Step, StepKind
from relaygr.engine.generation.jobs import AnyJob
from relaygr.engine.generation.recurrent import StateStats
from relaygr.engine.generation.scheduler import GenerateLoad
from relaygr.engine.generation.seats import Generated
from relaygr.generation.catalogue.settings import CatalogueStatus
from relaygr.generation.errors import GenerateError
from relaygr.serving.series import DIGITS, NO_MODEL, OTHER

_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.025, 0.035, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10),
)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_TOKENS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_CANDIDATES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
_BYTES = tuple(float(1 << power) for power in range(14, 33, 2))
# Refused before they waited.
_REFUSALS = ("invalid_request", "too_long", "too_wide", "kv_budget", "queue_full", "catalog_unavailable")


@dataclass(frozen=True, slots=True)
class GenerateReadings:
    """The state of generation at one moment.

    Attributes:
        load: what waits and runs.
        pages: device bytes of prompts by state.
        beams: bytes that beams take, and may take.
        states: recurrent states of prompts; zeros for a model without linear layers.
        catalogue: what is served.
    """

    load: GenerateLoad
    pages: dict[str, int]
    beams: tuple[int, int]
    states: StateStats
    catalogue: CatalogueStatus


class GenerateMetrics:
    """Counts what it is told; may be told from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry, self._model = registry, NO_MODEL
        counter, histogram = self._counter, self._histogram
        self._requests = counter("requests_total", "Generations answered")
        self._rejected = counter("rejected_total", "Generations refused, by reason", "reason")
        self._failed = counter("failed_total", "Generations that ended in an error after waiting", "code")
        self._cancelled = counter("cancelled_total", "Generations that nobody waited for any more")
        self._deadline = counter("deadline_missed_total", "Generations that ended by their deadline")
        self._underflow = counter("underflow_total", "Answers with fewer rows than asked for", "reason")
        self._prompt_tokens = counter(
            "prompt_tokens_total", "Prompt tokens, by where they came from", "source"
        )
        self._unknown = counter("unknown_items_total", "Items of histories that the catalogue does not know")
        self._encoded = counter("encoded_total", "Prompts encoded ahead")
        self._queue = histogram("queue_seconds", "From the queue to the first work on it")
        self._formation = histogram("formation_seconds", "From the oldest request to the start of its group")
        self._prefill = histogram("prefill_seconds", "A prompt, from its start to the last of its tokens")
        self._round = histogram("round_seconds", "One round of a group")
        self._forward = histogram("round_forward_seconds", "The model's part of a round")
        self._selection = histogram("round_selection_seconds", "Choosing beams in a round")
        self._preparation = histogram("round_preparation_seconds", "Index work for the next round")
        self._waited = histogram("round_preparation_wait_seconds", "Index work that a round waited for")
        self._latency = histogram("seconds", "From the queue to the answer")
        self._wave = histogram("group_requests", "Requests that run together", buckets=_ROWS)
        self._rows = histogram("group_rows", "Beams that run together", buckets=_ROWS)
        self._tokens = histogram("prompt_length_tokens", "Tokens of a prompt", buckets=_TOKENS)
        self._unique = histogram("unique_sids", "Distinct semantic ids of an answer", buckets=_ROWS)
        self._candidates = histogram(
            "candidates", "Candidates that the rounds of an answer chose from", buckets=_CANDIDATES
        )
        self._kv = histogram(
            "kv_bytes", "Keys and values of a request: of its prompt, of its beams", "part", buckets=_BYTES
        )
        self._recurrent = histogram(
            "linear_bytes",
            "What linear layers keep of a request: its prompt's state, records of its beams",
            "part",
            buckets=_BYTES,
        )

    @property
    def model(self) -> str:
        return self._model

    def serve(self, fingerprint: str, read: Callable[[], GenerateReadings]) -> None:
        """Count for this decoder from now on; `read` is asked at every scrape."""
        self._model = fingerprint[:DIGITS] or NO_MODEL
        self._registry.register(GenerateGauges(self, read))

    def started(self, wave: int, joined: int, rows: int, tokens: int, formed_s: float) -> None:
        self._wave.labels(self._model).observe(wave)
        self._rows.labels(self._model).observe(rows)
        self._formation.labels(self._model).observe(max(formed_s, 0.0))

    def stepped(self, step: Step) -> None:
        if step.kind is not StepKind.ROUND:
            return
        model = self._model
        self._round.labels(model).observe(step.seconds)
        self._forward.labels(model).observe(step.forward_s)
        self._selection.labels(model).observe(step.select_s)
        self._preparation.labels(model).observe(step.prepare_s)
        self._waited.labels(model).observe(step.wait_s)

    def ended(self, job: AnyJob, answer: object) -> None:
        model = self._model
        if not isinstance(answer, Generated):
            self._encoded.labels(model).inc()
            return
        result, found = answer.result, answer.result.found
        self._requests.labels(model).inc()
        self._queue.labels(model).observe(max(job.started_s - job.queued_s, 0.0))
        self._prefill.labels(model).observe(max(job.prefilled_s - job.started_s, 0.0))
        self._latency.labels(model).observe(max(job.done_s - job.queued_s, 0.0))
        self._tokens.labels(model).observe(result.prompt_tokens)
        self._prompt_tokens.labels(model, "cached").inc(result.cached_tokens)
        self._prompt_tokens.labels(model, "computed").inc(result.prompt_tokens - result.cached_tokens)
        self._unknown.labels(model).inc(result.unknown_items)
        self._unique.labels(model).observe(len({row.sid for row in found.rows}))
        self._candidates.labels(model).observe(sum(found.candidates))
        self._kv.labels(model, "prompt").observe(answer.kv.shared)
        self._kv.labels(model, "beams").observe(answer.kv.unshared)
        if answer.kv.state:
            self._recurrent.labels(model, "state").observe(answer.kv.state)
            self._recurrent.labels(model, "beams").observe(answer.kv.records)
        if found.underflow is not None:
            self._underflow.labels(model, found.underflow.value).inc()

    def failed(self, kind: str, error: RelayError) -> None:
        code = error.code.value if isinstance(error, GenerateError) else OTHER
        if code == "deadline":
            self._deadline.labels(self._model).inc()
        elif code == "cancelled":
            self._cancelled.labels(self._model).inc()
        else:
            self._failed.labels(self._model, code).inc()

    def rejected(self, error: RelayError) -> None:
        """A request was refused before it waited."""
        code = error.code.value if isinstance(error, GenerateError) else "invalid_request"
        self._rejected.labels(self._model, code if code in _REFUSALS else OTHER).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"relaygr_generate_{name}", text, ("model", *labels), registry=self._registry)

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS
    ) -> Histogram:
        return Histogram(
            f"relaygr_generate_{name}", text, ("model", *labels), registry=self._registry, buckets=buckets
        )


class GenerateGauges(Collector):
    """Reads once a scrape."""

    def __init__(self, metrics: GenerateMetrics, read: Callable[[], GenerateReadings]) -> None:
        self._metrics, self._read = metrics, read

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering reads nothing."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        now, model = self._read(), self._metrics.model
        load, status = now.load, now.catalogue
        queue = {"generate": load.waiting, "encode": load.prompts}
        yield _gauge("relaygr_generate_queue_depth", "Waiting generations", model, "class", queue)
        yield _gauge("relaygr_generate_running", "Generations that run", model, "", {"": load.running})
        yield _gauge(
            "relaygr_generate_prompt_bytes", "Device memory of prompts by state", model, "class", now.pages
        )
        beams = {"used": now.beams[0], "limit": now.beams[1]}
        yield _gauge("relaygr_generate_beam_bytes", "Memory of beams", model, "class", beams)
        yield from _of_states(now.states, model)
        info = GaugeMetricFamily(
            "relaygr_catalog_info", "The catalogue that serves, always 1", labels=("model", "version")
        )
        info.add_metric((model, status.serving or NO_MODEL), 1)
        yield info
        age_s = status.age_s(time.time()) or 0.0
        yield _gauge("relaygr_catalog_age_seconds", "Age of its data", model, "", {"": age_s})
        yield _gauge("relaygr_catalog_pins", "Requests that hold a version", model, "", {"": status.pins})
        withdrawn = {"": status.withdrawn}
        yield _gauge("relaygr_catalog_withdrawn_items", "Items denied since the build", model, "", withdrawn)
        yield _counted("relaygr_catalog_loads", "Catalogues that were loaded", model, status.loads)
        yield _counted("relaygr_catalog_load_failures", "Loads that failed", model, status.failures)


def _of_states(states: StateStats, model: str) -> Iterator[Metric]:
    memory = {
        "free": states.free,
        "working": states.working,
        "kept": states.kept,
        "host_free": states.host_free,
        "host_kept": states.host_kept,
    }
    text = "Memory of recurrent states of prompts"
    yield _gauge("relaygr_generate_state_bytes", text, model, "class", memory)
    text = "Copies of recurrent states"
    yield _gauge("relaygr_generate_state_snapshots", text, model, "", {"": states.snapshots})
    text = "Snapshots that left for the room of others"
    yield _counted("relaygr_generate_state_evictions", text, model, states.left)
    restarts = CounterMetricFamily(
        "relaygr_generate_state_restarts",
        "Prompts with a recurrent state, by what they went on from",
        labels=("model", "source"),
    )
    for source, amount in states.restarts:
        restarts.add_metric((model, source), amount)
    yield restarts
    tokens = CounterMetricFamily(
        "relaygr_generate_state_tokens",
        "Prompt tokens whose keys and values were there: saved by a snapshot, or computed again",
        labels=("model", "outcome"),
    )
    tokens.add_metric((model, "saved"), states.saved_tokens)
    tokens.add_metric((model, "repeated"), states.repeated_tokens)
    yield tokens


def _gauge(name: str, text: str, model: str, label: str, values: dict[str, float] | dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=("model", *([label] if label else [])))
    for value, amount in values.items():
        family.add_metric((model, *([value] if label else [])), amount)
    return family


def _counted(name: str, text: str, model: str, amount: int) -> Metric:
    family = CounterMetricFamily(name, text, labels=("model",))
    family.add_metric((model,), amount)
    return family
