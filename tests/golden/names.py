"""The names under which the golden files were recorded, and the names of today.

Golden files keep the settings of a model as one flat table, under the names of the first release.
When a setting is renamed or moved, this file is the only one in this folder that changes.
"""

from operator import attrgetter
from pathlib import Path
from typing import Any

from titans.layers.memory import NeuralMemory
from titans.models import TitansConfig, TitansForCausalLM
from titans.models.upgrade import SINCE_FLAT, upgrade_config

SETTINGS = (
    "variant vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size "
    "rms_norm_eps rope_theta tie_word_embeddings initializer_range embedding_init_std "
    "max_position_embeddings use_cache pad_token_id bos_token_id eos_token_id window segment_len "
    "num_persistent mixer_conv_kernel mac_gate mag_gate memory_layers chunk_size memory_num_heads "
    "memory_head_dim memory_value_dim memory_depth memory_expansion memory_rule "
    "memory_conv_kernel memory_key_lag memory_value_norm memory_momentum memory_forgetting "
    "memory_gates memory_gate_kernel memory_step_init memory_step_max memory_forget_init "
    "memory_momentum_init memory_init memory_written forget_towards step_limit memory_gradient "
    "write_gate surprise_threshold surprise_measure write_threshold train_with_threshold "
    "predictor_loss_weight"
).split()
"""Every setting of a model, by its first name."""


def make_config(**settings: Any) -> TitansConfig:
    """A configuration from first names, with the defaults of the first release."""
    return TitansConfig(**upgrade_config(settings))


def effective(config: TitansConfig) -> dict[str, Any]:
    """What a loaded configuration does, by first names."""
    found = {
        name: attrgetter(SINCE_FLAT.get(name, (name,))[0])(config)
        for name in SETTINGS
        if name != "write_gate"
    }
    rule, associative = config.memory.rule, config.memory.surprise_threshold
    gate = "none" if associative is None else "associative"
    if config.predictor_threshold is not None:
        gate, found["surprise_threshold"] = "predictive", config.predictor_threshold
    return {**found, "write_gate": gate, "memory_rule": "titans" if rule == "chunk" else rule}


def run_tree(model: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """The tree of a training run (as in a YAML file), its model as `make_config` has it."""
    return {"model": upgrade_config(model), **sections}


def make_layer(dim: int, **settings: Any) -> NeuralMemory:
    """A layer of its own, with the defaults of the first release."""
    return NeuralMemory(dim, **{"rule": "chunk", "depth": 2, **settings})


def weight_shapes(model: TitansForCausalLM) -> dict[str, list[int]]:
    """Every weight of a model by its first name, with its shape."""
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}


def load_model(folder: Path) -> TitansForCausalLM:
    """A shipped checkpoint, ready to read."""
    return TitansForCausalLM.from_pretrained(folder).eval()
