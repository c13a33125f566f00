"""Group commit: threads that write at the same time share one transaction, and so one wait for the disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, TypeVar

from relaygr.core.errors import BackendError, OverloadError, RelayError

T = TypeVar("T")
Txn = TypeVar("Txn")
Write = Callable[[], None]
Work = Callable[[Txn], tuple[T, Write | None]]

MAX_GROUP = 64


class _Job(Generic[Txn, T]):
    """One caller's work and what became of it."""

    def __init__(self, work: Work[Txn, T]) -> None:
        self.work = work
        self.settled = False
        self.answers: list[T] = []
        self.error: RelayError | None = None

    def attempt(self, transaction: Txn) -> None:
        try:
            answer, write = self.work(transaction)
        except RelayError as error:
            self.error = error  # its own fault, found before it wrote: the others go on
            return
        if write is not None:
            write()
        self.answers.append(answer)

    def fail(self, error: RelayError) -> None:
        self.error = self.error or error
        self.settled = True


class GroupCommit(Generic[Txn]):
    """Runs the work of many threads, one at a time, several in one transaction.

    A work reads through the transaction, decides, and gives back its answer and a function that writes. What
    it raises of `core.errors` fails it alone. What its writing raises, or the end of the transaction, undoes
    and fails every work of the group.
    """

    def __init__(self, transaction: Callable[[], AbstractContextManager[Txn]]) -> None:
        """`transaction` begins one; it commits on a clean exit and undoes all on another.

        Its errors are BackendError and OverloadError.
        """
        self._transaction = transaction
        self._waiting: deque[_Job[Txn, object]] = deque()
        self._writing = threading.Lock()

    def run(self, work: Work[Txn, T]) -> T:
        """What `work` answers, once it is committed; by then this thread or another has run it."""
        job: _Job[Txn, T] = _Job(work)
        self._waiting.append(job)  # type: ignore[arg-type]  # its answer is only read here
        with self._writing:
            while not job.settled:
                self._commit([self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_GROUP))])
        if job.error is not None:
            raise job.error
        return job.answers[0]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No transaction is open and none begins inside."""
        with self._writing:
            yield

    def _commit(self, jobs: list[_Job[Txn, object]]) -> None:
        try:
            with self._transaction() as transaction:
                for job in jobs:
                    job.attempt(transaction)
        except OverloadError as error:
            for job in jobs:
                job.fail(_again(OverloadError(str(error), error.retry_after_ms), error))
        except BackendError as error:
            for job in jobs:
                job.fail(_again(BackendError(str(error)), error))
        else:
            for job in jobs:
                job.settled = True
        finally:
            for job in jobs:
                if not job.settled:
                    job.fail(BackendError("the write that this one shared a transaction with broke off"))


def _again(copy: RelayError, cause: RelayError) -> RelayError:
    # Each thread raises an error of its own: a traceback grows where it is raised.
    copy.__cause__ = cause
    return copy
