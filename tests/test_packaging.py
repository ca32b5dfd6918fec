"""What a wheel holds, and what people have who only `pip install` it."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import titans
from titans import shipped
from titans.cli.failures import EXTRAS, explain
from titans.cli.main import COMMANDS, main

ROOT = Path(__file__).parent.parent
MAX_BYTES = 4_000_000
BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from titans.cli.main import main
for command in {commands!r}:
    try:
        main(command)
    except SystemExit:
        pass
"""


def run_without(absent: tuple[str, ...], commands: list[list[str]], folder: Path) -> list[str]:
    """What commands print on stderr if packages are not installed."""
    code = BLOCK.format(absent=absent, commands=commands)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_a_missing_extra_is_one_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "memory.db").touch()
    commands = [
        ["train", "mac", "--data", "sample"],
        ["generate", "demo", "--prompt", "x"],
        ["recall", "x", "--store", "memory.db"],
        ["analyze", "demo", "--text", "sample"],
        ["demo"],
    ]
    absent = ("transformers", "tokenizers", "tqdm", "yaml", "accelerate", "matplotlib")
    errors = run_without(absent, commands, tmp_path)
    assert len(errors) == len(commands), errors
    for (command, *_), error in zip(commands, errors, strict=True):
        extra = EXTRAS.get(command, "models")
        assert error.startswith(f"titans {command}: ") and f"[{extra}]" in error, error


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for command in COMMANDS:
        error = ModuleNotFoundError("No module named 'x'", name="x")
        assert "pip install" in explain(error, command)
        for extra in EXTRAS.get(command, "models").split(","):
            assert extra in project["optional-dependencies"], command


def test_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert titans.__version__ == project["version"]


def test_configurations_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mac", "mac.yaml", "configs/mac.yaml"):
        assert shipped.find_config(name).is_file()
    assert shipped.find_config("configs/tokenizers/tasks-1k").is_dir()
    assert main(["config", "list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == shipped.config_names()
    assert main(["config", "show", "mac"]) == 0
    assert capsys.readouterr().out == (ROOT / "configs/mac.yaml").read_text()
    assert main(["config", "show", "bytes-mca"]) == 2
    assert "did you mean bytes-mac?" in capsys.readouterr().err
    assert main(["train", "mac", "--data", "sample", "--print-config"]) == 0
    assert "path: sample" in capsys.readouterr().out


def test_the_demo_checkpoint_is_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    prompt = "Mary went to the garden.\nQuestion: Where is Mary?\nAnswer:"
    words = ["--temperature", "0", "--max-new-tokens", "1"]
    assert main(["generate", "demo", "--prompt", prompt, *words]) == 0
    assert capsys.readouterr().out.strip() == "garden"


def tracked(*paths: str) -> list[str]:
    """The project's files below these paths, new ones too."""
    words = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", *paths]
    found = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in found if (ROOT / name).is_file()]


def test_what_ships_is_small_and_declared() -> None:
    """Nearly everything in a wheel of this size is weights and texts, which hardly shrink."""
    files = [ROOT / name for name in tracked("src/titans")]
    heavy = [file for file in files if file.suffix in (".safetensors", ".txt")]
    assert sum(file.stat().st_size for file in heavy) < MAX_BYTES
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = declared["tool"]["setuptools"]["package-data"]["titans"]
    package = ROOT / "src/titans"
    named = {file for pattern in patterns for file in package.glob(pattern)}
    left_out = [f for f in files if f.suffix not in (".py", ".md") and f not in named]
    assert not left_out, left_out


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from an sdist, as an index would have it."""
    folder = tmp_path_factory.mktemp("dist")
    code = (
        "import sys, setuptools.build_meta as b\n"
        "print(getattr(b, f'build_{sys.argv[2]}')(sys.argv[1]))"
    )

    def build(kind: str, source: Path) -> Path:
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder), kind],
            capture_output=True,
            text=True,
            cwd=source,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return folder / done.stdout.splitlines()[-1]

    checkout = folder / "checkout"
    files = tracked("src", "pyproject.toml", "README.md", "LICENSE")
    for name in files:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_bytes((ROOT / name).read_bytes())
    source = build("sdist", checkout)
    subprocess.run(["tar", "-xzf", str(source), "-C", str(folder)], check=True)
    return build("wheel", folder / source.name.removesuffix(".tar.gz"))


@pytest.mark.slow
def test_the_wheel_is_whole_and_small(wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_BYTES
    names = set(zipfile.ZipFile(wheel).namelist())
    left_out = {name.removeprefix("src/") for name in tracked("src/titans")} - names
    assert all(name.endswith(".md") for name in left_out), sorted(left_out)


@pytest.mark.slow
def test_the_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, 'site')\n"
        "import titans; assert 'site' in titans.__file__\n"
        "from titans.cli.main import main\n"
        "assert main(['config', 'show', 'mac']) == 0\n"
        "assert main(['generate', 'demo', '--prompt', 'Mary', '--max-new-tokens', '1']) == 0\n"
        "assert main(['train', 'mac', '--data', 'sample', '--set', 'train.steps=1']) == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/mac/checkpoints/last").is_dir()
