"""Before a model serves: a few passes, so that no request pays for first times, and its speed."""

from __future__ import annotations

import logging
from pathlib import Path

from relaygr.config.settings import Config
from relaygr.engine import Engine
from relaygr.engine.calibrate import calibrated
from relaygr.engine.ladder import TENANT, ladders
from relaygr.engine.shadow import FP32_EPSILON, measured_epsilon
from relaygr.relay.budgets import auto_budgets, check_budgets, resolve_budgets
from relaygr.serving.pace import Known

log = logging.getLogger("relaygr.serving")

_COMPARED = 2  # rankings of each, cached and not
_LENGTHS = 2  # the shortest of the made-up users' lengths


def warm(engine: Engine) -> float:
    """Rank and prefetch made-up users through every path, and forget them.

    Returns what cached and uncached scores may differ by.

    Raises:
        BackendError: the scores are not finite.
        RequestError: the model does not take what its configuration says it takes.
    """
    epsilon = FP32_EPSILON
    rungs = ladders(engine.model_config, engine.config.max_candidates, dense=False)
    for ladder in (ladder for rung in rungs[:_LENGTHS] for ladder in rung):
        try:
            for request in ladder.requests:
                if len(request.candidates):
                    engine.rank(request)
                else:
                    engine.prefetch(request.history)
            if engine.model_config.cacheable == "append":
                ranked = [request for request in ladder.requests if len(request.candidates)]
                epsilon = max(epsilon, measured_epsilon(engine, ranked[:_COMPARED]))
        finally:
            engine.forget(TENANT, ladder.user)
    return epsilon


def speed(engine: Engine, config: Config, like: Known | None = None) -> Known | None:
    """How fast the model is: read from `serving.calibration`, or measured for `serving.calibrate_s`.

    None where the latter is 0.

    Args:
        like: of a model of the same shape, which is then as fast.

    Raises:
        ConfigError: the settings of `budgets` contradict one another or the measured speed, or the file is
            no calibration.
    """
    if not config.serving.calibrate_s:
        return None
    if like is not None:
        coefficients, latency = like.latency.coefficients, like.latency
    else:
        file = Path(config.serving.calibration) if config.serving.calibration else None
        measured = calibrated(engine, file, config.serving.calibrate_s)
        coefficients, latency = measured.coefficients, measured.model()
    page, longest = engine.config.page_tokens, engine.model_config.max_seq_len
    budgets = resolve_budgets(config.budgets, auto_budgets(coefficients, page, longest))
    check_budgets(budgets, latency.chunks(budgets.chunk_ms, page).bound_ms(longest))
    log.info("budgets: rank %.1f ms, a step of a prefetch %.1f ms", budgets.b_rank_ms, budgets.chunk_ms)
    return Known.of(engine, latency, budgets)
