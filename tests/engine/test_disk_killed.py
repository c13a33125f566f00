"""A real process, killed in the middle of its writes, and the next one over the same files."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

from disk_state import USERS, DiskState

CHILD = Path(__file__).with_name("disk_child.py")


def test_a_killed_process_leaves_nothing_wrong_and_nobody_who_was_forgotten(tmp_path: Path) -> None:
    lives, rng = dict.fromkeys(USERS, 0), random.Random(3)
    found = kills = 0
    # How much is on the disk by the time of a kill is the machine's choice.
    while kills < 3 or (found < 3 and kills < 12):
        seed, kills = kills, kills + 1
        told = ",".join(str(lives[user]) for user in USERS)
        command = [sys.executable, str(CHILD), str(tmp_path), str(seed), told]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            said: list[str] = []
            wanted = rng.randint(8, 40)
            while len(said) < wanted:
                line = child.stdout.readline()
                assert line, "it ended by itself"
                said.append(line)
            child.kill()
            # A line that the kill cut off says nothing.
            said += [line for line in child.stdout.readlines() if line.endswith("\n")]
        last = said[-1].split()
        for line in said:
            what, user = line.split()
            lives[user] += what == "forgotten"
        state = DiskState(tmp_path, disk_bytes=2_000_000)
        contents = state.contents()
        if last[0] == "forgetting" and last[1] in contents:  # nobody was told yet: either will do
            (lives[last[1]],) = struct.unpack_from("<q", contents[last[1]].records)
        state.lives = dict(lives)
        state.check()
        for user in contents:
            while state.disk.keys_of("t", user) and not state.books.host.keys_of("t", user):  # type: ignore
                state.fetch(user, 1 << 20, 1)
        state.check()  # the bytes are those that were written
        found += state.fetched
        assert state.moves.damaged == 0, "what was finished is whole"
        state.kill()
    assert found >= 3
