"""`relaygr cache`: hit curves of replacement policies on a trace, and made-up traces."""

from __future__ import annotations

from pathlib import Path

import msgspec
from cyclopts import App
from msgspec.structs import replace
from rich.console import Console

from relaygr.cache.policies import DEFAULT
from relaygr.cli.cache_options import (
    FromFiles,
    Generated,
    Knobs,
    MadeUp,
    Priced,
    Prices,
    check_knobs,
    naming,
    open_trace,
    parse_capacities,
    parse_policies,
)
from relaygr.cli.cache_tables import print_comparison, print_curve, print_stock
from relaygr.cli.report import write_json
from relaygr.cli.steps import telling
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError
from relaygr.sim.cache.compare import Comparison, compare
from relaygr.sim.cache.curve import draw, stock_of
from relaygr.sim.cache.hits import PLAIN_COSTS
from relaygr.sim.cache.requests import write_requests

# Of three layers of four heads of 128 + 128 in two bytes an element.
_TOKEN_BYTES = 6144

cache_app = App(name="cache", help="Replay requests through replacement policies, and see what they hit.")


class PoliciesReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `relaygr cache policies` writes."""

    comparisons: tuple[Comparison, ...]


@cache_app.command(name="curve")
def curve_command(
    *,
    policies: str = f"lru,{DEFAULT}",
    capacities: str = "2%,5%,10%,25%",
    token_bytes: int = _TOKEN_BYTES,
    page_tokens: int = 1,
    json: Path | None = None,
    source: FromFiles = None,
    generated: MadeUp = None,
    prices: Prices = None,
    knob: Knobs = None,
) -> int:
    """Print request-, token- and cost-hit per capacity and policy, with the first-touch ceiling beside each.

    Parameters
    ----------
    policies: str
        Names between commas, or all.
    capacities: str
        Shares of what all users take, or bytes, such as 2%,10%,4GiB.
    token_bytes: int
        Of a history token, all layers (`relaygr plan cache` prints it).
    page_tokens: int
        Histories take whole pages of so many tokens.
    json: Path | None
        Also write everything to this file.
    """
    check_file("--json", json)
    names = parse_policies("--policies", policies)
    sizes = parse_capacities("--capacities", capacities)
    costs, settings = (prices or Priced()).costs(), check_knobs(knob)
    _check_sizes(token_bytes, page_tokens)
    with telling("reading") as tell:
        trace = open_trace(source, generated)
        with naming(""):
            curve = draw(
                trace,
                names,
                sizes,
                costs=costs,
                settings=settings,
                token_bytes=token_bytes,
                page_tokens=page_tokens,
                progress=tell,
            )
    write_json(json, curve)
    print_curve(Console(), curve)
    return 0


@cache_app.command(name="policies")
def policies_command(
    *,
    policies: str = "all",
    seeds: int = 1,
    token_bytes: int = _TOKEN_BYTES,
    json: Path | None = None,
    generated: MadeUp = None,
    prices: Prices = None,
    knob: Knobs = None,
) -> int:
    """Print the cost-hit of all policies at four capacities, without one-time users and with them.

    Exit status 1 if the default is more than a point behind the best or behind LRU anywhere, or less than
    five points before LRU at the smallest capacity beside one-time users.

    Parameters
    ----------
    policies: str
        Names between commas, or all; the default and lru must be among them.
    seeds: int
        Traces, from --seed on.
    token_bytes: int
        Of a history token; ratios are the same whatever it is.
    json: Path | None
        Also write everything to this file.
    """
    check_file("--json", json)
    names = parse_policies("--policies", policies)
    if not 1 <= seeds <= 1000:
        raise ConfigError("--seeds", f"{seeds} must be in [1, 1000]")
    spec, costs = (generated or Generated()).spec(), (prices or Priced()).costs()
    settings = check_knobs(knob)
    _check_sizes(token_bytes, 1)
    console, found = Console(), []
    with telling("generating") as tell:
        for seed in range(spec.seed, spec.seed + seeds):
            with naming(""), naming("trace."):
                one = compare(
                    replace(spec, seed=seed),
                    names,
                    costs=costs,
                    settings=settings,
                    token_bytes=token_bytes,
                    progress=tell,
                )
            found.append(one)
            print_comparison(console, one)
    write_json(json, PoliciesReport(comparisons=tuple(found)))
    return 0 if all(one.passes for one in found) else 1


@cache_app.command(name="trace")
def trace_command(
    *, out: Path, token_bytes: int = _TOKEN_BYTES, source: FromFiles = None, generated: MadeUp = None
) -> int:
    """Write a made-up trace to OUT, or the requests of an event log: a request a line, in JSON.

    Parameters
    ----------
    out: Path
        File; in gzip if its name ends in .gz.
    token_bytes: int
        Of a history token, for the sizes that are printed.
    """
    check_file("--out", out)
    _check_sizes(token_bytes, 1)
    with Console(stderr=True).status("generating"):
        trace = open_trace(source, generated)
        write_requests(out, trace)
    print_stock(Console(), stock_of(trace, PLAIN_COSTS, token_bytes))
    return 0


def _check_sizes(token_bytes: int, page_tokens: int) -> None:
    for option, value in (("--token-bytes", token_bytes), ("--page-tokens", page_tokens)):
        if not 1 <= value <= 2**30:
            raise ConfigError(option, f"{value} must be in [1, {2**30}]")
