"""The language model: embedding -> blocks -> norm -> head, for every variant (Hugging Face native).

Nothing recurrent hides in the modules: what a call leaves behind is in the returned cache.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers import initialization as init
from transformers.generation.utils import GenerationMixin
from transformers.utils.generic import ModelOutput

from titans.errors import CheckpointError, StateError, TitansError
from titans.layers.memory import NeuralMemory
from titans.layers.norm import RMSNorm
from titans.layers.rows import Rows, compact, scatter_back, take_columns
from titans.models.block import Block, BlockOutput
from titans.models.cache import BlockState, TitansCache, extend_digest, layout_of, own_storage
from titans.models.checkpoint_files import (
    AUTO_MAP,
    align_parameters,
    check_loading,
    verify_checksums,
    write_extras,
)
from titans.models.config import TitansConfig
from titans.models.mixer import MemoryMode, Mixer
from titans.models.report import MemoryReport, summarise
from titans.ops.checks import check_not_empty


@dataclass
class TitansOutput(ModelOutput):
    """What a call returns. Fields that do not apply are None."""

    loss: Tensor | None = None
    """Cross-entropy of the next token, plus the predictive gate's small loss if there is one."""
    logits: Tensor | None = None
    """`[batch, time, vocab]`; meaningless at padding."""
    past_key_values: TitansCache | None = None
    """The cache to go on from."""
    hidden_states: tuple[Tensor, ...] | None = None
    """Embeddings, the output of every block, and the normalised output of the last."""
    last_hidden_state: Tensor | None = None
    """`[batch, time, dim]` (`TitansModel` only)."""
    memory_loss: Tensor | None = None
    """Mean associative loss over tokens, heads and layers; differentiable."""
    mean_step: Tensor | None = None
    """Mean step size (theta) over tokens, heads and layers; differentiable."""
    memory_stats: dict[str, Tensor] | None = None
    """Per layer with a memory, detached: surprise, grad_norm, gates, written_share."""
    predictor_loss: Tensor | None = None
    """Mean loss of the predictive write gate."""


class TitansPreTrainedModel(PreTrainedModel):
    """Loading, saving and initial values, shared by the model with and without a head."""

    config_class = TitansConfig
    config: TitansConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    _supports_sdpa = True
    _is_stateful = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Embedding and head; every other layer initialises itself when it is made."""
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=float(self.config.embedding_init_std or 0.1))
        elif isinstance(module, nn.Linear) and module is self.get_output_embeddings():
            init.normal_(module.weight, std=self.config.initializer_range)

    @classmethod
    def register_for_auto_class(cls, auto_class: object = "AutoModel") -> None:
        """Nothing to do: `save_pretrained` writes the file that Auto classes need."""

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Hugging Face's, and the files of `titans.models.checkpoint_files`."""
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            write_extras(Path(save_directory))

    @classmethod
    def from_pretrained(cls, name: Any, *args: Any, **kwargs: Any) -> Any:
        """Hugging Face's, but a weight that is missing, left over or damaged is an error."""
        wants_info = kwargs.pop("output_loading_info", False)
        # A folder may hold Python code that changes how a model generates; ours needs none.
        kwargs["trust_remote_code"] = False
        try:
            if Path(name).is_dir():
                verify_checksums(Path(name))
            loaded: Any = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        except CheckpointError:
            raise
        except Exception as error:
            # safetensors has an exception of its own, json another: all mean an unusable file.
            if isinstance(error, (ImportError, MemoryError)) or not Path(str(name)).exists():
                raise
            raise CheckpointError(f"{name}: cannot be loaded ({error})") from error
        model, info = loaded
        check_loading(name, model.config.variant, info)
        align_parameters(model)
        return (model, info) if wants_info else model

    def set_memory_mode(self, mode: MemoryMode) -> None:
        """How every memory takes part from now on: live, frozen (reads only) or off."""
        if mode not in ("live", "frozen", "off"):
            raise ValueError(f"memory mode must be live, frozen or off; got {mode!r}")
        for module in self.modules():
            if isinstance(module, Mixer):
                module.memory_mode = mode

    def set_memory_report(self, wanted: bool) -> None:
        """Whether outputs have `memory_loss`, `mean_step` and `memory_stats`, outside training.

        Without them a text is read faster where a write threshold leaves nothing to write.
        """
        for module in self.modules():
            if isinstance(module, Mixer):
                module.reports = wanted

    def set_write_threshold(self, threshold: float | None) -> None:
        """Outside training, write only tokens whose step size reaches this; None: all."""
        self.config.memory = replace(self.config.memory, write_threshold=threshold)
        for module in self.modules():
            if isinstance(module, NeuralMemory):
                module.set_write_threshold(threshold)


class TitansModel(TitansPreTrainedModel):
    """Embedding, blocks and final norm."""

    def __init__(self, config: TitansConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def new_cache(self, batch: int = 1) -> TitansCache:
        """A cache at the start of a stream, for `batch` rows."""
        layout = layout_of(self.config)
        cache = TitansCache(self._initial_states(batch), batch, layout, self.device)
        cache.model = None if torch.compiler.is_compiling() else ref(self)
        return cache

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: TitansCache | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> TitansOutput | tuple:
        """Hidden states of every token; `attention_mask` is 0 at padding (anywhere in a row)."""
        if output_attentions or self.config.output_attentions:
            raise ValueError(
                "output_attentions=True: attention runs in fused kernels, which keep no weights; "
                "use output_hidden_states=True, or `titans analyze` for what the memory did"
            )
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        check_not_empty(embedded)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        mask = _padding_mask(attention_mask, embedded)
        cache = self._cache_for(past_key_values, embedded.shape[0], bool(use_cache))
        hidden, output = self._run(embedded, mask, cache, bool(output_hidden_states))
        if cache is not None:
            _advance(cache, input_ids, mask, embedded)
        output.last_hidden_state = hidden
        output.past_key_values = cache
        wants_tuple = not (self.config.return_dict if return_dict is None else return_dict)
        return output.to_tuple() if wants_tuple else output

    def _run(
        self, embedded: Tensor, mask: Tensor | None, cache: TitansCache | None, keep_hidden: bool
    ) -> tuple[Tensor, TitansOutput]:
        """The blocks, on rows whose real tokens come first."""
        batch, time = embedded.shape[:2]
        order = lengths = None
        x = embedded
        if mask is not None:
            order, lengths = compact(mask)
            if not torch.compiler.is_compiling():
                # Padding common to all rows is not computed at all.
                time = max(int(lengths.max()), 1)
            # Attention multiplies padding by zero, which NaN would survive.
            x = take_columns(embedded.masked_fill(~mask[..., None], 0.0), order[:, :time])
        position = _zeros(embedded, batch) if cache is None else cache.position
        start = 0 if cache is None else cache.start
        rows = Rows(position, time, start, lengths, resumable=cache is not None)
        states = self._initial_states(batch) if cache is None else cache.blocks
        outputs = self._blocks(x, states, rows)
        if cache is not None:
            cache.blocks = [output.state.map(own_storage) for output in outputs]
        final = self.norm(outputs[-1].x)

        def expand(hidden: Tensor) -> Tensor:
            if order is None:
                return hidden
            missing = order.shape[1] - hidden.shape[1]
            return scatter_back(nn.functional.pad(hidden, (0, 0, 0, missing)), order)

        output = _summary([o.report for o in outputs], [o.predictor_loss for o in outputs])
        if keep_hidden:
            inner = [expand(o.x) for o in outputs[:-1]]
            output.hidden_states = (embedded, *inner, expand(final))
        return expand(final), output

    def _blocks(self, x: Tensor, states: list[BlockState], rows: Rows) -> list[BlockOutput]:
        embedded, outputs = x, []
        for block, state in zip(self.layers, states, strict=True):
            if self.gradient_checkpointing and self.training:
                output = self._gradient_checkpointing_func(block.__call__, x, state, rows, embedded)
            else:
                output = block(x, state, rows, embedded)
            x = output.x
            outputs.append(output)
        return outputs

    def _initial_states(self, batch: int) -> list[BlockState]:
        states = [block.initial_state(batch) for block in self.layers]  # type: ignore[operator]
        # Graphs tell strides apart: that of a later state then serves the first one, too.
        compiling = torch.compiler.is_compiling()
        return [state.map(own_storage) for state in states] if compiling else states

    def _cache_for(
        self, cache: TitansCache | None, batch: int, use_cache: bool
    ) -> TitansCache | None:
        if cache is None:
            return self.new_cache(batch) if use_cache else None
        if not isinstance(cache, TitansCache):
            raise StateError(
                f"past_key_values must be a TitansCache (model.new_cache()), got a "
                f"{type(cache).__name__}"
            )
        cache.check_fits(self.config)
        cache.check_writer(self)
        if cache.batch != batch:
            raise StateError(
                f"the cache holds {cache.batch} rows, the input has {batch}; "
                "cache.fork(n) repeats each row n times"
            )
        if cache.is_pending:
            cache.restart_pending(self._initial_states(batch))
        cache.model = None if torch.compiler.is_compiling() else ref(self)
        return cache


class TitansForCausalLM(TitansPreTrainedModel, GenerationMixin):
    """`TitansModel` with a head that predicts the next token."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: TitansConfig) -> None:
        super().__init__(config)
        self.model = TitansModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def new_cache(self, batch: int = 1) -> TitansCache:
        """A cache at the start of a stream, for `batch` rows."""
        return self.model.new_cache(batch)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: TitansCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> TitansOutput | tuple:
        """Logits, and the loss if `labels` are given (shifted inside; -100 is ignored).

        `num_items_in_batch`, of a step that takes several calls, is the number of its targets: the
        losses of the calls then add up to the mean over the step, as everywhere in Hugging Face.
        """
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden = output.last_hidden_state
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs
            )
            if output.predictor_loss is not None:
                # A mean over this call: it counts as much as the call's targets do in the step.
                items = kwargs.get("num_items_in_batch")
                share = 1.0 if items is None else labels[:, 1:].ne(-100).sum() / items
                loss = loss + self.config.predictor_loss_weight * share * output.predictor_loss
        output = replace(output, loss=loss, logits=logits, last_hidden_state=None)
        wants_tuple = not (self.config.return_dict if return_dict is None else return_dict)
        return output.to_tuple() if wants_tuple else output

    def generate(self, *args: Any, logits_processor: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        """Hugging Face's, but logits that are NaN are an error and no token."""
        processors = LogitsProcessorList([_CheckLogits(), *(logits_processor or [])])
        return super().generate(*args, logits_processor=processors, **kwargs)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

    def prepare_inputs_for_generation(  # type: ignore[override]
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: TitansCache | None = None,
        attention_mask: Tensor | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Hugging Face's, except for the first call with a cache that has already read something.

        `input_ids` may then be the whole text, beginning with what the cache has read, or only what
        comes after it; the cache knows which.
        """
        if is_first_iteration and past_key_values is not None:
            columns = past_key_values.get_seq_length()
            mask = None if attention_mask is None else attention_mask.bool()
            whole = mask is None or mask.shape == input_ids.shape
            has_read = whole and past_key_values.has_read(input_ids, mask)
            new = input_ids.shape[1] - (columns if has_read else 0)
            next_sequence_length = new if new > 0 else 1
        return super().prepare_inputs_for_generation(  # type: ignore[misc]
            input_ids,
            next_sequence_length=next_sequence_length,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """The model makes its own cache."""
        return False


def check_logits(logits: Tensor) -> None:
    """Raise a `TitansError` if no token can be chosen from these logits."""
    if bool(logits.isnan().any()):
        raise TitansError(
            "the model's logits are NaN: its weights or its state are not finite; "
            "check the checkpoint, or start a new cache"
        )


class _CheckLogits(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        check_logits(scores)
        return scores


def _padding_mask(attention_mask: Tensor | None, embedded: Tensor) -> Tensor | None:
    """True at real tokens; None where all are. The mask may also cover what was read before."""
    if attention_mask is None:
        return None
    batch, time = embedded.shape[:2]
    shape = attention_mask.shape
    if len(shape) != 2 or shape[0] != batch or shape[1] < time:
        raise ValueError(
            f"attention_mask must be [batch, time] = [{batch}, {time}] (or longer, covering what "
            f"the cache has read), got {tuple(shape)}"
        )
    mask = attention_mask[:, shape[1] - time :].bool()
    return None if not torch.compiler.is_compiling() and bool(mask.all()) else mask


def _zeros(like: Tensor, batch: int) -> Tensor:
    return torch.zeros(batch, dtype=torch.long, device=like.device)


def _summary(
    reports: list[MemoryReport | None], predictor_losses: list[Tensor | None]
) -> TitansOutput:
    """What the memories of all layers did."""
    given = [report for report in reports if report is not None]
    losses = [loss for loss in predictor_losses if loss is not None]
    return TitansOutput(
        memory_loss=torch.stack([r.mean_loss for r in given]).mean() if given else None,
        mean_step=torch.stack([r.mean_step for r in given]).mean() if given else None,
        memory_stats=summarise(given) if given else None,
        predictor_loss=torch.stack(losses).mean() if losses else None,
    )


def _advance(
    cache: TitansCache, input_ids: Tensor | None, mask: Tensor | None, embedded: Tensor
) -> None:
    """Move the rows' positions past the tokens of this call."""
    time = embedded.shape[1]
    if input_ids is not None:
        cache.digest = extend_digest(cache.digest, input_ids, mask)
    cache.columns += time
    if mask is None:
        cache.position = cache.position + time
        cache.start = None if cache.start is None else cache.start + time
    else:
        cache.position = cache.position + mask.sum(1)
        cache.start = None
