"""From a list and the ranking it was made from to what is sent."""

from __future__ import annotations

import math

from relaygr.engine import RankResult
from relaygr.engine.jobs import RankJob
from relaygr.engine.slate.maker import Made
from relaygr.listwise.explain import ExitParts, HeadParts, PickParts
from relaygr.listwise.result import SlateResult
from relaygr.serving.answers import path_of
from relaygr.serving.slate import wire


def slate_answer(
    body: wire.SlateBody,
    job: RankJob,
    ranked: RankResult,
    made: Made,
    waited_s: float,
    request_id: str,
    generated: list[int] | None,
) -> wire.SlateAnswer:
    result, served = made.result, ranked.served
    explanation = result.explanation
    computed = served.tokens_computed + served.tokens_provisional
    lists = result.shadow.pool if result.shadow is not None else result.pool
    return wire.SlateAnswer(
        user=body.user,
        items=result.items.tolist(),
        picks=_picks(made, body.explain),
        generator=result.generator,
        mode=result.mode.value,
        stage_reached=result.stage_reached.value,
        fallback_reason=None if result.fallback_reason is None else result.fallback_reason.value,
        utility=result.utility,
        unpriced=result.unpriced,
        score=result.score,
        lower_bound=result.lower_bound,
        lists=[
            wire.SlateList(one.generator, one.also, one.score, one.lower_bound, one.log_propensity)
            for one in lists
        ],
        relaxations=[wire.SlateRelaxation(one.rule, one.position, one.reason) for one in result.relaxations],
        versions=wire.SlateVersions(
            result.versions.value, result.versions.rules, result.versions.step, result.versions.evaluator
        ),
        stage_ms={
            "wait": round(waited_s * 1e3, 3),
            **{str(stage): round(ms, 3) for stage, ms in result.stage_ms.items()},
        },
        path=path_of(job, ranked),
        tokens_cached=served.tokens_cached,
        tokens_computed=computed,
        served_tokens=served.tokens_cached + computed,
        unknown_ids=served.unknown_ids,
        model=served.model.hex(),
        request_id=request_id,
        queue_ms=round((job.started_s - job.queued_s) * 1000, 3),
        compute_ms=round((job.done_s - job.started_s) * 1000, 3),
        priced_by={} if explanation is None else dict(explanation.priced_by),
        log_propensity=result.log_propensity,
        unrestricted=result.unrestricted,
        lookahead_budget=result.lookahead_budget,
        unknown_items=made.unknown,
        error=result.error,
        shadow=_shadow(result),
        generated=generated,
        explored=result.explored,
    )


def _picks(made: Made, explain: bool) -> list[wire.SlatePick]:
    result, picks = made.result, made.result.picks.tolist()
    parts: list[PickParts | None] = [None] * len(picks)
    if explain and result.explanation is not None:
        parts = list(result.explanation.picks)
    logs = result.log_propensities or [None] * len(picks)
    return [
        wire.SlatePick(item, pick, float(made.values[pick]), None if part is None else _terms(part), log)
        for item, pick, part, log in zip(result.items.tolist(), picks, parts, logs, strict=True)
    ]


def _terms(part: PickParts) -> wire.SlateTerms:
    return wire.SlateTerms(
        heads={name: _head(head) for name, head in part.heads.items()},
        value_terms=part.value_terms,
        clipping=part.clipping,
        effects={effect.rule: effect.price for effect in part.effects},
        value=part.value,
        survival=part.survival,
        contribution=part.contribution,
        exit=_exit(part.exit),
    )


def _head(head: HeadParts) -> wire.SlateHead:
    return wire.SlateHead(head.base, head.scale, head.bias, dict(head.terms), head.conditional)


def _exit(one: ExitParts) -> wire.SlateExit:
    logit = one.logit if math.isfinite(one.logit) else None
    return wire.SlateExit(one.bias, dict(one.terms), one.heads, logit, one.probability)


def _shadow(result: SlateResult) -> wire.SlateShadow | None:
    inner = result.shadow
    if inner is None:
        return None
    return wire.SlateShadow(inner.items.tolist(), inner.generator, inner.utility, inner.lower_bound)
