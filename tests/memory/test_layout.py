"""Sizes of rows and pages, against the published vectors."""

import pytest
import torch

from relaygr.memory.layout import KvLayout


def test_sizes() -> None:
    small = KvLayout(3, 4, 128, 128, torch.bfloat16, 32)
    assert small.token_bytes == 6 * 1024
    assert small.row_bytes(0) == 2 * 1024
    assert 8192 * small.token_bytes == 48 * 2**20
    assert 102_400 * small.page_bytes == int(18.75 * 2**30)
    large = KvLayout(8, 4, 256, 256, torch.bfloat16, 32)
    assert (large.token_bytes, large.page_bytes) == (32 * 1024, 2**20)
    assert KvLayout(5, 4, 128, 128, torch.float16, 32).token_bytes == 10 * 1024
    assert KvLayout(1, 2, 3, 5, torch.float64, 4).page_bytes == 4 * 2 * 8 * 8
    assert [small.pages_for(tokens) for tokens in (0, 1, 32, 33)] == [0, 1, 1, 2]


def test_layout_id_names_every_field() -> None:
    base = {"layers": 3, "heads": 4, "qk_dim": 8, "v_dim": 16, "dtype": torch.float32, "page_tokens": 32}
    changed = [
        {"layers": 4}, {"heads": 5}, {"qk_dim": 9}, {"v_dim": 17}, {"dtype": torch.float64},
        {"page_tokens": 16},
    ]  # fmt: skip
    ids = {KvLayout(**base | change).layout_id for change in [{}, *changed]}
    assert len(ids) == 7
    assert KvLayout(**base).layout_id == KvLayout(**base).layout_id


@pytest.mark.parametrize("field", ["layers", "heads", "qk_dim", "v_dim", "page_tokens", "dtype"])
def test_bad_fields_are_named(field: str) -> None:
    base = {"layers": 3, "heads": 4, "qk_dim": 8, "v_dim": 16, "dtype": torch.float32, "page_tokens": 32}
    with pytest.raises(ValueError, match=field):
        KvLayout(**base | {field: torch.int8 if field == "dtype" else 0})


def test_bad_layer() -> None:
    with pytest.raises(ValueError, match="layer: 3"):
        KvLayout(3, 4, 8, 16, torch.float32, 32).row_bytes(3)
