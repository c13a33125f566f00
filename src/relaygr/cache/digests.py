"""Rolling content digests of one user's prefix, and the longest prefix that two of them share."""

from __future__ import annotations

import bisect
import hashlib
import struct
from collections.abc import Callable

import numpy as np

from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Ref

HashFunction = Callable[[bytes], bytes]


def blake2b_128(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def seed_digest(
    tenant: Tenant,
    model_fp: Fingerprint,
    schema: int,
    user: UserId,
    anchor: int,
    hash_function: HashFunction = blake2b_128,
) -> bytes:
    """D_0: the digest of the identity alone; all integers little endian, strings length-prefixed."""

    def prefixed(value: bytes) -> bytes:
        return struct.pack("<I", len(value)) + value

    return hash_function(
        b"relaygr/1"
        + prefixed(tenant.encode("utf-8"))
        + prefixed(model_fp)
        + struct.pack("<I", schema)
        + prefixed(user.encode("utf-8"))
        + struct.pack("<q", anchor)
    )


class DigestChain:
    """The growing digest chain of one user's prefix; kept beside the history and extended with it.

    Changes: `extend` and `close_segment` change only the chain. Every `ref()` handed out before stays valid
    for ever, because digests and records are immutable bytes.
    Cost: `extend` hashes the new records and the open page again, never the pages before it, and copies the
    records once; `ref` is linear in the number of pages and hashes nothing.
    Raises: ValueError for sizes below one or for records that are not whole.
    """

    __slots__ = (
        "_anchor",
        "_ends",
        "_hash",
        "_model_fp",
        "_pages",
        "_record_bytes",
        "_records",
        "_schema",
        "_tail",
        "_tenant",
        "_user",
        "page_tokens",
    )

    def __init__(
        self,
        tenant: Tenant,
        model_fp: Fingerprint,
        schema: int,
        user: UserId,
        anchor: int,
        page_tokens: int,
        record_bytes: int,
        hash_function: HashFunction = blake2b_128,
    ) -> None:
        if page_tokens < 1:
            raise ValueError(f"page_tokens: {page_tokens} must be at least 1")
        if record_bytes < 1:
            raise ValueError(f"record_bytes: {record_bytes} must be at least 1")
        self._tenant, self._user, self._model_fp = tenant, user, model_fp
        self._schema, self._anchor = schema, anchor
        self.page_tokens, self._record_bytes = page_tokens, record_bytes
        self._hash = hash_function
        self._pages = [seed_digest(tenant, model_fp, schema, user, anchor, hash_function)]
        self._ends: list[int] = []  # of closed pages
        self._tail: bytes | None = None  # digest of the open page, None while it is empty
        self._records = b""

    @property
    def tokens(self) -> int:
        return len(self._records) // self._record_bytes

    def extend(self, records: bytes) -> None:
        """Append whole records, oldest first; no records is a no-op."""
        if len(records) % self._record_bytes:
            raise ValueError(
                f"records: {len(records)} bytes are not whole records of {self._record_bytes} bytes"
            )
        if not records:
            return
        self._records += records
        start, tokens = self._open_start(), self.tokens
        while tokens - start >= self.page_tokens:
            end = start + self.page_tokens
            self._pages.append(self._digest(start, end))
            self._ends.append(end)
            start = end
        self._tail = self._digest(start, tokens) if tokens > start else None

    def close_segment(self) -> None:
        """End the open page here, so that later records cannot change its digest; at a page end a no-op."""
        if self._tail is not None:
            self._pages.append(self._tail)
            self._ends.append(self.tokens)
            self._tail = None

    def ref(self) -> Ref:
        """A snapshot of the prefix as it is now."""
        digests, ends = tuple(self._pages), tuple(self._ends)
        if self._tail is not None:
            digests, ends = (*digests, self._tail), (*ends, self.tokens)
        return Ref(
            tenant=self._tenant,
            user=self._user,
            model_fp=self._model_fp,
            schema=self._schema,
            anchor=self._anchor,
            digests=digests,
            page_ends=ends,
            records=memoryview(self._records),
            record_bytes=self._record_bytes,
            tokens=self.tokens,
        )

    def _open_start(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _digest(self, start: int, end: int) -> bytes:
        width = self._record_bytes
        return self._hash(self._pages[-1] + self._records[start * width : end * width])


def head(ref: Ref, least: int, most: int) -> Ref:
    """The longest head of `ref` that ends with a page and has at most `most` tokens.

    If that is not more than `least`, one page more than `least`; `ref` itself if it is no longer than this.
    """
    fitting = bisect.bisect_right(ref.page_ends, most)
    pages = max(fitting, bisect.bisect_right(ref.page_ends, least) + 1)
    if pages >= len(ref.page_ends) or ref.tokens <= most:
        return ref
    tokens = ref.page_ends[pages - 1]
    return ref._replace(
        digests=ref.digests[: pages + 1],
        page_ends=ref.page_ends[:pages],
        records=ref.records[: tokens * ref.record_bytes],
        tokens=tokens,
    )


def cut(ref: Ref, tokens: int, hash_function: HashFunction = blake2b_128) -> Ref:
    """The head of `ref` with exactly `tokens` tokens; its last page may end early.

    Raises:
        ValueError: `ref` has not so many tokens.
    """
    if not 0 <= tokens <= ref.tokens:
        raise ValueError(f"tokens: {tokens} must be in [0, {ref.tokens}]")
    if tokens == ref.tokens:
        return ref
    pages = bisect.bisect_right(ref.page_ends, tokens)
    digests, ends = ref.digests[: pages + 1], ref.page_ends[:pages]
    start, records = ends[-1] if ends else 0, ref.records[: tokens * ref.record_bytes]
    if start < tokens:
        digests = (*digests, hash_function(digests[-1] + records[start * ref.record_bytes :]))
        ends = (*ends, tokens)
    return ref._replace(digests=digests, page_ends=ends, records=records, tokens=tokens)


def longest_match(stored: Ref, wanted: Ref) -> int:
    """Tokens at the head of `stored` that serve `wanted`: equal identity, page structure and records.

    Digests only say where to look (binary search, since equal digests at page i imply equal pages before it);
    the answer always rests on the records, so a hash collision costs time and never gives a stale prefix.
    Reuse ends at the latest where the pages end differently (a segment of another length), even if the bytes
    behind that point happen to be equal.
    """
    if stored is wanted:
        return stored.tokens
    if not _same_identity(stored, wanted):
        return 0
    pages = _equal_pages(stored, wanted)
    start = stored.page_ends[pages - 1] if pages else 0
    if stored.page_ends[:pages] != wanted.page_ends[:pages]:
        return _match_without_digests(stored, wanted)
    grown = _is_head(stored, wanted)
    if not grown and _common_tokens(stored, wanted, 0, start) < start:
        return _match_without_digests(stored, wanted)
    if pages == min(len(stored.page_ends), len(wanted.page_ends)):
        return start
    end = min(stored.page_ends[pages], wanted.page_ends[pages])
    return end if grown else start + _common_tokens(stored, wanted, start, end)


def _same_identity(stored: Ref, wanted: Ref) -> bool:
    return (
        stored.digests[0] == wanted.digests[0]
        and stored.user == wanted.user
        and stored.tenant == wanted.tenant
        and stored.model_fp == wanted.model_fp
        and stored.schema == wanted.schema
        and stored.anchor == wanted.anchor
        and stored.record_bytes == wanted.record_bytes
    )


def _equal_pages(stored: Ref, wanted: Ref) -> int:
    low, high = 0, min(len(stored.page_ends), len(wanted.page_ends))
    while low < high:
        middle = (low + high + 1) // 2
        if stored.digests[middle] == wanted.digests[middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_head(stored: Ref, wanted: Ref) -> bool:
    """Whether the records of `stored` are known to be the first ones of `wanted`, as of most who come back.

    Only whole byte strings are looked at, which are compared without a copy; False says nothing.
    """
    mine, theirs = stored.records.obj, wanted.records.obj
    return (
        isinstance(mine, bytes)
        and isinstance(theirs, bytes)
        and len(mine) == stored.records.nbytes
        and len(theirs) == wanted.records.nbytes
        and theirs.startswith(mine)
    )


def _match_without_digests(stored: Ref, wanted: Ref) -> int:
    end = 0
    for stored_end, wanted_end in zip(stored.page_ends, wanted.page_ends, strict=False):
        end = min(stored_end, wanted_end)
        if stored_end != wanted_end:
            break
    return _common_tokens(stored, wanted, 0, end)


def _common_tokens(stored: Ref, wanted: Ref, start: int, end: int) -> int:
    """Equal records from token `start` on, at most `end - start`."""
    if end <= start:
        return 0
    width = stored.record_bytes
    mine = np.frombuffer(stored.records, np.uint8, (end - start) * width, start * width)
    theirs = np.frombuffer(wanted.records, np.uint8, (end - start) * width, start * width)
    differs = mine != theirs
    first = int(differs.argmax())
    return first // width if differs[first] else end - start
