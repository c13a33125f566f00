"""A model as it is served: opened or made up, checked, warmed and timed before anyone sees it."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from relaygr.config.relay import RelayConfig
from relaygr.config.settings import Config, EngineConfig
from relaygr.core.errors import ConfigError
from relaygr.core.ids import Fingerprint
from relaygr.engine import Engine
from relaygr.engine.drift import Drift, check_drift, say_format
from relaygr.engine.laps import Served as RelayedModel
from relaygr.engine.shadow import FP32_EPSILON
from relaygr.kernels.select import Choice, choose
from relaygr.kernels.threads import serve_with_threads
from relaygr.models.hstu import HstuConfig
from relaygr.models.presets import AnyConfig, preset
from relaygr.models.ranker import Ranker
from relaygr.models.switches import Table
from relaygr.models.weights import open_ranker
from relaygr.relay.trigger import Build
from relaygr.serving.errors import HttpError
from relaygr.serving.pace import Known
from relaygr.serving.warm import speed, warm

log = logging.getLogger("relaygr.serving")

RANDOM_SEED = 0
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Served:
    """One loaded model.

    Attributes:
        path: its folder; empty for random weights.
        loaded_s: Unix time.
        known: its speed, if it was measured.
        drift: of its host format, where that is not exact.
        epsilon: what its cached and uncached scores may differ by, as a share of the largest.
    """

    engine: Engine
    path: str
    loaded_s: float
    known: Known | None
    epsilon: float = FP32_EPSILON
    drift: Drift | None = None

    @property
    def model(self) -> str:
        """Fingerprint of the weights, hexadecimal."""
        return self.engine.model_fp.hex()


def load(path: str, config: Config, before: Served | None = None) -> Served:
    """Open, warm and time a model; takes seconds, and while it lasts the memory of a second entry pool.

    Args:
        path: its folder; empty makes up weights for `serving.preset`.
        before: what is served now. A model of the same shape takes over its measured speed, one with other
            profile slots is refused.

    Raises:
        ConfigError: the folder or the file in it is wrong, or the host format moves the scores too far.
        BackendError: the model gives scores that are not finite.
        HttpError: other profile slots.
    """
    choice = _choice(config.engine) if before is None else before.engine.choice
    model, fingerprint = open_ranker(Path(path), choice.dtype) if path else _random(config, choice)
    engine = Engine(model, fingerprint, choice, config.engine, host=config.host)
    like = None
    if before is not None:
        old, new = before.engine.model_config, engine.model_config
        if old.contextual != new.contextual:
            raise HttpError(
                409, "slots", f"the model's profile slots are {new.contextual}, served are {old.contextual}"
            )
        for what, limit in (("actions", _largest_action), ("items", _largest_item)):
            if limit(new) < limit(old):
                raise HttpError(
                    409,
                    what,
                    f"the model takes {what} up to {limit(new)}, the served one up to {limit(old)}: users "
                    "with stored events beyond could not be ranked; restart the service on it instead",
                )
        like = before.known if old == new else None
    if before is None:
        say_format(engine, config.host)
    drift = check_drift(engine, config.host)
    epsilon = warm(engine)
    served = Served(engine, path, time.time(), speed(engine, config, like), epsilon, drift)
    engine.loader.count_anew()
    log.info("model %s of %s is warm", served.model, path or f"preset {config.serving.preset}")
    return served


def relayed(served: Served, config: RelayConfig) -> RelayedModel:
    """The model as the relay sees it."""
    engine, known = served.engine, served.known
    cacheable = engine.model_config.cacheable
    enabled = not any(served.model.startswith(digits) for digits in config.disabled_builds)
    build = Build(served.model, enabled, cacheable)
    if known is not None:
        build = known.build(served.model, enabled, cacheable)
    layout = engine.layout
    host_token_bytes = engine.host_format.token_bytes(layout)
    return RelayedModel(build, layout.token_bytes, layout.page_tokens, host_token_bytes)


def _largest_action(shape: AnyConfig) -> int:
    """The largest action set of an event that the model does not refuse."""
    if isinstance(shape, HstuConfig) and shape.variant != "relay":
        return _largest(shape.actions)
    return (1 << len(shape.action_bits)) - 1


def _largest_item(shape: AnyConfig) -> int:
    """The largest item that the model does not refuse."""
    return _largest(shape.items if isinstance(shape, HstuConfig) else None)


def _largest(table: Table | None) -> int:
    return table.rows - 1 if table is not None and table.unknown == "reject" else _INT64_MAX


def _choice(settings: EngineConfig) -> Choice:
    """Kernel and dtype, measured once: a model that comes later is served with the same."""
    serve_with_threads(settings.threads)
    return choose(settings.kernel, settings.dtype, settings.bitwise)


def _random(config: Config, choice: Choice) -> tuple[Ranker, Fingerprint]:
    shape = preset(config.serving.preset)
    log.warning(
        "serving.model names no folder: %s is served with RANDOM WEIGHTS, its scores mean nothing",
        config.serving.preset,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM_SEED)
        model = Ranker(shape)
    named = b"random weights" + msgspec.json.encode(shape) + str(RANDOM_SEED).encode()
    fingerprint = Fingerprint(hashlib.blake2b(named, digest_size=16).digest())
    return model.eval().requires_grad_(False).cast(choice.dtype), fingerprint


def check_path(path: str) -> None:
    """ConfigError for a path that no file can have."""
    if "\0" in path:
        raise ConfigError("path", f"{path!r} contains NUL")
