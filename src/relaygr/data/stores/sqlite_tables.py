"""The tables of a SQLite store, and the statements on them; transactions and errors are the caller's."""

from __future__ import annotations

import sqlite3

from relaygr.data.stores.layout import CHUNK_EVENTS, Head, Owner
from relaygr.data.stores.plan import AppendCall, Plan, Stored

# "RGhs", so that no other application's file is taken for ours.
APPLICATION_ID = 0x52476873

TABLES = """
CREATE TABLE user (id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, first INTEGER NOT NULL,
    total INTEGER NOT NULL, newest_s INTEGER NOT NULL, UNIQUE (tenant, name));
CREATE TABLE chunk (user INTEGER NOT NULL, number INTEGER NOT NULL, events BLOB NOT NULL,
    PRIMARY KEY (user, number)) WITHOUT ROWID;
CREATE TABLE keys (user INTEGER PRIMARY KEY, ring BLOB NOT NULL);
CREATE TABLE profile (user INTEGER PRIMARY KEY, slots BLOB NOT NULL);
"""
_LOAD = f"""
SELECT user.first, user.total, user.newest_s, chunk.events FROM user LEFT JOIN chunk
ON chunk.user = user.id AND chunk.number >= MAX(user.first, user.total - ?) / {CHUNK_EVENTS}
AND chunk.number <= (user.total - 1) / {CHUNK_EVENTS}
WHERE user.tenant = ? AND user.name = ? ORDER BY chunk.number
"""


def read_history(reader: sqlite3.Connection, owner: Owner, newest: int) -> tuple[Head, list[bytes]]:
    """The head and the chunks of its newest events, in one statement: from one moment."""
    rows = reader.execute(_LOAD, (newest, owner.tenant, owner.user)).fetchall()
    head = Head(*rows[0][:3]) if rows else Head()
    return head, [row[3] for row in rows if head.span(newest)]


def read_for_append(writer: sqlite3.Connection, owner: Owner, call: AppendCall) -> Stored:
    head, blobs = read_history(writer, owner, call.looks_back)
    ring = None
    if call.reads_ring:
        query = "SELECT ring FROM keys JOIN user ON user = id WHERE tenant = ? AND name = ?"
        ring = writer.execute(query, (owner.tenant, owner.user)).fetchone()
    return Stored(head, None if ring is None else ring[0], blobs)


def _user(writer: sqlite3.Connection, owner: Owner) -> int:
    """The id of the user, who is made if need be."""
    names = (owner.tenant, owner.user)
    row = writer.execute("SELECT id FROM user WHERE tenant = ? AND name = ?", names).fetchone()
    if row is not None:
        return int(row[0])
    made = writer.execute(
        "INSERT INTO user (tenant, name, first, total, newest_s) VALUES (?, ?, 0, 0, 0)", names
    )
    assert made.lastrowid is not None
    return made.lastrowid


def write_plan(writer: sqlite3.Connection, owner: Owner, plan: Plan) -> None:
    user, head = _user(writer, owner), plan.head
    assert head is not None
    writer.execute(
        "UPDATE user SET first = ?, total = ?, newest_s = ? WHERE id = ?",
        (head.first, head.total, head.newest_s, user),
    )
    writer.executemany(
        "INSERT INTO chunk (user, number, events) VALUES (?, ?, ?) "
        "ON CONFLICT (user, number) DO UPDATE SET events = excluded.events",
        [(user, number, blob) for number, blob in plan.chunks],
    )
    if plan.dropped:
        writer.execute(
            "DELETE FROM chunk WHERE user = ? AND number >= ? AND number < ?",
            (user, plan.dropped.start, plan.dropped.stop),
        )
    if plan.ring is not None:
        writer.execute("INSERT OR REPLACE INTO keys (user, ring) VALUES (?, ?)", (user, plan.ring))


def read_profile(reader: sqlite3.Connection, owner: Owner) -> bytes | None:
    query = "SELECT slots FROM profile JOIN user ON user = id WHERE tenant = ? AND name = ?"
    row = reader.execute(query, (owner.tenant, owner.user)).fetchone()
    return None if row is None else row[0]


def write_profile(writer: sqlite3.Connection, owner: Owner, slots: bytes) -> None:
    user = _user(writer, owner)
    writer.execute("INSERT OR REPLACE INTO profile (user, slots) VALUES (?, ?)", (user, slots))


def delete_user(writer: sqlite3.Connection, user: int) -> None:
    for table, column in (("chunk", "user"), ("keys", "user"), ("profile", "user"), ("user", "id")):
        writer.execute(f"DELETE FROM {table} WHERE {column} = ?", (user,))
