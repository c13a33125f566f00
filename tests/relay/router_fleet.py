"""A router and the members it sees, with a clock that only tests move."""

from __future__ import annotations

from typing import Any

from relaygr.config.relay import Member, RouterConfig
from relaygr.relay.membership import Feedback
from relaygr.relay.route import Refused, Route
from relaygr.relay.router import Router

T_LIFE_S = 0.3


def member(name: str, weight: float = 1.0) -> Member:
    return Member(id=name, url=f"http://{name}:8080", weight=weight)


def members(count: int) -> tuple[Member, ...]:
    return tuple(member(f"m{number}") for number in range(count))


class Fleet:
    """Members that answer every poll unless told otherwise."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.config = RouterConfig(members=tuple(member(name) for name in names), **settings)
        self.now_s = 100.0
        self.router = Router(self.config, T_LIFE_S, self.now_s)
        self.said = dict.fromkeys(names, Feedback("build", 32))
        self.poll()

    def poll(self) -> None:
        for name, said in self.said.items():
            self.router.members.hear(name, said, self.now_s)

    def join(self, name: str, weight: float = 1.0) -> None:
        self.router.members.add(member(name, weight), self.now_s)
        self.said[name] = Feedback("build", 32)
        self.poll()

    def wait(self, seconds: float) -> None:
        """Let time pass, with a poll every half second."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(self.now_s + 0.5, end_s)
            self.poll()

    def prefix(self, key: str) -> str:
        return taken(self.router.route_prefix(key, self.now_s))

    def rank(self, key: str, hint: str | None = None, avoid: tuple[str, ...] = ()) -> str:
        return taken(self.router.route_rank(key, hint, self.now_s, avoid))

    def owner(self, key: str) -> str:
        found = self.router.owner(key, self.now_s)
        assert found is not None
        return found

    def key_of(self, name: str, start: int = 0) -> str:
        """A key whose first choice is this member."""
        return next(key for at in range(start, start + 100_000) if self.owner(key := f"key-{at}") == name)


def taken(found: Route | Refused) -> str:
    assert isinstance(found, Route), found
    return found.member


def refused(found: Route | Refused) -> str:
    assert isinstance(found, Refused), found
    return found.reason.value
