"""The bound on the device bytes of live prefixes: configured, lower for want of room, or adaptive."""

from __future__ import annotations

from collections.abc import Iterable

from relaygr.cache.margin import Missed
from relaygr.config.relay import RelayConfig
from relaygr.core.errors import ConfigError
from relaygr.engine.laps import Owner, Served
from relaygr.relay.holds import HoldBook
from relaygr.relay.link import ReloadLink
from relaygr.relay.split import Split

_LESS, _RECOVER_S = 0.9, 5.0  # of the bound, where there was no room; and until it is raised again


class Bound:
    """Proposes bounds to a book of live prefixes; nothing leaves for one, it holds when enough was used."""

    def __init__(self, config: RelayConfig, device_bytes: int) -> None:
        """The static bound of `config`, where a part of `device_bytes` may be meant.

        Raises:
            ConfigError: it is more than the device has.
        """
        if config.h_relay_bytes > device_bytes:
            raise ConfigError(
                RelayConfig.key("h_relay_bytes"),
                f"{config.h_relay_bytes} is more than engine.device_bytes, {device_bytes}",
            )
        self.nbytes = config.h_relay_bytes or int(config.h_relay_share * device_bytes)
        self._split = Split(device_bytes, self.nbytes) if config.h_relay_split == "adaptive" else None
        self._short_s = float("-inf")

    @property
    def is_adaptive(self) -> bool:
        """Whether `missed` is of any use."""
        return self._split is not None

    def open(self) -> None:
        """No shortage is known of."""
        self._short_s = float("-inf")

    def propose(self, holds: HoldBook[Owner], nbytes: int) -> bool:
        """True if that holds already, else it does when enough has been used."""
        self.nbytes = nbytes
        return holds.propose(nbytes)

    def no_room(self, holds: HoldBook[Owner], now_s: float) -> None:
        """The device had no room for a prefix within the bound: a lower one for a while."""
        self._short_s = now_s
        holds.propose(int(_LESS * holds.limit_bytes))

    def refused(self, nbytes: int, cost_ms: float) -> None:
        """A signal found no room below the bound."""
        if self._split is not None:
            self._split.refused(nbytes, cost_ms)

    def missed(self, missed: Iterable[Missed], served: Served | None, link: ReloadLink) -> None:
        """Visits found that their states had left the device a moment ago."""
        if self._split is None or served is None:
            return
        for tokens, loaded in missed:
            recompute_s = served.recompute_s(tokens, 0)
            load_s = served.prefix_bytes(tokens) / link.measured_bytes_per_s
            cost_s = min(load_s, recompute_s) if loaded else recompute_s
            self._split.missed(1000 * cost_s if cost_s < float("inf") else 0.0)

    def refresh(self, holds: HoldBook[Owner], now_s: float) -> None:
        """Raise the bound after a shortage, step by step; move it if it is adaptive."""
        limit = holds.limit_bytes
        if self._split is not None:
            wanted = self._split.bound(now_s, self.nbytes, holds.t_life_s)
            if wanted != self.nbytes:
                short = limit < self.nbytes  # a shortage or a lower bound on its way is not over for that
                self.nbytes = wanted
                holds.propose(min(limit, wanted) if short else wanted)
                return
        if limit < self.nbytes and now_s - self._short_s >= _RECOVER_S:
            self._short_s = now_s
            holds.propose(min(int(limit / _LESS) + 1, self.nbytes))
