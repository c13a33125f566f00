"""The status page in a browser: live under load, calm without any, readable on a phone, honest when alone."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from generation_metric_cases import generation
from live_service import Live, Traffic, live_service
from metric_cases import facts, tell_everything
from slate_metric_cases import slates
from stream_metric_cases import told_counts

from relaygr.core.clock import ManualClock
from relaygr.serving.metrics import Metrics

pytest.importorskip("playwright.sync_api")

from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

Scheme = Literal["light", "dark"]
PHONE, DESKTOP = (360, 740), (1280, 900)
# Colours of text, and what is behind it.
READ = [
    *(("--text", "--card"), ("--soft", "--card"), ("--soft", "--back"), ("--bad", "--bad-back")),
    *(("--good", "--back"), ("--wait", "--back"), ("--resumed", "--back")),
]
LOOKS = [(size, scheme) for size in (PHONE, DESKTOP) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"none of {', '.join(names)} is installed")
    with sync_playwright() as driver:
        # Tests may run as root, where Chromium has no sandbox.
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_service() as live:
        yield live


class Watched:
    """A page, and what went wrong in it."""

    def __init__(self, browser: Browser, size: tuple[int, int], scheme: Scheme) -> None:
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page: Page = self.context.new_page()
        self.faults: list[str] = []
        self.urls: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.urls.append(request.url))

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def overflow(self) -> int:
        """The most pixels by which anything sticks out of its section, or the page out of the window."""
        found: int = self.page.evaluate(
            """Math.max(document.documentElement.scrollWidth - document.documentElement.clientWidth,
            ...[...document.querySelectorAll("section")].flatMap(section => {
              const padding = parseFloat(getComputedStyle(section).paddingRight);
              const edge = section.getBoundingClientRect().right - padding;
              return [...section.querySelectorAll("*")].map(
                inside => Math.floor(inside.getBoundingClientRect().right - edge)); }))"""
        )
        return found


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    found = Watched(browser, DESKTOP, "light")
    yield found
    found.context.close()


def status_json(**changes: Any) -> bytes:
    """A status in which everything has happened, with some fields changed."""
    clock = ManualClock(1000.0)
    metrics = Metrics(clock)
    for _ in range(30):
        clock.advance(5.0)
        tell_everything(metrics, clock.now_s())
    clock.advance(5.0)
    return msgspec.json.encode(
        msgspec.to_builtins(
            metrics.snapshot(generation=generation, slates=slates, stream=told_counts().status)
        )
        | changes
    )


def answer_with(page: Page, url: str, body: bytes) -> None:
    def status(route: Route) -> None:
        route.fulfill(body=body, content_type="application/json")

    page.route(f"{url}/v1/status", status)


def source() -> str:
    return (resources.files("relaygr.serving") / "page" / "index.html").read_text()


def test_the_page_is_one_file_that_asks_nobody_else() -> None:
    html = source()
    links = set(re.findall(r"https?://[^\s\"'<>)]+", html))
    assert links == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|img|iframe|link)\b[^>]*\b(src|href)\s*=\s*[\"'](?!data:)", html)
    assert "default-src 'none'" in html
    assert "innerHTML" not in html


def test_an_empty_service_is_shown_calmly(watched: Watched) -> None:
    with live_service() as live:
        watched.page.goto(live.url)
        expect(watched.page.locator("#state")).to_have_text("ready")
        expect(watched.page.locator("#name")).to_have_text("ranker")
        assert "Nothing was ranked" in watched.text("#paths")
        assert "No signal" in watched.text("#admissions")
        assert watched.page.locator("#latency").get_attribute("aria-label") == (
            "Ranking latency over the last five minutes: nothing yet"
        )
        assert "NaN" not in watched.text("body")
        assert "undefined" not in watched.text("body")
        assert watched.page.locator("#gone").is_hidden()
        assert watched.page.locator("#generation").is_hidden()
        assert watched.page.locator("#slates").is_hidden()
    assert watched.faults == []


def test_the_numbers_move_under_load(watched: Watched, live: Live) -> None:
    with Traffic(live.url) as traffic:
        watched.page.goto(live.url)
        row = watched.page.locator("#paths tr", has_text="hit")
        expect(row).to_be_visible(timeout=20_000)
        seen = int(row.locator("td").first.inner_text())
        expect(row.locator("td").first).not_to_have_text(str(seen), timeout=10_000)
        expect(watched.page.locator("#latency")).to_have_attribute(
            "aria-label", re.compile(r"P99 [\d.]+ ms, at most"), timeout=20_000
        )
    assert traffic.errors == []
    assert re.search(r"rank P99, 1 min\s+[\d.]+ ms", watched.text("#numbers"))
    assert re.search(r"full prefix hit\s+[\d.]+ %", watched.text("#numbers"))
    assert re.search(r"admitted\s+\d+", watched.text("#admissions"))
    assert re.search(r"kept [\d.]+ \wiB", watched.text("#pool-legend"))
    assert re.search(r"prefixes\s+[1-7]\b", watched.text("#entries"))
    assert live.service.served.model[:12] == watched.text("#model")
    assert {url.removeprefix(live.url) for url in watched.urls} <= {"/", "/v1/status"}
    assert watched.faults == []


def test_the_page_says_what_the_status_says(watched: Watched, live: Live) -> None:
    answer_with(watched.page, live.url, status_json())
    watched.page.goto(live.url)
    expect(watched.page.locator("#paths tr")).to_have_count(5)
    assert re.match(r"hit\s+1[23]\s+(10(\.\d)?|9\.\d)\s", watched.text("#paths tr:nth-child(2)"))
    watched.page.get_by_role("radio", name="5 minutes").check()
    assert re.match(r"hit\s+30\s", watched.text("#paths tr:nth-child(2)"))
    assert re.search(r"refused: load\s+30\b", watched.text("#admissions"))
    assert re.search(r"rank requests waiting\s+3\s+prefixes waiting\s+4\s", watched.text("#queue"))
    assert re.search(r"in use 80\.0 KiB\s+kept 120 KiB\s+free 200 KiB", watched.text("#pool-legend"))
    label = watched.page.locator("#shares").get_attribute("aria-label")
    assert label == "hit 25.0 %, resumed 25.0 %, full 25.0 %, truncated 25.0 %"


def test_a_generator_has_a_section_of_its_own(watched: Watched, live: Live) -> None:
    answer_with(watched.page, live.url, status_json())
    watched.page.goto(live.url)
    expect(watched.page.locator("#generation")).to_be_visible()
    assert watched.text("#generator") == "0123456789ab"
    assert watched.text("#catalogue") == "catalogue abc, data 2.0 h old"
    said = watched.text("#generations")
    assert re.search(r"generations waiting\s+2\s+prompts waiting\s+3\s+running\s+1\s", said)
    assert re.search(r"beams running\s+64 of 1024\s+prompt tokens to compute\s+300 of 10\.2 k\s", said)
    assert re.search(r"memory of beams\s+1\.0 KiB of 4\.0 KiB", said)
    assert re.search(r"in use 80\.0 KiB\s+kept 120 KiB\s+free 200 KiB", watched.text("#prompts-legend"))
    assert re.search(r"prompts kept\s+7\s+evicted since the start\s+5", watched.text("#prompt-entries"))
    states = watched.text("#states-legend")
    assert re.search(r"states in use 2\.0 KiB\s+snapshots 3\.0 KiB\s+free 1\.0 KiB", states)
    kept = watched.text("#state-entries")
    assert re.search(r"snapshots\s+6\s+in host memory\s+1\.0 KiB of 5\.0 KiB\s+snapshots evicted\s+9", kept)
    empty = msgspec.structs.replace(generation(), catalogue="", catalogue_age_s=None, recurrent=None)
    answer_with(watched.page, live.url, status_json(generation=empty))
    expect(watched.page.locator("#catalogue")).to_have_text("no catalogue")
    expect(watched.page.locator("#recurrent")).to_be_hidden()
    answer_with(watched.page, live.url, status_json(generation=None))
    expect(watched.page.locator("#generation")).to_be_hidden()
    assert watched.faults == []


def test_an_event_stream_has_a_section_of_its_own(watched: Watched, live: Live) -> None:
    answer_with(watched.page, live.url, status_json())
    watched.page.goto(live.url)
    expect(watched.page.locator("#stream")).to_be_visible()
    assert watched.text("#stream-state") == "reading"
    said = watched.text("#streams")
    assert re.search(r"streams read here\s+1 of 2\s+entries behind\s+1234\s+oldest of them\s+2 min", said)
    assert re.search(r"applied / known / dead\s+5 / 6 / 7\s+removed unread\s+4\s", said)
    assert re.search(r"failures of server / appends\s+2 / 3", said)
    answer_with(watched.page, live.url, status_json(stream=None))
    expect(watched.page.locator("#stream")).to_be_hidden()


def test_slates_have_a_section_of_their_own(watched: Watched, live: Live) -> None:
    answer_with(watched.page, live.url, status_json())
    watched.page.goto(live.url)
    expect(watched.page.locator("#slates")).to_be_visible()
    assert watched.text("#slate-mode") == "mode on"
    assert watched.text("#slate-value") == "reels-v7@01234567"
    said = watched.text("#lists")
    assert re.search(r"lists\s+40\s+waiting\s+2\s+P50 / P99, ms\s+3\.0 / 5\.0\s+fallbacks\s+10\.0 %\s", said)
    assert re.search(r"out of time\s+4\s+rules relaxed\s+2\s+refused\s+0\s", said)
    assert re.search(r"promised / realised\s+1\.08 of 500, too high\s", said)
    assert re.search(r"context moved most\s+similarity:max −0\.75 σ", said)
    label = watched.page.locator("#chosen").get_attribute("aria-label")
    assert label == "beam4 50.0 %, greedy 25.0 %, pointwise 12.5 %, mmr(0.7) 7.5 %, others 5.0 %"
    assert re.search(
        r"fallback: deadline\s+3\s+relaxed: authors\s+2\s+fallback: nan\s+1", watched.text("#fallbacks")
    )
    watched.page.get_by_role("radio", name="5 minutes").check()
    assert re.search(r"P50 / P99, ms\s+3\.5 / 6\.0\s+fallbacks\s+6\.3 %", watched.text("#lists"))
    none = msgspec.structs.replace(
        slates(),
        inflation=None,
        inflation_alarm=False,
        drift=None,
        drift_feature="",
        chosen=[],
        fallbacks=[],
    )
    answer_with(watched.page, live.url, status_json(slates=none))
    expect(watched.page.locator("#chosen-legend")).to_have_text("no lists")
    assert re.search(r"promised / realised\s+–\s+context moved most\s+–", watched.text("#lists"))
    loss = msgspec.structs.replace(none, inflation_alarm=True)  # what is worth 0 or less has no ratio
    answer_with(watched.page, live.url, status_json(slates=loss))
    expect(watched.page.locator("#lists")).to_contain_text("– of 500, too high")
    answer_with(watched.page, live.url, status_json(slates=None))
    expect(watched.page.locator("#slates")).to_be_hidden()
    assert watched.faults == []


def test_the_window_is_chosen_with_the_keyboard(watched: Watched, live: Live) -> None:
    answer_with(watched.page, live.url, status_json())
    watched.page.goto(live.url)
    expect(watched.page.locator("#paths tr")).to_have_count(5)
    watched.page.locator("input[value=minute]").focus()
    watched.page.keyboard.press("ArrowRight")
    expect(watched.page.locator("#paths tr:nth-child(2) td").first).to_have_text("30")


def test_what_the_server_says_is_text_and_never_markup(watched: Watched, live: Live) -> None:
    evil = "<img src=x onerror=\"document.title='broken'\">"
    model = msgspec.structs.replace(facts(), name=evil)
    reason = [{"name": evil, "minute": 1, "five_minutes": 1}]
    answer_with(watched.page, live.url, status_json(model=model, admissions=reason))
    watched.page.goto(live.url)
    expect(watched.page.locator("#name")).to_have_text(evil)
    assert watched.page.locator("img").count() == 0
    assert watched.page.title() == f"relaygr {evil}"


def test_the_page_says_when_the_server_is_gone_and_when_it_is_back(watched: Watched) -> None:
    with live_service() as live:
        watched.page.goto(live.url)
        expect(watched.page.locator("#state")).to_have_text("ready")
    alert = watched.page.locator("#gone")
    expect(alert).to_be_visible(timeout=15_000)
    assert "has not answered for" in alert.inner_text()
    expect(watched.page.locator("#state")).to_have_text("gone")
    with live_service(port=int(live.url.rpartition(":")[2])):
        expect(alert).to_be_hidden(timeout=15_000)
        expect(watched.page.locator("#state")).to_have_text("ready")


def test_a_starting_service_is_told_from_a_ready_one(watched: Watched, live: Live) -> None:
    answer_with(watched.page, live.url, msgspec.json.encode(Metrics().snapshot("starting")))
    watched.page.goto(live.url)
    expect(watched.page.locator("#state")).to_have_text("starting")
    assert watched.text("#name") == "no model yet"
    assert watched.faults == []


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_it_fits_and_is_readable(browser: Browser, live: Live, size: tuple[int, int], scheme: Scheme) -> None:
    watched = Watched(browser, size, scheme)
    try:
        answer_with(watched.page, live.url, status_json())
        watched.page.goto(live.url)
        expect(watched.page.locator("#paths tr")).to_have_count(5)
        assert watched.overflow() <= 0
        back = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (brightness(back) < 0.1) == (scheme == "dark")
        for text, behind in READ:
            ratio = contrast(colour(watched.page, text), colour(watched.page, behind))
            assert ratio >= 4.5, f"{text} on {behind}: {ratio:.2f}"
        unnamed = watched.page.locator("[role=img]:not([aria-label])")
        assert unnamed.count() == 0
        if folder := os.environ.get("RELAYGR_SCREENSHOTS"):
            name = f"page-{size[0]}-{scheme}.png"
            watched.page.screenshot(path=Path(folder) / name, full_page=True)
    finally:
        watched.context.close()


def colour(page: Page, name: str) -> str:
    """The computed value of a custom colour, as `rgb(r, g, b)`."""
    found: str = page.evaluate(
        """name => { const probe = document.body.appendChild(document.createElement("i"));
        probe.style.color = `var(${name})`; const found = getComputedStyle(probe).color; probe.remove();
        return found; }""",
        name,
    )
    return found


def brightness(rgb: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", rgb)[:3]]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((brightness(one), brightness(other)))
    return (light + 0.05) / (dark + 0.05)
