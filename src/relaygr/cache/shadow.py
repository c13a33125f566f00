"""What other policies would have saved: tiers of keys without bytes, for a sample of the users."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Generic

from relaygr.cache.distinct import Distinct
from relaygr.cache.policies import PolicySettings, make
from relaygr.cache.policy import K, Weight

# Users of mean size that a sampled tier must hold until its cost-hit is within two points of the whole
# tier's. Parts of a tier, and ranks by size, want more of them than recency does.
ENOUGH_USERS = 30.0
_ENOUGH_USERS = dict.fromkeys(("slru", "s3fifo", "sieve", "wtinylfu", "gdsf_cost"), 100.0)
_ENOUGH_USERS |= dict.fromkeys(("lirs", "gdsf"), 300.0)
# What these do depends on the few newest entries, which leave a tier within seconds and its image in a
# sample, where newcomers are rare, within minutes.
_NEVER_ENOUGH = ("lru2", "tlru")
_USERS_REMEMBERED = 1024  # at least, for the mean of their sizes
_USERS_COUNTED = 100  # of the sample, before its part of the users is believed to be another than asked for


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """What a policy would have saved.

    Attributes:
        visits: of the sample, since counting began.
        saved_ms, whole_ms: of computing, with the tier; and what there would be to compute without one.
        users_held: of mean size, in the sample's part of the capacity.
        users_needed: for the sample to say what the whole tier would do; infinite where no sample does.
    """

    policy: str
    visits: int
    saved_ms: float
    whole_ms: float
    users_held: float
    users_needed: float

    @property
    def is_enough(self) -> bool:
        """Else the sample is too small: a few histories decide what it says."""
        return self.users_held >= self.users_needed

    @property
    def cost_hit(self) -> float:
        """The share that is saved; 0 before the first visit."""
        return self.saved_ms / self.whole_ms if self.whole_ms else 0.0


def users_needed(name: str) -> float:
    """Users of mean size that a sampled tier must hold under this policy; infinite if no number will do."""
    return math.inf if name in _NEVER_ENOUGH else _ENOUGH_USERS.get(name, ENOUGH_USERS)


class Trial(Generic[K]):
    """A tier of keys and sizes under one policy: whole histories, which grow from visit to visit.

    `weigh` gives the weight of the first n tokens of any history.
    """

    def __init__(
        self, name: str, capacity_bytes: int, weigh: Callable[[int], Weight], settings: PolicySettings
    ) -> None:
        self.name = name
        self.used_bytes = 0
        self.saved_ms = 0.0
        self._weigh = weigh
        self._policy = make(name, capacity_bytes, settings)
        self._here: dict[K, Weight] = {}

    @property
    def capacity_bytes(self) -> int:
        return self._policy.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, nbytes: int) -> None:
        """What is here stays until the next that comes needs room."""
        self._policy.capacity_bytes = nbytes

    def visit(self, key: K, weight: Weight) -> int:
        """A request for a history of this weight, kept afterwards if it fits; returns the tokens reused."""
        self._policy.touch(key)
        before = self._here.get(key)
        if before is None:
            self._keep(key, weight, 0)
            return 0
        reused = min(before.tokens, weight.tokens)
        now = weight if reused == weight.tokens else self._weigh(reused)  # speeds may have changed since
        self.saved_ms += min(now.rec_ms, weight.rec_ms)
        if weight.tokens > before.tokens:
            self._policy.park(key)  # it is being read
            self._keep(key, weight, before.nbytes)
            self._policy.unpark(key)
        return reused

    def forget(self, key: K) -> None:
        before = self._here.pop(key, None)
        if before is not None:
            self.used_bytes -= before.nbytes
        self._policy.forget(key)

    def _keep(self, key: K, weight: Weight, nbytes_before: int) -> None:
        more = weight.nbytes - nbytes_before
        if weight.nbytes > self.capacity_bytes:
            return
        while self.used_bytes + more > self.capacity_bytes:
            self._evict()
        self._policy.insert(key, weight)
        self._here[key] = weight
        self.used_bytes += more

    def _evict(self) -> None:
        victim = self._policy.evict()
        assert victim is not None, "only the key that comes is parked, and it fits"
        before = self._here.pop(victim.key)
        self.used_bytes -= before.nbytes
        if victim.keep_tokens:
            kept = self._here[victim.key] = self._weigh(victim.keep_tokens)
            self._policy.insert(victim.key, kept)
            self.used_bytes += kept.nbytes


class ShadowPolicies(Generic[K]):
    """Several policies side by side on the visits of a hashed share of the users.

    The tier and what the policies remember are as many times smaller as the sample is than all (after
    Waldspurger et al. 2017, "Cache modeling and optimization using miniature simulations"). A sample of 400
    users is easily 20 more or fewer than its share: the tier goes by the users that were seen.
    Changes: nothing outside; switching to what does better is for people to decide.
    Cost: one hash a visit; for users of the sample, one visit of each policy.
    Raises: ValueError for an unknown policy, or a share outside (0, 1].
    """

    def __init__(
        self,
        names: Iterable[str],
        capacity_bytes: int,
        weigh: Callable[[int], Weight],
        *,
        share: float = 0.02,
        settings: PolicySettings | None = None,
        salt: bytes = b"",
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share: {share} must be above 0 and at most 1")
        settings = settings or PolicySettings()
        self._limit = round(share * 2**64)
        self._salt = salt
        self._weigh = weigh
        self._whole_bytes = capacity_bytes
        self._capacity_bytes = max(1, round(share * capacity_bytes))
        self._remembered = max(_USERS_REMEMBERED, round(share * settings.ghost_entries))
        smaller = replace(
            settings,
            ghost_entries=max(1, round(share * settings.ghost_entries)),
            ghost_halve_ops=max(1, round(share * settings.ghost_halve_ops)),
        )
        self._trials: list[Trial[Any]] = [
            Trial(name, self._capacity_bytes, weigh, smaller) for name in dict.fromkeys(names)
        ]
        self._sizes: OrderedDict[K, int] = OrderedDict()  # of those visited last
        self._sizes_bytes = 0
        self._everyone, self._sampled = Distinct(), Distinct()
        self._visits = 0
        self._whole_ms = 0.0

    def samples(self, user: str) -> bool:
        """Whether the user is in the sample; the same in every process with the same salt."""
        return self._hash(user) >> 64 < self._limit

    def visit(self, key: K, user: str, tokens: int) -> None:
        """A request for the state `key`, of so many tokens; the sample has all keys of a user or none."""
        if not self._trials:
            return
        hashed = self._hash(user)
        self._everyone.add(hashed % 2**64)
        if hashed >> 64 >= self._limit:
            return
        self._sampled.add(hashed % 2**64)
        self._go_by_users()
        weight = self._weigh(tokens)
        self._visits += 1
        self._whole_ms += weight.rec_ms
        self._note_size(key, weight.nbytes)
        for trial in self._trials:
            trial.visit(key, weight)

    def forget(self, key: K) -> None:
        """Nothing is remembered of the key."""
        self._sizes_bytes -= self._sizes.pop(key, 0)
        for trial in self._trials:
            trial.forget(key)

    def restart(self) -> None:
        """Count from here on; what is held stays. For after the time that it takes a tier to fill."""
        self._visits, self._whole_ms = 0, 0.0
        for trial in self._trials:
            trial.saved_ms = 0.0

    def reports(self) -> tuple[ShadowReport, ...]:
        """One for each policy, in their order."""
        mean = self._sizes_bytes / len(self._sizes) if self._sizes else 0.0
        held = self._capacity_bytes / mean if mean else 0.0
        return tuple(
            ShadowReport(
                trial.name, self._visits, trial.saved_ms, self._whole_ms, held, users_needed(trial.name)
            )
            for trial in self._trials
        )

    def _hash(self, user: str) -> int:
        """Of 128 bits: 64 to draw the sample by, and 64 to count users by."""
        return int.from_bytes(blake2b(user.encode(), digest_size=16, key=self._salt).digest(), "little")

    def _go_by_users(self) -> None:
        sampled = self._sampled.count()
        if sampled >= _USERS_COUNTED:
            share = min(1.0, sampled / self._everyone.count())
            self._capacity_bytes = max(1, round(share * self._whole_bytes))
            for trial in self._trials:
                trial.capacity_bytes = self._capacity_bytes

    def _note_size(self, key: K, nbytes: int) -> None:
        self._sizes_bytes += nbytes - self._sizes.get(key, 0)
        self._sizes[key] = nbytes
        self._sizes.move_to_end(key)
        if len(self._sizes) > self._remembered:
            self._sizes_bytes -= self._sizes.popitem(last=False)[1]
