"""The causal language models of this package as subjects of an evaluation.

Reading streams through the model's cache in windows, so its memory does not grow with the length
(unless the model's own cache does: `ModelSubject.check_length`).
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from inspect import get_annotations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from titans.data.tokenizer import count_bytes, encode_document
from titans.errors import DataError
from titans.evaluation.lengths import format_length
from titans.evaluation.record import ModelCard
from titans.models import TitansCache, TitansConfig, TitansForCausalLM
from titans.models.checkpoint import find_checkpoint, load_config, load_model, load_tokenizer
from titans.models.upgrade import refuse_flat
from titans.settings import check_keys, convert
from titans.tasks.task import IntArray, Reading

READ_WINDOW = 2_048
"""Tokens given to the model at a time."""
MAX_STATE_BYTES = 2 << 30
"""Largest cache that a model may build up while it reads."""


class ModelSubject:
    """A causal language model of this package, with its tokenizer if it has one."""

    def __init__(
        self,
        model: TitansForCausalLM,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        name: str = "model",
        window: int = READ_WINDOW,
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        if window < 1:
            raise ValueError(f"the reading window must be at least 1 token, got {window}")
        model.eval()
        model.set_memory_report(False)
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.vocab_size: int = model.config.vocab_size
        self.on_read: Callable[[int], None] = _ignore
        """Told how many tokens were read, of all rows together, after each window."""
        self._window = window
        self._max_state_bytes = max_state_bytes

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        window: int = READ_WINDOW,
        settings: dict[str, object] | None = None,
    ) -> "ModelSubject":
        """A checkpoint folder as `save_pretrained` writes it.

        Args:
            settings: fields of the configuration to change for inference, such as
                `{"memory": {"write_threshold": 0.05}}`.
        """
        folder = find_checkpoint(path)
        model = load_model(folder, with_settings(load_config(folder), settings or {}))
        has_tokenizer = (folder / "tokenizer.json").is_file()
        tokenizer = load_tokenizer(folder) if has_tokenizer else None
        # Of a run it is the run that has a name, not its newest checkpoint.
        name = (folder if folder == Path(path) else Path(path)).resolve().name
        return cls(model, tokenizer, name=name, window=window)

    @property
    def config(self) -> TitansConfig:
        """The model's configuration."""
        assert isinstance(self.model.config, TitansConfig), "a model of this package"
        return self.model.config

    def card(self) -> ModelCard:
        """What a record says about this model."""
        return ModelCard(
            name=self.name,
            variant=self.config.variant,
            num_parameters=sum(p.numel() for p in self.model.parameters()),
            vocab_size=self.vocab_size,
            digest=weights_digest(self.model),
            settings=model_settings(self.config),
        )

    def encode(self, text: str) -> IntArray:
        """Text as tokens, without any marks around it."""
        return encode_document(self._tokenizer(), text)

    def decode(self, tokens: IntArray) -> str:
        """Tokens as text, special ones left out."""
        return str(self._tokenizer().decode(tokens.tolist(), skip_special_tokens=True))

    def count_bytes(self, tokens: IntArray) -> int:
        """Bytes of text that the tokens stand for, also where they cut a character."""
        return count_bytes(self._tokenizer(), tokens)

    def check_length(self, length: int) -> None:
        """Refuse lengths at which a growing cache would not fit in memory."""
        config = self.config
        if config.variant != "transformer":
            return
        per_token = 2 * 4 * config.num_hidden_layers * config.hidden_size
        if length * per_token > self._max_state_bytes:
            reach = self._max_state_bytes // per_token
            raise DataError(
                f"{format_length(length)} tokens are beyond the reach of {self.name}: full "
                f"attention keeps {per_token} bytes per token, and {self._max_state_bytes >> 20} "
                f"MB are allowed; its longest length is {reach}"
            )

    def predict(self, tokens: IntArray) -> Reading:
        """The likeliest next token after each token, [batch, time]."""
        stream = self._stream()
        parts = [logits.argmax(-1) for logits in stream.read(torch.from_numpy(tokens))]
        return Reading(torch.cat(parts, dim=1).numpy(), stream.state_bytes // len(tokens))

    def losses(self, tokens: IntArray) -> Reading:
        """Cross-entropy in nats of each token but the first, [batch, time - 1]."""
        ids = torch.from_numpy(tokens)
        stream = self._stream()
        parts: list[Tensor] = []
        start = 1
        for logits in stream.read(ids[:, :-1]):
            targets = ids[:, start : start + logits.shape[1]]
            parts.append(torch.nn.functional.cross_entropy(logits.mT, targets, reduction="none"))
            start += logits.shape[1]
        return Reading(torch.cat(parts, dim=1).numpy(), stream.state_bytes // len(tokens))

    def generate(self, prompts: Sequence[IntArray], max_new_tokens: int) -> list[Reading]:
        """The greedy continuation of each prompt, up to the end-of-text token."""
        if self.model.config.variant == "transformer" and len(prompts) > 1:
            # Its cache grows with the text: one at a time is what `check_length` has allowed.
            return [self.generate([prompt], max_new_tokens)[0] for prompt in prompts]
        ids, mask = _pad_left(prompts)
        stream = self._stream()
        following = torch.zeros(len(prompts), dtype=torch.long)
        for logits in stream.read(ids, mask, last_only=True):
            following = logits[:, -1].argmax(-1)
        end = self._end_token()
        done = following == end
        chosen = [following]
        while len(chosen) < max_new_tokens and not bool(done.all()):
            (logits,) = stream.read(following[:, None], last_only=True)
            following = logits[:, -1].argmax(-1).masked_fill(done, end)
            done = done | (following == end)
            chosen.append(following)
        size = stream.state_bytes // len(prompts)
        return [Reading(_until(row, end), size) for row in torch.stack(chosen, dim=1).numpy()]

    def _stream(self) -> "_Stream":
        return _Stream(self.model, self._window, self.on_read)

    def _end_token(self) -> int:
        end = self.tokenizer.eos_token_id if self.tokenizer else None
        return end if isinstance(end, int) else -1

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise DataError(
                f"{self.name} has no tokenizer, so it cannot read text: only the tasks made of "
                "tokens (mqar, needle, permutations) fit it"
            )
        return self.tokenizer


class _Stream:
    """A text being read: the model and the cache that it goes on from."""

    def __init__(
        self, model: TitansForCausalLM, window: int, on_read: Callable[[int], None]
    ) -> None:
        self._model = model
        self._window = window
        self._on_read = on_read
        self._cache: TitansCache | None = None

    @property
    def state_bytes(self) -> int:
        """Size of what the model remembers, of all rows together."""
        return 0 if self._cache is None else self._cache.num_bytes

    @torch.inference_mode()
    def read(
        self, ids: Tensor, mask: Tensor | None = None, *, last_only: bool = False
    ) -> Iterator[Tensor]:
        """Go on with `ids`, window by window; yield the logits of each window, or of its end."""
        vocab_size = self._model.config.vocab_size
        if int(ids.max()) >= vocab_size:
            raise DataError(f"token {int(ids.max())} is outside the vocabulary ({vocab_size})")
        for start in range(0, ids.shape[1], self._window):
            part = slice(start, start + self._window)
            output = self._model(
                input_ids=ids[:, part],
                attention_mask=None if mask is None else mask[:, part],
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1 if last_only else 0,
            )
            self._cache = output.past_key_values
            self._on_read(ids[:, part].numel())
            yield output.logits


def _ignore(tokens: int) -> None:
    """Nobody wants to know."""


def weights_digest(model: nn.Module) -> str:
    """A short hash of all weights, by name."""
    state = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        state.update(name.encode())
        state.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()[:12]


def model_settings(config: TitansConfig) -> dict[str, object]:
    """A configuration as a record states it: everything but what the file format adds."""
    return {k: v for k, v in config.to_diff_dict().items() if k not in _NOT_SETTINGS}


_NOT_SETTINGS = ("transformers_version", "architectures", "dtype", "auto_map", "model_type")


def with_settings(config: TitansConfig, settings: dict[str, object]) -> TitansConfig:
    """The configuration with some fields changed for inference; wrong ones are refused."""
    if not settings:
        return config
    hints = {**get_annotations(TitansConfig), "memory": dict[str, object]}
    refuse_flat(settings)
    check_keys(settings, hints)
    values = {field: convert(value, hints[field], field) for field, value in settings.items()}
    plain = config.to_dict()
    plain["memory"] |= values.pop("memory", {})
    return TitansConfig.from_dict({**plain, **values})


def _pad_left(prompts: Sequence[IntArray]) -> tuple[Tensor, Tensor | None]:
    """Prompts as one batch; the mask is None when they are equally long."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask = torch.zeros((len(prompts), longest), dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.from_numpy(np.asarray(prompt, dtype=np.int64))
        mask[row, longest - len(prompt) :] = True
    return ids, None if bool(mask.all()) else mask


def _until(tokens: NDArray, end: int) -> NDArray:
    """The tokens before the first `end`."""
    ends = np.flatnonzero(tokens == end)
    return tokens[: ends[0]] if len(ends) else tokens
