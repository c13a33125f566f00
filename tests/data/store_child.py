"""A process of its own that appends and says what was acknowledged, until it is killed or no room is left."""

from __future__ import annotations

import resource
import signal
import sys
import threading

import msgspec
from store_backends import numbered

from relaygr.config.settings import StoreConfig
from relaygr.core.errors import BackendError
from relaygr.data.stores import HistoryStore, open_store

THREADS = 3


def append_for_ever(store: HistoryStore, user: str, first: int) -> None:
    """Batches of 1 to 7 events that go on from `first`; prints the user and the sequence of each answer."""
    done = first
    while True:
        size = 1 + done % 7
        answer = store.append("t", user, numbered(done, size), f"key {done}")
        done += size
        # One write a line: lines of different threads stay whole.
        sys.stdout.write(f"{user} {answer.sequence}\n")
        sys.stdout.flush()


def append_until_full(store: HistoryStore, room_bytes: int) -> None:
    """Files may grow to `room_bytes`; prints the last acknowledged sequence and the error, then goes on."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, hard))
    done = 0
    try:
        while True:
            done = store.append("t", "u", numbered(done, 500), dedupe=False).sequence
    except BackendError as error:
        print(done, error, flush=True)
    print(store.load("t", "u", 10**6).total, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    print(store.append("t", "u", numbered(done, 500), dedupe=False).sequence, flush=True)


def main() -> None:
    mode, synchronous, url, *numbers = sys.argv[1:]
    settings = msgspec.convert({"keep_events": 1 << 20, "synchronous": synchronous}, StoreConfig)
    store = open_store(url, settings)
    if mode == "full":
        append_until_full(store, int(numbers[0]))
        store.close()
        return
    threads = [
        threading.Thread(target=append_for_ever, args=(store, f"u{at}", int(first)))
        for at, first in enumerate(numbers)
    ]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main()
