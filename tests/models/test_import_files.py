"""Files that are damaged, hostile, of another source or no checkpoint at all: named, and nothing is run."""

from __future__ import annotations

import json
import os
import pickle
import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import test_import_meta as meta_case
import test_import_nvidia as nvidia_case
import test_import_research as research_case
import torch
import torch.distributed.checkpoint as dcp
from import_states import imported, refusal, save
from safetensors import safe_open
from safetensors.torch import save as serialize
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata

from relaygr.core.errors import BackendError, ConfigError
from relaygr.models.hstu import HstuConfig
from relaygr.models.imports import golden, run
from relaygr.models.imports.golden import golden_difference
from relaygr.models.imports.names import SOURCES, Source
from relaygr.models.imports.reading import read_values
from relaygr.models.imports.settings import read_settings
from relaygr.models.imports.sharded import read_sharded
from relaygr.models.imports.source import read_source
from relaygr.models.ranker import Ranker
from relaygr.models.weights import save_ranker

STATES = {
    "meta": (meta_case.state(), "a Meta production checkpoint"),
    "research": (research_case.state(), "a Meta research checkpoint"),
    "fused": (nvidia_case.state("fused"), "an NVIDIA fused checkpoint"),
    "native": (nvidia_case.state("native"), "an NVIDIA native checkpoint"),
    "inference": (nvidia_case.state("inference"), "an NVIDIA inference checkpoint"),
}


@pytest.mark.parametrize(
    ("kind", "source", "wanted"),
    [
        (kind, source, wanted)
        for kind, source in zip(STATES, ("meta", "research", "nvidia", "nvidia", "nvidia"), strict=True)
        for wanted in SOURCES
        if wanted != source
    ],
)
def test_a_checkpoint_of_another_source_is_named(
    tmp_path: Path, kind: str, source: str, wanted: Source
) -> None:
    state, title = STATES[kind]
    text = refusal(wanted, save(state, tmp_path / "c.pt"), tmp_path / "m")
    assert f"this is {title}, --from {source}" in text


def test_other_tensors_are_no_checkpoint(tmp_path: Path) -> None:
    save_file({"a.weight": torch.zeros(2), "b": torch.zeros(1)}, tmp_path / "x.safetensors")
    text = refusal("meta", tmp_path / "x.safetensors", tmp_path / "m")
    assert "no known checkpoint" in text
    assert "a.weight" in text
    both = STATES["meta"][0] | STATES["research"][0]
    assert "several sources: meta, research" in refusal("meta", save(both, tmp_path / "b.pt"), tmp_path / "m")
    own = HstuConfig(
        hidden_size=16, num_layers=1, num_heads=1, qk_dim=8, v_dim=8, item_rows=8, embedding_dim=8
    )
    save_ranker(Ranker(own), tmp_path / "own")
    text = refusal("meta", tmp_path / "own" / "model.safetensors", tmp_path / "m")
    assert "is a model of this project already" in text


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.trace),))


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    state: dict[str, object] = dict(STATES["research"][0])
    torch.save({"model_state_dict": state, "extra": Bomb(trace)}, tmp_path / "c.pt")
    (tmp_path / "d.ckpt").write_bytes(pickle.dumps(Bomb(trace)))
    np.save(tmp_path / "e.npy", np.array([Bomb(trace)], dtype=object), allow_pickle=True)
    for name in ("c.pt", "d.ckpt"):
        text = refusal("research", tmp_path / name, tmp_path / "m", *research_case.SETS)
        assert name in text
        assert "holds Python objects" in text
        assert "trusted source" not in text  # torch's advice
    with pytest.raises(ConfigError, match=r"e\.npy: is not a readable array"):
        read_values(tmp_path / "e.npy")
    folder = tmp_path / "ckpt"
    (folder / "sparse").mkdir(parents=True)
    save(STATES["meta"][0], folder / "non_sparse.ckpt", "dense_dict")
    (folder / "sparse" / ".metadata").write_bytes(pickle.dumps(Bomb(trace)))
    text = refusal("meta", folder, tmp_path / "m", *meta_case.SETS, scaling_seqlen=9)
    assert "has no place in an index of tensors" in text
    assert not trace.exists()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".npy"])
def test_files_cut_short(tmp_path: Path, suffix: str) -> None:
    whole, cut = tmp_path / f"whole{suffix}", tmp_path / f"cut{suffix}"
    if suffix == ".npy":
        np.save(whole, np.arange(50.0))
    elif suffix == ".pt":
        save(STATES["research"][0], whole)
    else:
        save_file(STATES["research"][0], whole)
    data = whole.read_bytes()
    for size in (*range(0, min(len(data), 200), 7), *np.linspace(200, len(data) - 1, 40).astype(int)):
        cut.write_bytes(data[:size])
        with pytest.raises(ConfigError, match=f"cut{suffix}"):
            read_values(cut)


@pytest.mark.parametrize("legacy", [True, False])
def test_damaged_torch_files(tmp_path: Path, legacy: bool) -> None:
    """Any byte may be wrong: the file is read, or refused by name."""
    file = tmp_path / "c.pt"
    state = {"model_state_dict": STATES["research"][0]}
    torch.save(state, file, _use_new_zipfile_serialization=not legacy)
    data, random = bytearray(file.read_bytes()), np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(data)
        for place in random.integers(0, min(len(data), 3000), 3):
            damaged[place] ^= int(random.integers(1, 256))
        file.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                read_source(file)
            except ConfigError:
                refused += 1
    assert refused > 50


def test_claims_of_more_than_there_is(tmp_path: Path) -> None:
    spread = torch.zeros(1).expand(1 << 20, 1 << 20)
    torch.save({"model_state_dict": {"a": spread}}, tmp_path / "a.pt")
    assert "claims 4398046511104 bytes in a file of" in refusal("meta", tmp_path / "a.pt", tmp_path / "m")
    with zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 50_000_000)
    assert "claims 50000000 bytes in a file of" in refusal("meta", tmp_path / "b.pt", tmp_path / "m")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 64), }"
    header += b" " * (118 - len(header) - 1) + b"\n"
    (tmp_path / "c.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"1234")
    with pytest.raises(ConfigError, match=r"c\.npy: is not a readable array"):
        read_values(tmp_path / "c.npy")
    text = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    (tmp_path / "d.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert "not a readable safetensors file" in refusal("meta", tmp_path / "d.safetensors", tmp_path / "m")
    many = {f"_hstu._attention_layers.{10**8}._uvqk": torch.zeros(2, 2)}
    text_of = refusal("research", save(many, tmp_path / "e.pt"), tmp_path / "m")
    assert "100000001 layers are outside [1, 128]" in text_of
    flood = STATES["research"][0] | {f"x{i}": torch.zeros(1) for i in range(3000)}
    text_of = refusal("research", save(flood, tmp_path / "f.pt"), tmp_path / "m", *research_case.SETS)
    assert "and 2000 more" in text_of


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1, 2], "holds list, wanted a mapping"),
        ({"epoch": 3}, "holds no state dict"),
        ({"model_state_dict": {"a": 3}}, "holds no state dict"),
        (torch.zeros(3), "holds Tensor, wanted a mapping"),
    ],
)
def test_what_is_no_state_dict(tmp_path: Path, value: object, words: str) -> None:
    torch.save(value, tmp_path / "c.pt")
    assert words in refusal("meta", tmp_path / "c.pt", tmp_path / "m")


def test_values_that_are_no_tensors_are_named(tmp_path: Path) -> None:
    state: dict[str, object] = dict(STATES["research"][0])
    state[research_case.ITEM] = 3
    text = refusal("research", save(state, tmp_path / "c.pt"), tmp_path / "m", *research_case.SETS)  # type: ignore[arg-type]
    assert research_case.ITEM in text


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.bin").write_text("x")
    assert "folder without non_sparse.ckpt or torch_module" in refusal(
        "meta", tmp_path / "empty", tmp_path / "m"
    )
    assert "'.bin' is none of" in refusal("meta", tmp_path / "x.bin", tmp_path / "m")
    assert "no.pt: cannot be read" in refusal("meta", tmp_path / "no.pt", tmp_path / "m")
    same = {"module.a": torch.zeros(1), "a": torch.zeros(1)}
    assert "a: is a once more" in refusal("meta", save(same, tmp_path / "c.pt"), tmp_path / "m")


def sharded(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a single process
        dcp.save({"sparse_dict": state}, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    return folder


def test_sharded_folders_that_are_damaged(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "s", {"a": torch.randn(7, 8).half(), "b": torch.randn(3)})
    assert set(read_sharded(folder).values) == {"sparse_dict.a", "sparse_dict.b"}
    index, part = folder / ".metadata", folder / "__0_0.distcp"
    records, data = index.read_bytes(), part.read_bytes()
    random, refused = np.random.default_rng(0), 0
    for _ in range(200):
        damaged = bytearray(records)
        damaged[int(random.integers(0, len(records)))] ^= int(random.integers(1, 256))
        index.write_bytes(damaged)
        try:
            read_sharded(folder)
        except ConfigError:
            refused += 1
    assert refused > 50
    index.write_bytes(records)
    part.write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError, match=r"__0_0\.distcp"):
        read_sharded(folder)
    part.unlink()
    with pytest.raises(ConfigError, match=r"__0_0\.distcp: cannot be read"):
        read_sharded(folder)
    index.write_bytes(pickle.dumps(Metadata({"a": 3}, None, {})))  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="a is int, wanted a tensor"):
        read_sharded(folder)
    index.write_bytes(
        pickle.dumps(
            Metadata(
                {"a": TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([1 << 40]), [])},
                None,
                {},
            )
        )
    )
    with pytest.raises(ConfigError, match="tensors claim 4398046511104 bytes of"):
        read_sharded(folder)
    index.write_bytes(pickle.dumps([1]))
    with pytest.raises(ConfigError, match="holds list, wanted an index"):
        read_sharded(folder)


def test_inputs_are_never_written_over(tmp_path: Path) -> None:
    save_file(STATES["research"][0], tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match=r"--out: .*model\.safetensors is one of the files to import"):
        imported("research", tmp_path / "model.safetensors", tmp_path, *research_case.SETS)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors"]


def test_config_files_that_are_wrong(tmp_path: Path) -> None:
    for name, text, words in (
        ("a.json", "{", "is not JSON"),
        ("a.toml", "x = ", "is not TOML"),
        ("b.json", "[1]", "holds list, wanted keys"),
        ("c.json", '{"position": 3}', "config.position: 3 is not a table of keys"),
        ("d.json", "[" * 100_000, "is not JSON"),
        ("e.json", '{"hidden_size": 16.5}', "config.hidden_size: 16.5 is not valid"),
        ("f.json", " " * (1 << 20) + " {}", "has more than"),
        ("g.json", '{"concat_ua": true}', "config.concat_ua: unknown key"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError) as caught:
            read_settings("meta", tmp_path / name)
        assert words in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read"):
        read_settings("meta", tmp_path / "no.json")


@pytest.mark.parametrize("variant", ["meta_stu", "nvidia", "meta_research"])
def test_the_golden_examples_agree(variant: str) -> None:
    assert golden_difference(variant) <= golden.TOLERANCE  # type: ignore[arg-type]


def _changed(place: Path, by: float) -> bytes:
    with safe_open(place, "pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    tensors["weights.tokens.position"] = tensors["weights.tokens.position"] + by
    return serialize(tensors, metadata)


def test_a_golden_example_that_disagrees_stops_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save(STATES["research"][0], tmp_path / "c.pt")
    place = Path(golden.__file__).parent / "golden" / "meta_research.safetensors"
    for name, content, words in (
        ("changed", _changed(place, 1e-6), "logits differ by"),
        ("lost", _changed(place, torch.nan), "logits differ by nan"),
        ("damaged", place.read_bytes()[:50], "cannot be read"),
        ("other", (place.parent / "nvidia.safetensors").read_bytes(), "is of variant 'nvidia'"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / place.name).write_bytes(content)
        with pytest.raises(BackendError, match=words):
            golden_difference("meta_research", tmp_path / name)
    with pytest.raises(BackendError, match="cannot be read"):
        golden_difference("meta_research", tmp_path)

    def wrong(variant: str) -> float:
        raise BackendError(f"{variant} differs")

    monkeypatch.setattr(run, "golden_difference", wrong)
    with pytest.raises(BackendError, match="meta_research differs"):
        imported("research", file, tmp_path / "m", *research_case.SETS)
    assert not (tmp_path / "m").exists()
