"""Ids that a model's tables do not hold: refused by name, or served as the table says and counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_checks import asked, close, ranked_right, user
from engine_models import NVIDIA_PAIRS, RESEARCH, dense_logits, make_engine
from msgspec.structs import replace

from relaygr.core.errors import RequestError
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import RankRequest, RankResult
from relaygr.models.switches import Table


def test_unknown_ids_are_rejected_by_name_and_harm_nobody_else() -> None:
    strict = replace(NVIDIA_PAIRS, items=Table(name="film", rows=50))
    engine = make_engine(strict)
    good = user(strict, 20, seed=1)

    def other(**columns: list[int]) -> UserHistory:
        row: dict[str, Any] = {"items": [1, 2], "timestamps": [5, 6], "actions": [1, 1], **columns}
        return UserHistory("v", contextual=row.pop("contextual", [3, 5]), **row)

    bad = [
        (RankRequest(other(items=[1, 50]), [1], 9), ("items", "50", "film", "49")),
        (RankRequest(other(items=[-7, 2]), [1], 9), ("items", "-7", "film", "49")),
        (RankRequest(other(), [1, 2**62], 9), ("candidates", str(2**62), "film", "49")),
        (RankRequest(other(actions=[1, 8]), [1], 9), ("actions", "8", "action", "7")),
        (RankRequest(other(contextual=[3, 9]), [1], 9), ("place", "9", "8")),
    ]
    answers = engine.rank_batch([asked(good), *(request for request, _ in bad), asked(good)])
    for answer, (_, words) in zip(answers[1:-1], bad, strict=True):
        assert isinstance(answer, RequestError)
        for word in words:
            assert word in f"{answer.field} {answer}"
    for answer in (answers[0], answers[-1]):
        assert isinstance(answer, RankResult)
        assert close(answer.logits, dense_logits(engine, asked(good)))
        assert answer.served.unknown_ids == 0
    assert engine.stats().errors == len(bad)


@pytest.mark.parametrize("policy", ["default", "hash", "unknown_row"])
def test_unknown_ids_of_a_lenient_table_are_counted(policy: str) -> None:
    film = Table(name="film", rows=50, unknown=policy, unknown_row=7)
    engine = make_engine(replace(NVIDIA_PAIRS, items=film))
    history = UserHistory("u", [1, 50, -7, 3, 2**62], [1, 2, 3, 4, 5], contextual=[3, 5])
    for _ in range(2):
        result = ranked_right(engine, asked(history, [1, 49, 50, 2**62, 51]))
        assert result.served.unknown_ids == 6
    if policy == "default":
        assert close(result.logits[2], result.logits[4])
    known = ranked_right(engine, asked(user(NVIDIA_PAIRS, 9, seed=1), [1, 2]))
    assert known.served.unknown_ids == 0


def test_padding_in_a_research_history_is_an_unknown_id() -> None:
    engine = make_engine(RESEARCH)
    history = UserHistory("u", [4, 0, 9, 0], [1, 2, 3, 4])
    result = ranked_right(engine, asked(history, [0, 4]))
    assert result.served.unknown_ids == 3
    assert float(np.abs(result.logits[0]).max()) == 0.0  # the zero vector has no direction
