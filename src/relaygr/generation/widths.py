"""How many beams each round keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaygr.generation.errors import InvalidRequestError, TooWideError


@dataclass(frozen=True, slots=True)
class Widths:
    """Beams kept by each round; the last round keeps the results.

    Attributes:
        rounds: W_1 .. W_(L-1) and the number of results.
    """

    rounds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rounds)

    def of(self, level: int) -> int:
        """Width of round `level`, counted from 1."""
        return self.rounds[level - 1]

    @property
    def results(self) -> int:
        return self.rounds[-1]

    @property
    def fed(self) -> tuple[int, ...]:
        """Widths of the rounds whose codes are fed to the model: all but the last."""
        return self.rounds[:-1]

    def within(self, nodes: Sequence[int]) -> Widths:
        """No more beams in a fed round than the catalogue has prefixes of that length; finds the same.

        Args:
            nodes: distinct prefixes of each length.
        """
        fed = (min(width, most) for width, most in zip(self.fed, nodes, strict=False))
        return Widths((*fed, self.results))

    @property
    def rows(self) -> int:
        """The most rows a decode forward takes of this request."""
        return max(self.fed, default=1)


def resolve_widths(
    beam_width: int | Sequence[int],
    num_results: int | None,
    levels: int,
    *,
    max_width: int,
    request_id: str = "",
) -> Widths:
    """Widths of a request on a catalogue of `levels` levels.

    `beam_width` is one width or one a level; `num_results` stands for the last level's.

    Raises:
        InvalidRequestError: not a positive integer, or not one a level.
        TooWideError: a width or the number of results is over `max_width`.
    """
    if isinstance(beam_width, int):
        widths = [_positive("beam_width", beam_width, request_id)] * levels
    else:
        widths = [_positive("beam_width", width, request_id) for width in beam_width]
        if len(widths) != levels:
            raise InvalidRequestError(
                request_id, f"has {len(widths)} widths, the catalogue has {levels} levels", field="beam_width"
            )
    if num_results is not None:
        widths[-1] = _positive("num_results", num_results, request_id)
    field = "beam_width" if num_results is None else "num_results"
    for level, width in enumerate(widths, start=1):
        if width > max_width:
            raise TooWideError(
                request_id,
                f"{width} is over the limit of {max_width}",
                field=field if level == levels else "beam_width",
                limit=max_width,
            )
    return Widths(tuple(widths))


def _positive(field: str, value: object, request_id: str) -> int:
    # A bool is an int to Python and a mistake to everybody else.
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidRequestError(request_id, f"{value!r} is not a positive integer", field=field)
    return value
