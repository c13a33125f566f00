"""Read a git repository's history: who touched which path when, under pseudonyms."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar

from relaygr.core.errors import ConfigError, DataError
from relaygr.data.dataset import TIME_LIMIT_S
from relaygr.data.readers.fields import BadField, Reason, hash_item, time_reader
from relaygr.data.readers.gitpipe import Repository
from relaygr.data.readers.interface import OnError, Progress, Read, Reader, ignore
from relaygr.data.readers.rows import Intake, Layout

BOT_WORDS = ("bot", "dependabot", "renovate", "github-actions")
MAX_SALT_BYTES = 256
MAX_PATHS = 1_000_000
_DAY_S = 86_400
_PROGRESS_COMMITS = 1 << 10
# Commit, author time, author name after the commit's own mailmap.
_FORM = "%x00%H%x00%at%x00%aN%x00"


@dataclass(frozen=True, slots=True)
class _Commit:
    name: str
    author: bytes
    author_time: bytes
    paths: int
    items: list[int]  # one a path, but no more than are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class GitReader(Reader):
    """An event is one path added, changed or deleted by one commit that is no merge, at the author's time.

    A rename is a deletion and an addition. A user is an author name, without regard to case; commits of bots
    (`BOT_WORDS` anywhere in the name) and of many paths are left out and counted. Names and paths become
    keyed hashes: pseudonyms, since times stay what they are in a history that may be public.

    Attributes:
        salt: the key. None draws one that is stored nowhere, so nobody can look a name up; the same salt and
            commit give the same events.
        max_paths: a commit of more paths is left out.
        rev: the commit, whose ancestors are read too.
        latest_s: commits with a later author time are bad; None takes a day from now.
    """

    record: ClassVar[str] = "commit"

    on_error: OnError = "skip"
    salt: str | None = None
    max_paths: int = 200
    rev: str = "HEAD"
    latest_s: int | None = None

    def __post_init__(self) -> None:
        if self.salt is not None:
            size = len(self.salt.encode("utf-8", errors="surrogateescape"))
            if not 1 <= size <= MAX_SALT_BYTES:
                raise ConfigError("salt", f"{size} bytes, limit 1 to {MAX_SALT_BYTES}")
        if not 1 <= self.max_paths <= MAX_PATHS:
            raise ConfigError("max_paths", f"{self.max_paths} must be in [1, {MAX_PATHS}]")

    def read(self, *paths: Path | str, progress: Progress = ignore) -> Read:
        if len(paths) != 1:
            raise ConfigError("repository", f"{len(paths)} are given, expected one")
        repository = Repository(Path(paths[0]), self.rev)
        layout = Layout("author", "path", "author time", hash_item, time_reader("s"))
        intake = Intake(layout, self.on_error, progress, _PROGRESS_COMMITS)
        names = Pseudonyms(self.salt)
        edge = repository.shallow_edge()
        latest_s = int(time.time()) + _DAY_S if self.latest_s is None else self.latest_s
        with repository.changes(_FORM) as tokens:
            number = 0
            for number, commit in enumerate(_commits(tokens, names, self.max_paths), 1):
                self._take(commit, number, str(paths[0]), edge, latest_s, names, intake)
                intake.count()
        read = intake.done(f"git history, commit {repository.commit}, up to {self.max_paths} paths a commit")
        if not len(read.table.item_ids):
            left_out = ", ".join(f"{each.count} {each.reason.value}" for each in read.skipped)
            reason = (
                f"no events in {repository.commit[:12]} and its ancestors; left out: {left_out or 'none'}"
            )
            raise DataError(str(paths[0]), number, "", reason)
        return read

    def _take(
        self,
        commit: _Commit,
        number: int,
        path: str,
        edge: frozenset[bytes],
        latest_s: int,
        names: Pseudonyms,
        intake: Intake,
    ) -> None:
        author = commit.author.decode("utf-8", errors="surrogateescape").casefold()
        if commit.name.encode() in edge:
            # Its parents are missing, so it seems to add the whole tree.
            intake.leave_out(Reason.SHALLOW)
        elif any(word in author for word in BOT_WORDS):
            intake.leave_out(Reason.BOT)
        elif commit.paths > self.max_paths:
            intake.leave_out(Reason.SWEEP)
        else:
            try:
                time_s = _author_time(commit, latest_s)
            except BadField as error:
                intake.refuse(path, number, "author time", error)
            else:
                intake.columns.extend(names.user(author), commit.items, time_s)


class Pseudonyms:
    """Keyed BLAKE2b of authors and paths; None draws a key that nobody ever sees."""

    def __init__(self, salt: str | None) -> None:
        given = secrets.token_bytes(32) if salt is None else salt.encode("utf-8", errors="surrogateescape")
        key = blake2b(given, digest_size=32).digest()
        self._author, self._path = (
            blake2b(digest_size=8, key=key, person=person) for person in (b"author", b"path")
        )

    def user(self, author: str) -> str:
        digest = self._author.copy()
        digest.update(author.encode("utf-8", errors="surrogateescape"))
        return digest.hexdigest()

    def item(self, path: bytes) -> int:
        digest = self._path.copy()
        digest.update(path)
        return int.from_bytes(digest.digest(), "little", signed=True)


def _commits(tokens: Iterator[bytes], names: Pseudonyms, most: int) -> Iterator[_Commit]:
    """Group what `Repository.changes` yields; of a commit's paths at most `most` are hashed and kept."""
    token = next(tokens, None)
    while token is not None:
        if not token:
            token = next(tokens, None)
            continue
        author_time, author = next(tokens, b""), next(tokens, b"")
        path, paths, items = next(tokens, b"").removeprefix(b"\n"), 0, []
        while path:
            paths += 1
            if paths <= most:
                items.append(names.item(path))
            path = next(tokens, b"")
        yield _Commit(token.decode("ascii", errors="replace"), author, author_time, paths, items)
        token = next(tokens, None)


def _author_time(commit: _Commit, latest_s: int) -> int:
    """Unix seconds; git gives no digits for a time that is malformed or before 1970."""
    text = commit.author_time.decode("ascii", errors="replace")
    if not (text.isdigit() and text.isascii()):
        raise BadField(Reason.NO_TIME, f"{text[:64]!r} in commit {commit.name[:12]}")
    digits = text.lstrip("0") or "0"
    limit = min(latest_s, TIME_LIMIT_S - 1)
    if len(digits) > len(str(limit)) or int(digits) > limit:
        raise BadField(Reason.FUTURE, f"{text[:64]!r} in commit {commit.name[:12]}, limit {limit}")
    return int(digits)
