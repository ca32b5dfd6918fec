"""The chat endpoint, driven by the real `openai` client."""

import http.client
import json
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import openai
import pytest
from starlette.testclient import TestClient

from server.conftest import bearer
from titans.recall import Message, Sampling, ScriptedGenerator
from titans.recall.generator import Finish, OpenAIGenerator, estimate_tokens
from titans.server import KeyRing


@contextmanager
def client_of(url: str, **options: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key=options.pop("api_key", "x"), max_retries=0, **options
    ) as client:
        yield client


def ask(client: openai.OpenAI, text: str, **options: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="titans", messages=messages, **options)  # type: ignore[call-overload]


def test_the_openai_client_gets_answers_with_memories(live):
    llm = ScriptedGenerator(["Nice name.", "Rex, of course."])
    with live(llm=llm) as url, client_of(url) as client:
        assert [m.id for m in client.models.list()] == ["scripted", "titans"]
        ask(client, "My dog is called Rex.", user="ann")
        answer = ask(client, "What is my dog called?", user="ann")
        assert answer.choices[0].message.content == "Rex, of course."
        assert answer.choices[0].finish_reason == "stop" and answer.usage.total_tokens > 0
        used = answer.model_extra["titans"]
        assert used["scope"] == "ann" and used["answer"]["text"] == "Rex, of course."
        assert "My dog is called Rex." in [m["text"] for m in used["memories"]]
        assert "My dog is called Rex." in llm.prompts[1] and "<memory>" in llm.prompts[1]
        stored = client.get("/memories?scope=ann", cast_to=object)
        assert [m["speaker"] for m in stored["memories"]] == ["user", "assistant"] * 2  # type: ignore[index]
        other = client.get("/memories?scope=default", cast_to=object)
        assert other["memories"] == []  # type: ignore[index]


def test_a_stream_is_the_same_answer_in_pieces(live):
    llm = ScriptedGenerator(["Nice.", "It is called Rex, of course."])
    with live(llm=llm) as url, client_of(url) as client:
        ask(client, "My dog is called Rex.", stream=False)
        question = "What is my dog called?"
        options = {"include_usage": True}
        chunks = list(ask(client, question, stream=True, stream_options=options))
        said = [c.choices[0].delta.content or "" for c in chunks if c.choices]
        assert "".join(said) == "It is called Rex, of course." and len([s for s in said if s]) > 3
        used = chunks[0].model_extra["titans"]
        assert "My dog is called Rex." in [m["text"] for m in used["memories"]]
        assert used["answer"] is None
        *_, end, usage = chunks
        assert end.choices[0].finish_reason == "stop" and usage.usage.total_tokens > 0
        assert end.model_extra["titans"]["answer"]["text"] == "".join(said)


def test_history_and_system_are_the_client_s(live):
    llm = ScriptedGenerator(["Done."])
    with live(llm=llm) as url, client_of(url) as client:
        parts: Any = [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]
        messages: Any = [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": parts, "name": "Ann"},
        ]
        client.chat.completions.create(model="scripted", messages=messages)
        (seen,) = llm.requests
        assert [m["content"] for m in seen] == ["Be short.", "Hello.", "Hi.", "And now?"]
        stored: Any = client.get("/memories", cast_to=object)
        assert [m["speaker"] for m in stored["memories"]] == ["Ann", "assistant"]


@pytest.mark.parametrize(
    "change, status, said",
    [
        ({"model": "gpt-5"}, 404, "use 'scripted' or 'titans'"),
        ({"tools": [{"type": "function"}]}, 400, "tools is not supported"),
        ({"n": 2}, 400, "n above 1"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"messages": []}, 422, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "the last one"),
        ({"messages": [{"role": "user", "content": " "}]}, 400, "the last one"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "tools"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "only texts"),
        ({"temperature": 9}, 422, "temperature"),
    ],
)
def test_what_is_not_supported_is_refused_and_not_remembered(
    client: TestClient, change: dict, status: int, said: str
):
    body = {"model": "titans", "messages": [{"role": "user", "content": "hello"}], **change}
    refused = client.post("/v1/chat/completions", json=body)
    assert refused.status_code == status and said in refused.json()["error"]["message"]
    assert client.get("/v1/memories").json()["memories"] == []


def test_a_chat_needs_a_key_that_reads_and_writes(client: TestClient, ring: KeyRing):
    body = {"messages": [{"role": "user", "content": "hello"}]}
    for rights in (["read"], ["write"]):
        _, token = ring.make(rights[0], ["ann"], rights)  # type: ignore[arg-type]
        refused = client.post("/v1/chat/completions", json=body, headers=bearer(token))
        assert refused.status_code == 403
    _, token = ring.make("both", ["ann"])
    assert client.post("/v1/chat/completions", json=body, headers=bearer(token)).is_success
    body["user"] = "bob"  # type: ignore[assignment]
    refused = client.post("/v1/chat/completions", json=body, headers=bearer(token))
    assert refused.status_code == 403 and "does not cover" in refused.text


def test_an_answer_is_as_trusted_as_what_it_rests_on(client: TestClient, ring: KeyRing):
    _, good = ring.make("good", ["ann"])
    _, bad = ring.make("bad", ["ann"], is_trusted=False)
    poison = {"text": "The dog's name is Tom.", "speaker": "user"}
    client.post("/v1/memories", json=poison, headers=bearer(bad))
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "What is the dog's name?"}]}
    used = client.post("/v1/chat/completions", json=body, headers=bearer(good)).json()["titans"]
    assert used["memories"][0]["trust"] == "untrusted" == used["answer"]["trust"]
    assert used["remembered"]["trust"] == "trusted"
    body["titans"] = {"trust": "trusted"}
    used = client.post("/v1/chat/completions", json=body, headers=bearer(good)).json()["titans"]
    assert used["answer"]["trust"] == "trusted"
    assert all(m["trust"] == "trusted" for m in used["memories"])


class Upstream(BaseHTTPRequestHandler):
    """An OpenAI-compatible server that fails, falls silent, or goes on until nobody listens."""

    started = threading.Event()
    left = threading.Event()
    may_end = threading.Event()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model = body["model"]
        if model.isdigit():
            content = json.dumps({"error": {"message": f"status {model}"}}).encode()
            self.send_response(int(model))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if model == "silent":
            self.may_end.wait(60)
            return
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        try:
            self.started.set()
            for number in count():  # words of their own: an answer in a loop would be cut
                if self.may_end.wait(0.01):
                    return
                delta = {"content": f"{number**7} "}
                choice = {"index": 0, "delta": delta, "finish_reason": None}
                line = f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n"
                self.wfile.write(line.encode())
        except OSError:
            self.left.set()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[str]:
    Upstream.started.clear()
    Upstream.left.clear()
    Upstream.may_end.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    Upstream.may_end.set()
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def remote(model: str, url: str) -> Iterator[OpenAIGenerator]:
    llm = OpenAIGenerator(model, url=url, timeout=0.5 if model == "silent" else 60)
    yield llm
    llm._client.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "model, status", [("429", 429), ("400", 400), ("401", 502), ("500", 502), ("silent", 504)]
)
def test_errors_of_the_upstream_are_openai_errors(
    live, upstream: str, model: str, status: int, stream: bool
):
    with (
        remote(model, upstream) as llm,
        live(llm=llm) as url,
        client_of(url) as client,
        pytest.raises(openai.APIStatusError) as caught,
    ):
        ask(client, "hello", stream=stream)
    assert caught.value.status_code == status
    assert caught.value.body["code"].startswith("upstream_")  # type: ignore[index]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_stops_the_work(live, upstream: str, stream: bool):
    with remote("endless", upstream) as llm, live(llm=llm) as url:
        if stream:
            with client_of(url) as client:
                answer = ask(client, "hello", stream=True)
                assert next(answer).choices[0].delta.role == "assistant"
                answer.close()
        else:
            connection = http.client.HTTPConnection(url.removeprefix("http://"))
            body = {"messages": [{"role": "user", "content": "hello"}]}
            given = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), given)
            assert Upstream.started.wait(60)
            connection.close()
        assert Upstream.left.wait(30)


class Broken(ScriptedGenerator):
    """Fails in the middle of its answer."""

    def stream(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> Generator[str, None, Finish]:
        yield "One, "
        yield "two, "
        raise openai_error()


def openai_error() -> Exception:
    from titans.errors import GeneratorError

    return GeneratorError("the line is dead")


def test_an_error_in_the_middle_of_a_stream_reaches_the_client(live):
    with live(llm=Broken([])) as url, client_of(url) as client:
        with pytest.raises(openai.APIError, match="the line is dead"):
            list(ask(client, "Count.", stream=True))
        stored: Any = client.get("/memories", cast_to=object)
        assert [m["text"] for m in stored["memories"]] == ["Count."]


def test_a_prompt_beyond_the_window_is_refused(live):
    llm = ScriptedGenerator(["x"], window=300)
    with live(llm=llm) as url, client_of(url) as client:
        with pytest.raises(openai.BadRequestError, match="shorten it"):
            ask(client, "word " * 1000)
        assert estimate_tokens([Message(role="user", content="word " * 1000)]) > 300


def test_more_answers_than_may_wait_are_refused(live):
    may_end = threading.Event()

    def slow(text: str) -> str:
        assert may_end.wait(60)
        return "done"

    with live(llm=ScriptedGenerator(slow), answers=1, queue=1) as url, client_of(url) as client:
        found: list[str] = []

        def work(user: str) -> None:
            try:
                found.append(ask(client, "hello", user=user).choices[0].message.content)
            except openai.APIStatusError as error:
                found.append(f"{error.status_code} {error.response.headers['Retry-After']}")
                may_end.set()

        threads = [threading.Thread(target=work, args=(str(i),)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == ["503 1", "done", "done"]


def test_without_a_model_the_chat_says_so(live):
    with (
        live(llm=None) as url,
        client_of(url) as client,
        pytest.raises(openai.APIStatusError, match="--llm"),
    ):
        ask(client, "hello")
