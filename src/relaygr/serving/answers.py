"""From what the engine knows to what is sent."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from relaygr.config.settings import Config
from relaygr.engine import Engine, RankResult, UserHistory
from relaygr.engine.jobs import PrefixAnswer, RankJob
from relaygr.engine.requests import Path
from relaygr.kernels.cpu import BlockedKernel
from relaygr.serving import wire
from relaygr.serving.reload import Served
from relaygr.serving.snapshot import ModelFacts, folder_digest

Output = Literal["logits", "probabilities"]
Scores = npt.NDArray[np.float32]


def scores(result: RankResult, output: Output) -> Scores:
    """float32 [m, tasks]."""
    return result.logits if output == "logits" else result.probabilities


def path_of(job: RankJob, result: RankResult) -> wire.RankPath:
    """How a history was served; one that was shortened to be in time says so."""
    if job.truncated:
        return "degraded" if job.degraded else "truncated"
    path, loaded = result.served.path, result.served.tokens_loaded
    return "reloaded" if path is Path.HIT and loaded else path.value


def rank_answer(body: wire.RankBody, job: RankJob, result: RankResult, request_id: str) -> wire.RankAnswer:
    served = result.served
    computed = served.tokens_computed + served.tokens_provisional
    return wire.RankAnswer(
        user=body.user,
        tasks=result.tasks,
        scores=scores(result, body.output).tolist(),
        path=path_of(job, result),
        tokens_cached=served.tokens_cached,
        tokens_computed=computed,
        served_tokens=served.tokens_cached + computed,
        unknown_ids=served.unknown_ids,
        model=served.model.hex(),
        request_id=request_id,
        queue_ms=round((job.started_s - job.queued_s) * 1000, 3),
        compute_ms=round((job.done_s - job.started_s) * 1000, 3),
        order=None if body.top_k is None else result.order()[: body.top_k].tolist(),
        tokens_quantized=served.tokens_quantized,
    )


def prefix_answer(user: str, answer: PrefixAnswer, model: str, request_id: str) -> wire.PrefixReply:
    return wire.PrefixReply(
        user=user,
        admission=answer.admission.value,
        reason=answer.reason,
        tokens=answer.tokens,
        cached=answer.cached,
        model=model,
        request_id=request_id,
    )


def state_answer(history: UserHistory, tokens: int, cached: int, model: str) -> wire.StateAnswer:
    newest_s = int(history.timestamps[-1]) if len(history) else None
    return wire.StateAnswer(history.user, history.sequence, tokens, cached, newest_s, model)


def model_facts(served: Served, config: Config) -> ModelFacts:
    engine = served.engine
    return ModelFacts(
        name=config.serving.name,
        fingerprint=served.model,
        dtype=engine.choice.dtype_name,
        kernel=_kernel(engine),
        loaded_s=served.loaded_s,
        folder=folder_digest(served.path),
    )


def _kernel(engine: Engine) -> str:
    kernel = engine.choice.kernel
    return f"{kernel.name}, {kernel.route.name}" if isinstance(kernel, BlockedKernel) else kernel.name


def model_card(served: Served, config: Config) -> wire.ModelCard:
    engine, shape = served.engine, served.engine.model_config
    described: dict[str, Any] = msgspec.to_builtins(shape)
    return wire.ModelCard(
        name=config.serving.name,
        model=served.model,
        path=served.path,
        family=shape.family,
        cacheable=shape.cacheable,
        tasks=shape.tasks,
        contextual=shape.contextual,
        query_times=shape.query_times,
        limits=wire.ModelLimits(
            candidates=min(
                config.serving.max_candidates, engine.config.max_candidates, shape.max_num_candidates
            ),
            history=config.serving.max_history,
            body_bytes=config.serving.body_limit_bytes,
            deadline_ms=config.scheduler.deadline_max_ms,
        ),
        dtype=engine.choice.dtype_name,
        kernel=_kernel(engine),
        loaded_s=served.loaded_s,
        config=described,
    )
