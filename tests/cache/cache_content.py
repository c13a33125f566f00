"""Contents for the tests: chains of int64 tokens in segments, and the plain oracle of the longest match."""

import struct

from relaygr.cache.digests import DigestChain, HashFunction, blake2b_128
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Ref

FP = Fingerprint(bytes(range(16)))


def chain(
    segments: list[list[int]],
    *,
    page_tokens: int = 4,
    model_fp: bytes = FP,
    user: str = "user-42",
    tenant: str = "t1",
    anchor: int = 0,
    schema: int = 3,
    hash_function: HashFunction = blake2b_128,
) -> DigestChain:
    made = DigestChain(
        Tenant(tenant), Fingerprint(model_fp), schema, UserId(user), anchor, page_tokens, 8, hash_function
    )
    for i, segment in enumerate(segments):
        if i:
            made.close_segment()
        made.extend(pack(segment))
    return made


def pack(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}q", *tokens)


def oracle(stored: Ref, wanted: Ref) -> int:
    """Records one by one; page structure page by page."""
    same = (stored.tenant, stored.user, stored.model_fp, stored.schema, stored.anchor, stored.record_bytes)
    if same != (
        wanted.tenant,
        wanted.user,
        wanted.model_fp,
        wanted.schema,
        wanted.anchor,
        wanted.record_bytes,
    ):
        return 0
    limit = min(stored.tokens, wanted.tokens)
    for mine, theirs in zip(stored.page_ends, wanted.page_ends, strict=False):
        if mine != theirs:
            limit = min(mine, theirs)
            break
    width = stored.record_bytes
    for token in range(limit):
        if (
            stored.records[token * width : (token + 1) * width]
            != wanted.records[token * width : (token + 1) * width]
        ):
            return token
    return limit
