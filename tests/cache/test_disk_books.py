"""The books of the disk tier: places, who leaves, who is buried, and what is bounded."""

from __future__ import annotations

import random

from cache_content import chain

from relaygr.cache.disk import SEGMENTS, DiskBooks
from relaygr.cache.disk_entry import Burial, DiskEntry, FoundSegment, Owner, Place
from relaygr.cache.entry import identity
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Ref

T = Tenant("t1")
UNIT = 100
LAYOUT = "layout"


def content(user: str, tokens: int = 5) -> Ref:
    return chain([list(range(tokens))], user=user).ref()


class Told:
    """Who was forgotten by an earlier process."""

    def __init__(self, numbers: dict[Owner, int] | None = None) -> None:
        self._numbers = numbers or {}

    @property
    def latest(self) -> int:
        return max(self._numbers.values(), default=0)

    def of(self, owner: Owner) -> int:
        return self._numbers.get(owner, 0)


def books(segments: int = SEGMENTS, index_bytes: int = 1 << 30) -> DiskBooks:
    """Each segment holds ten records of a unit."""
    made = DiskBooks(SEGMENTS * 10 * UNIT, index_bytes, LAYOUT)
    made.total_bytes = segments * 10 * UNIT
    return made


def put(disk: DiskBooks, user: str, nbytes: int = UNIT, tokens: int = 5) -> DiskEntry | None:
    found = disk.reserve((T, UserId(user)), nbytes)
    if found is None:
        return None
    entry = DiskEntry(content(user, tokens), found[1], found[0], LAYOUT, ())
    disk.put(entry)
    disk.audit()
    return entry


def there(disk: DiskBooks, users: list[str]) -> list[str]:
    return [user for user in users if disk.match(content(user))]


def test_records_lie_behind_one_another_and_are_numbered() -> None:
    disk = books()
    entries = [put(disk, f"u{number}") for number in range(12)]
    assert [one.place for one in entries if one] == [
        *(Place(1, number * UNIT, UNIT) for number in range(10)), Place(2, 0, UNIT), Place(2, UNIT, UNIT),
    ]  # fmt: skip
    assert [one.number for one in entries if one] == list(range(1, 13))
    assert (disk.used_bytes, disk.live_bytes, disk.segments) == (1200, 1200, 2)


def test_a_match_is_of_the_content_and_of_the_layout() -> None:
    disk = books()
    put(disk, "u", tokens=9)
    assert disk.match(content("u", 7)) == 7
    assert disk.match(content("u", 12)) == 9
    assert disk.match(chain([[0, 1, 2, 99, 4]], user="u").ref()) == 3
    assert disk.match(content("v")) == 0
    disk.layout_id = "another"
    assert disk.match(content("u")) == 0


def test_the_segment_that_was_used_longest_ago_leaves() -> None:
    disk = books(segments=3)
    users = [f"u{number}" for number in range(30)]
    for user in users:
        put(disk, user)
    disk.touch(identity(content("u3")))  # of the first segment
    put(disk, "new")
    assert there(disk, users) == users[:10] + users[20:]
    assert (disk.removed, disk.evictions) == ([2], 10)
    put(disk, "u25")  # the newest stays where it is written
    assert disk.used_bytes == 2200


def test_a_segment_with_little_that_is_live_leaves_before_those_used_longer_ago() -> None:
    disk = books(segments=3)
    users = [f"u{number}" for number in range(20)]
    for user in users:
        put(disk, user)
    for user in users[10:18]:  # written anew: what was is dead
        put(disk, user)
    put(disk, "a")
    put(disk, "b")
    put(disk, "new")
    assert disk.removed == [2]
    assert there(disk, users) == users[:18]


def test_a_segment_without_anything_live_leaves_at_once() -> None:
    disk = books()
    users = [f"u{number}" for number in range(10)]
    for user in (*users, *users[:-1]):
        put(disk, user)
    assert disk.removed == []
    put(disk, users[-1])
    assert (disk.removed, disk.segments, disk.evictions) == ([1], 1, 0)
    for user in users:  # what is written to stays
        disk.drop(identity(content(user)))
    assert (disk.removed, disk.segments) == ([1], 1)
    disk.seal()
    assert (disk.removed, disk.segments, disk.used_bytes) == ([1, 2], 0, 0)


def test_what_is_larger_than_a_segment_has_one_for_itself() -> None:
    disk = books(segments=3)
    put(disk, "small")
    large = put(disk, "large", 25 * UNIT)
    assert large is not None
    assert large.place == Place(2, 0, 25 * UNIT)
    assert put(disk, "larger", 31 * UNIT) is None
    assert there(disk, ["small", "large"]) == ["small", "large"]


def test_readers_and_writers_keep_their_segment() -> None:
    disk = books(segments=2)
    entries = [put(disk, f"u{number}") for number in range(20)]
    for entry in (entries[0], entries[10]):
        assert entry is not None
        disk.pin(entry.place)
    assert put(disk, "new") is None, "the only other is read, too"
    assert disk.used_bytes == 2000
    assert entries[10] is not None
    disk.unpin(entries[10].place)
    assert put(disk, "new") is not None
    assert disk.removed == [2]
    first = entries[0]
    assert first is not None
    disk.forget(T, UserId("u0"))
    for number in range(1, 10):
        disk.drop(identity(content(f"u{number}")))
    assert disk.removed == [2]
    disk.unpin(first.place)
    assert disk.removed == [2, 1]


def test_m8_the_forgotten_are_buried_with_all_that_was_promised_before() -> None:
    disk = books()
    for user in ("u", "v", "u"):
        put(disk, user)
    promised = disk.reserve((T, UserId("u")), UNIT)
    assert promised is not None
    assert disk.forget(T, UserId("u")) == [identity(content("u"))]
    assert disk.burials == [Burial((T, UserId("u")), 5, (1,))]
    assert disk.needed() == {(T, UserId("u")): 5}
    assert disk.forget(T, UserId("u")) == []
    assert disk.forget(T, UserId("nobody")) == []
    assert len(disk.burials) == 1, "there is nothing more to bury"
    disk.give_back(promised[1])
    put(disk, "u")
    assert there(disk, ["u", "v"]) == ["u", "v"]
    disk.forget(T, UserId("u"))
    assert disk.burials[-1] == Burial((T, UserId("u")), 6, (1,))
    assert disk.needed() == {(T, UserId("u")): 6}


def test_a_burial_is_needed_as_long_as_there_is_a_record_to_bury() -> None:
    disk = books()
    put(disk, "u")
    for number in range(9):
        put(disk, f"v{number}")
    disk.forget(T, UserId("u"))
    assert disk.needed()
    put(disk, "w")
    disk.remove(1)
    assert disk.needed() == {}


def test_the_index_is_bounded() -> None:
    entry = put(books(), "u", tokens=50)
    assert entry is not None
    disk = books(index_bytes=5 * entry.index_bytes)
    for number in range(100):
        put(disk, f"u{number}", tokens=50)
        assert disk.index_bytes <= disk.index_limit
    assert len(disk) >= 1
    assert disk.evictions + len(disk) == 100


def test_a_disk_with_less_room_than_promised() -> None:
    disk = books(segments=8)
    for number in range(40):
        put(disk, f"u{number}")
    disk.seal()
    disk.shrink()
    for number in range(40):
        put(disk, f"v{number}")
        assert disk.used_bytes <= 4000
    assert disk.evictions == 40


def test_recovery_takes_the_last_of_each_and_none_of_the_buried() -> None:
    def entry(user: str, number: int, segment: int, tokens: int = 5) -> DiskEntry:
        return DiskEntry(content(user, tokens), Place(segment, number * UNIT, UNIT), number, LAYOUT, ())

    disk = books()
    found = [
        FoundSegment(3, 700, (entry("a", 1, 3), entry("b", 2, 3), entry("gone", 3, 3), entry("back", 4, 3))),
        FoundSegment(7, 1200, (entry("a", 9, 7, 8), entry("back", 11, 7))),
        FoundSegment(9, 64, ()),
    ]
    gone, back = (T, UserId("gone")), (T, UserId("back"))
    disk.recover(found, Told({gone: 20, back: 10, (T, UserId("else")): 30}))
    disk.audit()
    assert there(disk, ["a", "b", "gone", "back"]) == ["a", "b", "back"]
    newest = disk.get(identity(content("a")))
    assert newest is not None
    assert newest.tokens == 8
    assert disk.removed == [9], "nothing is left in it"
    assert disk.needed() == {gone: 20, back: 10}
    new = put(disk, "new")
    assert new is not None
    assert (new.number, new.place.segment) == (30, 10)
    assert disk.used_bytes == 700 + 1200 + UNIT


def test_recovery_keeps_to_smaller_limits() -> None:
    def entry(segment: int, at: int) -> DiskEntry:
        ref = content(f"u{segment}-{at}")
        return DiskEntry(ref, Place(segment, at * UNIT, UNIT), segment * 10 + at, LAYOUT, ())

    numbers = range(1, 6)
    found = [FoundSegment(number, 1000, tuple(entry(number, at) for at in range(10))) for number in numbers]
    disk = books(segments=2)
    disk.recover(found, Told())
    disk.audit()
    assert disk.used_bytes == 2000
    assert len(disk.removed) == 3


def test_other_models_are_found_by_their_key() -> None:
    disk = books()
    put(disk, "u")
    assert disk.keys_of_other_models(content("u").model_fp) == []
    assert disk.keys_of_other_models(Fingerprint(bytes(16))) == [identity(content("u"))]


def test_m12_random_operations_against_a_plain_model() -> None:
    rng, users = random.Random(5), [f"u{number}" for number in range(12)]
    disk = books(segments=4)
    held: dict[str, int] = {}  # user -> tokens, as far as they are known to be there
    reserved: list[tuple[str, int, Place]] = []
    lost: list[str] = []
    disk.on_left = lambda entry: lost.append(entry.ref.user)
    for step in range(20_000):
        kind, user = rng.random(), rng.choice(users)
        if kind < 0.5:
            found = disk.reserve((T, UserId(user)), rng.choice([UNIT, 3 * UNIT, 12 * UNIT]))
            if found is not None:
                reserved.append((user, *found))
        elif kind < 0.8 and reserved:
            user, number, place = reserved.pop(rng.randrange(len(reserved)))
            if rng.random() < 0.2:
                disk.give_back(place)
            else:
                tokens = rng.randint(1, 9)
                before = len(lost)
                disk.put(DiskEntry(content(user, tokens), place, number, LAYOUT, ()))
                if user in lost[before:]:
                    held.pop(user, None)
                held[user] = tokens
                lost[before:] = [name for name in lost[before:] if name != user]
        elif kind < 0.9:
            disk.touch(identity(content(user)))
        elif kind < 0.95:
            disk.forget(T, UserId(user))
            held.pop(user, None)
            lost = [name for name in lost if name != user]
        for name in lost:
            held.pop(name, None)
        lost.clear()
        disk.removed.clear()
        disk.burials.clear()
        if step % 10 == 0:
            disk.audit()
            assert {
                name: disk.match(content(name, 9)) for name in users if disk.match(content(name, 9))
            } == held


def test_a_file_that_is_gone_is_not_claimed_and_what_was_being_written_there_neither() -> None:
    disk = books()
    for name in "abc":
        put(disk, name)
    found = disk.reserve((T, UserId("d")), UNIT)
    assert found is not None
    disk.lose(found[1].segment)
    disk.audit()
    assert (there(disk, list("abc")), disk.live_bytes) == ([], 0)
    assert disk.put(DiskEntry(content("d"), found[1], found[0], LAYOUT, ())) is False
    disk.audit()
    assert (disk.match(content("d")), disk.used_bytes, disk.segments) == (0, 0, 0)
    assert put(disk, "e") is not None
    assert there(disk, ["e"]) == ["e"]
