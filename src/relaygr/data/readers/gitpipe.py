"""A pipe of git plumbing over one repository, that trusts nothing the repository says but its history."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from relaygr.core.errors import ConfigError, DataError

MAX_TOKEN_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
# A repository may be somebody else's, and its own configuration can name programs to run.
_SAFE = (
    "--no-pager",
    "--no-replace-objects",
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "protocol.allow=never"),
    *("-c", "advice.graftFileDeprecated=false"),
)
_KEPT_VARIABLES = {"GIT_CONFIG_GLOBAL"}  # where safe.directory may stand


class Repository:
    """One repository at one commit.

    Args:
        path: the top of a working tree, or a bare repository; a folder below the top is refused.
        rev: what names the commit.

    Raises:
        DataError: it is no repository, git refuses it, or `rev` names no commit.
        ConfigError: git is not installed, or `rev` cannot be a name.
    """

    def __init__(self, path: Path, rev: str) -> None:
        self.path = path
        if not rev or rev.startswith(("-", "^")) or not rev.isprintable():
            raise ConfigError("rev", f"{rev[:64]!r} cannot name a commit")
        if not path.is_dir():
            raise DataError(str(path), 0, "", "is not a folder" if path.exists() else "no such folder")
        self._folder = self._parse_rev(["-C", str(path)], "--absolute-git-dir")
        unknown = f"{rev[:64]!r} names no commit; an empty repository has none"
        wanted = ("--verify", "--quiet", f"{rev}^{{commit}}")
        self.commit = self._parse_rev(self._here(), *wanted, meaning=unknown)

    def shallow_edge(self) -> frozenset[bytes]:
        """The commits whose parents a shallow clone left out, in hexadecimal."""
        file = Path(self._parse_rev(self._here(), "--git-path", "shallow"))
        return frozenset(file.read_bytes().split()) if file.exists() else frozenset()

    @contextmanager
    def changes(self, form: str) -> Iterator[Iterator[bytes]]:
        """What git tells of every commit but merges, parents first: tokens, each of which ended with NUL.

        For a commit that changes paths: one or more empty tokens, the tokens of `form`, then the paths, the
        first after a line break. Author names are those of the commit's own `.mailmap`.

        Raises:
            DataError: git failed or was killed, now or when the block ends.
        """
        walk = ["rev-list", "--no-merges", "--reverse", "--topo-order", self.commit]
        mailmap = ["-c", f"mailmap.blob={self.commit}:.mailmap", "-c", "mailmap.file="]
        tell = ["diff-tree", "--stdin", "-r", "--root", "-z", "--no-renames", "--no-ext-diff", "--name-only"]
        tell += ["--no-textconv", "--encoding=UTF-8", f"--format=format:{form}"]
        with tempfile.TemporaryFile() as said:
            with (
                self._start([*self._here(), *walk], said) as first,
                self._start([*self._here(), *mailmap, *tell], said, first.stdout) as second,
            ):
                # The pipe is the second one's now; the first shall notice when that dies.
                _output(first).close()
                yield self._tokens(_output(second))
                # Read to its end, or cut short by git's: the exit statuses say which.
                _output(second).close()
                codes = (second.wait(), first.wait())
            for name, code in zip(("diff-tree", "rev-list"), codes, strict=True):
                if code:
                    raise self._failed(name, code, said)

    def _tokens(self, stream: IO[bytes]) -> Iterator[bytes]:
        rest = b""
        while chunk := stream.read(_CHUNK_BYTES):
            *tokens, rest = (rest + chunk).split(b"\0")
            yield from tokens
            if len(rest) > MAX_TOKEN_BYTES:
                raise DataError(str(self.path), 0, "", f"a path has more than {MAX_TOKEN_BYTES} bytes")
        if rest:
            yield rest

    def _here(self) -> list[str]:
        # As a bare repository, so that nothing of the working tree is read.
        return ["--git-dir", self._folder, "--bare"]

    def _parse_rev(self, place: list[str], *arguments: str, meaning: str = "") -> str:
        """What `git rev-parse` answers; `meaning` is what a failure means, whatever git says of it."""
        with (
            tempfile.TemporaryFile() as said,
            self._start([*place, "rev-parse", *arguments], said) as process,
        ):
            answer = _output(process).read(MAX_TOKEN_BYTES)
            code = process.wait()
            if code:
                raise self._failed("rev-parse", code, said, meaning)
        return os.fsdecode(answer).removesuffix("\n")

    @contextmanager
    def _start(
        self, arguments: list[str], said: IO[bytes], source: IO[bytes] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A git process that does not outlive the block; what it complains of goes to `said`."""
        try:
            process = subprocess.Popen(
                ["git", *_SAFE, *arguments],
                stdin=subprocess.DEVNULL if source is None else source,
                stdout=subprocess.PIPE,
                stderr=said,
                env=_environment(self.path),
            )
        except FileNotFoundError as error:
            raise ConfigError("git", "the git command is not on the PATH; install git") from error
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            _output(process).close()

    def _failed(self, name: str, code: int, said: IO[bytes], meaning: str = "") -> DataError:
        said.seek(0)
        words = said.read(4096).decode("utf-8", errors="replace").strip().replace("\n", "; ")
        if "dubious ownership" in words:
            words = (
                "the repository belongs to another user, so git does not read it; if you trust it: "
                f"git config --global --add safe.directory {self.path.resolve()}"
            )
        elif "promisor" in words:
            words = (
                f"a partial clone lacks what is to be read, and nothing is fetched; take a full one ({words})"
            )
        elif "not a git repository" in words:
            words = "is not the top of a git repository"
        elif code < 0:
            words = f"git {name} was killed by signal {-code}"
        if not words:
            words = "" if meaning else f"git {name} failed with status {code}"
        reason = ": ".join(part for part in (meaning, words) if part)
        return DataError(str(self.path), 0, "", reason[:1000])


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def _environment(path: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name in _KEPT_VARIABLES
    }
    return kept | {
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_GRAFT_FILE": os.devnull,
        # A partial clone must not fetch, because how it fetches is for its configuration to say.
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_CEILING_DIRECTORIES": str(path.resolve().parent),
    }
