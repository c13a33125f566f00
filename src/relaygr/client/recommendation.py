"""What a cascade answers: the best items, what became of its prefix signal, and where the time went."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from relaygr.client.answers import Hint, PrefixSignal, Ranking
from relaygr.client.errors import BadAnswerError, ClientError

_SHOWN = 64


class Admission(StrEnum):
    """What became of a prefix signal; the first four are the server's words."""

    ADMITTED = "admitted"
    HIT = "hit"
    JOINED = "joined"
    REJECTED = "rejected"
    OTHER = "other"  # a word of a newer server
    FAILED = "failed"
    UNANSWERED = "unanswered"  # not yet, or not before the end
    NOT_SENT = "not_sent"

    @classmethod
    def _missing_(cls, value: object) -> Admission:
        return cls.OTHER


@dataclass(frozen=True, slots=True)
class Signal:
    """A prefix signal, as far as it is known.

    Attributes:
        reason: why it was rejected, or failed, or not sent: the server's code, the kind of the error,
            `disabled`, or `crowded`: too many older ones have no answer yet.
        answer, error: what came of it, if anything did; neither ever reaches the ranking.
    """

    admission: Admission
    reason: str = ""
    answer: PrefixSignal | None = None
    error: BaseException | None = None

    @property
    def hint(self) -> Hint | None:
        """Who holds the prefix."""
        return None if self.answer is None else self.answer.hint

    @classmethod
    def answered(cls, answer: PrefixSignal) -> Signal:
        admission = Admission(answer.admission)
        said = answer.admission if admission is Admission.OTHER else answer.reason
        return cls(admission, said[:_SHOWN], answer)

    @classmethod
    def failed(cls, error: BaseException) -> Signal:
        return cls(Admission.FAILED, type(error).__name__, error=error)


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds of one request; None for a stage that did not run, or that the cascade does not see.

    Attributes:
        lead_ms: from the start, when the signal goes out, to the first rank call.
        rank_ms: of all rank calls together, as the client sees them.
    """

    retrieve_ms: float | None
    preprocess_ms: float | None
    lead_ms: float | None
    rank_ms: float | None
    total_ms: float


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The answer of a cascade.

    Attributes:
        items: best first, at most `top_k`.
        candidates: what was ranked, in the order of `ranking.scores`.
        ranking: None when there was nothing to rank.
    """

    user: str
    items: list[int]
    candidates: list[int]
    ranking: Ranking | None
    signal: Signal
    timings: Timings


def best(candidates: list[int], ranking: Ranking) -> list[int]:
    """The candidates that `ranking` names, best first.

    Raises:
        BadAnswerError: the ranking is not one of these candidates.
    """
    order, count = ranking.order, len(candidates)
    if len(ranking.scores) != count:
        raise _bad(f"{len(ranking.scores)} rows of scores for {count} candidates", ranking)
    if order is None or len(set(order)) != len(order) or not all(0 <= place < count for place in order):
        raise _bad("the order of the best candidates is missing or wrong", ranking)
    return [candidates[place] for place in order]


def _bad(message: str, ranking: Ranking) -> ClientError:
    return BadAnswerError(message, status=200, request_id=ranking.request_id)
