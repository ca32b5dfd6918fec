"""Files are replaced whole or not at all, by one module that everything else writes through."""

import ast
import json
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from titans import files
from titans.errors import DataError, FileError, StateError
from titans.recall.store import SQLiteStore

SOURCE = Path(files.__file__).parent


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.txt"
    files.write_text(path, "one")
    fresh = stat.S_IMODE(path.stat().st_mode)
    assert fresh == 0o666 & ~_umask(), "a new file has a new file's permissions"
    path.chmod(0o600)
    files.write_text(path, "two")
    assert path.read_text() == "two" and stat.S_IMODE(path.stat().st_mode) == 0o600
    files.append_text(path, "three")
    assert files.read_text(path) == "twothree"
    assert [p.name for p in path.parent.iterdir()] == ["b.txt"], "nothing is left beside it"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    files.write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def test_devices_folders_and_inputs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    for path in ("/dev/null", tmp_path / "link"):
        with pytest.raises(FileError, match="is a device or a pipe"):
            files.write_text(path, "x")
        with pytest.raises(FileError, match="is a device or a pipe"):
            files.append_text(path, "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(FileError, match="is a folder: name a file in it"):
        files.write_text(tmp_path, "x")
    (tmp_path / "model").mkdir()
    source = tmp_path / "model" / "weights"
    source.write_text("read")
    (tmp_path / "hard").hardlink_to(source)
    for target in (source, tmp_path / "hard"):
        with pytest.raises(FileError, match="one of the files to read"):
            files.check_target(target, [source])
    with pytest.raises(FileError, match="one of the files to read"):
        files.check_target(source, [tmp_path / "model"])
    files.check_target(tmp_path / "model" / "new", [tmp_path / "model"])
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file is a file, not a folder"):
        files.write_text(tmp_path / "file" / "new", "x")


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_what_no_file_can_be_called_is_refused(name: str, tmp_path: Path) -> None:
    for use in (files.write_text, files.check_target, files.append_text):
        with pytest.raises(FileError, match="is no path"):
            use(tmp_path / name, *["x"] * (use is not files.check_target))
    for read in (files.read_text, SQLiteStore):
        with pytest.raises(FileError, match="is no path"):
            read(tmp_path / name)


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "kept.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), files.writing(path) as file:
        file.write("half")
        raise ZeroDivisionError
    with pytest.raises(DataError, match="character 2 of the text is half of a surrogate pair"):
        files.write_text(path, "ab\ud800")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


FULL = """
import resource, sys
from pathlib import Path
import torch
from titans import files
from titans.errors import FileError
path = Path(sys.argv[1])
files.write_text(path, "old")
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
for write in (
    lambda: files.write_text(path, "x" * 20_000),
    lambda: files.write_tensors(path, {"a": torch.zeros(9_000)}, "f", 1),
):
    try:
        write()
    except FileError as error:
        print(error)
"""


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "kept.txt"
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True)
    assert done.stdout.count("the disk is full") == 2, done.stderr
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), files.new_folder(tmp_path / "f") as part:
        (part / "x").write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    for text in ("first", "second"):
        with files.new_folder(tmp_path / "f") as part:
            (part / "x").write_text(text)
    assert (tmp_path / "f" / "x").read_text() == "first", "the faster process wins"
    assert list(tmp_path.iterdir()) == [tmp_path / "f"]


def test_text_that_is_not_utf8_is_explained(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"not UTF-8 text at byte 3 \(0xe9\)"):
        files.read_text(tmp_path / "latin")
    with pytest.raises(FileError, match="missing cannot be read: No such file"):
        files.read_text(tmp_path / "missing")


def test_every_flipped_byte_of_a_tensor_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([True]), "c": torch.empty(0)}
    files.write_tensors(path, tensors, "kind", 1, {"note": "word"})
    read, notes = files.read_tensors_and_notes(path, "kind", 1)
    assert notes["note"] == "word" and all(torch.equal(read[k], tensors[k]) for k in tensors)
    content = path.read_bytes()
    unnoticed = []
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        try:
            read, notes = files.read_tensors_and_notes(path, "kind", 1)
        except StateError:
            continue
        unnoticed.append(place)
        # Only the checksum's own name is not covered; the tensors are as they were.
        assert notes["note"] == "word" and all(torch.equal(read[k], tensors[k]) for k in tensors)
    assert len(unnoticed) <= len("sha256"), unnoticed


def test_names_in_figures_begin_no_formula(tmp_path: Path) -> None:
    """A run called $x^$ could not be drawn."""
    from matplotlib.figure import Figure

    name = r"$x^$ r$\\frac{$"
    for path in (tmp_path / "a.png", tmp_path / "a.svg"):
        figure = Figure()
        figure.subplots().set_title(files.plain_label(name))
        files.write_figure(path, figure)
    figure = Figure()
    figure.subplots().set_title(name)
    with pytest.raises(ValueError, match="Parse"):
        files.write_figure(tmp_path / "b.png", figure)


def test_a_folder_is_made_or_refused(tmp_path: Path) -> None:
    assert files.make_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file is a file, not a folder: choose another place"):
        files.make_folder(tmp_path / "file")
    with pytest.raises(FileError, match="cannot be made: Not a directory"):
        files.make_folder(tmp_path / "file" / "below")


WRITES = {"write_text", "write_bytes", "mkstemp", "savefig", "save_file", "open"}
"""Names of calls that write, outside of `titans.files`."""


def _writes(path: Path) -> list[str]:
    """Calls in a module that write to the disk by themselves."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = getattr(function, "attr", getattr(function, "id", ""))
        is_ours = name.startswith("write_") and isinstance(function, ast.Name)
        if name not in WRITES or is_ours:
            continue
        if name == "open":
            modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
            if not any(set(str(mode)) & set("wax+") and len(str(mode)) < 4 for mode in modes):
                continue
        elif name in ("savefig", "save_file"):
            # Into a stream, or into the place that `replacing` or `new_folder` gave.
            target = node.args[1 if name == "save_file" else 0]
            if "part" in ast.unparse(target) or "picture" in ast.unparse(target):
                continue
        elif "part" in ast.unparse(function):
            continue
        found.append(f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(function)}")
    return found


ELSEWHERE = {
    "files.py",
    # A checkpoint is filled by several processes and renamed when all are done.
    "training/checkpoint.py",
    # The open log: lines are added for hours.
    "training/log.py",
    # Into the temporary folder of a packed corpus.
    "data/packing.py",
}


def test_every_writer_goes_through_one_module() -> None:
    paths = [p for p in SOURCE.rglob("*.py") if str(p.relative_to(SOURCE)) not in ELSEWHERE]
    assert [write for path in paths for write in _writes(path)] == []


def test_an_error_that_quotes_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "\n", "shape": [], "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "state.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(StateError, match="damaged") as raised:
        files.read_tensors(path, "a state", 1)
    assert "\n" not in str(raised.value)
