"""Loading, swapping and going back, with requests under way."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from catalogue_reference import Row, build

from relaygr.core.errors import BackendError, ConfigError, RequestError
from relaygr.generation.catalogue.artefact import Catalogue, make_catalogue, write_catalogue
from relaygr.generation.catalogue.errors import ArtefactError, LoadError, UnavailableError
from relaygr.generation.catalogue.filters import Wanted
from relaygr.generation.catalogue.fit import expect_levels, expect_tokens
from relaygr.generation.catalogue.named import NamedFilters
from relaygr.generation.catalogue.settings import CatalogueSettings
from relaygr.generation.catalogue.tokens import TokenSpec, stacked
from relaygr.generation.catalogue.versions import Catalogues


def catalogue(first: int, count: int = 4, as_of_s: float = 0.0, **more: object) -> Catalogue:
    """Items first .. first + count - 1, item i under (i % 4,)."""
    index = build([Row(item, (item % 4,)) for item in range(first, first + count)], (4,)).index
    return make_catalogue(index, as_of_s=as_of_s, **more)  # type: ignore[arg-type]


def items(found: Catalogue) -> list[int]:
    return sorted(found.index.items.tolist())


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalogues(clock: Clock) -> Catalogues:
    return Catalogues(now_s=clock)


def test_nothing_is_served_before_the_first_load(catalogues: Catalogues) -> None:
    with pytest.raises(UnavailableError, match="no catalogue is loaded"):
        catalogues.pin()
    with pytest.raises(UnavailableError):
        catalogues.withdraw([1])
    with pytest.raises(UnavailableError, match="no version to go back to"):
        catalogues.rollback()
    status = catalogues.status()
    assert (status.serving, status.number, status.loads, status.error) == (None, 0, 0, None)


def test_a_pin_keeps_its_version(catalogues: Catalogues) -> None:
    first = catalogues.install(catalogue(0))
    with catalogues.pin() as old:
        second = catalogues.install(catalogue(10))
        third = catalogues.install(catalogue(20))
        assert old.version is first
        assert items(old.catalogue) == [0, 1, 2, 3]
        assert not first.freed
        status = catalogues.status()
        assert status.retired == (first.label,)
        assert status.kept == (second.label, third.label)
        assert status.pins == 1
        with catalogues.pin() as new:
            assert new.label == third.label
            assert items(new.catalogue) == [20, 21, 22, 23]
    assert first.freed
    assert catalogues.status().retired == ()
    with pytest.raises(BackendError, match="closed pin"):
        _ = old.index
    with pytest.raises(BackendError, match="closed pin"):
        old.filter(Wanted())
    with pytest.raises(BackendError, match="version 1 was freed"):
        _ = first.catalogue
    old.close()
    assert catalogues.status().pins == 0


def test_freed_arrays_leave_memory(tmp_path: Path) -> None:
    catalogues = Catalogues(CatalogueSettings(keep_versions=1, mapped=True))
    catalogues.load(write_catalogue(tmp_path / "a", catalogue(0)))
    with catalogues.pin() as pin:
        gone = weakref.ref(pin.index.items)
    catalogues.load(write_catalogue(tmp_path / "b", catalogue(10)))
    gc.collect()
    assert gone() is None


def test_going_back_is_one_call(catalogues: Catalogues) -> None:
    first = catalogues.install(catalogue(0))
    second = catalogues.install(catalogue(10))
    with catalogues.pin() as pin:
        assert catalogues.rollback() is first
        assert not second.freed
        assert pin.label == second.label
    assert second.freed
    with catalogues.pin() as pin:
        assert items(pin.catalogue) == [0, 1, 2, 3]
    with pytest.raises(UnavailableError):
        catalogues.rollback()
    assert catalogues.status().serving == first.label


def test_a_failed_load_changes_nothing_but_the_status(tmp_path: Path, catalogues: Catalogues) -> None:
    first = catalogues.load(write_catalogue(tmp_path / "a", catalogue(0)))
    bad = write_catalogue(tmp_path / "b", catalogue(10))
    (bad / "items.npy").write_bytes(b"x" * 100)
    with pytest.raises(ArtefactError, match=r"items.npy"):
        catalogues.load(bad)
    status = catalogues.status()
    assert (status.serving, status.loads, status.failures) == (first.label, 1, 1)
    assert status.error is not None
    assert "items.npy" in status.error
    with catalogues.pin() as pin:
        assert items(pin.catalogue) == [0, 1, 2, 3]
    write_catalogue(tmp_path / "c", catalogue(20))
    catalogues.load(tmp_path / "c")
    assert catalogues.status().error is None


def test_the_same_catalogue_is_not_loaded_again(tmp_path: Path, catalogues: Catalogues) -> None:
    catalogues.install(catalogue(10))
    folder = write_catalogue(tmp_path / "a", catalogue(0))
    assert catalogues.load(folder) is catalogues.load(folder)
    assert catalogues.status().loads == 2
    assert len(catalogues.status().kept) == 2


def test_a_catalogue_that_shrank_is_refused(catalogues: Catalogues) -> None:
    catalogues.install(catalogue(0, count=10))
    with pytest.raises(LoadError, match=r"4 items, limit 0.5 of the serving version's 10"):
        catalogues.install(catalogue(0, count=4))
    catalogues.install(catalogue(0, count=5))
    with pytest.raises(LoadError, match="2 items"):
        catalogues.install(catalogue(0, count=2))
    catalogues.install(catalogue(0, count=2), allow_shrink=True)
    one_sid = make_catalogue(build([Row(item, (0,)) for item in range(9)], (4,)).index, as_of_s=0)
    catalogues.install(catalogue(0, count=8))
    with pytest.raises(LoadError, match=r"1 semantic ids, limit 0.5 of the serving version's 4"):
        catalogues.install(one_sid)


def test_checks_run_before_a_swap(clock: Clock) -> None:
    def smoke(one: Catalogue) -> None:
        if 13 in one.index.items:
            raise ZeroDivisionError("smoke")

    catalogues = Catalogues(checks=(expect_levels((4,)), smoke), now_s=clock)
    catalogues.install(catalogue(0))
    with pytest.raises(LoadError, match=r"levels of sizes \[5\], the model has \[4\]"):
        catalogues.install(make_catalogue(build([Row(i, (i,)) for i in range(4)], (5,)).index, as_of_s=0))
    with pytest.raises(ZeroDivisionError):
        catalogues.install(catalogue(10))
    status = catalogues.status()
    assert (status.failures, status.error) == (2, "ZeroDivisionError: smoke")
    with catalogues.pin() as pin:
        assert items(pin.catalogue) == [0, 1, 2, 3]


def test_tokens_must_be_the_models(clock: Clock) -> None:
    own = stacked((4,), 5).resolve((4,))
    fits = expect_tokens(own, 9)
    fits(catalogue(0, tokens=stacked((4,), 5)))
    fits(catalogue(0))
    with pytest.raises(LoadError, match="other tokens than the model's"):
        fits(catalogue(0, tokens=stacked((4,), 4)))
    with pytest.raises(ConfigError, match="token 9, limit 8"):
        fits(catalogue(0, tokens=stacked((4,), 6)))
    patterns = catalogue(0, tokens=TokenSpec(patterns=("<{code}>",)))
    expect_tokens(own, 9, {f"<{code}>": 5 + code for code in range(4)}.get)(patterns)
    alone = expect_tokens(None, 9)
    alone(catalogue(0, tokens=stacked((4,), 5)))
    with pytest.raises(LoadError, match="neither the catalogue nor the model"):
        alone(catalogue(0))


def denied(catalogues: Catalogues) -> list[int]:
    with catalogues.pin() as pin:
        found = pin.filter(Wanted())
        return sorted(pin.index.items[~found.passes(np.arange(pin.index.n_items))].tolist())


def test_withdrawn_items_are_denied_until_a_build_knows(catalogues: Catalogues, clock: Clock) -> None:
    catalogues.install(catalogue(0, as_of_s=900))
    before = catalogues.pin()
    catalogues.withdraw([1, 2, 77])
    assert denied(catalogues) == [1, 2]
    assert before.filter(Wanted()).everything
    with catalogues.pin() as one, catalogues.pin() as two:
        assert one.filter(Wanted()) is two.filter(Wanted())
    before.close()
    clock.now = 1100
    # Its data is older than the withdrawal.
    catalogues.install(catalogue(0, count=5, as_of_s=950))
    assert denied(catalogues) == [1, 2]
    assert catalogues.restore([2, 3]) == 1
    assert denied(catalogues) == [1]
    catalogues.install(catalogue(0, count=6, as_of_s=1050))
    assert denied(catalogues) == []
    catalogues.withdraw([3])
    assert denied(catalogues) == [3]
    # The older one never knew of either.
    catalogues.rollback()
    assert denied(catalogues) == [1, 3]
    assert catalogues.status().withdrawn == 3


def test_withdrawals_no_kept_catalogue_needs_are_forgotten(catalogues: Catalogues, clock: Clock) -> None:
    catalogues.install(catalogue(0, as_of_s=900))
    catalogues.withdraw([1])
    clock.now = 1100
    catalogues.install(catalogue(0, count=5, as_of_s=1050))
    assert catalogues.status().withdrawn == 1
    catalogues.install(catalogue(0, count=6, as_of_s=1060))
    assert catalogues.status().withdrawn == 0


def test_withdrawals_are_checked_and_bounded(clock: Clock) -> None:
    catalogues = Catalogues(CatalogueSettings(overlay_limit=2), now_s=clock)
    catalogues.install(catalogue(0))
    with pytest.raises(RequestError, match="3 items would be withdrawn, limit 2"):
        catalogues.withdraw([1, 2, 3])
    with pytest.raises(RequestError, match=r"items\[1\]: must be a whole number"):
        catalogues.withdraw([1, "2"])
    assert denied(catalogues) == []
    catalogues.withdraw([1, 2])
    catalogues.withdraw([2, 1])
    assert denied(catalogues) == [1, 2]
    # Numbers that were withdrawn mean nothing to a catalogue of strings.
    strings = make_catalogue(build([Row(text, (0,)) for text in "abcd"], (4,)).index, as_of_s=0)
    catalogues.install(strings, allow_shrink=True)
    assert denied(catalogues) == []


def test_data_from_the_future_is_refused(catalogues: Catalogues, clock: Clock) -> None:
    catalogues.install(catalogue(0, as_of_s=clock.now + 299))
    for wrong in (clock.now + 301, float("nan"), float("inf")):
        with pytest.raises(LoadError, match="in the future"):
            catalogues.install(catalogue(10, as_of_s=wrong))


def test_a_pin_filters_with_names_and_forgets_with_its_version(clock: Clock) -> None:
    named = NamedFilters()
    named.define("even", lambda index: index.items % 2 == 0)
    catalogues = Catalogues(CatalogueSettings(keep_versions=1), named=named, now_s=clock)
    catalogues.install(catalogue(0))
    catalogues.withdraw([2])
    with catalogues.pin() as pin:
        found = pin.filter(Wanted(deny=[1], filters=("even",)))
        assert found.alive(1, np.arange(4)).tolist() == [True, False, False, False]
        assert pin.withdrawn.tolist() == [2]
        assert pin.history([3, 9], "skip").codes.tolist() == [[3]]
        assert named.nbytes == 20
        catalogues.install(catalogue(10))
        assert named.nbytes == 20
    assert named.nbytes == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("keep_versions", 0),
        ("min_share", 1.5),
        ("min_share", float("nan")),
        ("overlay_limit", -1),
        ("filter_bytes", -1),
    ],
)
def test_settings_out_of_range(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        CatalogueSettings(**{field: value})  # type: ignore[arg-type]


def test_swaps_under_load(tmp_path: Path) -> None:
    """Readers never see a freed version or two versions in one request, while others load and go back."""
    catalogues = Catalogues()
    folders = [write_catalogue(tmp_path / str(at), catalogue(100 * at)) for at in range(3)]
    owner = {catalogues.load(folder).label: 100 * at for at, folder in enumerate(folders)}
    wrong: list[object] = []
    seen: Counter[str] = Counter()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            with catalogues.pin() as pin:
                label, first = pin.label, items(pin.catalogue)
                found = pin.filter(Wanted(deny=first[1:]))
                alive = found.alive(1, np.arange(4)).tolist()
                if first[0] != owner[label] or items(pin.catalogue) != first or alive != [True] + [False] * 3:
                    wrong.append((label, first, alive))
                seen[label] += 1

    def change() -> None:
        for turn in range(60):
            if turn % 5 == 4:
                try:
                    catalogues.rollback()
                except UnavailableError:
                    wrong.append("rollback")
            elif turn % 5 == 3:
                try:
                    catalogues.load(tmp_path / "missing")
                except ArtefactError:
                    continue
                wrong.append("loaded")
            else:
                catalogues.load(folders[turn % 3])
        stop.set()

    threads = [threading.Thread(target=read) for _ in range(3)] + [threading.Thread(target=change)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(seen.values()) > 0
    status = catalogues.status()
    assert (status.pins, status.retired) == (0, ())
    assert status.failures == 12
