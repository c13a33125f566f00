"""`demo.html`: one page without external resources that shows what `demo.json` holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from relaygr.bench import demo_plots
from relaygr.bench.demo_result import DemoReport, LatencySection
from relaygr.bench.demo_stats import unbeaten
from relaygr.core.units import format_bytes

_STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1c1f23; --soft: #5a626b; --line: #d5d9de;
  --panel: #f5f6f8; }
@media (prefers-color-scheme: dark) { :root { --back: #14171a; --text: #e4e7ea; --soft: #9aa4ae;
  --line: #343a41; --panel: #1d2125; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 66rem; background: var(--back);
  color: var(--text);  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { margin: .4rem 0; } .soft { color: var(--soft); font-size: .9rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr)); gap: .8rem;
  margin: 1rem 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem; }
.card b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .55rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
  th:first-child, td:first-child { text-align: left; }
td.word { text-align: left; white-space: normal; }
code, pre { font: .85rem/1.5 ui-monospace, monospace; } pre { background: var(--panel); padding: .7rem .9rem;
  border: 1px solid var(--line); border-radius: .5rem; overflow-x: auto; }
svg { width: 100%; max-width: 44rem; height: auto; color: var(--text); } svg text { font-family: inherit; }
"""

_NEXT = """relaygr data csv clicks.csv --user-column user_id --item-column item_id \\
    --time-column timestamp --out mydata
relaygr train ranker --events mydata --out mymodel --max-minutes 10
relaygr verify --model mymodel --events mydata
relaygr demo --events mydata --model mymodel --out out-mine"""

_VISIT = "Half an hour of silence ends a visit; only events after it are encoded."


def demo_html(report: DemoReport) -> str:
    """The page."""
    first = report.latency[0]
    parts = [
        "<h1>relaygr: what the relay buys on this machine</h1>",
        f"<p class=soft>relaygr {escape(report.relaygr)}, <code>{escape(report.command)}</code>, seed "
        f"{report.seed}, {report.seconds:.0f} s in all</p>",
        _cards(report, first),
        _how(report),
        *(_latency(section) for section in report.latency),
        _quality(report),
        _where(report),
        f"<h2>With your own events</h2><pre>{escape(_NEXT)}</pre>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>relaygr demo</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _cards(report: DemoReport, section: LatencySection) -> str:
    inline, relay, returning = section.modes
    cards = (
        ("rank P50, inline", f"{inline.rank_p50_ms:.1f} ms"),
        ("rank P50, relay", f"{relay.rank_p50_ms:.1f} ms"),
        ("rank P50, returning user", f"{returning.rank_p50_ms:.1f} ms"),
        ("prefix ready, relay / returning", f"{relay.ready:.0%} / {returning.ready:.0%}"),
        ("largest logit difference", f"{max(relay.largest_difference, returning.largest_difference):.0e}"),
        ("history tokens in rank", f"{inline.rank_computed:,.0f} → {relay.rank_computed:,.0f}"),
    )
    boxes = "".join(f"<div class=card>{escape(name)}<b>{escape(value)}</b></div>" for name, value in cards)
    return f"<p>{escape(section.model)}, {section.weights} weights:</p><div class=cards>{boxes}</div>"


def _how(report: DemoReport) -> str:
    cascade, data = report.cascade, report.data
    count = report.latency[0].modes[0].requests
    modes = (
        ("inline", "nothing of the user is cached; the rank call encodes the whole history."),
        ("relay", "nothing is cached; one thread encodes the prefix while another retrieves candidates."),
        ("relay, returning", f"as relay, with the prefix of the previous visit still cached. {_VISIT}"),
    )
    real = (
        f"the prefetch thread; up to {cascade.again} of the user's latest items, exact inner-product "
        "retrieval and a popularity filter over "
        f"{cascade.catalogue_items:,} item vectors of {cascade.vector_size} numbers "
        f"({cascade.retrieval_ms_p50:.2f} ms P50, finds {cascade.recall:.0%} of the next items); "
        f"ranking of about {cascade.candidates_p50:.0f} candidates."
    )
    modelled = (
        f"{cascade.lead_ms:g} ms of upstream work (features, pre-processing), a plain wait between "
        "retrieval and ranking. Requests come one at a time, so there is no queueing."
    )
    return (
        "<h2>What was measured</h2>"
        f"<p>{count} held-out requests (a user at a second) of <b>{escape(data.name or data.path)}</b>, in "
        "time order, each served in three ways with identical candidates; the ways take turns.</p><ul>"
        + "".join(f"<li><b>{name}</b>: {escape(words)}</li>" for name, words in modes)
        + f"</ul><p><b>Real</b>: {real} <b>Modelled</b>: {modelled}</p>"
    )


def _latency(section: LatencySection) -> str:
    random = " Random weights: only the times mean something." if section.weights == "random" else ""
    intro = (
        f"<h2>Latency: {escape(section.model)}</h2><p class=soft>{section.parameters:,} parameters, "
        f"{section.dtype}, kernel {escape(section.kernel)}; rank latency includes waiting for an unfinished "
        f"prefetch.{random}</p>"
    )
    head = (
        "mode", "P50 ms", "P99 ms", "mean ms", "slowest ms (CPU)", "total P50 ms", "total P99 ms",
        "prefetch P50 ms", "READY", "tokens in rank", "tokens ahead", "largest difference", "top 10 same",
    )  # fmt: skip
    rows = [
        (
            each.mode,
            f"{each.rank_p50_ms:.1f}",
            f"{each.rank_p99_ms:.1f}",
            f"{each.rank_mean_ms:.1f}",
            f"{each.rank_max_ms:,.0f} ({each.rank_max_cpu_ms:,.0f})",
            f"{each.total_p50_ms:.1f}",
            f"{each.total_p99_ms:.1f}",
            f"{each.prefetch_p50_ms:.1f}" if each.prefetch_p50_ms else "–",
            f"{each.ready:.0%}" if each.prefetch_p50_ms else "–",
            f"{each.rank_computed:,.0f}",
            f"{each.prefetch_computed:,.0f}",
            f"{each.largest_difference:.1e}",
            f"{each.top10_same:.0%}",
        )
        for each in section.modes
    ]
    lengths = [
        (
            f"{bucket.low + 1:,}–{bucket.high:,}",
            f"{bucket.modes[0].requests}",
            *(f"{each.rank_p50_ms:.1f}" for each in bucket.modes),
            f"{bucket.modes[0].rank_p50_ms / bucket.modes[1].rank_p50_ms:.1f}×",
            f"{bucket.modes[1].ready:.0%}",
            f"{bucket.modes[2].ready:.0%}",
        )
        for bucket in section.buckets
    ]
    columns = ("events", "requests", "inline P50 ms", "relay P50 ms", "returning P50 ms", "inline / relay",
               "READY relay", "READY returning")  # fmt: skip
    return (
        intro
        + _table(head, rows)
        + "<h3>By history length</h3>"
        + _table(columns, lengths)
        + _plot(lambda: demo_plots.latency_svg(section) + demo_plots.length_svg(section))
    )


def _quality(report: DemoReport) -> str:
    rows = [
        (row.candidates, row.order, f"{row.requests}", f"{row.ndcg:.4f}", f"{row.hr:.4f}")
        for row in report.quality
    ]
    training = report.training
    trained = ""
    if training is not None:
        best = f", validation NDCG@10 {training.valid_ndcg:.4f}" if training.valid_ndcg is not None else ""
        clock = "" if training.reproducible else " It ended by the clock, so quality differs from run to run."
        trained = f"<p>Training took {training.seconds:.0f} s ({training.steps:,} steps{best}).{clock}</p>"
    return (
        "<h2>Quality</h2><p>Four orders of the same candidates, against the items that came next. "
        "<b>Positives injected</b>: the true next items are added to what retrieval found. "
        "<b>Retrieved only</b>: they are not, and a missed item counts as a miss.</p>"
        + trained
        + _verdict(report)
        + _table(("candidates", "order", "requests", "NDCG@10", "HR@10"), rows)
        + _plot(lambda: demo_plots.quality_svg(report.quality))
    )


def _verdict(report: DemoReport) -> str:
    lost = unbeaten(report.quality)
    if not lost:
        return "<p>The ranker beats every other order in NDCG@10.</p>"
    return f"<p><b>The ranker does not beat:</b> {escape(', '.join(lost))}.</p>"


def _where(report: DemoReport) -> str:
    machine, data = report.machine, report.data
    memory = format_bytes(machine.memory_bytes) if machine.memory_bytes else "unknown"
    probe = ", ".join(f"{number}: {ms:g} ms" for number, ms in machine.threads_ms.items())
    rows = (
        ("processor", machine.cpu),
        ("cores, memory", f"{machine.cores}, {memory}"),
        ("threads", f"{machine.threads}, the best of a measured pass ({probe})"),
        ("software", f"torch {machine.torch}, Python {machine.python}, {machine.system}"),
        ("events", f"{data.events:,} of {data.users:,} users on {data.items:,} items, from {data.source}"),
        ("events of a user", f"median {data.median_length:,.0f}, most {data.max_length:,}"),
    )
    body = "".join(f"<tr><td>{name}<td class=word>{escape(value)}" for name, value in rows)
    return f"<h2>Where</h2><div class=wide><table>{body}</table></div>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}" for cell in row) for row in rows)
    return f"<div class=wide><table><tr>{top}{body}</table></div>"


def _plot(draw: Callable[[], str]) -> str:
    if demo_plots.available():
        return draw()
    return "<p class=soft>No plots: matplotlib is missing (<code>pip install 'relaygr[plots]'</code>).</p>"
