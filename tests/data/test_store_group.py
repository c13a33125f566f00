"""Group commit: one transaction for those who wait together, and each one's faults are its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from relaygr.core.errors import BackendError, NotReadyError, OverloadError, RequestError
from relaygr.data.stores.gate import Gate
from relaygr.data.stores.group import MAX_GROUP, GroupCommit

WAIT_S = 20


class Transactions:
    """Counts them; the first waits until it is let go, `failing` says what the others end with."""

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        self.committed: list[int] = []
        self.first_in, self.go = threading.Event(), threading.Event()
        self.failing: Exception | None = None

    @contextmanager
    def begin(self) -> Iterator[list[int]]:
        written: list[int] = []
        self.begun.append(written)
        if len(self.begun) == 1:
            self.first_in.set()
            assert self.go.wait(WAIT_S)
        elif self.failing is not None:
            yield written
            raise self.failing
        yield written
        self.committed += written


def put(value: int, error: Exception | None = None, broken: Exception | None = None):
    """A work that writes `value`, or raises `error` before, or `broken` while it writes."""

    def work(written: list[int]):
        if error is not None:
            raise error

        def write() -> None:
            if broken is not None:
                raise broken
            written.append(value)

        return value * 10, write

    return work


def behind_the_first(works: list, transactions: Transactions) -> list[Future[int]]:
    """Run `works` in threads that all wait behind a first transaction; their futures, finished."""
    group = GroupCommit(transactions.begin)
    with ThreadPoolExecutor(len(works) + 1) as pool:
        first = pool.submit(group.run, put(0))
        assert transactions.first_in.wait(WAIT_S)
        futures = [pool.submit(group.run, work) for work in works]
        while len(group._waiting) < len(works):
            time.sleep(0.001)
        transactions.go.set()
        assert first.result(WAIT_S) == 0
    return futures


def test_those_who_wait_share_a_transaction() -> None:
    transactions = Transactions()
    futures = behind_the_first([put(at) for at in range(1, 9)], transactions)
    assert [future.result() for future in futures] == [at * 10 for at in range(1, 9)]
    assert [len(written) for written in transactions.begun] == [1, 8]


def test_a_transaction_takes_so_many_at_most() -> None:
    transactions = Transactions()
    futures = behind_the_first([put(at) for at in range(MAX_GROUP + 5)], transactions)
    assert [future.result() for future in futures] == [at * 10 for at in range(MAX_GROUP + 5)]
    assert [len(written) for written in transactions.begun] == [1, MAX_GROUP, 5]


def test_a_bad_request_fails_alone() -> None:
    transactions = Transactions()
    bad = RequestError("key", "bad")
    futures = behind_the_first([put(1), put(2, error=bad), put(3)], transactions)
    assert [futures[0].result(), futures[2].result()] == [10, 30]
    with pytest.raises(RequestError, match="key: bad"):
        futures[1].result()
    assert sorted(transactions.committed) == [0, 1, 3]


@pytest.mark.parametrize("failing", [BackendError("full"), OverloadError("locked", 7)])
def test_a_failed_commit_fails_all_of_the_group(failing: BackendError | OverloadError) -> None:
    transactions = Transactions()
    transactions.failing = failing
    bad = RequestError("key", "bad")
    futures = behind_the_first([put(1), put(2), put(3, error=bad)], transactions)
    for future in futures[:2]:
        with pytest.raises(type(failing), match=str(failing)):
            future.result()
    assert futures[0].exception() is not futures[1].exception()
    assert isinstance(futures[2].exception(), RequestError)
    assert transactions.committed == [0]


def test_a_programming_error_reaches_its_thread_and_leaves_nobody_waiting() -> None:
    transactions = Transactions()
    futures = behind_the_first([put(1), put(2, broken=ZeroDivisionError("x")), put(3)], transactions)
    kinds = {type(future.exception()) for future in futures}
    assert ZeroDivisionError in kinds
    assert kinds <= {ZeroDivisionError, BackendError}
    assert transactions.committed == [0]


def test_a_gate_closes_behind_the_last_call() -> None:
    gate = Gate("the store")
    inside, leave = threading.Event(), threading.Event()

    def call() -> None:
        with gate:
            inside.set()
            assert leave.wait(WAIT_S)

    with ThreadPoolExecutor(2) as pool:
        calling = pool.submit(call)
        assert inside.wait(WAIT_S)
        closing = pool.submit(gate.close)
        while not gate._closed:
            time.sleep(0.001)
        assert not closing.done()
        with pytest.raises(NotReadyError, match="the store is closed"), gate:
            pass
        leave.set()
        assert closing.result(WAIT_S)
        calling.result(WAIT_S)
    assert not gate.close()
