"""What the relay learns of the traffic of its instance: load, lead times, sizes, and whether it was right."""

from __future__ import annotations

from relaygr.config.relay import TriggerConfig
from relaygr.engine.jobs import RankJob
from relaygr.engine.signals import Signal
from relaygr.relay.budgets import FIXED_BUDGETS, Budgets
from relaygr.relay.gate import Gate
from relaygr.relay.lead import CandidateCounts, LeadTimes, LifeTimes
from relaygr.relay.loads import Kind, LoadMeter
from relaygr.relay.quantile import QuantileWindow
from relaygr.relay.risk import RiskScore
from relaygr.relay.trigger import Build

_SIZES = 1000


class Learnt:
    """Of one model, but for what says nothing about models; not for several threads."""

    def __init__(self, config: TriggerConfig, slots: int) -> None:
        self._config, self._slots = config, slots
        self._candidates = CandidateCounts(config.candidates_default)
        self._ready = self._announced = 0
        self.risk = RiskScore()
        self.begin(FIXED_BUDGETS)

    def begin(self, budgets: Budgets) -> None:
        """Another model is served: loads and times of the one before say nothing."""
        self._budgets = budgets
        self._meter = LoadMeter()
        self._leads = LeadTimes(self._config.lead_quantile, budgets.lead_default_ms)
        life_ms = max(FIXED_BUDGETS.t_life_ms, budgets.lead_p99_ms + budgets.b_rank_ms)
        self._lives = LifeTimes(life_ms, budgets.t_life_slack_ms)
        self._sizes = QuantileWindow(0.99, 0.0, _SIZES)

    @property
    def candidates(self) -> int:
        """To expect of a signal that names none."""
        return self._candidates.expected

    @property
    def lead_ms(self) -> float:
        return self._leads.low_ms

    @property
    def t_life_s(self) -> float:
        """As set, or as measured."""
        return (self._budgets.t_life_ms or self._lives.t_life_ms) / 1000

    @property
    def ready_ratio(self) -> float | None:
        """Share of announced rankings that found their prefix complete; None before any."""
        return self._ready / self._announced if self._announced else None

    def rank_share(self, now_s: float) -> float:
        """Of the model slots, what ranking takes."""
        return self._meter.share(Kind.RANK, self._slots, now_s)

    def rank_rate_per_s(self, now_s: float) -> float:
        """Rankings at one slot."""
        return self._meter.rate_per_s(Kind.RANK, now_s) / self._slots

    def tell(self, gate: Gate[tuple[str, str]], now_s: float) -> None:
        """Let the gate bound admission by it."""
        meter = self._meter
        gate.rates(
            meter.mean_ms(Kind.PRE),
            meter.rate_per_s(Kind.RANK, now_s),
            meter.mean_ms(Kind.RANK),
            self.t_life_s,
            self._sizes.value,
            now_s,
        )

    def wanted(self, nbytes: int) -> None:
        """A signal passed the trigger, for a prefix of this size."""
        self._sizes.add(nbytes)

    def computed(self, seconds: float, now_s: float) -> None:
        """A pre-inference took so long."""
        self._meter.serve(Kind.PRE, seconds * 1000, now_s)

    def ranked(self, seconds: float, now_s: float) -> None:
        """A ranking took so long, its share of a batch."""
        self._meter.serve(Kind.RANK, seconds * 1000, now_s)

    def arrived(self, candidates: int, now_s: float) -> None:
        """A ranking was queued."""
        self._meter.arrive(Kind.RANK, now_s)
        self._candidates.observe(candidates)

    def announced(self, signal: Signal, ready: bool, now_s: float) -> None:
        """The ranking of a signal was queued, its prefix complete or not."""
        self._leads.observe((now_s - signal.at_s) * 1000)
        self._announced += signal.admitted
        self._ready += ready and signal.admitted

    def judge(self, job: RankJob, signal: Signal, build: Build | None, now_s: float) -> None:
        """The ranking of a signal is over: how long its prefix was needed, and whether it was at risk."""
        if signal.admitted:
            self._lives.observe((now_s - signal.at_s) * 1000)
        if build is not None and build.latency is not None and build.budgets is not None:
            alone_ms = build.latency.coefficients.full_ms(job.tokens, 0, len(job.request.candidates))
            waited_ms = (job.started_s - job.queued_s) * 1000
            # Computed whole, behind the queue that it met.
            self.risk.observe(signal.at_risk, alone_ms + waited_ms > build.budgets.b_rank_ms)
