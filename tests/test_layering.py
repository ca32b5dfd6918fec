"""Imports point one way: ops <- layers <- models <- training, evaluation, server <- cli."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "titans"

ROOT = {"errors", "files", "settings", "shipped", "terminal"}
"""Modules beside the packages, which every package may import and which import none of them."""

MAY_IMPORT: dict[str, set[str]] = {
    "ops": set(),
    "layers": {"ops"},
    "models": {"ops", "layers"},
    "tasks": set(),
    "data": {"tasks"},
    "demo": {"models", "analysis", "tasks"},
    "training": {"ops", "layers", "models", "data"},
    "analysis": {"ops", "layers", "models", "data"},
    "recall": {"ops", "layers"},
    "integrations": {"recall"},
    "server": {"ops", "layers", "models", "analysis", "recall"},
    "evaluation": {"ops", "layers", "models", "tasks", "data", "training", "recall"},
    "cli": {
        *("ops", "layers", "models", "tasks", "data", "training"),
        *("analysis", "recall", "evaluation", "server", "demo", "integrations"),
    },
}
"""Package -> packages that it may import, besides itself and `ROOT`."""


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
            if node.module == "titans":
                names = [f"titans.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "titans" and len(parts) > 1:
                found.add(parts[1])
    return found


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_point_down(package: str) -> None:
    files = list((SOURCE / package).rglob("*.py"))
    for path in files:
        extra = imported_packages(path) - MAY_IMPORT[package] - {package} - ROOT
        public = {"MemoryConfig", "NeuralMemory", "NeuralMemoryState"}
        assert not extra - public, f"{path.relative_to(SOURCE)} imports {sorted(extra)}"


def test_root_modules_import_no_package() -> None:
    for name in ROOT:
        assert imported_packages(SOURCE / f"{name}.py") <= ROOT


def test_every_package_is_listed() -> None:
    packages = {p.name for p in SOURCE.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert packages <= set(MAY_IMPORT), packages - set(MAY_IMPORT)


def test_modules_have_docstrings() -> None:
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"
