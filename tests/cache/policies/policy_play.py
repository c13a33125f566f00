"""What tests do to policies: replay a stream, look for what they remember."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from relaygr.cache.policy import Policy, Victim, Weight


def weight(nbytes: int, rec_ms: float = 1.0) -> Weight:
    """A token a byte."""
    return Weight(nbytes, nbytes, rec_ms, 0.0)


class Play:
    """A tier of `capacity` bytes that holds nothing; `hits` says of each visit whether the key was here.

    With `forget_victims`, the policy knows nothing of what has left. With `insert_first`, a newcomer is put
    in its place before others leave for it.
    """

    def __init__(
        self,
        policy: Policy[Any],
        capacity: int,
        *,
        forget_victims: bool = False,
        insert_first: bool = False,
    ) -> None:
        self.policy, self.capacity = policy, capacity
        self.forget_victims, self.insert_first = forget_victims, insert_first
        self.sizes: dict[Hashable, int] = {}
        self.used = 0
        self.hits: list[bool] = []
        self.victims: list[Victim[Any]] = []

    def visit(self, key: Hashable, nbytes: int, rec_ms: float = 1.0) -> bool:
        self.policy.touch(key)
        hit = key in self.sizes
        self.hits.append(hit)
        if not hit and nbytes <= self.capacity:
            if self.insert_first:
                self.policy.insert(key, weight(nbytes, rec_ms))
                self.policy.park(key)
            while self.used + nbytes > self.capacity:
                self.evict()
            if self.insert_first:
                self.policy.unpark(key)
            else:
                self.policy.insert(key, weight(nbytes, rec_ms))
            self.sizes[key] = nbytes
            self.used += nbytes
        return hit

    def evict(self) -> None:
        victim = self.policy.evict()
        assert victim is not None, "nothing is parked, so somebody can leave"
        assert self.sizes[victim.key] > victim.keep_tokens, "a victim gives something up"
        self.victims.append(victim)
        self.used -= self.sizes[victim.key] - victim.keep_tokens
        if victim.keep_tokens:
            self.sizes[victim.key] = victim.keep_tokens
        else:
            del self.sizes[victim.key]
            if self.forget_victims:
                self.policy.forget(victim.key)

    def run(self, trace: Iterable[tuple[Hashable, int]]) -> list[bool]:
        for key, nbytes in trace:
            self.visit(key, nbytes)
        return self.hits


def users(seed: int, visits: int, population: int, largest: int = 8192) -> Iterator[tuple[int, int]]:
    """Users and their sizes: some come often, and most histories are short."""
    rng = random.Random(seed)
    sizes = [max(1, min(largest, int(rng.lognormvariate(7.09, 0.9)))) for _ in range(population)]
    for _ in range(visits):
        user = int(population * rng.random() ** 3)
        yield user, sizes[user]


def reachable(thing: object) -> Iterator[object]:
    """Everything that an object holds, through attributes, slots and containers."""
    pending, seen = [thing], set[int]()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, dict):
            pending += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            pending += one
        elif type(one).__module__.startswith("relaygr"):
            pending += vars(one).values() if hasattr(one, "__dict__") else ()
            for kind in type(one).__mro__:
                pending += [
                    getattr(one, name) for name in getattr(kind, "__slots__", ()) if hasattr(one, name)
                ]


def state(policy: Policy[Any]) -> object:
    """All that it knows, in a form that can be compared."""
    return _frozen(policy, {})


def _frozen(thing: object, seen: dict[int, int]) -> object:
    if isinstance(thing, dict):
        return ("dict", [(_frozen(k, seen), _frozen(v, seen)) for k, v in thing.items()])
    if isinstance(thing, (list, tuple)):
        return (type(thing).__name__, [_frozen(one, seen) for one in thing])
    if isinstance(thing, (set, frozenset)):
        return ("set", sorted(map(repr, thing)))
    if not type(thing).__module__.startswith("relaygr"):
        return repr(thing)
    if id(thing) in seen:
        return ("again", seen[id(thing)])
    seen[id(thing)] = len(seen)
    names = dict.fromkeys(n for kind in type(thing).__mro__ for n in getattr(kind, "__slots__", ()))
    names.update(dict.fromkeys(vars(thing) if hasattr(thing, "__dict__") else ()))
    return [(name, _frozen(getattr(thing, name), seen)) for name in names if hasattr(thing, name)]
