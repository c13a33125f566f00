"""Public data sets as logged lists, from tiny files with their columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaygr.core.errors import ConfigError, DataError
from relaygr.training.slate.readers.avito import read_avito
from relaygr.training.slate.readers.kuairand import read_kuairand
from relaygr.training.slate.readers.librerank import read_librerank
from relaygr.training.slate.readers.movielens import lists_of, read_films, read_ratings


def made(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_kuairand(tmp_path: Path) -> None:
    head = "user_id,video_id,time_ms,is_click,is_like,long_view,play_time_ms,is_rand,tab"
    rows = ("1,10,1000,1,0,1,4000,0,1", "1,11,2000,0,0,0,500,0,1", "1,12,3000,1,1,0,0,1,1")
    log = made(tmp_path / "log.csv", head, *rows, "1,13,9000000,0,0,0,0,0,2")
    features = made(tmp_path / "f.csv", "video_id,author_id,music_id,tag", '10,7,3,"5,6"', "11,8,,")
    found = read_kuairand([log], features, length=3)
    assert found.items.tolist() == [[10, 11, -1], [13, -1, -1]]
    assert found.attributes["author"].tolist() == [[7, 8, -1], [-1, -1, -1]]
    assert found.attributes["topic"][0].tolist() == [5, -1, -1]
    assert found.labels[0, 0].tolist() == [1, 0, 1, 4]
    assert found.surface.tolist() == [1, 2]
    assert found.random is not None
    assert found.random.items.tolist() == [12]
    assert found.random.scored(lambda users, items: np.zeros((len(users), 4), np.float32)).labels[0, 1] == 1
    with pytest.raises(ConfigError, match="holds no outputs of a ranker"):
        found.scored()


def test_movielens(tmp_path: Path) -> None:
    rows = ("1,30,4.5,200", "1,10,3.0,100", "1,20,4.0,100", "2,10,5.0,50")
    ratings = read_ratings(made(tmp_path / "r.csv", "userId,movieId,rating,timestamp", *rows))
    films = read_films(
        made(
            tmp_path / "m.csv",
            "movieId,title,genres",
            '10,"A, B",Drama|War',
            "20,C,(no genres listed)",
            "30,D,War",
        )
    )
    found = lists_of(ratings, films, length=2)
    assert found.items.tolist() == [[10, 20], [30, -1], [10, -1]]
    assert found.labels[0, :, 0].tolist() == [0, 1]
    assert found.more.tolist() == [True, False, False]
    assert found.attributes["topic"].tolist() == [[0, -1], [1, -1], [0, -1]]
    logs = found.scored(lambda users, items: items[:, None].astype(np.float32))
    assert logs.outputs[1, 0, 0] == 30
    assert not logs.explored.any()


def test_librerank(tmp_path: Path) -> None:
    rows = ("1,100,5,430548_1007,1,0", "1,399,6,430548_1007,0,1", "1,700,7,430539_1007,1,0")
    samples = made(tmp_path / "s.csv", "user,time_stamp,adgroup_id,pid,nonclk,clk", *rows)
    ads = made(
        tmp_path / "a.csv",
        "adgroup_id,cate_id,campaign_id,customer,brand,price",
        "5,1,2,3,NULL,9.9",
        "6,1,2,3,4,1",
    )
    found = read_librerank(samples, ads)
    assert found.items[:, :2].tolist() == [[5, 6], [7, -1]]
    assert found.attributes["author"][0, :2].tolist() == [-1, 4]
    assert found.labels[0, :2, 0].tolist() == [0, 1]
    with pytest.raises(DataError, match="column 'pid'"):
        read_librerank(made(tmp_path / "b.csv", "user,time_stamp,adgroup_id,pid,nonclk,clk", "1,1,5,x,1,0"))


def test_avito(tmp_path: Path) -> None:
    rows = ("9\t50\t7\t3\t0.5\t1", "9\t51\t1\t3\t0.1\t0", "9\t52\t2\t1\t\t", "8\t50\t1\t3\t0.2\t0")
    stream = made(tmp_path / "s.tsv", "SearchID\tAdID\tPosition\tObjectType\tHistCTR\tIsClick", *rows)
    searches = made(tmp_path / "i.tsv", "SearchID\tUserID", "8\t1", "9\t2")
    found = read_avito(stream, searches, length=3)
    assert found.users.tolist() == [1, 2]
    assert found.items.tolist() == [[50, -1, -1], [51, 50, -1]]
    assert found.slots is not None
    assert found.slots[1].tolist() == [1, 7, 0]
    assert found.scored().outputs[1, 1, 0] == pytest.approx(0.0)
