"""Users who send a signal and rank, in threads, while a test does something to their instances."""

from __future__ import annotations

import threading
from collections import Counter

import httpx
from gateway_processes import until

from relaygr.core.ids import session_key

Laps = Counter[tuple[str, str, str]]
"""Who got the signal, who ranked, by which path."""


class Load:
    """Two laps after the other in each thread, until the end of the block."""

    def __init__(self, url: str, threads: int = 4, *, sessions: bool = False) -> None:
        """With `sessions` requests name their user in a header too."""
        self.url, self._sessions, self._stop = url, sessions, threading.Event()
        self.failures: list[str] = []
        self.laps: Laps = Counter()
        self._threads = [threading.Thread(target=self._run, args=(place,)) for place in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    @property
    def ranked(self) -> Counter[str]:
        """Rankings by who made them."""
        found: Counter[str] = Counter()
        for (_, second, _), count in dict(self.laps).items():
            found[second] += count
        return found

    def more(self, count: int) -> Laps:
        """The next `count` rankings, or some more."""
        before = Counter(self.laps)
        until(lambda: self.laps.total() >= before.total() + count)
        return Counter(self.laps) - before

    def _run(self, place: int) -> None:
        with httpx.Client(base_url=self.url, timeout=30) as client:
            number = 0
            while not self._stop.is_set():
                user, number = f"user-{place}-{number % 25}", number + 1
                headers = {"x-session-id": session_key("default", user)} if self._sessions else {}
                body = {"user": user, "candidates": [1, 2, 3]}
                try:
                    signal = client.post("/v1/prefix", json={"user": user}, headers=headers)
                    first = signal.headers.get("x-relay-owner")
                    hint = {"x-relay-owner": first} if first else {}
                    answer = client.post("/v1/rank", json=body, headers={**headers, **hint})
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                    continue
                if signal.status_code != 200 or answer.status_code != 200:
                    self.failures.append(f"{signal.status_code} {answer.status_code} {answer.text}")
                else:
                    second = answer.headers["x-relay-owner"]
                    self.laps[first or "", second, answer.json()["path"]] += 1
