"""KuaiRand logs: flags become bits, milliseconds seconds, several files one history."""

from __future__ import annotations

from pathlib import Path

import pytest
from reader_cases import KUAIRAND_HEADER

from relaygr.core.errors import DataError
from relaygr.data.readers.interface import Read
from relaygr.data.readers.kuairand import KuaiRandReader


def read(folder: Path, *rows: str, header: str = KUAIRAND_HEADER, **options: object) -> Read:
    file = folder / "log.csv"
    file.write_text("".join(f"{line}\n" for line in (header, *rows)))
    return KuaiRandReader(**options).read(file)  # type: ignore[arg-type]


def row(
    time_ms: object = 1650485801301, flags: str = "0,0,0,0,0,0,0", enter: object = 0, rand: int = 0
) -> str:
    return f"17387,1123453,20220421,400,{time_ms},{flags},151024,104400,0,0,{enter},{rand},1"


def test_every_act_has_a_bit_of_its_own(tmp_path: Path) -> None:
    flags = ["0,0,0,0,0,0,0"] + [",".join("1" if at == bit else "0" for at in range(7)) for bit in range(7)]
    table = read(tmp_path, *(row(flags=each) for each in flags), row(enter=1), row(rand=1)).table
    assert table.action_names == (
        "engage", "click", "like", "follow", "comment", "forward", "hate", "long_view", "profile_enter",
    )  # fmt: skip
    assert table.actions.tolist() == [1, *(1 | 1 << bit for bit in range(1, 9)), 1]
    assert (list(table.users), table.item_ids[0], table.timestamps[0]) == (["17387"], 1123453, 1650485801)


@pytest.mark.parametrize(
    ("bad", "column", "words"),
    [
        (row(flags="2,0,0,0,0,0,0"), "is_click", "not a flag: '2'"),
        (row(flags=",0,0,0,0,0,0"), "is_click", "not a flag: ''"),
        (row(enter="-"), "is_profile_enter", "not a flag"),
        (row(time_ms="NaN"), "time_ms", "not an integer: 'NaN'"),
        (row(time_ms="16504858013010000"), "time_ms", "looks like microseconds, read as ms"),
        (row(time_ms="1" * 100), "time_ms", "out of int64 range"),
        (row().replace("1123453", "99999999999999999999"), "video_id", "out of int64 range"),
        (row() + ",1", "", "20, expected 19"),
    ],
)
def test_bad_rows(tmp_path: Path, bad: str, column: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, row(), bad)
    assert (caught.value.line, caught.value.column) == (3, column)
    assert words in caught.value.reason
    assert len(read(tmp_path, row(), bad, row(), on_error="skip").table.item_ids) == 2


def test_a_file_that_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'video_id': missing column"):
        read(tmp_path, header="user_id,user_active_degree,is_lowactive_period", on_error="skip")


def test_logs_of_several_weeks_are_one_history(tmp_path: Path) -> None:
    files = [tmp_path / f"log_{part}.csv" for part in range(3)]
    for part, file in enumerate(files):
        file.write_text(f"{KUAIRAND_HEADER}\n{row(time_ms=(3 - part) * 1000)}\n")
    table = KuaiRandReader().read(*files).table
    assert list(table.users) == ["17387"]
    assert table.timestamps.tolist() == [3, 2, 1]
