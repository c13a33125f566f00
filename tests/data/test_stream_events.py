"""Entries of streams as events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygr.core.errors import RequestError
from relaygr.data.streams import Entry, StreamEvent, event_of

GOOD = {"user": b"u", "item": b"-7", "timestamp": b"1700000000"}


def parsed(**changes: bytes | None) -> StreamEvent:
    fields = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    return event_of(Entry("s", 1, fields))


def test_what_is_left_out_is_as_in_a_post() -> None:
    assert parsed() == StreamEvent("default", "u", -7, 1_700_000_000, 1, None)


def test_everything_named() -> None:
    event = parsed(tenant=b"shop", user="用户".encode(), actions=b"6", key=b"k")
    assert event == StreamEvent("shop", "用户", -7, 1_700_000_000, 6, "k")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"user": None}, "user: is missing"),
        ({"item": None}, "item: is missing"),
        ({"timestamp": None}, "timestamp: is missing"),
        ({"user": b""}, "user: must not be empty"),
        ({"user": b"\xff"}, r"user: b'\\xff' is not UTF-8"),
        ({"user": b"x" * 257}, "user: .* has 257 bytes, limit 256"),
        ({"item": b"1.5"}, "item: '1.5' is no whole number of 64 bits"),
        ({"item": b"9223372036854775808"}, r"item: 9223372036854775808 is outside \[-9223372036854775808"),
        ({"item": b" 1"}, "item: ' 1' is no whole number"),
        ({"item": "٣".encode()}, "item: .* is no whole number"),
        ({"timestamp": b"1700000000000"}, r"timestamp: 1700000000000 is outside \[0, 99999999999\]"),
        ({"timestamp": b"-1"}, "timestamp: -1 is outside"),
        ({"actions": b"-1"}, "actions: -1 is outside"),
        ({"key": b""}, "key: must not be empty"),
        ({"tenant": b"\0"}, "tenant: .* contains NUL"),
        ({"action": b"1"}, "action: is none of actions, item, key, tenant, timestamp, user"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, bytes | None], words: str) -> None:
    with pytest.raises(RequestError, match="^" + words):
        parsed(**changes)


@given(
    fields=st.dictionaries(st.sampled_from([*GOOD, "tenant", "actions", "key", "x"]), st.binary(max_size=30))
)
def test_anything_is_an_event_or_a_request_error(fields: dict[str, bytes]) -> None:
    error = refusal(fields)
    if error is None:
        assert int(fields["item"]) == event_of(Entry("s", 1, fields)).item
    else:
        assert error.field in {*GOOD, "tenant", "actions", "key", "x"}
        assert len(str(error)) < 600


def refusal(fields: dict[str, bytes]) -> RequestError | None:
    try:
        event_of(Entry("s", 1, fields))
    except RequestError as error:
        return error
    return None
