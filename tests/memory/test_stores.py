"""Both stores against one plain list of rows; what is particular to each after that."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relaygr.memory.beams import NoBeamKv
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool
from relaygr.memory.stores import NoKv, PagedKv, PrivateKv

LAYOUT = KvLayout(layers=2, heads=2, qk_dim=3, v_dim=5, dtype=torch.float32, page_tokens=4)


def rows(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, 3, generator=generator), torch.randn(n, 2, 5, generator=generator)


def paged(pages: tuple[int, ...] = (5, 6, 1, 2, 3, 9)) -> PagedKv:
    pool = PagePool(LAYOUT, pages=10)
    pool.keys.fill_(7.0)
    pool.values.fill_(7.0)
    pool.zero(pages)
    return PagedKv(pool, pages, 24, clean_tail=True, filled=0)


def private() -> PrivateKv:
    return PrivateKv(LAYOUT, 4, limit_tokens=24)


def check(store: PagedKv | PrivateKv, layer: int, k: Tensor, v: Tensor, tokens: int) -> None:
    keys, values = store.read(layer, tokens)
    padded = -(-tokens // 4) * 4
    assert keys.shape == (2, padded, 3)
    assert values.shape == (2, padded, 5)
    assert torch.equal(keys[:, :tokens], k[:tokens].transpose(0, 1))
    assert torch.equal(values[:, :tokens], v[:tokens].transpose(0, 1))
    assert not keys[:, tokens:].any()
    assert not values[:, tokens:].any()


@pytest.mark.parametrize("make", [paged, private, lambda: paged((2, 3, 4, 5, 6, 7))])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_against_plain_rows(make, data: st.DataObject) -> None:
    store, filled = make(), [0, 0]
    k, v = [torch.zeros(24, 2, 3)] * 2, [torch.zeros(24, 2, 5)] * 2
    for seed in range(data.draw(st.integers(1, 8))):
        layer = data.draw(st.integers(0, 1))
        start = data.draw(st.integers(0, filled[layer]))
        n = data.draw(st.integers(0, 24 - start))
        new_k, new_v = rows(n, seed)
        store.write(layer, start, new_k, new_v)
        end = start + n
        k[layer] = torch.cat([k[layer][:start], new_k, k[layer][end:]])
        v[layer] = torch.cat([v[layer][:start], new_v, v[layer][end:]])
        filled[layer] = max(filled[layer], end)
        if isinstance(store, PrivateKv) and data.draw(st.booleans()):
            keep = data.draw(st.integers(0, 24))
            store.truncate(keep)
            filled = [min(rows_now, keep) for rows_now in filled]
        for each in range(2):
            assert store.filled(each) == filled[each]
            check(store, each, k[each], v[each], filled[each])
            check(store, each, k[each], v[each], data.draw(st.integers(0, filled[each])))


@pytest.mark.parametrize("make", [paged, private])
def test_gaps_and_overruns_are_refused(make) -> None:
    store = make()
    store.write(0, 0, *rows(3))
    with pytest.raises(ValueError, match="gap"):
        store.write(0, 4, *rows(1))
    with pytest.raises(ValueError, match="gap"):
        store.write(0, -1, *rows(1))
    with pytest.raises(ValueError, match="capacity"):
        store.write(0, 3, *rows(22))
    with pytest.raises(ValueError, match="tokens"):
        store.read(0, 4)
    with pytest.raises(ValueError, match="tokens"):
        store.read(1, 1)
    with pytest.raises(ValueError, match="expected"):
        store.write(0, 3, *rows(2)[::-1])


def test_paged_reader_of_a_clean_entry_gets_a_view() -> None:
    pool = PagePool(LAYOUT, pages=4)
    pool.write(0, (1, 2), 0, *rows(6))
    keys, _ = PagedKv(pool, (1, 2), 6, clean_tail=True).read(0, 6)
    assert keys.untyped_storage().data_ptr() == pool.keys.untyped_storage().data_ptr()
    keys, _ = PagedKv(pool, (1, 2), 6, clean_tail=False).read(0, 6)
    assert keys.untyped_storage().data_ptr() != pool.keys.untyped_storage().data_ptr()


def test_paged_writer_reads_views_while_it_goes() -> None:
    store = paged((2, 3, 4, 5, 6, 7))
    k, v = rows(11)
    for start, end in ((0, 3), (3, 9), (9, 11)):
        store.write(0, start, k[start:end], v[start:end])
        check(store, 0, k, v, end)
        keys, _ = store.read(0, end)
        assert keys.untyped_storage().data_ptr() == store.pool.keys.untyped_storage().data_ptr()
    check(store, 0, k, v, 10)


def test_paged_bad_sizes() -> None:
    pool = PagePool(LAYOUT, pages=4)
    with pytest.raises(ValueError, match="tokens_capacity"):
        PagedKv(pool, (1, 2), 9, clean_tail=True)
    with pytest.raises(ValueError, match="filled"):
        PagedKv(pool, (1, 2), 8, clean_tail=True, filled=9)
    with pytest.raises(ValueError, match="pages"):
        PagedKv(pool, (4,), 4, clean_tail=True)


def test_private_grows_by_doubling_up_to_the_limit() -> None:
    store = PrivateKv(LAYOUT, 4, limit_tokens=18)
    k, v = rows(18)
    capacities = []
    for token in range(18):
        store.write(0, token, k[token : token + 1], v[token : token + 1])
        capacities.append(store.capacity_tokens)
    assert capacities == [4] * 4 + [8] * 4 + [16] * 8 + [20] * 2
    check(store, 0, k, v, 18)
    assert store.nbytes == 20 * LAYOUT.token_bytes
    with pytest.raises(ValueError, match="capacity of 18"):
        store.write(0, 18, *rows(1))


def test_private_without_a_limit_does_not_grow() -> None:
    store = PrivateKv(LAYOUT, 5)
    store.write(0, 0, *rows(5))
    with pytest.raises(ValueError, match="capacity of 5"):
        store.write(0, 5, *rows(1))


def test_private_truncate_and_reset_leave_zeros() -> None:
    store = PrivateKv(LAYOUT, 24)
    k, v = rows(24)
    for layer in range(2):
        store.write(layer, 0, k, v)
    store.truncate(30)
    check(store, 1, k, v, 24)
    store.truncate(6)
    check(store, 1, k, v, 6)
    store.write(1, 6, *rows(1, seed=9))
    store.reset()
    assert [store.filled(layer) for layer in range(2)] == [0, 0]
    store.write(0, 0, k[:2], v[:2])
    check(store, 0, k, v, 2)
    with pytest.raises(ValueError, match="tokens"):
        store.truncate(-1)


def test_private_bad_sizes() -> None:
    with pytest.raises(ValueError, match="capacity_tokens"):
        PrivateKv(LAYOUT, -1)
    with pytest.raises(ValueError, match="limit_tokens"):
        PrivateKv(LAYOUT, 5, limit_tokens=4)
    PrivateKv(LAYOUT, 0, limit_tokens=3).write(0, 0, *rows(3))


def test_a_gate_is_asked_before_rows_of_a_layer_are_touched() -> None:
    pool, asked = PagePool(LAYOUT, pages=2), []
    k, v = rows(8)

    def gate(layer: int) -> None:
        asked.append(layer)
        if layer:
            raise TimeoutError
        pool.write(layer, (0, 1), 0, k[:5], v[:5])  # somebody else brings them

    store = PagedKv(pool, (0, 1), 8, clean_tail=True, filled=5, gate=gate)
    store.write(0, 5, k[5:], v[5:])
    check(store, 0, k, v, 8)
    assert asked == [0, 0]
    with pytest.raises(TimeoutError):
        store.write(1, 5, k[5:], v[5:])
    with pytest.raises(TimeoutError):
        store.read(1, 5)
    assert store.filled(1) == 5
    assert not pool.keys[1].any()


def test_what_a_model_without_keys_and_values_has_for_them_refuses_all_uses() -> None:
    part = torch.zeros(2, 1, 4)
    for call in (
        lambda: NoKv().write(1, 0, part, part),
        lambda: NoKv().read(1, 2),
        lambda: NoBeamKv().write(1, 1, part, part),
        lambda: NoBeamKv().keys(1),
        lambda: NoBeamKv().values(1),
        lambda: NoBeamKv().rows(torch.zeros(2, 1, dtype=torch.int32)),
    ):
        with pytest.raises(RuntimeError, match="keeps none"):
            call()
    NoBeamKv().release()
    assert NoBeamKv().nbytes == 0
