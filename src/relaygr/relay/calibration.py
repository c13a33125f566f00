"""What was timed on one build and machine, and the coefficients that follow; a JSON file."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
from pathlib import Path

import msgspec

from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB
from relaygr.relay.fit import Sample, fit
from relaygr.relay.latency import Coefficients, LatencyModel, Pass

FORMAT_VERSION = 1
MAX_FILE_BYTES = 16 * MIB


class Build(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a calibration holds for; another value of any field is another speed.

    Attributes:
        model: fingerprint of the weights, hexadecimal.
        kernel: its name, route and library.
        machine: processor and usable cores.
    """

    model: str
    dtype: str
    kernel: str
    threads: int
    machine: str


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One shape and its times in milliseconds, in the order they were taken.

    Raises:
        ConfigError: there is no time, or one is not positive and finite.
    """

    shape: Pass
    times_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.times_ms:
            raise ConfigError("points.times_ms", "needs at least one time")
        for ms in self.times_ms:
            if not 0 < ms < math.inf:
                raise ConfigError("points.times_ms", f"{ms} must be positive and finite")

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times_ms)


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The timed points of a build and the fit to their medians."""

    format: int = FORMAT_VERSION
    build: Build
    coefficients: Coefficients
    points: tuple[Point, ...]

    @classmethod
    def of(cls, build: Build, points: tuple[Point, ...]) -> Calibration:
        """Fit the points; each counts alike, whatever the number of its times.

        The least times give the shape, since a busy neighbour only adds, and to short passes relatively
        more; then everything is raised to the level of the medians.
        """
        least = fit([Sample(point.shape, min(point.times_ms)) for point in points])
        level = statistics.median(
            point.median_ms / predicted
            for point in points
            if (predicted := least.batch_ms([point.shape])) > 0
        )
        return cls(build=build, coefficients=least.scaled(level), points=points)

    def error(self, point: Point) -> float:
        """Median over prediction, minus 1."""
        return point.median_ms / self.coefficients.batch_ms([point.shape]) - 1

    def model(self) -> LatencyModel:
        """A latency model that starts from here."""
        timed = ((point.shape, ms) for point in self.points for ms in point.times_ms)
        return LatencyModel(self.coefficients, timed=timed)

    def check(self, build: Build) -> None:
        """Raise ConfigError unless this was measured on `build`."""
        for name in build.__struct_fields__:
            mine, wanted = getattr(self.build, name), getattr(build, name)
            if mine != wanted:
                raise ConfigError(f"calibration.build.{name}", f"{mine!r} was measured, {wanted!r} is here")


def save_calibration(file: Path, calibration: Calibration) -> None:
    """Write the file and the folders above it; a reader sees the old file or the new one.

    Raises:
        ConfigError: it cannot be written.
    """
    temporary = file.with_name(file.name + ".tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
        os.replace(temporary, file)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ConfigError("calibration", f"{file} cannot be written: {error.strerror}") from error


def load_calibration(file: Path) -> Calibration:
    """Read a file of `save_calibration`.

    Raises:
        ConfigError: it cannot be read, is too large, of another format, or holds a wrong value.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError("calibration", f"{file} cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError("calibration", f"{file} has more than {MAX_FILE_BYTES} bytes")
    try:
        calibration = msgspec.json.decode(data, type=Calibration)
    except msgspec.DecodeError as error:  # validation errors are decode errors too
        raise ConfigError("calibration", f"{file}: {error}") from error
    if calibration.format != FORMAT_VERSION:
        raise ConfigError("calibration", f"{file} has format {calibration.format}, not {FORMAT_VERSION}")
    return calibration
