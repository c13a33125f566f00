"""The digest chain against the vectors of its definition; the longest match against a plain oracle."""

from itertools import pairwise

import pytest
from cache_content import FP, chain, oracle, pack
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.cache.digests import DigestChain, blake2b_128, cut, longest_match
from relaygr.core.ids import Tenant, UserId


def test_vectors() -> None:
    ref = chain([list(range(1, 9))]).ref()
    assert [digest.hex() for digest in ref.digests] == [
        "a81e94f186c6df8d16414a0a462757bc",
        "159f154c23ef361a22e15b821381b0de",
        "0e3b00850cc817745650753971bb203e",
    ]
    assert ref.page_ends == (4, 8)
    changed = chain([[1, 2, 3, 4, 5, 6, 7, 9]]).ref()
    assert changed.digests[:2] == ref.digests[:2]
    assert changed.digests[2].hex() == "3e6e94bce2462582e1d26912d6ed87d4"


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 30), max_size=5))
def test_extending_in_steps_equals_extending_at_once(tokens: list[int], cuts: list[int]) -> None:
    at_once, in_steps = chain([tokens]).ref(), chain([[]])
    bounds = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    refs = []
    for start, end in pairwise(bounds):
        in_steps.extend(pack(tokens[start:end]))
        refs.append((end, in_steps.ref()))
    assert in_steps.ref() == at_once
    for end, ref in refs:  # earlier snapshots are what they were
        assert ref == chain([tokens[:end]]).ref()
        assert longest_match(ref, at_once) == end


def test_extend_hashes_only_new_pages_and_the_open_one() -> None:
    hashed: list[int] = []

    def counting(data: bytes) -> bytes:
        hashed.append(len(data))
        return blake2b_128(data)

    made = chain([list(range(400))], hash_function=counting)
    hashed.clear()
    made.extend(pack([1]))
    made.extend(pack([2, 3, 4, 5]))
    made.ref()
    assert hashed == [16 + 8, 16 + 32, 16 + 8]


def test_segment_closes_its_page() -> None:
    ref = chain([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]).ref()
    assert ref.page_ends == (4, 5, 9, 10)
    profile = chain([[1, 2, 3, 4, 5]]).ref()
    assert ref.digests[:3] == profile.digests
    assert longest_match(profile, ref) == 5
    closed_twice = chain([[1, 2, 3, 4], []])
    closed_twice.close_segment()
    assert closed_twice.ref() == chain([[1, 2, 3, 4]]).ref()


def test_changed_segment_invalidates_itself_and_later_ones_only() -> None:
    old = chain([[1, 2, 3], [4, 5, 6, 7, 8], [9, 10]]).ref()
    assert longest_match(old, chain([[1, 2, 3], [4, 5, 60, 7, 8], [9, 10]]).ref()) == 5
    assert longest_match(old, chain([[1, 2, 3], [4, 5, 6, 7, 8], [90, 10]]).ref()) == 8
    assert longest_match(old, chain([[0, 2, 3], [4, 5, 6, 7, 8], [9, 10]]).ref()) == 0


def test_profile_of_another_length_ends_reuse_there() -> None:
    short, long = chain([[1, 2], [3, 4, 5, 6]]).ref(), chain([[1, 2, 3], [4, 5, 6]]).ref()
    assert longest_match(short, long) == longest_match(long, short) == 2


@pytest.mark.parametrize(
    "other",
    [{"model_fp": bytes(16)}, {"user": "user-43"}, {"tenant": "t2"}, {"anchor": -1}, {"schema": 4}],
)
def test_another_identity_never_matches_even_when_all_digests_collide(other: dict) -> None:
    for function in (blake2b_128, lambda data: bytes(16)):
        one = chain([[1, 2, 3]], hash_function=function).ref()
        assert longest_match(one, chain([[1, 2, 3]], hash_function=function, **other).ref()) == 0
        assert longest_match(one, chain([[1, 2, 3]], hash_function=function).ref()) == 3


@pytest.mark.parametrize("changed", range(11))
def test_collision_falls_back_to_records(changed: int) -> None:
    """Every digest collides, also those behind the changed page; the answer still ends before the change."""
    tokens = list(range(11))
    edited = [*tokens[:changed], 99, *tokens[changed + 1 :]]
    one = chain([tokens], hash_function=lambda data: bytes(16)).ref()
    two = chain([edited], hash_function=lambda data: bytes(16)).ref()
    assert longest_match(one, two) == changed


def test_collision_of_one_page_only() -> None:
    def colliding(data: bytes) -> bytes:
        last = data[-32:] if len(data) == 48 else data
        return (
            blake2b_128(data[:-32]) if last in (pack([5, 6, 7, 8]), pack([5, 6, 9, 8])) else blake2b_128(data)
        )

    one = chain([[1, 2, 3, 4, 5, 6, 7, 8, 10, 11]], hash_function=colliding).ref()
    two = chain([[1, 2, 3, 4, 5, 6, 9, 8, 10, 11]], hash_function=colliding).ref()
    assert one.digests == two.digests
    assert longest_match(one, two) == 6


SEGMENTS = st.lists(st.lists(st.integers(0, 4), max_size=14), min_size=1, max_size=3)


@st.composite
def edits(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    """Two contents, the second being the first after edits at head, middle or tail."""
    before = draw(SEGMENTS)
    after = [list(segment) for segment in before]
    for _ in range(draw(st.integers(0, 2))):
        segment = after[draw(st.integers(0, len(after) - 1))]
        at = draw(st.integers(0, len(segment)))
        kind = draw(st.sampled_from(["edit", "insert", "delete", "reorder", "append", "cut"]))
        if kind == "insert":
            segment.insert(at, draw(st.integers(0, 4)))
        elif kind == "append":
            segment.extend(draw(st.lists(st.integers(0, 4), max_size=6)))
        elif kind == "cut":
            del segment[at:]
        elif kind == "reorder":
            segment[at:] = segment[at:][::-1]
        elif at < len(segment):
            segment[at : at + 1] = [draw(st.integers(0, 4))] if kind == "edit" else []
    return before, after


@settings(max_examples=400, deadline=None)
@given(edits(), st.integers(1, 5), st.sampled_from(["blake", "two", "one"]), st.booleans())
def test_longest_match_equals_the_oracle(
    contents: tuple[list[list[int]], list[list[int]]], page_tokens: int, function: str, swapped: bool
) -> None:
    hashes = {
        "blake": blake2b_128,
        "two": lambda data: blake2b_128(data)[:1][0] % 2 * b"x" + b"y",  # many collisions
        "one": lambda data: b"",
    }
    stored, wanted = (
        chain(content, page_tokens=page_tokens, hash_function=hashes[function]).ref() for content in contents
    )
    if swapped:
        stored, wanted = wanted, stored
    match = longest_match(stored, wanted)
    assert match == oracle(stored, wanted)
    assert stored.records[: match * 8] == wanted.records[: match * 8]


@pytest.mark.parametrize("tokens", [1, 4, 7, 8, 9])
@pytest.mark.parametrize("collide", [False, True])
def test_growth_is_the_same_whole_and_in_slices(tokens: int, collide: bool) -> None:
    """However the records are held, and whether digests say anything or not."""
    function = (lambda data: b"") if collide else blake2b_128
    long = chain([list(range(12))], hash_function=function).ref()
    held = chain([list(range(tokens))], hash_function=function).ref()
    part = cut(long, tokens, function)
    writable = held._replace(records=memoryview(bytearray(held.records)))
    for stored in (held, part, writable):
        assert longest_match(stored, long) == longest_match(long, stored) == tokens
    changed = bytearray(long.records)
    changed[8 * (tokens - 1)] ^= 1
    for data in (bytes(changed), changed):
        other = long._replace(records=memoryview(data))
        for stored in (held, part, writable):
            assert longest_match(stored, other) == tokens - 1


def test_empty_prefix() -> None:
    empty = chain([[]]).ref()
    assert (empty.tokens, empty.page_ends, len(empty.digests)) == (0, (), 1)
    assert longest_match(empty, empty) == longest_match(empty, chain([[1]]).ref()) == 0


def test_bad_sizes() -> None:
    with pytest.raises(ValueError, match="whole records"):
        chain([[1]]).extend(b"1234567")
    with pytest.raises(ValueError, match="page_tokens"):
        chain([[1]], page_tokens=0)
    with pytest.raises(ValueError, match="record_bytes"):
        DigestChain(Tenant("t"), FP, 0, UserId("u"), 0, 4, 0)
