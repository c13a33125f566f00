"""A build on disk: read back whole, old or new after an interrupt, refused when damaged; and the commands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from relaygr.cli.main import main
from relaygr.core.errors import ConfigError
from relaygr.generation.catalogue.artefact import open_catalogue
from relaygr.generation.catalogue.history import code_history
from relaygr.generation.catalogue.source import ReadOptions
from relaygr.generation.catalogue.sources import open_source
from relaygr.generation.sids.artefact import SIDS_FILE, TABLE_FILE, open_sids, save_sids
from relaygr.generation.sids.build import SemanticIds, build_sids
from relaygr.generation.sids.collisions import ids_of
from relaygr.generation.sids.quantise import Collision, SidConfig


def made(collision: Collision = "share", seed: int = 0) -> SemanticIds:
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((80, 6)).astype(np.float32)
    items = rng.permutation(np.arange(-40, 40)) * (1 << 50)
    config = SidConfig(sizes=(4, 4), collision=collision)
    return build_sids(items, points, config, priority=rng.random(80))


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize("collision", ["share", "digit", "reassign"])
def test_a_build_is_read_as_it_was_written(tmp_path: Path, collision: Collision) -> None:
    sids = made(collision)
    digest = save_sids(sids, tmp_path)
    again, name = open_sids(tmp_path)
    assert name == digest
    assert (again.item_ids == sids.item_ids).all()
    assert (again.codes == sids.codes).all()
    assert (again.priority == sids.priority).all()
    assert (again.config, again.report, again.sizes) == (sids.config, sids.report, sids.sizes)
    points = np.random.default_rng(9).standard_normal((30, 6)).astype(np.float32)
    assert (again.codebooks.encode(points) == sids.codebooks.encode(points)).all()
    rows = [json.loads(line) for line in (tmp_path / TABLE_FILE).read_text().splitlines()]
    assert [row["item_id"] for row in rows] == sids.item_ids.tolist()
    assert [row["token_ids"] for row in rows] == sids.codes.tolist()


def test_a_new_build_replaces_the_old_one(tmp_path: Path) -> None:
    first = save_sids(made(), tmp_path)
    second = save_sids(made(seed=1), tmp_path)
    assert first != second
    assert open_sids(tmp_path)[1] == second
    assert len(list(tmp_path.iterdir())) == 3


def test_an_interrupted_save_leaves_the_old_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = save_sids(made(), tmp_path)
    replace = os.replace

    def dies(source: Path, target: Path) -> None:
        if Path(target).name == SIDS_FILE:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            save_sids(made(seed=1), tmp_path)
    assert open_sids(tmp_path)[1] == first


def test_damage_is_refused(tmp_path: Path) -> None:
    save_sids(made(), tmp_path)
    record = tmp_path / SIDS_FILE
    tensors = next(tmp_path.glob("*.safetensors"))
    whole_record, whole_tensors = record.read_bytes(), tensors.read_bytes()
    for at in range(0, len(whole_tensors), 97):
        tensors.write_bytes(whole_tensors[:at] + bytes([whole_tensors[at] ^ 1]) + whole_tensors[at + 1 :])
        with pytest.raises(ConfigError, match="does not match"):
            open_sids(tmp_path)
    tensors.write_bytes(whole_tensors)
    record.write_bytes(whole_record.replace(b'"seed": 0', b'"seed": 1'))
    with pytest.raises(ConfigError, match="does not match"):
        open_sids(tmp_path)
    record.write_bytes(whole_record[:-20])
    with pytest.raises(ConfigError, match="damaged or not a build"):
        open_sids(tmp_path)
    record.write_bytes(whole_record)
    tensors.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        open_sids(tmp_path)


def test_build_describe_and_add_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((50, 4)).astype(np.float32)
    np.savez(tmp_path / "old.npz", item_ids=np.arange(50), embeddings=points)
    np.savez(tmp_path / "new.npz", item_ids=np.arange(50, 53), embeddings=points[:3])
    out = tmp_path / "sids"
    sizes = ("--sizes", "4,4", "--collision", "reassign")
    assert run("sids", "build", "--embeddings", tmp_path / "old.npz", "--out", out, *sizes) == 0
    assert "50 items under 16 ids" in capsys.readouterr().out
    assert run("sids", "describe", out, "--json", tmp_path / "r.json") == 0
    assert json.loads((tmp_path / "r.json").read_text())["items"] == 50
    assert run("sids", "add", out, "--embeddings", tmp_path / "new.npz", "--out", tmp_path / "both") == 0
    both, _ = open_sids(tmp_path / "both")
    assert (both.codes_of(np.arange(50)) == open_sids(out)[0].codes).all()
    capsys.readouterr()
    again = ("--previous", out, "--seed", 5)
    assert run("sids", "build", "--embeddings", tmp_path / "old.npz", "--out", out, *sizes, *again) == 0
    assert "50 common items, 0 new, 0 gone" in capsys.readouterr().out


def test_the_table_makes_a_catalogue(tmp_path: Path) -> None:
    sids = made()
    save_sids(sids, tmp_path / "sids")
    built = open_source(tmp_path / "sids" / TABLE_FILE, ReadOptions()).build(sids.sizes)
    assert built.rows == len(sids.item_ids)
    index = built.index
    assert index.sizes == sids.sizes
    assert (code_history(index, sids.item_ids.tolist()).codes == sids.codes).all()
    which, counts = ids_of(sids.codes)
    crowded = int(counts.argmax())
    mine = np.flatnonzero(which == crowded)
    best = sids.item_ids[mine[np.argsort(-sids.priority[mine])]]
    assert index.items[slice(*index.item_ptr[crowded : crowded + 2])].tolist() == best.tolist()


def test_the_folder_makes_a_catalogue_with_the_sizes_of_the_build(tmp_path: Path) -> None:
    sids = made()
    save_sids(sids, tmp_path / "sids")
    assert run("catalogue", "build", tmp_path / "sids", "--out", tmp_path / "catalogue") == 0
    found = open_catalogue(tmp_path / "catalogue")
    assert found.index.sizes == sids.sizes
    assert found.index.n_items == len(sids.item_ids)
    assert found.header.codebooks == sids.codebooks.digest


def test_build_from_a_ranker(tmp_path: Path) -> None:
    data, model, out = tmp_path / "events", tmp_path / "model", tmp_path / "sids"
    assert run("data", "synth", "--out", data, "--users", 20, "--mean-length", 20, "--items", 60) == 0
    fast = ("--set", "train.batch_rows=256", "--set", "train.negatives=4", "--set", "train.eval_requests=5")
    limits = ("--max-steps", 1, "--max-seq-len", 64)
    assert run("train", "ranker", "--events", data, "--out", model, *limits, *fast) == 0
    assert run("sids", "build", "--ranker", model, "--events", data, "--out", out, "--sizes", "8,8") == 0
    sids, _ = open_sids(out)
    assert sids.report.notes[-1].endswith("encoded with codebooks of the others")
    assert sids.priority.max() > 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "--ranker: needs --events as well"),
        (("--embeddings", "none.npz", "--ranker", "m"), "--embeddings: stands for itself"),
        (("--embeddings", "none.npz"), "cannot be read"),
        (("--sizes", "4,x"), "--sizes: '4,x'"),
        (("--sizes", "4,0"), "sids.sizes: 0"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], what: str
) -> None:
    assert run("sids", "build", "--out", tmp_path / "out", *arguments) == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"item_ids": np.arange(3)}, "has no embeddings"),
        ({"item_ids": np.arange(3) / 2, "embeddings": np.zeros((3, 2))}, "item_ids are float64"),
        ({"item_ids": np.arange(3), "embeddings": np.zeros((2, 2))}, "embeddings are"),
        ({"item_ids": np.arange(3), "embeddings": np.zeros((3, 2)), "priority": np.zeros(2)}, "priority is"),
    ],
)
def test_wrong_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arrays: dict[str, np.ndarray], what: str
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    assert run("sids", "build", "--embeddings", tmp_path / "x.npz", "--out", tmp_path / "out") == 2
    assert what in capsys.readouterr().err


def test_items_that_are_all_the_same_are_a_build_too(tmp_path: Path) -> None:
    for n in (1, 30):
        sids = build_sids(np.arange(n), np.ones((n, 4), np.float32), SidConfig(sizes=(4, 4)))
        save_sids(sids, tmp_path)
        assert open_sids(tmp_path)[0].sizes == (1, 1)


def test_nothing_of_others_is_written_over_or_removed(tmp_path: Path) -> None:
    table = tmp_path / TABLE_FILE
    table.write_text("mine")
    with pytest.raises(ConfigError, match=r"items\.jsonl of no build"):
        save_sids(made(), tmp_path)
    assert table.read_text() == "mine"
    table.unlink()
    (tmp_path / "sids-mine.safetensors").write_text("mine")
    save_sids(made(), tmp_path)
    (tmp_path / SIDS_FILE).unlink()  # as a build that was killed leaves it
    save_sids(made(seed=1), tmp_path)
    assert sorted(one.name for one in tmp_path.glob("sids-*")) == [
        f"sids-{open_sids(tmp_path)[1]}.safetensors",
        "sids-mine.safetensors",
    ]


def test_files_and_values_that_cannot_be_used_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lone = tmp_path / "lone.npz"
    with lone.open("wb") as stream:
        np.save(stream, np.arange(5))
    assert run("sids", "build", "--embeddings", lone, "--out", tmp_path / "s", "--sizes", "2,2") == 2
    assert "lone.npz: is not an .npz file of arrays" in capsys.readouterr().err
    large = np.ones((9, 4), np.float32)
    large[3, 1] = -1e30
    with pytest.raises(ConfigError, match=r"row 3 holds 1e\+30, limit 1e\+15"):
        build_sids(np.arange(9), large, SidConfig(sizes=(2, 2)))
