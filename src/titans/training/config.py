"""How to train: the typed configuration of a training. A YAML file in `configs/` is one of these.

The order is: defaults here, then the file, then the file's stages, then `--set section.key=value`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, cast

from titans import shipped
from titans.data.config import DataConfig
from titans.errors import ConfigError
from titans.settings import (
    Count,
    NotNegative,
    Positive,
    Range,
    Share,
    Tree,
    Whole,
    apply_settings,
    build,
    check_keys,
    check_ranges,
    nearest,
    parse_setting,
    read_yaml,
    to_plain,
)

Beta = Annotated[float, Range(0, 0.999_999)]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The outer loop: what the optimizer does. What is trained is the `model` section."""

    steps: Count = 1_000
    """Optimizer steps."""
    batch_size: Count = 16
    """Sequences per optimizer step, over all processes and accumulated micro-batches."""
    micro_batch_size: Count | None = None
    """Sequences per forward pass of one process; below its share, gradients are accumulated."""
    learning_rate: Positive = 3e-3
    """Peak learning rate of the outer optimizer (not theta, the memory's own step size)."""
    min_learning_rate_ratio: Share = 0.1
    """Where the cosine after the warm-up ends, as a part of the peak; 1 keeps the rate constant."""
    warmup_steps: Whole | None = None
    """Steps of linear warm-up; None: a tenth of all. In a run that is shorter, half of it."""
    weight_decay: NotNegative = 0.1
    """On matrices; never on norms, biases, gates, embeddings, persistent or initial memory."""
    memory_learning_rate_ratio: NotNegative = 1.0
    """Learning rate of the memory's parameters, relative to the others'."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """AdamW's averages."""
    max_grad_norm: NotNegative = 1.0
    """Clip the gradient to this norm; 0 switches it off."""
    memory_loss_weight: NotNegative = 0.0
    """lambda in `L = L_lm + lambda L_memory` (the mean associative loss of the memories)."""
    write_cost: NotNegative = 0.0
    """Cost of writing: this times the mean step size (theta) joins the loss, so that tokens that
    need not be remembered are not written, and `write_threshold` finds a gap."""
    core_steps: Whole = 0
    """Two phases: for the first this many steps the memory is off the path and frozen."""
    freeze_core: bool = False
    """In the second phase, train only the memory, its gates and the norms that join it."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16`: autocast. Helps on GPUs; on CPUs without bfloat16 units it is slower."""
    sharding: Literal["none", "full"] = "none"
    """With several processes: `full` splits the weights over them too (FSDP)."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    max_bad_steps: Count = 5
    """Stop after this many steps in a row with a loss or gradient that is not finite."""

    def __post_init__(self) -> None:
        check_ranges(self, "train.")
        if self.core_steps >= self.steps:
            raise ConfigError(
                f"train.core_steps ({self.core_steps}) must be below train.steps ({self.steps}), "
                "or the memory never joins"
            )
        if self.freeze_core and not self.core_steps:
            raise ConfigError("train.freeze_core needs a first phase: set train.core_steps")
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise ConfigError(
                f"train.micro_batch_size ({self.micro_batch_size}) must divide "
                f"train.batch_size ({self.batch_size})"
            )

    @property
    def warmup(self) -> int:
        """Steps of warm-up that are taken."""
        wanted = self.steps // 10 if self.warmup_steps is None else self.warmup_steps
        return wanted if wanted < self.steps else self.steps // 2


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save and what to keep. The first and the last step are not special."""

    every: Count = 200
    """Steps between checkpoints; the end of the run always saves one."""
    keep_last: Count = 2
    """How many of the newest to keep."""
    keep_best: bool = True
    """Keep the one with the lowest held-out loss as well."""

    def __post_init__(self) -> None:
        check_ranges(self, "checkpoint.")


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """What to look at while training."""

    every: Count = 10
    """Steps between lines in the log; each line is the mean over them."""
    held_out_every: Whole = 100
    """Steps between measurements of the held-out loss; 0 switches them off."""
    held_out_batches: Count = 8
    """Batches of a measurement, always the same ones."""
    sample_every: Whole = 0
    """Steps between sample generations; 0 switches them off."""
    sample_prompt: str = "\n"
    """What samples continue."""
    sample_tokens: Count = 200
    """Length of a sample."""
    tensorboard: bool = True
    """Write TensorBoard files beside the JSONL log."""

    def __post_init__(self) -> None:
        check_ranges(self, "log.")
        if not self.sample_prompt:
            raise ConfigError("log.sample_prompt must not be empty: a model continues something")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, or several that follow each other (`stages`)."""

    out: str = "runs/run"
    """The folder of the run: configuration, logs, samples, checkpoints."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Decides initial weights, the order of the data and everything random."""
    start_from: str | None = None
    """A run or a checkpoint of the same model whose weights this run starts with; None starts
    from scratch."""
    model: dict[str, object] = field(default_factory=dict)
    """Fields of `TitansConfig`. `vocab_size` follows the data when it is left out."""
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    stages: tuple[dict[str, object], ...] = ()
    """Runs that follow each other, each from the weights of the one before: what every one changes
    in the seed and in the sections above. Lists are replaced as a whole."""

    def __post_init__(self) -> None:
        check_ranges(self)
        self.runs()

    def runs(self) -> list["RunConfig"]:
        """The runs to train, in order: this one, or one per stage in `out/stage-1`, ..."""
        if not self.stages:
            return [self]
        common = cast(Tree, to_plain(replace(self, stages=())))
        runs: list[RunConfig] = []
        for number, changes in enumerate(self.stages, start=1):
            tree = _merged(common, changes) | {"out": f"{self.out}/stage-{number}"}
            if runs:
                tree["start_from"] = runs[-1].out
            try:
                check_keys(changes, _STAGE_KEYS)
                runs.append(build(RunConfig, tree))
            except ConfigError as error:
                raise ConfigError(f"stage {number}: {error}") from error
        return runs


_STAGE_KEYS = ("seed", "model", "data", "train", "checkpoint", "log")


def _merged(tree: Mapping[str, object], changes: Mapping[str, object]) -> Tree:
    """`tree` with the values of `changes`, section by section."""
    merged = dict(tree)
    for name, value in changes.items():
        old = merged.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return merged


def load_config(path: str | Path, settings: Sequence[str] = ()) -> RunConfig:
    """The configuration in `path`, with `settings` such as `train.learning_rate=3e-4` on top."""
    path = shipped.find_config(path)
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such configuration file{nearest(path.stem, shipped.config_names())} "
            "(titans config list)"
        )
    tree = read_yaml(path)
    _upgrade(tree)
    for setting in settings:
        _apply(tree, setting)
    return build(RunConfig, tree)


def _apply(tree: Tree, setting: str) -> None:
    """`--set` for all stages, or for one: `stages.2.train.steps=300`."""
    names, _ = parse_setting(setting)
    stages = tree.get("stages") or []
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise ConfigError(f"stages must be a list of sections, got {stages!r}")
    if names[0] != "stages" or len(names) == 1:
        apply_settings(tree, [setting])
        for stage in stages:
            _drop(stage, names)
        return
    number = int(names[1]) if len(names) > 2 and names[1].isdecimal() else 0
    if not 1 <= number <= len(stages):
        raise ConfigError(
            f"--set {'.'.join(names)}: there are {len(stages)} stages; name one by its number, "
            "as in stages.1.train.steps=500"
        )
    apply_settings(stages[number - 1], [setting.split(".", 2)[2]])


def _drop(tree: object, names: Sequence[str]) -> None:
    """Remove the value at a dotted name, if there is one."""
    for name in names[:-1]:
        tree = tree.get(name) if isinstance(tree, dict) else None
    if isinstance(tree, dict):
        tree.pop(names[-1], None)


_REMOVED = {
    "train": {"schedule": "cosine", "epsilon": 1e-8, "compile": False},
    "log": {"wandb_project": None},
}
"""Fields that configurations of earlier versions hold, with the only value that has a meaning."""


def _upgrade(tree: Tree) -> None:
    """Turn a configuration of an earlier version into one of today."""
    from titans.models.upgrade import is_flat, upgrade_names

    stages = tree.get("stages")
    for part in (tree, *(stages if isinstance(stages, list) else ())):
        model = part.get("model") if isinstance(part, dict) else None
        if isinstance(model, dict) and is_flat(model):
            part["model"] = upgrade_names(model)
    for name, removed in _REMOVED.items():
        section = tree.get(name)
        if isinstance(section, dict):
            for key, value in removed.items():
                if key in section and section[key] == value:
                    del section[key]
