"""Sentences, S-NIAH and BABILong against their definitions, on small texts made here."""

import json
import re
import uuid
from pathlib import Path

import numpy as np
import pytest

from titans.errors import DataError
from titans.tasks import babilong, niah
from titans.tasks.text.haystack import Essay, read_books
from titans.tasks.text.sentences import split_sentences

PROSE = (
    'Mr. Smith went to St. Ives at 5 p.m. on Monday. "Who is there?" he asked. '
    "Nobody answered! J. R. Green had left. It rained (a little.) Then it stopped.\n\n"
    "A new paragraph begins; the day was fine, and so was I. We walked home."
)


def encode(text: str) -> list[int]:
    return list(text.encode())


def count(text: str) -> int:
    return len(text.encode())


def long_text(num_sentences: int = 400) -> str:
    rng = np.random.default_rng(0)
    words = ["alpha", "beta", "gamma", "delta", "river", "stone", "cloud"]
    lines = [" ".join(rng.choice(words, rng.integers(4, 12))) for _ in range(num_sentences)]
    return " ".join(f"{line.capitalize()}." for line in lines)


def test_sentences_know_abbreviations_initials_quotations_and_paragraphs() -> None:
    assert split_sentences(PROSE) == [
        "Mr. Smith went to St. Ives at 5 p.m. on Monday.",
        '"Who is there?" he asked.',
        "Nobody answered!",
        "J. R. Green had left.",
        "It rained (a little.)",
        "Then it stopped.",
        "A new paragraph begins; the day was fine, and so was I.",
        "We walked home.",
    ]
    assert split_sentences("") == [] and split_sentences(" no stop ") == ["no stop"]


def test_sentences_lose_nothing_but_white_space() -> None:
    text = PROSE + " " + long_text(50)
    assert re.sub(r"\s", "", "".join(split_sentences(text))) == re.sub(r"\s", "", text)


@pytest.mark.parametrize("num_words", [1, 2, 9, 10, 11, 57, 500])
def test_an_essays_first_words_as_sentences_equal_splitting_them(num_words: int) -> None:
    text = PROSE + " " + long_text(200)
    first_words = " ".join(text.split()[:num_words])
    assert Essay(text).take_sentences(num_words) == split_sentences(first_words)


def test_an_essay_starts_again_when_it_ends() -> None:
    essay = Essay("One two three. Four five.")
    assert essay.take_sentences(12) == ["One two three.", "Four five."] * 2 + ["One two"]


def test_an_essay_can_begin_at_any_sentence() -> None:
    essay = Essay("One two three. Four five. Six.")
    assert essay.num_sentences == 3
    assert essay.take_sentences(3, first=1) == ["Four five.", "Six."]
    assert essay.take_sentences(5, first=2) == ["Six.", "One two three.", "Four"]
    assert essay.take_sentences(1, first=1) == ["Four"]


def test_texts_are_read_from_files_folders_and_json(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "essays.json").write_text(json.dumps({"text": "from json"}))
    assert read_books(tmp_path) == ["first", "second"]
    assert read_books(tmp_path / "b.txt") == ["second"]
    assert read_books(tmp_path / "essays.json") == ["from json"]


def test_texts_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("  \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "bad.json").write_text("[1]")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("missing", "no such text"),
        ("empty.txt", "no text at all"),
        ("binary.txt", "not UTF-8"),
        ("bad.json", "must hold"),
        ("folder", "no .txt file"),
    ):
        with pytest.raises(DataError, match=message):
            read_books(tmp_path / name)


def niah_task(kind: niah.Kind) -> niah.NiahGenerator:
    return niah.NiahGenerator(kind=kind, essay=Essay(long_text()), words=niah.KeyWords.default())


@pytest.mark.parametrize("length", [1_024, 2_000, 16_384])
@pytest.mark.parametrize("kind", niah.KINDS)
def test_niah_fills_the_length_and_no_more(kind: niah.Kind, length: int) -> None:
    sample = niah_task(kind).sample(np.random.default_rng(1), length, count)
    assert sample.num_tokens == count(sample.prompt) + 128 <= length
    # One more unit (a noise line, or a word of at most six letters) would not have fitted.
    unit = len(niah.NOISE) + 1 if kind == "pk" else len("Alpha. ")
    assert sample.num_tokens + unit > length


@pytest.mark.parametrize(("kind", "noun"), [("pk", "number"), ("n", "number"), ("w", "uuid")])
def test_niah_prompt_is_the_published_one(kind: niah.Kind, noun: str) -> None:
    sample = niah_task(kind).sample(np.random.default_rng(0), 2_048, count)
    (value,) = sample.answers
    needle = re.search(rf"One of the special magic {noun}s for (\S+) is: (\S+)\.", sample.prompt)
    assert needle is not None and needle[2] == value
    key = needle[1]
    assert sample.prompt.startswith(
        f"A special magic {noun} is hidden within the following text. Make sure to memorize it. "
        f"I will quiz you about the {noun} afterwards.\n"
    )
    assert sample.prompt.endswith(
        f"\nWhat is the special magic {noun} for {key} mentioned in the provided text? "
        f"The special magic {noun} for {key} mentioned in the provided text is"
    )
    if kind == "w":
        assert str(uuid.UUID(value)) == value and uuid.UUID(value).version == 4
    else:
        assert 1_000_000 <= int(value) <= 9_999_999


def test_passkey_context_is_noise_lines_with_the_needle_on_its_own() -> None:
    sample = niah_task("pk").sample(np.random.default_rng(0), 4_096, count)
    lines = sample.prompt.split("\n")[1:-1]
    others = [line for line in lines if not line.startswith("One of the special magic numbers")]
    assert len(niah.NOISE) == 89 and len(others) == len(lines) - 1
    assert set(others) == {niah.NOISE} and lines[-1] == niah.NOISE


def test_needle_places_are_uniform() -> None:
    task = niah_task("n")
    rng = np.random.default_rng(0)
    depths = [task.sample(rng, 1_000, count).depth for _ in range(4_000)]
    assert sorted({round(depth * 100) for depth in depths}) == sorted(niah.DEPTHS)
    counts = np.bincount([niah.DEPTHS.index(round(depth * 100)) for depth in depths])
    assert len(niah.DEPTHS) == 40 and niah.DEPTHS[0] == 0 and niah.DEPTHS[-1] == 100
    assert (abs(counts - 100) < 5 * 10).all()
    places = []
    for _ in range(2_000):
        lines = niah_task_pk.sample(rng, 1_500, count).prompt.split("\n")[1:-1]
        places.append(next(i for i, line in enumerate(lines) if line != niah.NOISE))
    shares = np.bincount(places, minlength=len(lines) - 1) / 2_000
    # The number of noise lines varies by one with the length of the key.
    assert abs(shares[:-1].mean() - shares[:-1]).max() < 0.04


niah_task_pk = niah_task("pk")


def test_a_chosen_depth_is_kept() -> None:
    task = niah_task("n")
    for depth in (0.0, 0.5, 1.0):
        sample = task.sample(np.random.default_rng(0), 8_192, count, depth=depth)
        place = sample.prompt.index("One of the special") / len(sample.prompt)
        assert abs(place - depth) < 0.05


def test_keys_come_from_the_given_words(tmp_path: Path) -> None:
    (tmp_path / "adjectivelist.txt").write_text("red\nblue\n\n")
    (tmp_path / "nounlist.txt").write_text("car\ncar\nbus\n")
    words = niah.KeyWords.load(tmp_path)
    rng = np.random.default_rng(0)
    drawn = [words.draw(rng) for _ in range(4_000)]
    assert set(drawn) == {"red-car", "red-bus", "blue-car", "blue-bus"}
    assert all(abs(drawn.count(key) - 1_000) < 5 * 28 for key in set(drawn))
    (tmp_path / "nounlist.txt").unlink()
    with pytest.raises(DataError, match=r"nounlist\.txt"):
        niah.KeyWords.load(tmp_path)


def test_too_short_a_length_says_what_is_needed() -> None:
    with pytest.raises(DataError, match=r"does not fit in 300 tokens: the shortest sample takes"):
        niah_task("pk").sample(np.random.default_rng(0), 300, count)
    with pytest.raises(DataError, match="needs a haystack"):
        niah.NiahGenerator(kind="n", words=niah.KeyWords.default())


@pytest.mark.parametrize("slope", [1, 7, 90])
def test_largest_fitting_is_the_largest(slope: int) -> None:
    calls = 0

    def cost(n: int) -> int:
        nonlocal calls
        calls += 1
        return 50 + slope * n + n % 3

    for limit in (50 + slope, 500, 2_097_152):
        best = niah.largest_fitting(cost, limit)
        if best is None:
            assert cost(1) > limit
        else:
            assert cost(best) <= limit < max(cost(best + 1), cost(best + 2))
    assert calls < 90
    assert niah.largest_fitting(cost, 10) is None


def test_niah_scoring_is_containment_of_the_whole_value() -> None:
    assert niah.contains_answer(" it is 1234567.", ("1234567",)) == 1
    assert niah.contains_answer(" 123456", ("1234567",)) == 0
    assert niah.contains_answer("ABC-def", ("abc-DEF",)) == 1
    assert niah.contains_answer("one", ("one", "two")) == 0.5


STORY = (
    "1 Mary moved to the bathroom.\n2 John went to the hallway.\n"
    "3 Where is Mary? \tbathroom\t1\n4 Daniel went back to the hallway.\n"
    "5 Mary went to the garden.\n6 Where is Mary? \tgarden\t5\n"
    "1 Sandra went to the office.\n2 Bill took the milk.\n3 Where is Sandra? \toffice\t1\n"
)


@pytest.fixture
def babi(tmp_path: Path) -> Path:
    (tmp_path / "qa1_single-supporting-fact_test.txt").write_text(STORY)
    return tmp_path


def babilong_task(babi: Path, **options: object) -> babilong.BabilongGenerator:
    questions = babilong.read_babi(babilong.find_babi_file(babi, "qa1", "test"))
    background = babilong.Background([long_text(), long_text(90)], encode)
    return babilong.BabilongGenerator(
        questions=questions,
        background=background,
        encode=encode,
        **options,  # pyright: ignore[reportArgumentType]
    )


def test_a_story_with_several_questions_becomes_several_samples(babi: Path) -> None:
    first, second, third = babilong_task(babi).questions
    assert first.facts == ("Mary moved to the bathroom.", "John went to the hallway.")
    assert first.question == "Where is Mary?" and first.answer == "bathroom"
    assert len(second.facts) == 4 and second.answer == "garden" and second.supports == (3,)
    assert third.facts[0].startswith("Sandra") and third.supports == (0,)


def test_malformed_babi_is_named(tmp_path: Path) -> None:
    file = tmp_path / "qa1_x_test.txt"
    for text, message in (
        ("Mary moved.\n", "line 1: expected 'number sentence'"),
        ("1 Mary moved.\n2 Where is Mary?\tgarden\n", "line 2: expected question, answer"),
        ("1 Mary moved.\n2 Where is Mary?\tgarden\tx\n", "line 2: expected question, answer"),
        ("1 Mary moved.\n", "holds no question"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=message):
            babilong.read_babi(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8"):
        babilong.read_babi(file)
    with pytest.raises(DataError, match="no qa2_"):
        babilong.find_babi_file(tmp_path, "qa2", "test")
    with pytest.raises(DataError, match="must be one of"):
        babilong.find_babi_file(tmp_path, "qa11", "test")


@pytest.mark.parametrize("length", [700, 1_024, 20_000])
def test_babilong_context_is_exact_and_keeps_the_facts_in_order(babi: Path, length: int) -> None:
    task = babilong_task(babi)
    sample = task.sample(np.random.default_rng(0), length, 1)
    assert len(sample.context) == length - 300
    text = bytes(sample.context).decode()
    starts = [text.index(" " + fact) for fact in task.questions[1].facts]
    assert starts == sorted(starts) == list(sample.fact_starts)
    again = task.sample(np.random.default_rng(0), length, 1)
    assert again == sample


def test_babilong_length_zero_is_the_facts_alone(babi: Path) -> None:
    task = babilong_task(babi)
    sample = task.sample(np.random.default_rng(0), 0, 0)
    assert (
        bytes(sample.context).decode() == " Mary moved to the bathroom. John went to the hallway."
    )
    with pytest.raises(DataError, match="leaves no context"):
        task.sample(np.random.default_rng(0), 300, 0)


def test_babilong_drops_stories_with_too_many_facts(babi: Path) -> None:
    task = babilong_task(babi)
    # 24 tokens of context allow 3 facts, but not even two of these fit in 24 bytes.
    assert task.usable(324) == [] and task.usable(0) == [0, 1, 2]
    assert task.usable(360) == [0, 2] and task.usable(2_000) == [0, 1, 2]


def test_facts_are_placed_uniformly_between_sentences(babi: Path) -> None:
    task = babilong_task(babi)
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(1_500):
        sample = task.sample(rng, 3_000, 0)
        shares += [start / len(sample.context) for start in sample.fact_starts]
    counts = np.histogram(shares, bins=5, range=(0, 1))[0]
    assert (abs(counts - 600) < 6 * 22).all()


def test_background_sentences_are_whole_consecutive_and_long_enough() -> None:
    book = long_text(4_000)
    text = babilong.Background([book], encode).sample(np.random.default_rng(0), 3_000)
    assert sum(map(len, text)) == 3_000
    whole = b"".join(map(bytes, text[:-1])).decode()
    assert whole.strip() in book and all(len(sentence) >= 10 for sentence in text[:-1])
    with pytest.raises(DataError, match="no sentence of at least"):
        babilong.Background(["A b. C d. E f. G h."], encode).sample(np.random.default_rng(0), 50)


@pytest.mark.parametrize(
    ("task", "output", "question", "answer", "right"),
    [
        ("qa1", " Garden. Then kitchen.", "Where is Mary?", "garden", True),
        ("qa1", "garden or kitchen", "Where is Mary?", "garden", False),
        ("qa1", "I do not know", "Where is Mary?", "garden", False),
        ("qa1", "The garden<context> kitchen", "Where is Mary?", "garden", True),
        ("qa4", "the garden", "What is north of the kitchen?", "garden", True),
        ("qa4", "kitchen is south of the garden", "What is south of the garden?", "kitchen", True),
        ("qa5", "Fred gave it to Mary", "Who did Fred give the milk to?", "Mary", True),
        ("qa7", "none", "How many objects is Mary carrying?", "none", True),
        ("qa7", "one", "How many objects is Mary carrying?", "none", False),
        ("qa8", "milk, apple", "What is Mary carrying?", "apple,milk", True),
        ("qa8", "milk", "What is Mary carrying?", "apple,milk", False),
        ("qa10", "maybe", "Is Bill in the park?", "maybe", True),
    ],
)
def test_babilong_scoring(task: str, output: str, question: str, answer: str, right: bool) -> None:
    assert babilong.is_right(task, output, question, answer) == right
