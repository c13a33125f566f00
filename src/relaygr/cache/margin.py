"""What a little more device memory would have kept: the states that left it last, and who came back."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from relaygr.cache.entry import Identity
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Touch

_MISSED_MAX = 4096


class Missed(NamedTuple):
    """A visit that `nbytes` more of memory would have found on the device.

    Attributes:
        tokens: that had left it.
        loaded: whether they came from a lower tier; else they were computed anew.
    """

    tokens: int
    loaded: bool


class Margin:
    """The last states to leave the device for want of room, up to `nbytes` of them; keys and numbers only.

    Visits are kept until `take`, at most as many as states.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._left: OrderedDict[Identity, tuple[int, int]] = OrderedDict()  # -> bytes, tokens
        self._bytes = 0
        self._asked: OrderedDict[Identity, int] = OrderedDict()  # -> tokens
        self._missed: list[Missed] = []

    def __len__(self) -> int:
        return len(self._left)

    def left(self, key: Identity, nbytes: int, tokens: int) -> None:
        self.forget(key)
        self._left[key] = nbytes, tokens
        self._bytes += nbytes
        while self._bytes > self.nbytes:
            self.forget(next(iter(self._left)))

    def asked(self, key: Identity) -> None:
        """Room is made for the state of a visit; what leaves for it must not push out what it missed."""
        found = self._left.get(key)
        if found is not None:
            self.forget(key)
            self._asked[key] = found[1]
            if len(self._asked) > _MISSED_MAX:
                self._asked.popitem(last=False)

    def visited(self, key: Identity, kind: Touch) -> None:
        """A request of the user was served; one that needed what had left counts."""
        self.asked(key)
        tokens = self._asked.pop(key, None)
        if tokens is not None and kind is not Touch.HIT and len(self._missed) < _MISSED_MAX:
            self._missed.append(Missed(tokens, kind is Touch.LOAD))

    def forget(self, key: Identity) -> None:
        nbytes, _ = self._left.pop(key, (0, 0))
        self._bytes -= nbytes
        self._asked.pop(key, None)

    def forget_user(self, tenant: Tenant, user: UserId) -> None:
        for key in [key for key in (*self._left, *self._asked) if (key.tenant, key.user) == (tenant, user)]:
            self.forget(key)

    def clear(self) -> None:
        self._left.clear()
        self._asked.clear()
        self._bytes = 0

    def take(self) -> list[Missed]:
        """Those visits since the last call."""
        missed, self._missed = self._missed, []
        return missed
