"""What the package brings along and finds by name: configurations, a text, the demo's models."""

from pathlib import Path

HOME = Path(__file__).parent
CONFIGS = HOME / "configs"
SAMPLE_TEXT = HOME / "demo" / "dracula.txt"
"""The first five chapters of a novel; `sample` where a text is asked for."""
DEMO = {name: HOME / "demo" / name for name in ("mac", "swa")}
CHECKPOINTS = {"demo": DEMO["mac"]}
TEXTS = {"sample": SAMPLE_TEXT}


def config_names() -> list[str]:
    """What `titans train` takes in place of a file."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def find_config(name: str | Path) -> Path:
    """The file, or the shipped one of that name: `mac`, `mac.yaml`, `configs/mac.yaml`."""
    path = Path(name)
    if path.exists():
        return path
    if path.parts[:1] == (CONFIGS.name,):
        return CONFIGS.joinpath(*path.parts[1:])
    if len(path.parts) == 1 and path.stem in config_names():
        return CONFIGS / f"{path.stem}.yaml"
    return path


def find_text(name: str | Path) -> Path:
    """The file or folder, or the shipped text of that name."""
    return _by_name(name, TEXTS)


def find_checkpoint(name: str | Path) -> Path:
    """The folder, or the shipped checkpoint of that name."""
    return _by_name(name, CHECKPOINTS)


def _by_name(name: str | Path, known: dict[str, Path]) -> Path:
    path = Path(name)
    return path if path.exists() else known.get(str(name), path)
