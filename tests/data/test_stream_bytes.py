"""Entries of any bytes: each is an event or a dead letter, and none stops the stream."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stream_places import RedisPlace

from relaygr.core.errors import RequestError
from relaygr.data.streams import Entry, StreamEvent, event_of
from relaygr.data.streams.events import FIELDS

NAMES = st.one_of(st.sampled_from([name.encode() for name in sorted(FIELDS)]), st.binary(max_size=100))
VALUES = st.one_of(st.sampled_from([b"1", b"u", b"\0" * 5000]), st.binary(max_size=100))
ENTRIES = st.dictionaries(NAMES, VALUES, min_size=1, max_size=8)
FEW = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # fmt: skip


def outcome(entry: Entry) -> StreamEvent | str:
    try:
        return event_of(entry)
    except RequestError as error:
        return str(error)


def test_a_wrong_name_is_shown_as_its_bytes() -> None:
    entry = Entry("s", 1, {b"\xff\xfeuser".decode(errors="surrogateescape"): b"u"})
    with pytest.raises(RequestError) as caught:
        event_of(entry)
    assert caught.value.field == r"\xff\xfeuser"
    assert str(caught.value).startswith(r"\xff\xfeuser: is none of actions, item")


@given(ENTRIES)
def test_what_is_wrong_is_text(fields: dict[bytes, bytes]) -> None:
    entry = Entry("s", 1, {name.decode(errors="surrogateescape"): value for name, value in fields.items()})
    found = outcome(entry)
    if isinstance(found, str):
        assert len(found.encode()) < 1500


@FEW
@given(entries=st.lists(ENTRIES, min_size=1, max_size=3))
def test_a_server_keeps_them_as_they_were(empty_redis: str, entries: list[dict[bytes, bytes]]) -> None:
    place = RedisPlace(["s"], empty_redis)
    try:
        stream = place.open("one")
        place.do(stream.assigned())
        for fields in entries:
            place.client.xadd("s", fields)
        got = place.do(stream.read("s"))
        assert len(got) == len(entries)
        for entry in got:
            found = outcome(entry)
            place.do(stream.reject(entry, found if isinstance(found, str) else "no \udcff reason"))
        letters = [letter for _, letter in place.client.xrange("relaygr:dead")]
        for letter, fields in zip(letters, entries, strict=True):
            letter[b"dead.error"].decode()
            assert {name: letter[name][:1000] for name in fields} == {
                name: value[:1000] for name, value in fields.items()
            }
        assert place.client.xpending("s", "relaygr")["pending"] == 0
    finally:
        place.close()
