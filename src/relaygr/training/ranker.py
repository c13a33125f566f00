"""Train an HSTU ranker on the events before a split and keep the weights that rank validation best."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from relaygr.config.settings import TrainConfig
from relaygr.core.clock import Clock, MonotonicClock
from relaygr.core.errors import BackendError, ConfigError
from relaygr.data.dataset import Events
from relaygr.data.split import evaluation_requests, temporal_split
from relaygr.kernels.interface import Kernel
from relaygr.models.presets import AnyConfig
from relaygr.models.ranker import Ranker
from relaygr.models.weights import fingerprint, save_ranker
from relaygr.training.attention import TrainingKernel
from relaygr.training.batch import BatchSource, BatchSpec
from relaygr.training.candidates import CandidateSource, seen_rule
from relaygr.training.catalogue import catalogue_before
from relaygr.training.checkpoint import Evaluation, RunIdentity, RunState, load_state, save_state
from relaygr.training.cuts import training_groups
from relaygr.training.evaluate import replay
from relaygr.training.initial import ranker_config, start_from_matching
from relaygr.training.loss import ranking_loss
from relaygr.training.optimizer import Optimizers, lr_share
from relaygr.training.report import Stopped, TrainReport, write_report
from relaygr.training.scoring import RankerScorer

__all__ = ["Observe", "Progress", "RankerTrainer", "ranker_config"]

log = logging.getLogger("relaygr.training")

VALID_NEGATIVES = 100


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands; `done` is the share of its limit, `loss` the mean since the last evaluation."""

    step: int
    done: float
    loss: float
    tokens_per_s: float
    latest: Evaluation | None
    best: Evaluation | None


Observe = Callable[[Progress], None]


class RankerTrainer:
    """One run, from scratch or continued.

    The weights with the best validation are in `out` at any time, the state of the run in `out/training.pt`;
    both are there before the first step, so a run can be killed whenever.

    Args:
        config: as `ranker_config` gives it.
        kernel: used for validation; training steps have their own.
        resume: continue the run in `out`; otherwise an older model there is replaced.

    Raises:
        ConfigError: the data is too small to train on, or `resume` does not fit.
    """

    def __init__(
        self,
        events: Events,
        out: Path,
        config: AnyConfig,
        train: TrainConfig,
        kernel: Kernel,
        resume: bool = False,
        clock: Clock | None = None,
    ) -> None:
        if config.contextual:
            raise ConfigError("model.contextual", f"{config.contextual}: datasets have no profile columns")
        self.events, self.out, self.train, self.kernel = events, out, train, kernel
        self.split = temporal_split(events)
        self.catalogue = catalogue_before(events, self.split.train_end_s)
        longest = min(train.max_history, config.max_history)
        spec = BatchSpec(
            windows=train.batch_users,
            rows=train.batch_rows,
            shortest=min(train.min_history, longest),
            longest=longest,
            cuts=train.cuts,
            negatives=train.negatives,
        )
        groups = training_groups(events, self.split.train_end_s, train.half_life)
        self.batches = BatchSource(events, groups, self.catalogue, spec, train.seed)
        self.requests = evaluation_requests(
            events,
            self.split.train_end_s,
            self.split.valid_end_s,
            max_requests=train.eval_requests,
            seed=train.seed,
        )
        self.seen = seen_rule("auto", events, self.split.train_end_s)
        self.identity = RunIdentity.of(events, config, train)
        torch.manual_seed(train.seed)
        self.model = Ranker(config)
        start_from_matching(self.model, len(self.catalogue))
        self.optimizers = Optimizers(self.model, train.lr, train.table_lr, train.weight_decay)
        self.state: RunState[Evaluation] = RunState()
        self._clock = clock or MonotonicClock()
        self._autograd = TrainingKernel()
        if resume:
            self.state, weights, optimizers = load_state(out, self.identity, Evaluation)
            self.model.load_state_dict(weights)
            self.optimizers.load_state_dict(optimizers)
        else:
            save_ranker(self.model, out)
            self._save_state()

    def run(self, observe: Observe | None = None) -> TrainReport:
        """Train until a limit is reached, calling `observe` after every step.

        Raises:
            BackendError: the loss stopped being a number.
        """
        begun = self._clock.now_s() - self.state.elapsed_s
        if not self.requests:
            log.warning("no validation requests in %s: the last weights are kept", self.events.path)
        while (stopped := self._stopped()) is None:
            self._step()
            self.state.elapsed_s = self._clock.now_s() - begun
            if self.state.step % self.train.eval_every_steps == 0:
                self._checkpoint()
                self.state.elapsed_s = self._clock.now_s() - begun
            if observe is not None:
                observe(self._progress())
        if self.state.loss_steps:
            self._checkpoint()
            self.state.elapsed_s = self._clock.now_s() - begun
        return self._report(stopped)

    def _step(self) -> None:
        state = self.state
        batch = self.batches.batch(state.step)
        loss = ranking_loss(torch.cat(self.model(batch.rows, self._autograd)), batch)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise BackendError(f"loss at step {state.step} is {value}; a lower train.lr may help")
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizers.step(
            lr_share(state.step, self.train.warmup_steps, self._done()), self.train.clip_norm
        )
        state.step += 1
        state.tokens += batch.tokens
        state.loss_sum += value
        state.loss_steps += 1

    def _done(self) -> float:
        # With a step limit the schedule must not depend on the machine's speed.
        if self.train.max_steps:
            return self.state.step / self.train.max_steps
        return self.state.elapsed_s / (60 * self.train.max_minutes)

    def _stopped(self) -> Stopped | None:
        if self.train.max_steps and self.state.step >= self.train.max_steps:
            return "steps"
        if self.state.elapsed_s >= 60 * self.train.max_minutes:
            return "time"
        if self.train.patience and self.state.since_best >= self.train.patience:
            return "patience"
        return None

    def _checkpoint(self) -> None:
        """Evaluate, keep the weights if they are the best so far, and store the state of the run."""
        if self.requests:
            self._evaluate()
        else:
            save_ranker(self.model, self.out)
        self.state.loss_sum, self.state.loss_steps = 0.0, 0
        self._save_state()

    def _evaluate(self) -> None:
        state = self.state
        source = CandidateSource("sampled", self.catalogue, VALID_NEGATIVES, self.train.seed, self.seen)
        scorer = RankerScorer(self.model.eval(), self.kernel)
        outcome = replay(self.events, self.requests, source, scorer)
        self.model.train()
        latest = Evaluation(
            step=state.step,
            elapsed_s=state.elapsed_s,
            loss=state.loss,
            ndcg=outcome.mean("model", "ndcg@10"),
            hr=outcome.mean("model", "hr@10"),
            auc=outcome.mean("model", "auc"),
        )
        improved = state.best is None or latest.ndcg > state.best.ndcg
        state.evaluations += (latest,)
        state.since_best = 0 if improved else state.since_best + 1
        if improved:
            save_ranker(self.model, self.out)

    def _save_state(self) -> None:
        save_state(self.out, self.identity, self.state, self.model.state_dict(), self.optimizers.state_dict())

    def _progress(self) -> Progress:
        state = self.state
        latest = state.evaluations[-1] if state.evaluations else None
        loss = state.loss if state.loss_steps or latest is None else latest.loss
        time_share = state.elapsed_s / (60 * self.train.max_minutes)
        done = min(max(self._done(), time_share), 1.0)
        return Progress(state.step, done, loss, state.tokens / max(state.elapsed_s, 1e-9), latest, state.best)

    def _report(self, stopped: Stopped) -> TrainReport:
        report = TrainReport(
            data=self.events.meta.name,
            data_fingerprint=self.identity.data,
            train_end_s=self.split.train_end_s,
            valid_end_s=self.split.valid_end_s,
            tasks=self.model.config.tasks,
            steps=self.state.step,
            tokens=self.state.tokens,
            elapsed_s=round(self.state.elapsed_s, 3),
            stopped=stopped,
            best=self.state.best,
            evaluations=self.state.evaluations,
            model_fingerprint=fingerprint(self.out).hex(),
            train=self.train,
        )
        write_report(report, self.out)
        return report
