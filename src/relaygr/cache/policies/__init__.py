"""Replacement policies by name: which entry of a tier leaves when room is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relaygr.cache.policies.arc import Arc
from relaygr.cache.policies.greedy import GdCost, Gdsf, GdsfCost
from relaygr.cache.policies.lirs import Lirs
from relaygr.cache.policies.lru import Lru
from relaygr.cache.policies.lru2 import Lru2
from relaygr.cache.policies.s3fifo import S3Fifo
from relaygr.cache.policies.settings import PolicySettings
from relaygr.cache.policies.sieve import Sieve
from relaygr.cache.policies.slru import Slru
from relaygr.cache.policies.tlru import Tlru
from relaygr.cache.policies.wtinylfu import WTinyLfu
from relaygr.cache.policy import Policy
from relaygr.config.host import HostConfig

_MAKERS: dict[str, Callable[[int, PolicySettings], Policy[Any]]] = {
    "lru": lambda capacity, settings: Lru(capacity),
    "slru": Slru,
    "s3fifo": S3Fifo,
    "sieve": lambda capacity, settings: Sieve(capacity),
    "lru2": Lru2,
    "arc": Arc,
    "lirs": Lirs,
    "wtinylfu": WTinyLfu,
    "gdsf": Gdsf,
    "gdsf_cost": GdsfCost,
    "gd_cost": GdCost,
    "tlru": Tlru,
}
POLICIES = tuple(_MAKERS)
DEFAULT = "gd_cost"


def make(name: str, capacity_bytes: int, settings: PolicySettings | None = None) -> Policy[Any]:
    """An empty policy for a tier of so many bytes; its keys may be of any one hashable type.

    Its `capacity_bytes` may be set anew at any time; those that divide it go by the new one from then on.

    Raises: ValueError for a name that is not in `POLICIES`.
    """
    maker = _MAKERS.get(name)
    if maker is None:
        raise ValueError(f"policy: {name!r} is none of {', '.join(POLICIES)}")
    return maker(capacity_bytes, settings or PolicySettings())


def settings_of(config: HostConfig) -> PolicySettings:
    """What the settings of the host tier say of policies."""
    return PolicySettings(
        first_touch_weight=config.first_touch_weight,
        freq_cap=config.freq_cap,
        ghost_entries=config.ghost_entries,
        ghost_halve_ops=config.ghost_halve_ops,
    )


def configured(config: HostConfig) -> Policy[Any]:
    """The one that the settings of the host tier name."""
    return make(config.policy_host, config.host_bytes, settings_of(config))


__all__ = ["DEFAULT", "POLICIES", "PolicySettings", "configured", "make", "settings_of"]
