"""The last requests of a router, by user and by member: who is busy, and with whom."""

from __future__ import annotations

from collections import Counter, deque

# Shares are compared: so many requests a member leave them a standard error of 6 %.
_PER_MEMBER, _LEAST, _MOST = 256, 1024, 65_536


class Traffic:
    """A window of the last requests, longer for more members."""

    def __init__(self, members: int) -> None:
        self._window: deque[tuple[str, str]] = deque()
        self._keys: Counter[str] = Counter()
        self._members: Counter[str] = Counter()
        self.limit = _LEAST
        self.size_for(members)

    def size_for(self, members: int) -> None:
        """So many members share the requests from now on."""
        self.limit = min(max(_PER_MEMBER * members, _LEAST), _MOST)

    @property
    def full(self) -> bool:
        return len(self._window) >= self.limit

    def add(self, key: str, member: str) -> None:
        window, keys = self._window, self._keys
        window.append((key, member))
        keys[key] = keys.get(key, 0) + 1
        self._members[member] += 1
        while len(window) > self.limit:
            old_key, old_member = window.popleft()
            self._members[old_member] -= 1
            left = keys[old_key] - 1
            if left:
                keys[old_key] = left
            else:
                del keys[old_key]

    def of_key(self, key: str) -> int:
        return self._keys[key]

    def share(self, member: str) -> float:
        """The member's part of the window; 0 while that is empty."""
        return self._members[member] / len(self._window) if self._window else 0.0

    def of_member(self, member: str) -> int:
        return self._members[member]
