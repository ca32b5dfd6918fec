"""The pictures of docs/analyze.md: `python docs/analyze/pictures.py` (needs a Chromium).

Run it again when the shipped checkpoint or the page changes.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
COMMAND = "analyze checkpoints/needle-lmm --text docs/analyze/needles.txt --out"
HOVERED = "cairo"


def main() -> None:
    """Analyse, open, take pictures."""
    chromium = shutil.which("chromium") or sys.exit("no chromium: apt install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        words = [sys.executable, "-m", "titans.cli.main", *COMMAND.split(), folder]
        subprocess.run(words, cwd=HERE.parents[1], check=True)
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-background-networking"]
        )
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1320, "height": 940}, color_scheme=scheme)
            page.goto((Path(folder) / "report.html").as_uri())
            page.wait_for_selector("html[data-ready]")
            page.locator(".page i", has_text=HOVERED).first.hover()
            page.screenshot(path=HERE / f"page-{scheme}.png")
        page.mouse.move(2, 2)
        page.locator("#forgetting").evaluate("section => section.scrollIntoView()")
        page.screenshot(path=HERE / "forgetting-dark.png")
        browser.close()


if __name__ == "__main__":
    main()
