"""What a relay benchmark stands on: a model, its calibration, the measured tau, users; and servers on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from relaygr.bench.cell import PAGE_TOKENS, random_ranker
from relaygr.bench.relay_script import Limits
from relaygr.bench.relay_servers import Servers, Site, budget_settings, site_settings
from relaygr.bench.relay_speed import (
    Speed,
    budgets_at,
    calm,
    level_calibration,
    measure_hits,
    measure_speed,
    simulated,
)
from relaygr.bench.relay_users import People
from relaygr.core.units import GIB
from relaygr.kernels.select import choose
from relaygr.memory.layout import KvLayout
from relaygr.models.presets import AnyConfig, preset
from relaygr.models.weights import save_ranker
from relaygr.relay.budgets import Budgets
from relaygr.sim.variants import INLINE_FULL, Variant, variant
from relaygr.sim.world import World

# The longest history that is tried: more than any preset's own window, because the relay reads more in time.
LONGEST = 8192
_ITEMS = 60_000
_DEVICE_BYTES = 2 * GIB
_INLINE_CACHED = variant("inline_cached")
_HITS_SHARE = 0.2  # of the time in which tau is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """See the module.

    Attributes:
        shape: of the model; its window is `LONGEST`.
        own: settings of all servers that the user named.
    """

    folder: Path
    shape: AnyConfig
    dtype: str
    token_bytes: int
    speed: Speed
    seed: int
    own: tuple[str, ...]

    @property
    def calibration(self) -> Path:
        return self.folder / "calibration.json"

    def people(self, candidates: int) -> People:
        return People(LONGEST, candidates, _ITEMS, self.seed)

    def limits(self, rank_taus: float) -> Limits:
        return Limits.of(self.speed.tau_ms, rank_taus)

    def budgets(self, rank_taus: float) -> Budgets:
        return budgets_at(self.speed, rank_taus, PAGE_TOKENS, LONGEST)

    def site(self, rank_taus: float) -> Site:
        """Servers with budgets of so many milliseconds, whatever they would derive themselves."""
        settings = (
            *site_settings(self.folder, self.calibration, self.dtype, _DEVICE_BYTES),
            *budget_settings(self.limits(rank_taus), self.budgets(rank_taus)),
        )
        return Site(self.folder, settings, self.own)

    def world(self, how: Variant, rank_taus: float, instances: int = 1, undisturbed: bool = False) -> World:
        """Those servers, simulated; `undisturbed` by what makes a load to be run again."""
        config, budgets, speed = self.site(rank_taus).config(how), self.budgets(rank_taus), self.speed
        if undisturbed:
            speed = msgspec.structs.replace(
                speed, ratios=calm(speed.ratios), hit_ratios=calm(speed.hit_ratios)
            )
        found = simulated(speed, self.calibration, budgets, config, self.token_bytes, instances)
        return msgspec.structs.replace(found, variant=how)


async def prepare(
    folder: Path,
    name: str,
    seed: int,
    own: tuple[str, ...],
    calibrate_s: float,
    seconds: float,
    dtype: str = "auto",
) -> Ground:
    """Make a model in `folder`, have a server calibrate itself on it, and measure tau there for `seconds`.

    Raises:
        ConfigError: there is no such preset, or a setting is wrong.
        BackendError: the server fails.
    """
    shape: AnyConfig = msgspec.structs.replace(preset(name), max_seq_len=LONGEST)
    save_ranker(random_ranker(shape, torch.float32, seed), folder / "model")
    choice = choose("auto", dtype)
    layout = KvLayout(shape.num_layers, shape.num_heads, shape.qk_dim, shape.v_dim, choice.dtype, PAGE_TOKENS)
    calibration = folder / "calibration.json"
    settings = site_settings(folder, calibration, choice.dtype_name, _DEVICE_BYTES)
    # Before anything is measured: a wrong setting is not to be found after minutes.
    Site(folder, settings, own).config(INLINE_FULL)
    measuring = Site(folder, (*settings, f"serving.calibrate_s={calibrate_s:g}"))
    async with Servers(folder / "measuring") as servers:
        (door,) = await servers.doors(measuring.of(INLINE_FULL))
        people = People(LONGEST, 128, _ITEMS, seed)
        speed = await measure_speed(door, people, calibration, seconds)
        (keeping,) = await servers.doors(Site(folder, settings).of(_INLINE_CACHED))
        speed = await measure_hits(keeping, people, speed, _HITS_SHARE * seconds)
    level_calibration(calibration, speed)
    return Ground(
        folder=folder,
        shape=shape,
        dtype=choice.dtype_name,
        token_bytes=layout.token_bytes,
        speed=speed,
        seed=seed,
        own=own,
    )
