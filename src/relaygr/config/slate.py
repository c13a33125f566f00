"""The list layer of a service: what values, generates and constrains its slates, and within which time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError
from relaygr.core.units import GIB, KIB, MIB

SlateGenerator = Literal["greedy", "beam", "mmr", "dpp", "ssd", "demotion", "plackett_luce", "one_shot"]


class SlateConfig(Section, frozen=True, kw_only=True):
    """Slates of a service.

    Attributes:
        value: file of the value function; empty serves no slates.
        step: folder of the step model; empty serves rule-repaired pointwise lists only.
        rules: file of the rules that every list obeys; empty for none.
        items: file of attributes and vectors of items (.parquet, .csv or .npz); empty for none.
        generators: what proposes lists beside the pointwise fallback.
        one_shot: folder of the distilled scorer that the generator `one_shot` needs.
        evaluator: folder of a trained evaluator; empty values lists by the step model.
        choice: among valued lists: by the mean less `kappa` standard deviations, by the same of the
            difference to the pointwise list, or by the mean less the conformal quantile that is stored with
            the evaluator.
        beam_width: lists that the generator `beam` keeps.
        top: candidates by pointwise rank that greedy and beam search look at.
        trust_top: picks are from so many candidates by pointwise rank, unless a request is unrestricted.
        kappa: standard deviations taken off the mean value of a list before lists are compared.
        mode: of requests that name none; `off` is final, whatever a request names.
        length: positions of a request that names none; max_length: most that one may name.
        max_candidates: of one request.
        budget_ms: time that the list layer may take of a request, waiting for its thread included; 0 sets no
            limit but the request's deadline.
        generate_items: items that are generated for a request without candidates.
        workers: slates that are made at once, beside the event loop and the model.
        queue_max: slates that wait or are being made; further ones are refused.
        log: folder that served lists are written to, with what came of them; empty writes none.
        log_wait_s: seconds that a served list waits for its outcome before it is given up.
        log_waiting, log_waiting_bytes: lists that wait at once, and their memory; the oldest are given up.
        log_queue: lists that wait for the disk; further ones are dropped.
        log_file_bytes: size at which a file of the log is full; log_bytes: of all files together, the oldest
            are deleted.
        explore_share: of the requests in mode `on`, whose lists are drawn at random; 0 for none.
        explore_temperature: of these draws; the higher, the further from the pointwise order.
        explore_seed: which requests explore and what they draw; servers of one fleet have the same.
    """

    PATH: ClassVar[str] = "slate"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "beam_width": Range(1, 256),
        "top": Range(1, 16_384),
        "trust_top": Range(1, 16_384),
        "kappa": Range(0, 100),
        "length": Range(1, 500),
        "max_length": Range(1, 500),
        "max_candidates": Range(1, 16_384),
        "budget_ms": Range(0, 60_000),
        "generate_items": Range(1, 16_384),
        "workers": Range(1, 64),
        "queue_max": Range(1, 1 << 20),
        "log_wait_s": Range(0.1, 604_800),
        "log_waiting": Range(1, 10_000_000),
        "log_waiting_bytes": Range(MIB, 1024 * GIB),
        "log_queue": Range(1, 1 << 20),
        "log_file_bytes": Range(KIB, 64 * GIB),
        "log_bytes": Range(2 * KIB, 1024 * 1024 * GIB),
        "explore_share": Range(0, 0.2),
        "explore_temperature": Range(0, 1000, open_low=True),
        "explore_seed": Range(0, 2**63 - 1),
    }

    value: str = ""
    step: str = ""
    rules: str = ""
    items: str = ""
    generators: tuple[SlateGenerator, ...] = ("greedy", "beam", "mmr")
    one_shot: str = ""
    evaluator: str = ""
    choice: Literal["bound", "paired", "conformal"] = "bound"
    beam_width: int = 4
    top: int = 30
    trust_top: int = 30
    kappa: float = 1.0
    mode: Literal["off", "shadow", "on"] = "on"
    length: int = 10
    max_length: int = 100
    max_candidates: int = 2000
    budget_ms: float = 50.0
    generate_items: int = 200
    workers: int = 1
    queue_max: int = 64
    log: str = ""
    log_wait_s: float = 3600.0
    log_waiting: int = 10_000
    log_waiting_bytes: int = 256 * MIB
    log_queue: int = 1000
    log_file_bytes: int = 64 * MIB
    log_bytes: int = 4 * GIB
    explore_share: float = 0.0
    explore_temperature: float = 0.1
    explore_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("value", "step", "rules", "items", "one_shot", "evaluator", "log"):
            text = getattr(self, name)
            if "\0" in text:
                raise ConfigError(self.key(name), f"{text!r} contains NUL")
            if text and not self.value:
                raise ConfigError(self.key("value"), f"is empty; {self.key(name)} needs it")
        if self.evaluator and not self.step:
            raise ConfigError(self.key("step"), f"is empty; {self.key('evaluator')} needs it")
        if self.explore_share and not self.step:
            raise ConfigError(self.key("step"), f"is empty; {self.key('explore_share')} needs it")
        if self.log_bytes < 2 * self.log_file_bytes:
            raise ConfigError(
                self.key("log_bytes"),
                f"{self.log_bytes} is below twice {self.key('log_file_bytes')} = {self.log_file_bytes}",
            )
        if self.choice == "conformal" and not self.evaluator:
            raise ConfigError(
                self.key("evaluator"), f"is empty; {self.key('choice')} = 'conformal' needs its quantiles"
            )
        if self.length > self.max_length:
            raise ConfigError(
                self.key("length"),
                f"{self.length} must be at most {self.key('max_length')} = {self.max_length}",
            )
        if len(set(self.generators)) != len(self.generators):
            raise ConfigError(self.key("generators"), f"{list(self.generators)} must be distinct")
        if ("one_shot" in self.generators) != bool(self.one_shot):
            raise ConfigError(
                self.key("one_shot"), f"{self.one_shot!r}: the folder goes with the generator 'one_shot'"
            )
