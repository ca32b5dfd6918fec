"""The demonstration: the same text for all, answers where they are asked, sizes as read."""

import dataclasses
from pathlib import Path

from evaluation.test_subject import tiny
from titans.evaluation.demo import draw_demo, run_demo
from titans.tasks.needle import ASK, MARK, NeedleGenerator, needle_tokenizer, needle_words


def test_every_token_of_the_needle_task_is_one_word() -> None:
    words = needle_words()
    assert len(words) == len(set(words)) == NeedleGenerator().vocab_size
    assert words[MARK] == "REMEMBER" and words[ASK] == "RECALL"
    tokenizer = needle_tokenizer()
    assert tokenizer(" ".join(words[1:])).input_ids == list(range(1, len(words)))
    assert tokenizer.decode([MARK, 3, 35]) == "REMEMBER alice athens"


def test_models_read_the_same_text_and_are_asked_for_every_needle(tmp_path: Path) -> None:
    for variant in ("mac", "swa"):
        tiny(variant, vocab_size=131).save_pretrained(tmp_path / f"needle-{variant}")
    demo = run_demo(
        [tmp_path / "needle-mac", tmp_path / "needle-swa"], length=2_300, num_needles=3, seed=1
    )
    assert len(demo.questions) == 3 and "REMEMBER" in demo.excerpt
    assert all(set(q.given) == {"needle-mac", "needle-swa"} for q in demo.questions)
    assert all(0 <= q.depth < 1 for q in demo.questions)
    for reader in demo.readers:
        assert reader.positions == (2_048, 2_300)
        assert reader.state_size == f"{reader.state_bytes[0]:,} bytes"
        right = sum(q.given[reader.name] == q.answer for q in demo.questions)
        assert demo.found(reader.name) == right
    grown = dataclasses.replace(demo.readers[0], state_bytes=(1_000, 2_000))
    assert grown.state_size == "1,000 to 2,000 bytes"
    draw_demo(demo, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").stat().st_size > 1_000
