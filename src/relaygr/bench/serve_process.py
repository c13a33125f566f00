"""Processes of the benchmark's own that listen, and what they say when they fail."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from relaygr.core.errors import BackendError

_COMMAND = "import sys; from relaygr.cli.main import main; main(sys.argv[1:])"
READY_S = 90.0
_STOP_S = 30.0
_SHOWN_CHARACTERS = 2000
HOST = "127.0.0.1"


def resident_bytes(pid: int) -> int | None:
    """Memory of a process; None where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


class Listener(ABC):
    """A child process that answers at `/readyz`; ends with the `with` block.

    Attributes:
        port, url: where it listens.
    """

    def __init__(self, log: Path, port: int, ready_s: float = READY_S) -> None:
        """`port` 0 takes a free one; `ready_s` is how long it may take to start."""
        self._log, self._ready_s = log, ready_s
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port

    @abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments, once `port` is known; BackendError if there is none."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def rss_bytes(self) -> int | None:
        """Resident memory; None where the system does not tell."""
        return resident_bytes(self.pid)

    @property
    def open_files(self) -> int | None:
        """Files and connections it holds; None where the system does not tell."""
        try:
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError:
            return None

    def __enter__(self) -> Self:
        """Start it and wait until it takes requests; BackendError if it ends or takes too long."""
        self.port = self.port or free_port()
        command = self.command()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def kill(self) -> None:
        """End it at once, with whatever it was doing."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """Raise BackendError, with the end of its log, if the server is not running."""
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise BackendError(f"the server ended with status {code}; it said: {self._said()}")

    def _wait(self) -> None:
        end_s = time.monotonic() + self._ready_s
        while not self._ready():
            self.check()
            if time.monotonic() > end_s:
                raise BackendError(
                    f"the server was not ready after {self._ready_s:.0f} s; it said: {self._said()}"
                )
            time.sleep(0.05)

    def _ready(self) -> bool:
        connection = HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _stop(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-_SHOWN_CHARACTERS:].strip() or "nothing"


class ServerProcess(Listener):
    """`relaygr serve`, or another command that serves, with some settings."""

    def __init__(
        self,
        folder: Path,
        settings: Sequence[str],
        config: Path | None = None,
        command: Sequence[str] = ("serve",),
        port: int = 0,
        ready_s: float = READY_S,
    ) -> None:
        """`settings` are of the form section.key=value and go before `config`; `folder` takes its log."""
        super().__init__(folder / "server.log", port, ready_s)
        self._words, self._settings, self._config = command, settings, config

    def command(self) -> list[str]:
        arguments = [*self._words, "--port", str(self.port)]
        if self._config is not None:
            arguments += ["--config", str(self._config)]
        for setting in (f"serving.host={HOST}", *self._settings):
            arguments += ["--set", setting]
        return relaygr(*arguments)


def relaygr(*arguments: str) -> list[str]:
    """The program's own command line, in this interpreter."""
    return [sys.executable, "-c", _COMMAND, *arguments]


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])
