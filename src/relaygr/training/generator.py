"""Train a decoder to generate semantic ids of what a user does next; keep the weights of the best recall."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from relaygr.config.train_generator import TrainGeneratorConfig
from relaygr.core.clock import Clock, MonotonicClock
from relaygr.core.errors import BackendError
from relaygr.data.dataset import Events
from relaygr.data.split import evaluation_requests, temporal_split
from relaygr.generation.recipe import save_recipe
from relaygr.generation.sids.build import SemanticIds
from relaygr.kernels.beams import BeamKernel
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.huggingface import save_decoder
from relaygr.training.catalogue import catalogue_before
from relaygr.training.checkpoint import RunIdentity, RunState, load_state, save_state
from relaygr.training.cuts import training_groups
from relaygr.training.generator_report import GeneratorEvaluation, GeneratorReport, write_generator_report
from relaygr.training.optimizer import lr_share
from relaygr.training.report import Stopped
from relaygr.training.sid_initial import start_from_repeating
from relaygr.training.sid_loss import sid_loss
from relaygr.training.sid_metrics import SID_METRICS, list_metrics
from relaygr.training.sid_retrieval import SidRetriever
from relaygr.training.sid_task import decoder_config, recipe_of, served_index, wanted_items
from relaygr.training.sid_windows import WindowSource, WindowSpec

log = logging.getLogger("relaygr.training")


@dataclass(frozen=True, slots=True)
class GeneratorProgress:
    """Where a run stands; `done` is the share of its limit, `loss` the mean since the last evaluation."""

    step: int
    done: float
    loss: float
    items_per_s: float
    latest: GeneratorEvaluation | None
    best: GeneratorEvaluation | None


Observe = Callable[[GeneratorProgress], None]


class GeneratorTrainer:
    """One run, from scratch or continued.

    The weights with the best validation are in `out` at any time, with `generation.json` that says how to use
    them, and the state of the run in `out/training.pt`; all are there before the first step, so a run can be
    killed whenever.

    Args:
        digest: that names the build of `sids`.
        kernel: used for validation.
        resume: continue the run in `out`; otherwise an older model there is replaced.

    Raises:
        ConfigError: the data is too small to train on, an item has no codes, or `resume` does not fit.
    """

    def __init__(
        self,
        events: Events,
        sids: SemanticIds,
        digest: str,
        out: Path,
        config: TrainGeneratorConfig,
        kernel: BeamKernel,
        resume: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.events, self.out, self.config = events, out, config
        self.split = temporal_split(events)
        self.recipe = recipe_of(sids, digest, config.max_items)
        self.catalogue = catalogue_before(events, self.split.train_end_s)
        index = served_index(sids, self.catalogue)
        groups = training_groups(events, self.split.train_end_s, config.half_life)
        spec = WindowSpec(config.batch_windows, config.min_items, config.max_items, config.within)
        self.windows = WindowSource(events, groups, sids, self.recipe, spec, config.seed)
        requests = evaluation_requests(
            events, self.split.train_end_s, self.split.valid_end_s, max_requests=config.eval_requests,
            seed=config.seed,
        )  # fmt: skip
        self.requests = [one for one in requests if len(wanted_items(events, one, self.catalogue))]
        shape = decoder_config(self.recipe, config)
        self.identity = RunIdentity.of(events, shape, config, f"+{digest}")
        self.model = Decoder(shape, kernel).init_weights(config.seed, shape.hidden_size**-0.5)
        start_from_repeating(self.model, config.seed)
        self.optimizer = _adamw(self.model, config)
        self.retriever = SidRetriever(self.model, self.recipe, sids, index, config.eval_width)
        self.tokens = self.recipe.token_map()
        self.state: RunState[GeneratorEvaluation] = RunState()
        self._clock = clock or MonotonicClock()
        if resume:
            self.state, weights, optimizers = load_state(out, self.identity, GeneratorEvaluation)
            self.model.load_state_dict(weights)
            self.optimizer.load_state_dict(optimizers)
        else:
            self._save_model()
            self._save_state()

    def run(self, observe: Observe | None = None) -> GeneratorReport:
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
            if self.state.step % self.config.eval_every_steps == 0:
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
        batch = self.windows.batch(state.step)
        loss = sid_loss(self.model, batch, self.tokens)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise BackendError(f"loss at step {state.step} is {value}; a lower train_generator.lr may help")
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * lr_share(state.step, self.config.warmup_steps, self._done())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.tokens += batch.items
        state.loss_sum += value
        state.loss_steps += 1

    def _done(self) -> float:
        # With a step limit the schedule must not depend on the machine's speed.
        if self.config.max_steps:
            return self.state.step / self.config.max_steps
        return self.state.elapsed_s / (60 * self.config.max_minutes)

    def _stopped(self) -> Stopped | None:
        if self.config.max_steps and self.state.step >= self.config.max_steps:
            return "steps"
        if self.state.elapsed_s >= 60 * self.config.max_minutes:
            return "time"
        if self.config.patience and self.state.since_best >= self.config.patience:
            return "patience"
        return None

    def _checkpoint(self) -> None:
        """Evaluate, keep the weights if they are the best so far, and store the state of the run."""
        if self.requests:
            self._evaluate()
        else:
            self._save_model()
        self.state.loss_sum, self.state.loss_steps = 0.0, 0
        self._save_state()

    def _evaluate(self) -> None:
        state = self.state
        values = []
        for request in self.requests:
            history = self.events.history(request.user)[0][: request.history_end]
            wanted = wanted_items(self.events, request, self.catalogue)
            values.append(
                list_metrics(self.retriever.items(np.array(history), self.config.eval_width), wanted)
            )
        means = dict(zip(SID_METRICS, np.array(values).mean(axis=0).tolist(), strict=True))
        latest = GeneratorEvaluation(
            step=state.step,
            elapsed_s=state.elapsed_s,
            loss=state.loss,
            recall=means["recall@10"],
            ndcg=means["ndcg@10"],
        )
        improved = state.best is None or latest.quality > state.best.quality
        state.evaluations += (latest,)
        state.since_best = 0 if improved else state.since_best + 1
        if improved:
            self._save_model()

    def _save_model(self) -> None:
        # The recipe does not change within a run; in front, so that no new weights meet an old one.
        save_recipe(self.recipe, self.out)
        save_decoder(self.model, self.out)

    def _save_state(self) -> None:
        save_state(self.out, self.identity, self.state, self.model.state_dict(), self.optimizer.state_dict())

    def _progress(self) -> GeneratorProgress:
        state = self.state
        latest = state.evaluations[-1] if state.evaluations else None
        loss = state.loss if state.loss_steps or latest is None else latest.loss
        time_share = state.elapsed_s / (60 * self.config.max_minutes)
        done = min(max(self._done(), time_share), 1.0)
        speed = state.tokens / max(state.elapsed_s, 1e-9)
        return GeneratorProgress(state.step, done, loss, speed, latest, state.best)

    def _report(self, stopped: Stopped) -> GeneratorReport:
        report = GeneratorReport(
            data=self.events.meta.name,
            data_fingerprint=self.identity.data,
            train_end_s=self.split.train_end_s,
            valid_end_s=self.split.valid_end_s,
            sids=self.recipe.sids,
            parameters=sum(weight.numel() for weight in self.model.parameters()),
            steps=self.state.step,
            items=self.state.tokens,
            elapsed_s=round(self.state.elapsed_s, 3),
            stopped=stopped,
            best=self.state.best,
            evaluations=self.state.evaluations,
            settings=self.config,
        )
        write_generator_report(report, self.out)
        return report


def _adamw(model: Decoder, config: TrainGeneratorConfig) -> torch.optim.AdamW:
    """Only matrices are pulled to zero; norms and the embedding table are not."""
    table = model.embed.weight
    matrices = [each for each in model.parameters() if each.dim() > 1 and each is not table]
    others = [each for each in model.parameters() if each.dim() <= 1 or each is table]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.98))
