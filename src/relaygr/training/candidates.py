"""The items that an offline request ranks: its positives among sampled negatives, or a whole catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events, Int64s
from relaygr.data.split import EvalRequest
from relaygr.training.catalogue import Catalogue
from relaygr.training.metrics import Bools

Mode = Literal["sampled", "full"]
Seen = Literal["keep", "drop"]
SeenOption = Literal["auto", "keep", "drop"]

RECENT_EVENTS = 200
OWN_SHARE = 0.25
UNIFORM_SHARE = 0.25


def seen_rule(option: SeenOption, events: Events, before_s: int) -> Seen:
    """Whether items of a user's earlier events may be candidates.

    "auto" drops them exactly where no user has an item twice before `before_s`: such a negative could never
    be a positive, and a ranker would be praised for knowing it.
    """
    if option not in ("auto", "keep", "drop"):
        raise ConfigError("seen", f"{option!r} is not one of auto, keep, drop")
    if option != "auto":
        return option
    owner = np.repeat(np.arange(events.n_users), np.diff(events.offsets))
    early = events.timestamps < before_s
    owner, items = owner[early], events.item_ids[early]
    order = np.lexsort((items, owner))
    again = (np.diff(owner[order]) == 0) & (np.diff(items[order]) == 0)
    return "keep" if again.any() else "drop"


def mix(seen: Seen, own_share: float) -> str:
    """Where sampled negatives come from, in words."""
    has_own = seen == "keep" and own_share > 0
    own = f"{own_share:.0%} from the user's last {RECENT_EVENTS} events, " if has_own else ""
    never = "" if seen == "keep" else ", never an item of the user's earlier events"
    return (
        f"{own}{UNIFORM_SHARE:.0%} uniform from the training catalogue, the rest (and what is missing) by "
        f"training popularity; distinct, never a positive{never}"
    )


@dataclass(frozen=True, slots=True, eq=False)
class CandidateSet:
    """Distinct items [m] in an order that says nothing about them, and which are positives [m]."""

    items: Int64s
    positive: Bools
    left_out: int  # positives of the request that are not among the items

    @property
    def rankable(self) -> bool:
        return bool(self.positive.any()) and not bool(self.positive.all())


class CandidateSource:
    """Makes the candidates of a request; the same request always gets the same ones.

    Args:
        mode: "sampled" or "full"; with "full", positives outside the training catalogue are left out.
        negatives: sampled per request; fewer when the catalogue is smaller.
        seen: with "drop", items of the user's earlier events are no candidates; positives among them are
            left out.
        own_share: of the sampled negatives, from the user's last events. Without them the question is
            which items are the user's, with them also which of these come next.
    """

    def __init__(
        self,
        mode: Mode,
        catalogue: Catalogue,
        negatives: int,
        seed: int,
        seen: Seen = "keep",
        own_share: float = OWN_SHARE,
    ) -> None:
        if mode not in ("sampled", "full"):
            raise ConfigError("candidates", f"{mode!r} is not one of sampled, full")
        if negatives < 1:
            raise ConfigError("negatives", f"{negatives} must be at least 1")
        self.mode, self.catalogue, self.negatives, self.seed = mode, catalogue, negatives, seed
        if not 0 <= own_share <= 1 - UNIFORM_SHARE:
            raise ConfigError("own_share", f"{own_share} must be in [0, {1 - UNIFORM_SHARE}]")
        self.seen, self.own_share = seen, own_share
        self._all = catalogue.items[_neutral_order(catalogue.items)]

    def candidates(self, request: EvalRequest, items: Int64s) -> CandidateSet:
        """`items` is the whole history of the request's user; only its past and the positives are read."""
        positives, pool, left_out = np.unique(items[slice(*request.positives)]), self._all, 0
        earlier = items[: request.history_end]
        if self.seen == "drop":
            left_out = int(np.isin(positives, earlier).sum())
            positives = np.setdiff1d(positives, earlier)
        if self.mode == "full":
            if self.seen == "drop":
                pool = pool[~np.isin(pool, earlier)]
            positive = np.isin(pool, positives)
            return CandidateSet(pool, positive, left_out + len(positives) - int(positive.sum()))
        rng = np.random.default_rng((self.seed, request.user, request.time_s))
        chosen = np.concatenate([positives, self._sample(rng, positives, earlier)])
        chosen = chosen[_neutral_order(chosen)]
        return CandidateSet(chosen, np.isin(chosen, positives), left_out)

    def _sample(self, rng: np.random.Generator, positives: Int64s, earlier: Int64s) -> Int64s:
        catalogue, wanted = self.catalogue, self.negatives
        if self.seen == "drop":
            picked = _Distinct(np.concatenate([positives, earlier]))
        else:
            picked = _Distinct(positives)
            recent = np.unique(earlier[max(len(earlier) - RECENT_EVENTS, 0) :])
            picked.take(rng.permutation(recent), round(wanted * self.own_share))
        uniform = round(wanted * UNIFORM_SHARE)
        picked.take(catalogue.draw_uniform(rng, 2 * uniform), len(picked.items) + uniform)
        picked.take(catalogue.draw_popular(rng, 4 * wanted), wanted)
        if len(picked.items) < wanted:
            picked.take(rng.permutation(catalogue.items), wanted)
        return np.array(picked.items, dtype=np.int64)


class _Distinct:
    """Collects items that are new and not banned."""

    def __init__(self, banned: Int64s) -> None:
        self.items: list[int] = []
        self._taken = set(banned.tolist())

    def take(self, pool: Int64s, up_to: int) -> None:
        """Append from `pool` until `up_to` items are collected."""
        for item in _missing(pool, up_to - len(self.items)):
            if len(self.items) >= up_to:
                return
            if item not in self._taken:
                self._taken.add(item)
                self.items.append(item)


def _missing(pool: Int64s, room: int) -> Iterable[int]:
    return pool.tolist() if room > 0 else ()


def _neutral_order(ids: Int64s) -> Int64s:
    """Order by a hash of the id, so that ties in scores are broken without favour."""
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
    order: Int64s = np.lexsort((ids, mixed ^ (mixed >> np.uint64(29))))
    return order
