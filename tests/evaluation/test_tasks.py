"""Every benchmark with an oracle (100 %), a constant answerer (chance) and clear refusals."""

import math
from pathlib import Path

import numpy as np
import pytest

from evaluation.subjects import CARD, Scripted, last_value, needle_in_text, needle_in_tokens
from titans.errors import ConfigError, DataError
from titans.evaluation.lm import LanguageModelling
from titans.evaluation.record import Record
from titans.evaluation.registry import TASKS, build_task, load_task
from titans.evaluation.runner import run_task
from titans.tasks.babilong import Babilong, BabilongGenerator
from titans.tasks.mqar import Mqar
from titans.tasks.needle import Needle
from titans.tasks.niah import KINDS, SNiah
from titans.tasks.permutations import Permutations, composition_table
from titans.tasks.task import Task, batch_for

PEOPLE, PLACES = ("Mary", "John", "Sandra"), ("garden", "kitchen", "office", "hallway")


@pytest.fixture
def haystack(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    words = ["wind", "rain", "field", "gate", "road"]
    lines = [" ".join(rng.choice(words, 8)).capitalize() + "." for _ in range(300)]
    path = tmp_path / "haystack.txt"
    path.write_text(" ".join(lines))
    return path


@pytest.fixture
def babi(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    lines = []
    for _ in range(30):
        for number in range(1, 5):
            lines.append(f"{number} {rng.choice(PEOPLE)} went to the {rng.choice(PLACES)}.")
        person, place = lines[-1].split()[1], lines[-1].split()[-1][:-1]
        lines.append(f"5 Where is {person}? \t{place}\t4")
    folder = tmp_path / "babi"
    folder.mkdir()
    (folder / "qa1_single-supporting-fact_test.txt").write_text("\n".join(lines))
    return folder


def run(task: Task, subject: Scripted) -> Record:
    return run_task(task, subject, CARD, seed=1)


def test_an_oracle_finds_every_needle_and_lengths_are_kept(haystack: Path) -> None:
    subject = Scripted(needle_in_text)
    record = run(SNiah(lengths=(2_048, 1_024), samples=6, kinds=KINDS, haystack=haystack), subject)
    accuracies = [score for score in record.scores if score.metric == "accuracy"]
    assert [score.value for score in accuracies] == [1.0] * 6
    assert [score.length for score in accuracies] == [1_024] * 3 + [2_048] * 3
    assert {score.detail["kind"] for score in accuracies} == {"pk", "n", "w"}
    assert set(subject.lengths) == {1_024, 2_048}
    state = record.find("state_bytes", 2_048, kind="pk")
    assert state is not None and state.value == 7


def test_lengths_that_came_out_are_recorded(haystack: Path) -> None:
    """A sample fills its length but for less than one more word (or one more unit of noise)."""
    record = run(SNiah(lengths=(2_048,), samples=5, kinds=KINDS, haystack=haystack), Scripted())
    for kind, room in (("pk", 90), ("n", 9), ("w", 9)):
        tokens = record.find("tokens", 2_048, kind=kind)
        assert tokens is not None and 2_048 - room < tokens.value <= 2_048


def test_every_file_can_be_a_haystack_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"Book{number} is long. " * 400)
    books: dict[bool, list[str]] = {}

    def answer(prompt: str) -> str:
        books[each].append(prompt.split("\n")[1][: len("Book0")])
        return needle_in_text(prompt)

    for each in (False, True):
        books[each] = []
        task = SNiah(lengths=(1_024,), samples=7, kinds=("n",), haystack=folder, each_file=each)
        record = run(task, Scripted(answer))
        assert record.options["each_file"] is each
        assert record.find("accuracy", 1_024).value == 1  # type: ignore[union-attr]
    # A needle in front of the first sentence hides which book it is.
    one, three = ([b for b in books[each] if b != "One o"] for each in (False, True))
    assert set(one) == {"Book0"} and set(three) == {"Book0", "Book1", "Book2"}
    assert books[True] == [
        b if b == "One o" else f"Book{number % 3}" for number, b in enumerate(books[True])
    ]


def test_few_long_samples_are_measured_together() -> None:
    assert batch_for(2_048, 20) == 20 and batch_for(512, 20) == 64
    assert batch_for(2 << 20, 20) == 4 and batch_for(1 << 30, 20) == 1 and batch_for(0) == 64


def test_a_constant_answerer_finds_no_needle(haystack: Path) -> None:
    record = run(
        SNiah(lengths=(1_024,), samples=20, kinds=KINDS, haystack=haystack),
        Scripted(lambda _: " 1234567"),
    )
    for score in record.scores:
        if score.metric == "accuracy":
            assert score.value == 0 and 0 < score.high < 0.2


def test_depths_make_a_cell_each() -> None:
    task = SNiah(lengths=(1_024, 4_096), samples=2, kinds=("pk",), depths=5)
    assert [cell.detail["depth"] for cell in task.cells()[:5]] == [0, 0.25, 0.5, 0.75, 1]
    record = run(task, Scripted(needle_in_text))
    assert len(record.scores) == 3 * 2 * 5
    places = [
        task.sample(Scripted(), cell, 1, 0).prompt.index("One of the special")
        for cell in task.cells()[5:]
    ]
    assert places == sorted(places) and places[-1] > 3_000


def test_needle_tokens_oracle_and_chance() -> None:
    task = Needle(lengths=(64, 256), samples=30)
    assert all(s.value == 1 for s in run(task, Scripted(predict=needle_in_tokens)).scores[::2])
    constant = run(
        Needle(lengths=(256,), samples=400, num_values=8),
        Scripted(predict=lambda tokens: np.full_like(tokens, 35)),
    )
    score = constant.find("accuracy", 256)
    assert score is not None and score.low < 1 / 8 < score.high
    with pytest.raises(DataError, match=r"vocabulary of 100"):
        run(task, Scripted(vocab_size=100))


def test_needle_depths_place_the_needles() -> None:
    record = run(Needle(lengths=(128,), samples=3, depths=3), Scripted(predict=needle_in_tokens))
    assert [s.detail["depth"] for s in record.scores[::2]] == [0, 0.5, 1]


@pytest.mark.parametrize("setting", ["a", "b", "forgetting"])
def test_mqar_oracle_is_nearly_perfect_and_silence_scores_nothing(setting: str) -> None:
    task = build_task("mqar", {"setting": setting, "samples": 12})
    record = run(task, Scripted(predict=last_value))  # type: ignore[arg-type]
    # Random filler may by chance look like one more pair; zeros cannot.
    least = 1.0 if setting == "a" else 0.9
    assert all(score.value >= least for score in record.scores)
    assert len(record.scores) == {"a": 4, "b": 7, "forgetting": 4}[setting]
    silent = run(task, Scripted())  # type: ignore[arg-type]
    assert all(score.value == 0 for score in silent.scores)


def test_mqar_refuses_other_vocabularies_and_lengths() -> None:
    with pytest.raises(DataError, match=r"tokens 0\.\.8191"):
        run(Mqar(samples=1), Scripted(vocab_size=256))
    with pytest.raises(ConfigError, match="only the lengths"):
        Mqar(lengths=(100,))
    with pytest.raises(ConfigError, match="settings a, b and forgetting"):
        Mqar(setting="c")  # type: ignore[arg-type]
    small = run(Mqar(samples=3, lengths=(64,), vocab_size=256), Scripted(vocab_size=256))
    assert small.options["vocab_size"] == 256 and len(small.scores) == 3


@pytest.mark.parametrize("degree", [3, 5])
def test_permutations_oracle_and_chance(degree: int) -> None:
    table = composition_table(degree)

    def product(tokens: np.ndarray) -> np.ndarray:
        answers = tokens - 1
        for t in range(1, tokens.shape[1]):
            answers[:, t] = table[tokens[:, t] - 1, answers[:, t - 1]]
        return answers + 1

    task = Permutations(lengths=(8, 32), samples=300, degree=degree)
    assert {score.value for score in run(task, Scripted(predict=product)).scores} == {1.0}
    constant = run(task, Scripted(predict=np.ones_like)).find("last_accuracy", 32)
    assert constant is not None and constant.low <= 1 / len(table) <= constant.high


def test_babilong_oracle_constant_and_room(babi: Path, haystack: Path) -> None:
    task = Babilong(
        lengths=(0, 1_024, 2_048), samples=20, tasks=("qa1",), babi=babi, background=haystack
    )

    def follow(prompt: str) -> str:
        person = prompt.rsplit("Where is ", 1)[1].split("?")[0]
        return f" {prompt.rsplit(person + ' went to the ', 1)[1].split('.')[0]}."

    subject = Scripted(follow)
    scores = run(task, subject).scores
    assert [score.value for score in scores if score.metric == "accuracy"] == [1, 1, 1]
    states = [s for s in scores if s.metric == "state_bytes"]
    assert [(s.value, s.length, s.detail) for s in states] == [
        (7, length, {"task": "qa1"}) for length in (0, 1_024, 2_048)
    ]
    constant = run(task, Scripted(lambda _: " garden.")).find("accuracy", 1_024)
    assert constant is not None and constant.low < 1 / 4 < constant.high
    with pytest.raises(DataError, match="fewer than the 31 samples"):
        run(
            Babilong(lengths=(1_024,), samples=31, tasks=("qa1",), babi=babi, background=haystack),
            subject,
        )


def test_babilong_tokenizes_its_questions_once_for_each_model_and_length(
    babi: Path, haystack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def usable(task: BabilongGenerator, length: int) -> list[int]:
        asked.append(length)
        return list(range(len(task.questions)))

    monkeypatch.setattr(BabilongGenerator, "usable", usable)
    lengths = (1_024, 2_048)
    task = Babilong(lengths=lengths, samples=4, tasks=("qa1",), babi=babi, background=haystack)
    for subject in (Scripted(), Scripted()):
        for cell in task.cells():
            for sample in range(4):
                task.measure(subject, cell, 1, [sample])
    assert asked == [1_024, 2_048] * 2


def test_babilong_needs_its_files(babi: Path, haystack: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--babi"):
        Babilong(background=haystack)
    with pytest.raises(ConfigError, match="does not have qa20"):
        Babilong(tasks=("qa20",), babi=babi, background=haystack)
    with pytest.raises(DataError, match="no qa2_"):
        run(Babilong(tasks=("qa2",), babi=babi, background=haystack), Scripted())
    with pytest.raises(DataError, match="no such text"):
        run(Babilong(tasks=("qa1",), babi=babi, background=tmp_path / "none"), Scripted())


def test_language_modelling_is_exact_on_a_known_loss(haystack: Path) -> None:
    record = run(LanguageModelling(lengths=(64, 256), samples=3, text=haystack), Scripted())
    for length in (64, 256):
        bits, perplexity = record.find("bits_per_byte", length), record.find("perplexity", length)
        assert bits is not None and math.isclose(bits.value, 2.0)
        assert perplexity is not None and math.isclose(perplexity.value, 4.0)
        state = record.find("state_bytes", length)
        assert state is not None and state.value == 7 and not state.detail
    assert record.options["tokens"] == 768
    octaves = [s.detail["from"] for s in record.scores if s.metric == "perplexity" and s.detail]
    assert octaves == [1, 2, 4, 8, 16, 32, 64, 128]
    with pytest.raises(ConfigError, match="must divide"):
        LanguageModelling(lengths=(100, 256), text=haystack)
    with pytest.raises(ConfigError, match="--text"):
        LanguageModelling()
    with pytest.raises(DataError, match="fewer than the longest"):
        run(LanguageModelling(lengths=(1 << 20,), text=haystack), Scripted())


def test_bits_per_byte_are_exact_where_windows_cut_characters(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    # Three bytes each, so that windows of 64 bytes begin and end within one.
    text.write_text("\N{EURO SIGN}" * 200)
    record = run(LanguageModelling(lengths=(64, 128), text=text), Scripted())
    for length in (64, 128):
        bits = record.find("bits_per_byte", length)
        assert bits is not None and bits.value == pytest.approx(2.0, abs=1e-12)


def test_options_of_other_tasks_and_missing_haystacks_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown key babi"):
        build_task("mqar", {"babi": Path("x")})
    with pytest.raises(ConfigError, match="no benchmark named 'nothing'"):
        load_task("nothing")
    with pytest.raises(ConfigError, match="--haystack"):
        SNiah(kinds=("n",))
    with pytest.raises(ConfigError, match="got x"):
        SNiah(kinds=("x",))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_registered_under_its_own_name(name: str) -> None:
    assert load_task(name).name == name
