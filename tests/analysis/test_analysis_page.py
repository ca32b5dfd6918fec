"""The report in a real Chromium: opens from disk, tells numbers on hover, obeys its controls."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from support.models import tiny_model, tiny_tokens
from titans.analysis import Passage, Trace, trace
from titans.analysis.records import Curve, TokenTrace
from titans.analysis.report import build_page, write_report
from titans.analysis.tracing import Limits

TIME = 300


def named(ids: torch.Tensor) -> Passage:
    """Tokens with words of their own; one of them tries to be markup."""
    words = [f" word{i}" if n % 40 else "\n<b>bold</b>" for n, i in enumerate(ids.tolist())]
    return Passage(ids, words)


@pytest.fixture(scope="module")
def small() -> Trace:
    """Two layers of two heads that gate attention."""
    model = tiny_model("mag", dtype=torch.float32)
    passage = named(tiny_tokens(batch=1, time=TIME)[0])
    return trace(model, [passage], name="small model reads words", limits=Limits(reads=20))


def spread(record: Trace, layers: int, heads: int, tokens: int) -> Trace:
    """The same trace blown up to the shape of a larger model and a longer text."""
    rng = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return rng.gamma(2.0, 1.5, size=shape).astype(np.float32)

    first = record.layers[0]
    names = ("loss", "grad_norm", "forget_gate", "momentum_decay", "step_size", "written")
    curves = {
        name: Curve(
            width=128, mean=random(400, heads), low=random(400, heads), high=random(400, heads)
        )
        for name in (*names, "write_size")
    }
    life = {
        name: np.repeat(getattr(first.life, name)[:, :1], heads, axis=1)
        for name in ("weight_norm", "drift", "momentum_norm", "effective_rank", "drift_rank")
    }
    forgetting = {
        name: np.repeat(getattr(first.forgetting, name)[..., :1], heads, axis=-1)
        for name in ("at_once", "recall", "gate_only")
    }
    made = [
        replace(
            first,
            layer=number,
            num_heads=heads,
            tokens=TokenTrace(**{name: random(tokens, heads) for name in names}),
            curves=curves,
            life=replace(first.life, **life),
            forgetting=replace(first.forgetting, **forgetting),
            memory_share=None,
        )
        for number in range(layers)
    ]
    words = (" winter", " and", " the", " letters", ",", " which", " nobody\n", " had", " read")
    return replace(
        record,
        num_tokens=tokens,
        ids=np.arange(tokens) % 1_000,
        texts=tuple(words[n % len(words)] for n in range(tokens)),
        layers=tuple(made),
        worth=replace(record.worth, tokens=random(tokens, 3)),
    )


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (4, 4), (12, 12), (40, 2)])
def test_a_page_of_50k_tokens_stays_small(small: Trace, layers: int, heads: int) -> None:
    page = build_page([spread(small, layers, heads, 50_000)])
    assert len(page.encode()) < 10_000_000
    shown = int(re.search(r'"shown":(\d+)', page)[1])
    by_head = '"byHead":true' in page
    # Heads, then tokens, are given up where they do not fit.
    assert (shown == 50_000) == (layers <= 4)
    assert shown > 5_000
    assert by_head == (layers == 1)
    assert ("heads are averaged here" in page) == (not by_head)
    assert (f"the first {shown:,} tokens are shown" in page) == (layers > 4)


def test_two_pages_share_the_room(small: Trace) -> None:
    long = spread(small, 4, 2, 50_000)
    assert len(build_page([long, long]).encode()) < 10_000_000
    with pytest.raises(ValueError, match="one trace or two, got 3"):
        build_page([small] * 3)


@pytest.fixture
def page(browser: object) -> Iterator[object]:
    """A page that may not reach any network and must not complain."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, offline=True)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    yield opened
    context.close()
    assert problems == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def visit(page: object, traces: list[Trace], folder: Path) -> float:
    """Open the report; seconds until it is drawn."""
    path = folder / "report.html"
    write_report(traces, path, command="titans analyze CHECKPOINT --text FILE")
    begin = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    page.wait_for_selector(".page i[data-i]")
    return time.perf_counter() - begin


def token(page: object, number: int) -> object:
    return page.locator(f'.page i[data-i="{number}"]')


def strength(page: object, number: int) -> float:
    found = token(page, number).evaluate("e => e.style.getPropertyValue('--a')")
    return float(found or 0)


@pytest.mark.browser
def test_text_is_shaded_and_tells_its_numbers(page: object, small: Trace, tmp_path: Path) -> None:
    visit(page, [small], tmp_path)
    loss = small.surprise("loss")
    low, high = np.sort(loss)[[int(0.25 * TIME), int(0.998 * TIME)]]
    for number in (3, 17, int(loss[:100].argmax())):
        wanted = np.clip((loss[number] - low) / (high - low), 0, 1)
        assert strength(page, number) == pytest.approx(wanted, abs=0.02)
    token(page, 17).hover()
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    words = tip.inner_text()
    rank = 1 + int((loss > loss[17]).sum())
    assert small.texts[17].strip() in words and f"rank {rank} of {TIME}" in words
    plain = words.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    rows = dict(re.findall(r"^(.+?)\t(.+)$", plain, flags=re.MULTILINE))
    assert float(rows["surprise (loss)"]) == pytest.approx(loss[17], rel=1e-3)
    norm = small.surprise("grad_norm")[17]
    assert float(rows["gradient norm"]) == pytest.approx(norm, rel=1e-3)
    share = np.mean([layer.memory_share[17] for layer in small.layers])
    assert float(rows["memory's share"]) == pytest.approx(share, rel=1e-2)
    assert float(rows["model's loss: live"]) == pytest.approx(small.worth.tokens[17, 0], rel=1e-2)
    assert page.locator(".page b").count() == 0, "text of the file is no markup"
    assert "<b>bold</b>" in page.locator(".page").inner_text()


@pytest.mark.browser
def test_layer_and_head_are_chosen(page: object, small: Trace, tmp_path: Path) -> None:
    visit(page, [small], tmp_path)
    averaged = [strength(page, n) for n in range(30)]
    gates = page.locator("#gates figure").first
    assert gates.locator(".legend span").all_inner_texts() == ["layer 0", "layer 1"]
    page.select_option("#layer", "1")
    of_layer = [strength(page, n) for n in range(30)]
    assert of_layer != averaged
    assert gates.locator(".legend span").all_inner_texts() == ["head 0", "head 1"]
    page.select_option("#head", "1")
    of_head = [strength(page, n) for n in range(30)]
    assert of_head != of_layer
    token(page, 5).hover()
    shown = re.search(r"surprise \(loss\)\t(\S+)", page.locator("#tip").inner_text())[1]
    assert float(shown) == pytest.approx(small.layers[1].tokens.loss[5, 1], rel=1e-3)
    assert "layer 1, head 1" in page.locator("#forgetting figcaption").first.inner_text()
    page.select_option("#measure", "write_size")
    token(page, 6).hover()
    shown = re.search(r"write size\t(\S+)", page.locator("#tip").inner_text())[1]
    assert float(shown) == pytest.approx(small.layers[1].tokens.write_size[6, 1], rel=2e-3)
    page.select_option("#layer", "-1")
    assert page.locator("#head").input_value() == "1"


@pytest.mark.browser
def test_charts_tell_their_values(page: object, small: Trace, tmp_path: Path) -> None:
    visit(page, [small], tmp_path)
    charts = {"gates": 7, "life": 5, "forgetting": 2, "worth": 1}
    for section, count in charts.items():
        assert page.locator(f"#{section} svg").count() == count
    page.select_option("#layer", "0")
    page.select_option("#head", "0")
    chart = page.locator("#life figure", has_text="drift").first.locator("svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 10, box["y"] + box["height"] / 2)
    words = page.locator("#tip").inner_text()
    assert f"token {TIME}" in words
    shown = float(re.search(r"\t(\S+)", words)[1])
    assert shown == pytest.approx(small.layers[0].life.drift[-1, 0], rel=1e-3)


@pytest.mark.browser
def test_dark_and_light(page: object, small: Trace, tmp_path: Path) -> None:
    page.emulate_media(color_scheme="dark")
    visit(page, [small], tmp_path)

    def lightness() -> float:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3

    assert lightness() < 60, "follows the system"
    page.emulate_media(color_scheme="light")
    page.wait_for_function("document.documentElement.dataset.theme === 'light'")
    assert lightness() > 200
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert lightness() < 60, "the button wins over the system"
    page.screenshot(path=tmp_path / "dark.png")
    assert (tmp_path / "dark.png").stat().st_size > 10_000


@pytest.mark.browser
def test_peaks_lead_to_their_place(page: object, small: Trace, tmp_path: Path) -> None:
    visit(page, [small], tmp_path)
    last = max(range(len(small.peaks)), key=lambda n: small.peaks[n].position)
    page.locator(".peaks li button").nth(last).click()
    marked = token(page, small.peaks[last].position)
    marked.wait_for(state="visible")
    assert "now" in marked.get_attribute("class")
    place, box = marked.bounding_box(), page.locator(".page").bounding_box()
    assert box["y"] < place["y"] < box["y"] + box["height"]


@pytest.mark.browser
def test_two_runs_stand_side_by_side(page: object, small: Trace, tmp_path: Path) -> None:
    model = tiny_model("lmm", dtype=torch.float32)
    ids = tiny_tokens(batch=1, time=90, seed=5)[0]
    other = trace(model, ids, name="another model", limits=Limits(reads=9))
    visit(page, [small, other], tmp_path)
    left, right = (page.locator(".page").nth(n).bounding_box() for n in (0, 1))
    assert left["x"] + left["width"] <= right["x"] and left["y"] == right["y"]
    assert page.locator("table.compare").inner_text().count("parameters") == 2
    charts = page.locator("#life figure svg")
    assert charts.count() == 10
    ticks = [
        chart.locator("text[text-anchor=end]").all_inner_texts()
        for chart in (charts.nth(0), charts.nth(5))
    ]
    assert ticks[0] == ticks[1], "one scale for both"
    # Without texts, tokens are shown by their numbers.
    assert str(int(other.ids[0])) in page.locator(".page").nth(1).inner_text()


@pytest.mark.browser
def test_50k_tokens_open_without_lag(page: object, small: Trace, tmp_path: Path) -> None:
    seconds = visit(page, [spread(small, 4, 4, 50_000)], tmp_path)
    assert seconds < 8
    # Only what is in view is broken into tokens, so everything that follows is quick.
    assert page.locator(".page i").count() < 4_000
    assert page.evaluate("document.querySelector('.page').textContent.length") > 200_000
    lag = page.evaluate(
        """() => { const select = document.getElementById("layer"), begin = performance.now();
        select.value = "2"; select.dispatchEvent(new Event("change"));
        document.body.getBoundingClientRect(); return performance.now() - begin; }"""
    )
    assert lag < 2_000
    page.evaluate("document.querySelector('.page').scrollTop = 1e7")
    token(page, 49_999).wait_for(state="visible")
