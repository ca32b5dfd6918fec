"""The needle task as text: one word for each token."""

from titans.tasks.needle import ASK, MARK, NeedleGenerator, needle_tokenizer, needle_words


def test_every_token_of_the_needle_task_is_one_word() -> None:
    words = needle_words()
    assert len(words) == len(set(words)) == NeedleGenerator().vocab_size
    assert words[MARK] == "REMEMBER" and words[ASK] == "RECALL"
    tokenizer = needle_tokenizer()
    assert tokenizer(" ".join(words[1:])).input_ids == list(range(1, len(words)))
    assert tokenizer.decode([MARK, 3, 35]) == "REMEMBER alice athens"
