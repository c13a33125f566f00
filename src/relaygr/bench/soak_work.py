"""The requests of a soak: good ones, bad ones, and good ones that are given up in the middle."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from relaygr.bench.serve_wire import Sent, Wire
from relaygr.bench.soak_people import History, Person, RankBody, Sample, ids

_MOST_PROBLEMS = 50
# A retry of an append whose first try was given up meets the first one on its way at worst.
_APPEND_TRIES = 3

_BAD: tuple[tuple[str, bytes, int], ...] = (
    ("/v1/rank", b"", 400),
    ("/v1/rank", b'{"user": "u", "candidates": [1', 400),
    ("/v1/rank", b"[" * 5000, 422),
    ("/v1/rank", b'{"user": "\xff", "candidates": [1]}', 400),
    ("/v1/rank", b'{"user": "u", "candidates": [9223372036854775808]}', 422),
    ("/v1/rank", b'{"user": "u", "candidates": ["one"]}', 422),
    ("/v1/rank", b'{"user": "u", "candidates": [1], "unknown": 1}', 422),
    ("/v1/rank", b'{"user": "u", "candidates": [1], "deadline_ms": -1}', 422),
    ("/v1/prefix", b'{"user": ""}', 422),
    ("/v1/events", b'{"user": "bad", "items": [1, 2], "timestamps": [1]}', 422),
    ("/v1/events", b'{"user": "bad", "items": [1], "timestamps": [1700000000000]}', 422),
)


class Ranked(msgspec.Struct, frozen=True):
    scores: list[list[float]]
    model: str
    path: str
    served_tokens: int


class Counted(msgspec.Struct, frozen=True):
    """An answer with a number of events: appends (`sequence`), states and deletions (`events`)."""

    sequence: int = -1
    events: int = -1


class Refusal(msgspec.Struct, frozen=True):
    code: str


class Refused(msgspec.Struct, frozen=True):
    error: Refusal


class Findings:
    """What all workers found; bounded, whatever goes wrong."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self.problems: list[str] = []
        self.failed = self.wrong = 0

    def fail(self, kind: str, sent: Sent) -> None:
        self.failed += 1
        self.note(f"{kind}: {sent.what} {sent.body[:200].decode(errors='replace')}")

    def mistake(self, text: str) -> None:
        self.wrong += 1
        self.note(text)

    def note(self, text: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(text)


class Worker:
    """Sends one request after another for its own users."""

    def __init__(
        self, wire: Wire, url: str, people: Sequence[Person], found: Findings, sample: float, seed: int
    ) -> None:
        self._wire, self._people, self._found = wire, people, found
        self._rng, self._sample = random.Random(seed), sample
        parts = urlsplit(url)
        self._address = parts.hostname, parts.port
        self._kinds = {
            self.rank: 30,
            self.rank_inline: 10,
            self.append: 20,
            self.prefix: 15,
            self.state: 5,
            self.models: 2,
            self.delete: 1,
            self.cancel_rank: 6,
            self.cancel_prefix: 2,
            self.cancel_append: 3,
            self.disconnect: 3,
            self.bad_body: 5,
        }

    async def one(self) -> None:
        """One request of a kind drawn by weight, for a user drawn evenly."""
        (kind,) = self._rng.choices(list(self._kinds), weights=list(self._kinds.values()))
        self._found.counts[kind.__name__] += 1
        await kind(self._rng.choice(self._people))

    async def rank(self, person: Person) -> None:
        candidates = self._candidates()
        sent = await self._post("/v1/rank", RankBody(person.name, candidates))
        self._ranked("rank", sent, person.name, person.items, person.times, candidates)

    async def rank_inline(self, person: Person) -> None:
        count, candidates = self._rng.randrange(200), self._candidates()
        items, first = ids(count, self._rng), self._rng.randrange(1_700_000_000)
        times = [first + step for step in range(count)]
        name = f"{person.name}-inline"
        sent = await self._post("/v1/rank", RankBody(name, candidates, History(items, times)))
        self._ranked("rank_inline", sent, name, items, times, candidates)

    async def append(self, person: Person) -> None:
        body = person.more(self._rng.randint(1, 4), self._rng)
        sent = await self._post("/v1/events", body)
        person.stored(body)
        self._expect("append", sent, len(person.items))

    async def prefix(self, person: Person) -> None:
        sent = await self._post("/v1/prefix", RankSignal(person.name))
        if not sent.ok:
            self._found.fail("prefix", sent)

    async def state(self, person: Person) -> None:
        self._expect(
            "state", await self._wire.send("GET", f"/v1/users/{person.name}/state"), len(person.items)
        )

    async def models(self, person: Person) -> None:
        sent = await self._wire.send("GET", "/v1/models")
        if not sent.ok:
            self._found.fail("models", sent)

    async def delete(self, person: Person) -> None:
        sent = await self._wire.send("DELETE", f"/v1/users/{person.name}")
        self._expect("delete", sent, len(person.items))
        person.deleted()

    async def cancel_rank(self, person: Person) -> None:
        candidates = self._candidates()
        sent = await self._given_up("/v1/rank", RankBody(person.name, candidates))
        if sent is not None:
            self._ranked("rank", sent, person.name, person.items, person.times, candidates)

    async def cancel_prefix(self, person: Person) -> None:
        await self._given_up("/v1/prefix", RankSignal(person.name))

    async def cancel_append(self, person: Person) -> None:
        """The first try may or may not have been carried out; the key makes the second one safe."""
        body = person.more(self._rng.randint(1, 4), self._rng)
        sent = await self._given_up("/v1/events", body)
        for _ in range(_APPEND_TRIES):
            if sent is not None and sent.ok:
                break
            sent = await self._post("/v1/events", body)
        assert sent is not None
        person.stored(body)
        self._expect("cancel_append", sent, len(person.items))

    async def disconnect(self, person: Person) -> None:
        """Leave after half a body."""
        body = msgspec.json.encode(RankBody(person.name, self._candidates()))
        head = "POST /v1/rank HTTP/1.1\r\nhost: s\r\ncontent-type: application/json\r\n"
        try:
            _, writer = await asyncio.open_connection(*self._address)
        except OSError as error:
            self._found.fail("disconnect", Sent(0, str(error).encode(), "connection"))
            return
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])
        await asyncio.sleep(self._rng.random() * 0.005)
        writer.transport.abort()

    async def bad_body(self, person: Person) -> None:
        path, body, status = self._rng.choice(_BAD)
        sent = await self._wire.send("POST", path, body)
        try:
            refused = sent.status == status and msgspec.json.decode(sent.body, type=Refused).error.code
        except msgspec.DecodeError:
            refused = False
        if not refused:
            said = sent.body[:200].decode(errors="replace")
            self._found.mistake(f"{path} {body[:60]!r}: {sent.what}, not {status}: {said}")

    def _ranked(
        self,
        kind: str,
        sent: Sent,
        user: str,
        items: list[int],
        times: list[int],
        candidates: list[int],
    ) -> None:
        if not sent.ok:
            self._found.fail(kind, sent)
            return
        try:
            answer = msgspec.json.decode(sent.body, type=Ranked)
        except msgspec.DecodeError as error:
            self._found.mistake(f"{kind}: {error}")
            return
        if len(answer.scores) != len(candidates):
            self._found.mistake(f"{kind}: {len(answer.scores)} scores for {len(candidates)} candidates")
        elif self._rng.random() < self._sample:
            self._found.samples.append(
                Sample(
                    user,
                    items,
                    times,
                    len(items),
                    candidates,
                    answer.scores,
                    answer.model,
                    answer.path,
                    answer.served_tokens,
                )
            )

    def _expect(self, kind: str, sent: Sent, events: int) -> None:
        if not sent.ok:
            self._found.fail(kind, sent)
            return
        try:
            answer = msgspec.json.decode(sent.body, type=Counted)
        except msgspec.DecodeError as error:
            self._found.mistake(f"{kind}: {error}")
            return
        got = max(answer.sequence, answer.events)
        if got != events:
            self._found.mistake(f"{kind}: the server knows {got} events, {events} are acknowledged")

    async def _post(self, path: str, body: msgspec.Struct) -> Sent:
        return await self._wire.send("POST", path, msgspec.json.encode(body))

    async def _given_up(self, path: str, body: msgspec.Struct) -> Sent | None:
        """Close the connection after up to 4 ms; the answer, if it came sooner."""
        task = asyncio.create_task(self._post(path, body))
        done, _ = await asyncio.wait({task}, timeout=self._rng.random() * 0.004)
        if done:
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        return None

    def _candidates(self) -> list[int]:
        return ids(self._rng.randint(1, 64), self._rng)


class RankSignal(msgspec.Struct, frozen=True):
    """The body of a prefix signal."""

    user: str
