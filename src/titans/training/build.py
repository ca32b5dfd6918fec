"""From the `model` section of a run to a model."""

import typing
from collections.abc import Mapping
from pathlib import Path

from accelerate.utils import set_seed
from transformers import PreTrainedTokenizerBase

from titans.data.streams import TrainingData
from titans.errors import CheckpointError, ConfigError
from titans.layers.memory_config import MemorySettings
from titans.models import TitansConfig, TitansForCausalLM
from titans.models.checkpoint import find_checkpoint
from titans.models.upgrade import refuse_flat
from titans.settings import check_keys
from titans.training.checkpoint import read_model
from titans.training.config import RunConfig

_SET_BY_DATA = ("pad_token_id", "bos_token_id", "eos_token_id", "use_cache")


def model_keys() -> list[str]:
    """What the `model` section may hold: the fields that `TitansConfig` itself defines."""
    return [name for name in TitansConfig.__annotations__ if name not in _SET_BY_DATA]


def check_model_section(section: Mapping[str, object]) -> None:
    """Raise on a key that is not a field of the model, or of its memory."""
    refuse_flat(section, "model.")
    check_keys(section, model_keys(), "model.")
    memory = section.get("memory")
    if isinstance(memory, Mapping):
        check_keys(memory, MemorySettings.__annotations__, "model.memory.")


def model_config(
    section: Mapping[str, object],
    *,
    vocab_size: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> TitansConfig:
    """The model's configuration, its vocabulary taken from the data where it is not given."""
    check_model_section(section)
    fields = {"vocab_size": vocab_size, **_with_floats(section)}
    given = fields["vocab_size"]
    if not isinstance(given, int) or given < vocab_size:
        raise ConfigError(
            f"model.vocab_size ({given}) is below the {vocab_size} tokens of the data: "
            "raise it or leave it out"
        )
    if tokenizer is not None:
        fields |= {
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        }
    try:
        return TitansConfig(**fields)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model section: {error}") from error


def _with_floats(section: Mapping[str, object]) -> dict[str, object]:
    """Whole numbers where a field is declared as a float: YAML's `2` for `2.0`."""
    hints = TitansConfig.__annotations__

    def convert(name: str, value: object) -> object:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        wants_float = hints[name] in (float, float | None)
        return float(typing.cast(int, value)) if is_whole and wants_float else value

    return {name: convert(name, value) for name, value in section.items()}


def build_model(config: RunConfig, data: TrainingData) -> TitansForCausalLM:
    """A new model with the initial weights of `config.seed`."""
    settings = model_config(config.model, vocab_size=data.vocab_size, tokenizer=data.tokenizer)
    if config.data.carry_state and settings.variant == "transformer":
        raise ConfigError(
            "data.carry_state with model.variant 'transformer': full attention would have to keep "
            "every token it ever read; use swa or a model with a memory"
        )
    set_seed(config.seed)
    return TitansForCausalLM(settings)


def take_weights(model: TitansForCausalLM, folder: Path) -> None:
    """Start from the newest weights in `folder`, which must fit to the last tensor."""
    try:
        given = read_model(find_checkpoint(folder)).state_dict()
    except (OSError, CheckpointError) as error:
        raise ConfigError(f"start_from: no checkpoint in {folder} ({error})") from error
    wanted = model.state_dict()
    both = {*given} & {*wanted}
    other_shape = {name for name in both if given[name].shape != wanted[name].shape}
    wrong = sorted({*given} ^ {*wanted} | other_shape)
    if wrong:
        raise ConfigError(
            f"start_from: the model in {folder} differs from the model section in {len(wrong)} "
            f"tensors, {wrong[0]} among them: give the section of its config.yaml"
        )
    model.load_state_dict(given)
