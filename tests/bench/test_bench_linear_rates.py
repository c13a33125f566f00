"""Rates with records and with a state for each beam: the same answers, and memory that is used again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from no_machine import MACHINE, NoProbe

from relaygr.bench import linear, linear_rates
from relaygr.bench.beam_case import Prompts, make_catalogues, make_generator
from relaygr.bench.beam_highest import RateFound
from relaygr.bench.linear import LinearReport
from relaygr.bench.linear_decode import SHAPE
from relaygr.bench.linear_rates import RECORDS, STATES, StateRatesSpec, StatesDecoder, measure_state_rates
from relaygr.cli.main import main
from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.scheduler import GenerateScheduler
from relaygr.memory.records import BeamRecords, RecordPool
from relaygr.memory.recurrent import PromptState
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.linear_config import LinearConfig
from relaygr.models.decoder.state_beams import StateBeams

SMALL = msgspec.structs.replace(
    SHAPE,
    hidden_size=16,
    mlp_size=16,
    head_dim=16,
    linear=LinearConfig(layer_types=SHAPE.layer_types, key_heads=1, value_heads=2, key_dim=16, value_dim=16),
)
SPEC = StateRatesSpec(width=4, prompt=20, sids=2000, limit_s=0.2)


def generators() -> tuple[Generator, Generator, StatesDecoder]:
    """With a state a beam, with records; the first one's decoder."""
    states, catalogues = StatesDecoder(SMALL), make_catalogues(SPEC.sids, 0)
    memory = {"device_bytes": 8 * MIB, "beam_bytes": 8 * MIB}
    rows = {"beam_width": 16, "max_beam_width": 16, "max_beam_rows": 16}
    made = [
        make_generator(decoder.init_weights(0).requires_grad_(False), catalogues, **memory, **rows)
        for decoder in (states, Decoder(SMALL))
    ]
    return made[0], made[1], states


def answers(generator: Generator, count: int) -> list[list[tuple[tuple[int, ...], float]]]:
    """Of requests that are there at the same time."""
    scheduler = GenerateScheduler(generator, generator.config)
    try:
        waiting = [scheduler.generate(Prompts(1).asked(n, 20 + n, 4 + n), 60_000.0) for n in range(count)]
        found = [one.result().result.found for one in waiting]
    finally:
        scheduler.close()
        generator.close()
    return [[(row.sid, row.score) for row in one.rows] for one in found]


def test_both_give_the_same_answers_and_memory_is_used_again() -> None:
    theirs, ours, decoder = generators()
    wanted, got = answers(theirs, 6), answers(ours, 6)
    assert len(wanted) == len(got) == 6
    for one, other in zip(wanted, got, strict=True):
        assert [sid for sid, _ in one] == [sid for sid, _ in other]
        assert [score for _, score in one] == pytest.approx([score for _, score in other], abs=1e-5)
    assert 1 <= len(decoder.lent) <= 4  # 6 requests of up to 9 beams, of which that many run at a time
    assert all(records.released for _, records in decoder.lent)


def test_states_are_used_again_when_their_request_is_over() -> None:
    decoder, layout = StatesDecoder(SMALL), SMALL.recurrent_layout(torch.float32)
    assert layout is not None
    pool, state = RecordPool(layout, 100 * layout.slot_bytes.total), PromptState(layout)

    def lent() -> tuple[StateBeams, BeamRecords]:
        records = pool.reserve((3,))
        assert records is not None
        return decoder.state_beams(state, records), records

    (first, its), (second, other) = lent(), lent()
    assert first is not second
    its.release()
    (third, _), (fourth, _) = lent(), lent()
    assert third is first
    assert fourth is not first
    assert fourth is not second
    other.release()
    assert lent()[0] is second
    assert len(decoder.lent) == 3


@pytest.fixture(scope="module")
def found() -> Iterator[tuple[RateFound, ...]]:
    """Two searches, with kernels as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_rates, "choose_kernels", lambda *_: None)
        told: list[str] = []
        yield measure_state_rates(SPEC, 0, told.append, SMALL)
        assert told == [f"rates: {STATES}", f"rates: {RECORDS}"]


def test_two_searches_at_one_target(found: tuple[RateFound, ...]) -> None:
    assert [one.name for one in found] == [STATES, RECORDS]
    assert found[0].target_ms == found[1].target_ms == pytest.approx(2.5 * found[0].alone_ms)
    assert [one.sids for one in found] == [2000, 2000]


def test_the_command_measures_nothing_else(
    found: tuple[RateFound, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[StateRatesSpec] = []

    def measured(spec: StateRatesSpec, seed: int, tell: object) -> object:
        asked.append(spec)
        return found

    monkeypatch.setattr(linear, "measure_state_rates", measured)
    monkeypatch.setattr(linear, "describe_machine", lambda _: MACHINE)
    monkeypatch.setattr(linear, "MatrixProbe", NoProbe)
    before, file = torch.get_num_threads(), tmp_path / "rates.json"
    with pytest.raises(SystemExit):
        main(["bench", "linear", "--rates", "--load-s", "7", "--target-ms", "9", "--json", str(file)])
    torch.set_num_threads(before)
    assert asked == [StateRatesSpec(limit_s=7.0, target_ms=9.0)]
    report = msgspec.json.decode(file.read_bytes(), type=LinearReport)
    assert (report.rates, report.operator, report.end_to_end, report.prefill) == (found, (), (), None)
    assert STATES in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["bench", "linear", "--rates", "--quick"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("option", "fields"), [("--load-s", {"limit_s": 0.0}), ("--target-ms", {"target_ms": -1.0})]
)
def test_options_are_checked(option: str, fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=option):
        StateRatesSpec(**fields)  # type: ignore[arg-type]
    assert linear_rates.StateRatesSpec().width == 256
