"""The documents: every link leads somewhere, the log keeps its form, findings cite it."""

import re
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(ROOT.glob("docs/**/*.md")) + sorted(ROOT.glob("*.md"))
LOGS = sorted(ROOT.glob("docs/log/*.md"))
ENTRY = re.compile(r"(\d{4}-\d{2}-\d{2}): \S.* \((.+)\)( \(p\))?")


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link, as GitHub and MkDocs make it."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?://", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{link}: no such file"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_log_entries_are_dated_and_judged_newest_first(log: Path) -> None:
    headings = re.findall(r"^## (.+)$", log.read_text(), re.MULTILINE)
    assert headings
    matches = [ENTRY.fullmatch(heading) for heading in headings]
    for heading, match in zip(headings, matches, strict=True):
        assert match, f"{heading!r} is not `YYYY-MM-DD: subject (verdict)`"
    days = [date.fromisoformat(match[1]) for match in matches if match]
    assert days == sorted(days, reverse=True)


def test_every_finding_cites_the_log() -> None:
    findings = re.findall(r"^\d+\. .+$", (ROOT / "docs/findings.md").read_text(), re.MULTILINE)
    assert len(findings) >= 15
    for finding in findings:
        assert "](log/" in finding, finding
