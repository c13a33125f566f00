"""Lists on disk: served, joined with what came of them, bounded, and read again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from slate_cases import HEADS, VALUE, list_model, random_pool

from relaygr.core.errors import ConfigError
from relaygr.listwise.log_files import log_files
from relaygr.listwise.pool import Head
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.slate_log import Feedback, SlateLog, SlateRecord, read_records
from relaygr.listwise.slates import Slates

RECORD = SlateRecord(
    user="u1",
    items=(3, 5),
    outputs=((0.1, 0.2, 1.0), (0.3, -0.4, 2.0)),
    asked=2,
    consumed=1,
    labels=((1.0, None, 4.0),),
)


def test_a_served_list_waits_for_its_feedback(tmp_path: Path) -> None:
    pool = random_pool(np.random.default_rng(0), 20)
    slates = Slates(VALUE, list_model())
    log = SlateLog(tmp_path, HEADS)
    for name in ("r1", "r2"):
        ask = SlateAsk(request_id=name, length=4, consumed=7)
        result = slates.serve(ask, pool)
        log.served("ann", ask, pool, result, seed="5")
    assert not log.feedback(Feedback(request="r3", consumed=1, labels=((1, 0, 0),)))
    with pytest.raises(ConfigError, match="consumed"):
        log.feedback(Feedback(request="r1", consumed=5, labels=((1, 0, 0),) * 5))
    with pytest.raises(ConfigError, match="labels"):
        log.feedback(Feedback(request="r1", consumed=2, labels=((1, 0, 0),)))
    assert log.feedback(Feedback(request="r1", consumed=2, labels=((1, 0, 0.5), (0, None, 0))))
    assert not log.feedback(Feedback(request="r1", consumed=2, labels=((1, 0, 0.5), (0, None, 0))))
    (record,) = read_records(tmp_path)
    assert (record.user, record.request, record.session, record.seed) == ("ann", "r1", 7, "5")
    assert record.items == tuple(result.items.tolist())
    assert np.array(record.outputs, dtype=np.float32).tolist() == pool.outputs[result.picks].tolist()
    assert record.candidates is not None
    assert record.candidates.items == tuple(pool.ids.tolist())
    assert record.labels[1] == (0.0, None, 0.0)
    assert record.versions[2] == result.versions.step
    # The propensity of a proposal is not that of what is shown.
    assert record.log_propensity == ()
    assert log.written == 1


def test_nothing_grows_without_end(tmp_path: Path) -> None:
    log = SlateLog(tmp_path, HEADS, file_bytes=400, files=3, waiting=2)
    for number in range(30):
        log.write([msgspec.structs.replace(RECORD, request=str(number))])
    assert len(log_files(tmp_path)) <= 4
    kept = [int(one.request) for one in read_records(tmp_path)]
    assert kept == list(range(kept[0], 30))
    pool, slates = random_pool(np.random.default_rng(0), 20), Slates(VALUE, list_model())
    for number in range(5):
        ask = SlateAsk(request_id=f"r{number}", length=4)
        log.served("ann", ask, pool, slates.serve(ask, pool))
    assert log.forgotten == 3
    assert not log.feedback(Feedback(request="r0", consumed=0))
    assert log.feedback(Feedback(request="r4", consumed=0))
    # Another process goes on in a file of its own.
    last = log_files(tmp_path)[-1]
    SlateLog(tmp_path, HEADS).write([RECORD])
    assert log_files(tmp_path)[-1] != last


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log\.json"):
        list(read_records(tmp_path))
    SlateLog(tmp_path, HEADS).write([RECORD])
    with pytest.raises(ConfigError, match="of the heads"):
        SlateLog(tmp_path, (Head("a"),))
    (path,) = log_files(tmp_path)
    good = path.read_bytes()
    path.write_bytes(good + good[:20])  # as a kill leaves it
    assert len(list(read_records(tmp_path))) == 1
    path.write_bytes(good + b"{}\n")
    with pytest.raises(ConfigError, match=r"lists-1\.jsonl:2"):
        list(read_records(tmp_path))
    for change, said in (
        ({"consumed": 3, "labels": ((1, 1, 1),) * 3}, "consumed"),
        ({"labels": ((1.0,),)}, "labels"),
        ({"outputs": ((1.0, 2.0, 3.0),)}, "outputs"),
        ({"more": True}, "more"),
        ({"log_propensity": (0.0,)}, "log_propensity"),
    ):
        line = msgspec.json.encode(msgspec.structs.replace(RECORD, **change))
        path.write_bytes(good + line + b"\n")
        with pytest.raises(ConfigError, match=f":2.*{said}"):
            list(read_records(tmp_path))
    (tmp_path / "log.json").write_text('{"heads": [], "format_version": 9}')
    with pytest.raises(ConfigError, match="format_version"):
        list(read_records(tmp_path))
