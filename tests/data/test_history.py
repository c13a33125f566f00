"""A git history: what becomes an event, what is left out, and repositories that are broken or hostile."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from reader_cases import commit_all, git

from relaygr.core.errors import ConfigError, DataError
from relaygr.data.readers.history import GitReader, Pseudonyms
from relaygr.data.readers.interface import Read
from relaygr.data.write import write_events

Commit = tuple[bytes, bytes, Sequence[bytes]]


def read(path: Path, **options: object) -> Read:
    return GitReader(**({"salt": "s"} | options)).read(path)  # type: ignore[arg-type]


def named(read: Read, authors: Sequence[str], paths: Sequence[bytes]) -> list[tuple[str, bytes, int]]:
    """Events with the names that are behind the pseudonyms of the salt "s"."""
    names = Pseudonyms("s")
    users = {names.user(author.casefold()): author for author in authors}
    items = {names.item(path): path for path in paths}
    table = read.table
    columns = (table.user_index.tolist(), table.item_ids.tolist(), table.timestamps.tolist())
    return [(users[table.users[user]], items[item], time) for user, item, time in zip(*columns, strict=True)]


def skipped(read: Read) -> dict[str, int]:
    return {each.reason.value: each.count for each in read.skipped}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty repository with a working tree, and an identity to commit with."""
    git("init", "-q", "-b", "main", tmp_path / "tree")
    for key, value in (("user.name", "Ann"), ("user.email", "ann@x"), ("commit.gpgsign", "false")):
        git("-C", tmp_path / "tree", "config", key, value)
    return tmp_path / "tree"


def test_one_event_a_path_added_changed_or_deleted_and_none_for_merges(tree: Path) -> None:
    def commit(time_s: int, *arguments: str) -> None:
        git("-C", tree, "add", "-A")
        git("-C", tree, "commit", "-q", "-m", "m", "--date", f"{time_s} +0200", *arguments)

    (tree / "a").write_text("same words\n" * 9)
    (tree / "b").write_text("b")
    commit(1_000_000_000)
    git("-C", tree, "mv", "a", "moved")
    commit(1_000_000_100)
    git("-C", tree, "checkout", "-q", "-b", "side")
    (tree / "b").unlink()
    commit(1_000_000_050, "--author", "Bob <b@x>")
    git("-C", tree, "checkout", "-q", "main")
    (tree / "moved").chmod(0o755)
    commit(1_000_000_200)
    git("-C", tree, "merge", "-q", "side", "-m", "merge")
    git("-C", tree, "commit", "-q", "--allow-empty", "-m", "nothing")
    found = named(read(tree), ["Ann", "Bob"], [b"a", b"b", b"moved"])
    assert sorted(found, key=lambda event: event[2]) == [
        ("Ann", b"a", 1_000_000_000),
        ("Ann", b"b", 1_000_000_000),
        ("Bob", b"b", 1_000_000_050),
        ("Ann", b"a", 1_000_000_100),
        ("Ann", b"moved", 1_000_000_100),
        ("Ann", b"moved", 1_000_000_200),
    ]
    assert named(read(tree, rev="main~2"), ["Ann"], [b"a", b"b", b"moved"])[0] == ("Ann", b"a", 1_000_000_000)


def test_authors_are_those_of_the_commits_own_mailmap_without_regard_to_case(tree: Path) -> None:
    (tree / ".mailmap").write_text("Real Name <old@x>\n")
    for number, author in enumerate(("Old Nick <old@x>", "real name <r@x>", "REAL NAME <q@x>")):
        (tree / "f").write_text(str(number))
        git("-C", tree, "add", "-A")
        git("-C", tree, "commit", "-q", "-m", "m", "--author", author)
    # Of the working tree, which is not what was committed.
    (tree / ".mailmap").write_text("Somebody Else <old@x>\n")
    assert list(read(tree).table.users) == [Pseudonyms("s").user("real name")]
    git("clone", "-q", "--bare", tree, tree.parent / "bare")
    assert list(read(tree.parent / "bare").table.users) == [Pseudonyms("s").user("real name")]


def test_paths_and_names_are_bytes(tmp_path: Path) -> None:
    paths = [
        b"we\nird",
        b"\nfirst",
        b'"q"',
        b"caf\xe9",
        "é".encode(),
        b" ",
        b"$(x)",
        b"-x",
        b"\xff\xfe",
        b"a\\b",
    ]
    authors = [b"Caf\xe9", "Zoë".encode(), b"   spaced  ", b'"q" \\n', b"-c x"]
    commits = [(author, b"100", sorted(paths)) for author in authors]
    found = read(commit_all(tmp_path / "r", commits))
    assert Counter(found.table.item_ids.tolist()) == {Pseudonyms("s").item(path): 5 for path in paths}
    assert len(found.table.users) == 5
    assert Pseudonyms("s").user("zoë") in found.table.users
    assert Pseudonyms("s").user("caf\udce9") in found.table.users


def test_names_in_an_old_encoding_are_the_same_user(tree: Path) -> None:
    for number, (encoding, name) in enumerate((("UTF-8", "Zoë"), ("ISO-8859-1", "Zoë"))):
        (tree / "f").write_text(str(number))
        git("-C", tree, "add", "-A")
        tree_name = git("-C", tree, "write-tree")
        head = b"tree %s\nauthor %s <z@x> 5 +0000\ncommitter C <c@x> 5 +0000\nencoding %s\n\nm\n"
        text = head % (tree_name, name.encode(encoding), encoding.encode())
        commit = git("-C", tree, "hash-object", "-t", "commit", "-w", "--stdin", stdin=text)
        git("-C", tree, "tag", f"t{number}", commit.decode())
    assert list(read(tree, rev="t0").table.users) == list(read(tree, rev="t1").table.users)


def test_bots_and_sweeps_are_left_out_whatever_is_done_with_errors(tmp_path: Path) -> None:
    commits: list[Commit] = [
        (b"Ann", b"100", [b"a", b"b", b"c"]),
        (b"Dependabot[bot]", b"101", [b"a"]),
        (b"RENOVATE", b"102", [b"a"]),
        (b"GitHub-Actions", b"103", [b"a"]),
        (b"Ann", b"104", [b"a", b"b", b"c", b"d"]),
    ]
    path = commit_all(tmp_path / "r", commits)
    for on_error in ("fail", "skip"):
        found = read(path, max_paths=3, on_error=on_error)
        assert found.table.timestamps.tolist() == [100] * 3
        assert skipped(found) == {"author is a bot": 3, "commit of too many paths": 1}
    assert len(read(path, max_paths=4).table.item_ids) == 7


@pytest.mark.parametrize(
    ("time", "reason"),
    [
        (b"-5", "author time missing or negative"),
        (b"", "author time missing or negative"),
        (b"soon", "author time missing or negative"),
        (b"9999999999", "author time in the future"),
        (b"9" * 60, "author time in the future"),
        (b"9223372036854775808", "author time in the future"),
    ],
)
def test_absurd_times_are_skipped_and_counted(tmp_path: Path, time: bytes, reason: str) -> None:
    path = commit_all(
        tmp_path / "r", [(b"Ann", b"0", [b"a"]), (b"Ann", time, [b"a"]), (b"Ann", b"7", [b"a"])]
    )
    found = read(path)
    assert found.table.timestamps.tolist() == [0, 7]
    assert skipped(found) == {reason: 1}
    with pytest.raises(DataError, match=reason) as caught:
        read(path, on_error="fail")
    assert (caught.value.line, caught.value.column) == (2, "author time")


def test_the_future_begins_a_day_from_now_or_as_told(tmp_path: Path) -> None:
    path = commit_all(tmp_path / "r", [(b"Ann", b"100", [b"a"]), (b"Ann", b"101", [b"a"])])
    assert skipped(read(path, latest_s=100)) == {"author time in the future": 1}
    assert skipped(read(path, latest_s=101)) == {}


def test_the_same_salt_and_commit_give_the_same_bytes(tmp_path: Path) -> None:
    commits = [(b"Ann%d" % (number % 3), b"%d" % number, [b"f%d" % (number % 5)]) for number in range(20)]
    path = commit_all(tmp_path / "r", commits)
    folders = []
    for number, salt in enumerate(("one", "one", "two", None, None)):
        found = GitReader(salt=salt).read(path)
        folder = tmp_path / f"d{number}"
        write_events(folder, found.table, name="", source=found.source, licence="")
        folders.append(b"".join(file.read_bytes() for file in sorted(folder.iterdir())))
    assert folders[0] == folders[1]
    assert len(set(folders)) == 4
    for held in folders:
        assert b"Ann" not in held
        assert b"ann1" not in held
        assert b"one" not in held
        assert git("-C", path, "rev-parse", "HEAD") in held


def test_a_shallow_clone_leaves_its_edge_out(tmp_path: Path) -> None:
    commits = [(b"Ann", b"%d" % number, [b"f%d" % number]) for number in range(5)]
    path = commit_all(tmp_path / "r", commits)
    git("clone", "-q", "--depth", 3, path.as_uri(), tmp_path / "shallow")
    found = read(tmp_path / "shallow")
    assert found.table.timestamps.tolist() == [3, 4]
    assert skipped(found) == {"edge of a shallow clone": 1}
    git("clone", "-q", "--depth", 1, path.as_uri(), tmp_path / "shallowest")
    with pytest.raises(DataError, match=r"no events in .*; left out: 1 edge of a shallow clone"):
        read(tmp_path / "shallowest")


def test_a_partial_clone_without_its_trees_is_named(tmp_path: Path) -> None:
    path = commit_all(tmp_path / "r", [(b"Ann", b"%d" % number, [b"f"]) for number in range(3)])
    git("-C", path, "config", "uploadpack.allowFilter", "true")
    git("clone", "-q", "--bare", "--filter=tree:0", path.as_uri(), tmp_path / "partial")
    with pytest.raises(DataError, match="a partial clone lacks what is to be read, and nothing is fetched"):
        read(tmp_path / "partial")


def test_a_linked_working_tree_is_read_like_its_repository(tree: Path) -> None:
    (tree / "f").write_text("f")
    git("-C", tree, "add", "-A")
    git("-C", tree, "commit", "-q", "-m", "m")
    git("-C", tree, "worktree", "add", "-q", tree.parent / "linked")
    assert read(tree.parent / "linked").table.item_ids.tolist() == read(tree).table.item_ids.tolist()


def test_what_is_no_repository(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'HEAD' names no commit; an empty repository has none"):
        read(tree)
    (tree / "below").mkdir()
    (tree / "file").write_text("x")
    (tmp_path / "plain").mkdir()
    for folder in (tree / "below", tmp_path / "plain"):
        with pytest.raises(DataError, match="is not the top of a git repository"):
            read(folder)
    with pytest.raises(DataError, match="is not a folder"):
        read(tree / "file")


@pytest.mark.parametrize("rev", ["none", "HEAD~9", "HEAD^{tree}", "0" * 40])
def test_a_revision_that_is_none(tmp_path: Path, rev: str) -> None:
    path = commit_all(tmp_path / "r", [(b"Ann", b"1", [b"a"])])
    with pytest.raises(DataError, match="names no commit"):
        read(path, rev=rev)


@pytest.mark.parametrize("rev", ["", "--all", "-h", "a\nb", "a\0b"])
def test_a_revision_that_cannot_be_one(tmp_path: Path, rev: str) -> None:
    path = commit_all(tmp_path / "r", [(b"Ann", b"1", [b"a"])])
    with pytest.raises(ConfigError, match=r"rev: .* cannot name a commit"):
        read(path, rev=rev)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"salt": ""}, "salt: 0 bytes, limit 1 to 256"),
        ({"salt": "é" * 129}, "salt: 258 bytes"),
        ({"max_paths": 0}, r"max_paths: 0 must be in \[1, 1000000\]"),
        ({"max_paths": 10**9}, "max_paths"),
    ],
)
def test_bad_options(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GitReader(**options)  # type: ignore[arg-type]


def test_two_repositories_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="repository: 2 are given, expected one"):
        GitReader().read(tmp_path, tmp_path)


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="git: the git command is not on the PATH"):
        read(tmp_path)


def fake_git(folder: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Puts a `git` on the PATH that acts like git except where a shell pattern of `case` fits."""
    real = shutil.which("git")
    (folder / "bin").mkdir()
    script = folder / "bin" / "git"
    script.write_text(f'#!/bin/sh\ncase "$*" in\n{case}\nesac\nexec {real} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            r"*diff-tree*) printf '\0abc\0001\000A\0\nf\0'; kill -9 $$;;",
            "git diff-tree was killed by signal 9",
        ),
        ("*rev-list*) kill -15 $$;;", "git rev-list was killed by signal 15"),
        ("*rev-list*) exit 3;;", "git rev-list failed with status 3"),
        ("*absolute-git-dir*) kill -9 $$;;", "git rev-parse was killed by signal 9"),
        ("*rev-parse*) echo fatal: boom >&2; exit 128;;", "fatal: boom"),
        (
            "*rev-parse*) echo 'fatal: detected dubious ownership in repository' >&2; exit 128;;",
            "belongs to another user.*git config --global --add safe.directory",
        ),
    ],
)
def test_git_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, words: str) -> None:
    path = commit_all(tmp_path / "r", [(b"Ann", b"1", [b"a"]), (b"Ann", b"2", [b"a"])])
    fake_git(tmp_path, monkeypatch, case)
    with pytest.raises(DataError, match=words) as caught:
        read(path)
    assert caught.value.file == str(path)


def test_a_damaged_repository(tmp_path: Path) -> None:
    path = commit_all(tmp_path / "r", [(b"Ann", b"%d" % number, [b"a"]) for number in range(4)])
    lost = git("-C", path, "rev-parse", "HEAD~1^{tree}").decode()
    (path / "objects" / lost[:2] / lost[2:]).unlink()
    with pytest.raises(DataError, match=lost):
        read(path)


def test_a_path_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = commit_all(tmp_path / "r", [(b"Ann", b"1", [b"a"])])
    fake_git(tmp_path, monkeypatch, "*diff-tree*) exec cat /dev/zero | tr '\\0' x;;")
    with pytest.raises(DataError, match="a path has more than 1048576 bytes"):
        read(path)


def test_nothing_that_the_repository_names_is_run(tmp_path: Path) -> None:
    path = commit_all(tmp_path / "r", [(b"Ann", b"%d" % number, [b"a"]) for number in range(4)])
    trap, marker = tmp_path / "trap", tmp_path / "sprung"
    trap.write_text(f'#!/bin/sh\ntouch "{marker}"\n')
    trap.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.pager",
        "diff.external",
        "core.sshCommand",
        "core.editor",
        "gpg.program",
    ):
        git("-C", path, "config", key, trap)
    for key, value in (
        ("alias.rev-list", f"!{trap}"),
        ("diff.x.textconv", trap),
        ("remote.o.url", f"ext::{trap}"),
        ("remote.o.uploadpack", trap),
        ("remote.o.promisor", "true"),
        ("protocol.ext.allow", "always"),
        ("protocol.allow", "always"),
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "o"),
        ("log.showSignature", "true"),
    ):
        git("-C", path, "config", key, value)
    (path / "info").mkdir(exist_ok=True)
    (path / "info" / "attributes").write_text("* diff=x\n")
    hook = path / "hooks" / "reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    shutil.copy(trap, hook)
    assert len(read(path).table.item_ids) == 4
    # What a partial clone lacks it would fetch with a program of its own choice.
    lost = git("-C", path, "rev-parse", "HEAD~1^{tree}").decode()
    (path / "objects" / lost[:2] / lost[2:]).unlink()
    with pytest.raises(DataError):
        read(path)
    assert not marker.exists()


def test_nothing_around_the_repository_changes_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = commit_all(tmp_path / "r", [(b"Ann", b"%d" % number, [b"a"]) for number in range(4)])
    other = commit_all(tmp_path / "other", [(b"Bob", b"9", [b"z"])])
    monkeypatch.setenv("GIT_DIR", str(other))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(other / "objects"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.bare=maybe'")
    assert read(path).table.timestamps.tolist() == [0, 1, 2, 3]
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_OBJECT_DIRECTORY")
    monkeypatch.delenv("GIT_CONFIG_PARAMETERS")
    before = read(path).table.item_ids.tolist()
    git("-C", path, "replace", "HEAD", "HEAD~2")
    (path / "info" / "grafts").parent.mkdir(exist_ok=True)
    (path / "info" / "grafts").write_bytes(git("-C", path, "rev-parse", "HEAD~1") + b"\n")
    assert read(path).table.item_ids.tolist() == before
