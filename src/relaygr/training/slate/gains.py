"""What list methods gain over the pointwise order in a world with known truth.

Re-rankers get the best of a few parameters, chosen on the very requests they are measured on, so that their
rows flatter them; step models are trained on other requests than those.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

from relaygr.core.errors import ConfigError
from relaygr.training.slate.gain_methods import measure
from relaygr.training.slate.gain_rows import GainOptions, GainsReport, Measured, Observe, ignore, summarise


def gains(
    seeds: Sequence[int],
    options: GainOptions | None = None,
    observe: Observe = ignore,
    workers: int = 1,
) -> GainsReport:
    """Measure all methods on fresh worlds, one a seed.

    Args:
        workers: processes; what is found does not depend on their number.

    Raises:
        ConfigError: no seeds, or no workers.
    """
    for name, number in (("seeds", len(seeds)), ("workers", workers)):
        if number < 1:
            raise ConfigError(name, f"{number} is below 1")
    options = options or GainOptions()
    began = time.perf_counter()
    if workers > 1:
        found = _spread(seeds, options, observe, workers)
    else:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in processes: sums of another order would be others
        try:
            found = [measure(seed, options, observe) for seed in seeds]
        finally:
            torch.set_num_threads(threads)
    return summarise(found, options, time.perf_counter() - began)


def _spread(seeds: Sequence[int], options: GainOptions, observe: Observe, workers: int) -> list[Measured]:
    # Fresh processes: a copy of this one would have threads of torch that do not run.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        tasks = {pool.submit(measure, seed, options): seed for seed in seeds}
        for done, task in enumerate(as_completed(tasks), 1):
            task.result()
            observe(f"gains: {done} of {len(tasks)} seeds")
        return [task.result() for task in tasks]
