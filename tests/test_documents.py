"""The documents: links, commands and code work, and the log keeps its form."""

import re
import shlex
from datetime import date
from pathlib import Path

import pytest

from titans.cli.main import build_parser

ROOT = Path(__file__).parent.parent
PAGES = sorted(ROOT.glob("docs/**/*.md")) + sorted(ROOT.glob("*.md"))
REFERENCE = ("models", "training", "evaluation", "recall", "server", "analyze")
GUIDES = [ROOT / "README.md", *sorted(ROOT.glob("docs/tutorials/*.md"))]
GUIDES += [ROOT / "docs" / f"{name}.md" for name in REFERENCE]
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


def commands(page: Path) -> list[str]:
    """The lines of a page's code blocks that call `titans`."""
    blocks = re.findall(r"```(?:bash|text)?\n(.*?)```", page.read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("titans ")]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_commands_are_understood_and_name_files_that_exist(page: Path) -> None:
    for line in commands(page):
        name, *words = shlex.split(line, comments=True)[1:]
        build_parser(name).parse_args(words)
        for path in re.findall(r"(?<![\w/])(?:configs|checkpoints|sweeps|docs)/[\w./-]+", line):
            assert (ROOT / path).exists(), f"{line}: no {path}"


def run_blocks(page: Path) -> dict[str, object]:
    """The Python blocks of a page, one after the other, as a reader would run them."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)
    return names


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tutorial_of_the_layer(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_blocks(ROOT / "docs/tutorials/layer.md")
    errors, size = capsys.readouterr().out.splitlines()
    first, later = (float(number) for number in re.findall(r"\d\.\d\d", errors))
    assert later < 0.8 * first
    assert size.endswith("after 65 readings")


def test_tutorial_of_training(in_tmp: Path) -> None:
    names = run_blocks(ROOT / "docs/tutorials/training.md")
    assert (in_tmp / "book.safetensors").is_file()
    assert names["answer"].shape[1] == 13  # type: ignore[attr-defined]


def test_tutorial_of_the_assistant(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_blocks(ROOT / "docs/tutorials/assistant.md")
    printed = capsys.readouterr().out
    assert "Rex" in printed.splitlines()[0] and "<memory>" in printed
