"""Rows of every format through staging buffers are those of a direct copy, in parts and scattered."""

from __future__ import annotations

import pytest
import torch

from relaygr.memory.formats import host_format
from relaygr.memory.host import HostPool, Piece
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool
from relaygr.memory.staging import Staging

LAYOUT = KvLayout(3, 2, 5, 3, torch.float32, 4)
ROWS = 22


def pools(name: str, seed: int) -> tuple[HostPool, PagePool]:
    host = HostPool(LAYOUT, 40, host_format(name, torch.float32))
    pages = PagePool(LAYOUT, pages=12)
    generator = torch.Generator().manual_seed(seed)
    for tensor in (pages.keys, pages.values):
        tensor.normal_(generator=generator)
    return host, pages


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("tokens", [1, 7, 64])
@pytest.mark.parametrize("name", ["same", "bf16", "int8", "fp8"])
def test_a_staged_copy_is_a_direct_one(name: str, tokens: int, scattered: bool) -> None:
    direct, pages = pools(name, 0)
    staged, _ = pools(name, 0)
    form = direct.format
    staging = Staging(LAYOUT, tokens, torch.device("cpu"), form)
    assert staging.buffer_bytes == tokens * form.row_bytes(LAYOUT, 0)
    where = torch.randperm(48, generator=torch.Generator().manual_seed(1))[:ROWS] if scattered else None
    piece = Piece(0, ROWS, 3, 9, where)
    parts = -(-ROWS // tokens)
    for layer in range(LAYOUT.layers):
        direct.store_layer(pages, piece, layer)
        assert staging.store_layer(staged, pages, piece, layer) == parts
    assert staged.raw(9, ROWS) == direct.raw(9, ROWS)
    (_, one), (_, two) = pools(name, 2), pools(name, 2)
    for layer in range(LAYOUT.layers):
        direct.load_layer(one, piece, layer)
        assert staging.load_layer(direct, two, piece, layer) == parts
    assert torch.equal(one.keys, two.keys)
    assert torch.equal(one.values, two.values)
    assert not torch.equal(one.keys, pools(name, 2)[1].keys)
