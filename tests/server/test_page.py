"""The page in a real Chromium: chat, search, timeline, forgetting, files, playground."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from server.conftest import bearer
from titans.analysis.subject import Subject
from titans.recall import ScriptedGenerator
from titans.server import KeyRing

pytestmark = pytest.mark.browser
expect.set_options(timeout=60_000)  # a busy machine
CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
HOSTILE = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which every error of a script, and every refused asset, fails the test."""
    opened = browser.new_page(accept_downloads=True)
    opened.set_default_timeout(60_000)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "console", lambda m: problems.append(m.text) if "Content Security" in m.text else None
    )
    yield opened
    opened.close()
    assert problems == []


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def remember(page: Page, *texts: str) -> None:
    tab(page, "Timeline")
    for number, text in enumerate(texts, 1):
        page.get_by_label("Remember", exact=True).fill(text)
        page.get_by_role("button", name="Remember").click()
        expect(page.locator("#memories > li")).to_have_count(number)


def test_a_chat_shows_what_was_recalled_and_why(live, page: Page):
    llm = ScriptedGenerator(["Nice name.", "It is called Rex."])
    with live(llm=llm) as url:
        page.goto(url)
        for text in ("My dog is called Rex.", "What is my dog called?"):
            page.get_by_label("Your message").fill(text)
            page.get_by_label("Your message").press("Enter")
            expect(page.locator("#stop")).to_be_hidden()
        last = page.locator(".turn").last
        expect(last.locator(".model")).to_have_text("It is called Rex.")
        expect(last.locator("summary").first).to_contain_text("used; surprise")
        # The dialogue says it already, so it is not recalled; a new page has no dialogue.
        page.reload()
        llm.requests.clear()
        page.get_by_label("Your message").fill("What is the dog called?")
        page.get_by_role("button", name="Send").click()
        used = page.locator(".turn .cards li", has_text="My dog is called Rex.")
        expect(used.first).to_contain_text("score")


def test_search_explains_and_a_text_is_never_mark_up(live, page: Page):
    with live() as url:
        page.goto(url)
        remember(page, HOSTILE, "The meeting is on Friday.")
        page.locator("body").press("/")
        expect(page.get_by_label("Question or words")).to_be_focused()
        page.keyboard.type("img onerror")
        page.keyboard.press("Enter")
        expect(page.locator("#answers > li").first).to_contain_text(HOSTILE)
        page.locator("#answers summary").first.click()
        assert page.locator("#answers table").first.locator("tr").count() > 10
        page.locator("#answers > li").first.get_by_role("button", name="Why").click()
        expect(page.locator("dialog")).to_contain_text("surprise")
        page.keyboard.press("Escape")
        assert page.title() == "Titans memory" and page.locator("main img").count() == 0


def test_updates_and_duplicates_are_chains(live, page: Page):
    with live() as url:
        page.goto(url)
        remember(page, "I live in Oslo.", "I live in Rome.", "I live in Rome.")
        assert page.locator("#surprises rect").count() == 3
        expect(page.locator("#counts")).to_contain_text("1 that repeat others, 1 that update")
        page.locator("#memories > li").nth(1).get_by_role("button", name="Why").click()
        expect(page.locator("dialog .chain li")).to_have_text(
            [re.compile("Oslo"), re.compile("Rome")]
        )
        page.keyboard.press("Escape")
        page.locator("#memories > li").nth(0).get_by_role("button", name="Why").click()
        expect(page.locator("dialog")).to_contain_text("It says the same as")


def test_forgetting_shows_first_what_would_go(live, page: Page):
    with live() as url:
        page.goto(url)
        remember(page, "one text", "another thing", "a third matter")
        page.locator("#memories > li").first.get_by_role("button", name="Forget").click()
        page.get_by_role("button", name="Forget for good").click()
        expect(page.locator("#memories > li")).to_have_count(2)
        tab(page, "Forget and files")
        page.get_by_label("everything").check()
        page.get_by_role("button", name="Preview").click()
        expect(page.locator("#preview li")).to_have_count(2)
        page.get_by_role("button", name="Forget 2 for good").click()
        expect(page.locator("#status")).to_have_text("forgotten: 2")


def test_files_go_out_and_come_in(live, page: Page, tmp_path: Path):
    with live() as url:
        page.goto(url)
        remember(page, "one text", "another thing")
        tab(page, "Forget and files")
        with page.expect_download() as download:
            page.get_by_role("button", name="Export").click()
        file = tmp_path / "memories.jsonl"
        download.value.save_as(file)
        assert [json.loads(line)["text"] for line in file.read_text().splitlines()] == [
            "one text",
            "another thing",
        ]
        page.get_by_label("scope").fill("copy")
        page.get_by_role("button", name="Use").click()
        page.get_by_label("Import JSON lines").set_input_files(file)
        expect(page.locator("#status")).to_have_text("new memories: 2")


def test_a_key_is_asked_for_and_used(live, page: Page, ring: KeyRing):
    _, token = ring.make("ann", ["ann"])
    with live() as url:
        page.goto(url)
        tab(page, "Timeline")
        expect(page.locator("#status")).to_contain_text("titans keys make")
        page.get_by_label("key", exact=True).fill(token)
        page.get_by_role("button", name="Use").click()
        expect(page.locator("#counts")).to_contain_text("0 memories in ann")
        assert bearer(token)["Authorization"] not in page.content()


def test_it_works_with_the_keyboard_on_a_phone_in_light_and_dark(live, page: Page):
    with live() as url:
        colours = []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.set_viewport_size({"width": 360, "height": 640})
            page.goto(url)
            page.get_by_role("tab", name="Chat").focus()
            for name in ("Search", "Timeline", "Forget and files", "Playground"):
                page.keyboard.press("ArrowRight")
                expect(page.get_by_role("tab", name=name)).to_be_focused()
                assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
            colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            loaded = "performance.getEntriesByType('resource').map(e => e.name)"
            assert all(str(name).startswith(url) for name in page.evaluate(loaded))
        assert colours[0] != colours[1]


def test_a_model_reads_in_the_playground(live, page: Page):
    subject = Subject.load(CHECKPOINTS / "bytes-mac")
    with live(playground=subject) as url:
        page.goto(url)
        tab(page, "Playground")
        expect(page.locator("#now")).to_contain_text("bytes-mac")
        page.get_by_label("Text", exact=True).fill("The sea was calm. The sea was grey.")
        page.get_by_label("Then it goes on from").fill("The sea")
        page.get_by_role("button", name="Read").click()
        expect(page.locator("#tokens span")).to_have_count(35)
        expect(page.locator("#now")).to_contain_text("35 tokens; surprise")
        expect(page.locator("#continued")).to_contain_text("Without: The sea")
        expect(page.locator("#halt")).to_be_hidden(timeout=60_000)
        assert page.locator("#curve path").count() == 1
        assert len(page.locator("#said").inner_text()) > 30


def test_without_a_model_the_playground_says_how_to_get_one(live, page: Page):
    with live() as url:
        page.goto(f"{url}/#playground")
        expect(page.locator("#status")).to_contain_text("--playground CHECKPOINT")
