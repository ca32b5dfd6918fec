"""Hyper-parameter search: Optuna over settings of a run, with pruning, kept in SQLite.

A space file maps dotted settings to what may be tried:

    train.learning_rate: {low: 1e-4, high: 1e-2, log: true}
    model.memory.chunk_size: {choices: [8, 16, 32]}
    model.memory.depth: {low: 1, high: 3}

Trials are runs of their own in `out/trial-00000`, ... The study is in `out/study.db`; the same
command again goes on from there.
"""

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, Trial, TrialState

from titans.errors import ConfigError
from titans.files import write_figure, write_text
from titans.settings import apply_settings, build, check_keys, read_yaml, to_plain
from titans.training.config import RunConfig
from titans.training.diagnosis import NonFiniteLoss
from titans.training.trainer import Trainer

KEYS = ("low", "high", "log", "choices")


@dataclass(frozen=True)
class Choice:
    """What may be tried for one setting: a list, or a range (of integers or not)."""

    name: str
    choices: tuple[object, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False

    def suggest(self, trial: Trial) -> object:
        """One value."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)  # type: ignore[arg-type]
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(self.name, self.low, self.high, log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)


def load_space(path: str | Path) -> list[Choice]:
    """The search space in a YAML file."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such space file")
    space = [_choice(name, entry) for name, entry in read_yaml(path).items()]
    if not space:
        raise ConfigError(f"{path}: the space is empty, there is nothing to search")
    return space


def _choice(name: str, entry: object) -> Choice:
    if not isinstance(entry, Mapping):
        raise ConfigError(
            f"space, {name}: expected {{low: .., high: ..}} or {{choices: [..]}}, got {entry!r}"
        )
    check_keys(entry, KEYS, f"space, {name}: ")
    if "choices" in entry:
        choices = entry["choices"]
        if not isinstance(choices, list) or not choices:
            raise ConfigError(f"space, {name}: choices must be a list of values, got {choices!r}")
        return Choice(name, choices=tuple(choices))
    try:
        low, high = (_number(entry[key]) for key in ("low", "high"))
    except (KeyError, ValueError) as error:
        raise ConfigError(f"space, {name}: low and high must both be numbers ({error})") from error
    if low >= high or (entry.get("log") and low <= 0):
        raise ConfigError(f"space, {name}: low must be below high (and above 0 with log)")
    return Choice(name, low=low, high=high, log=bool(entry.get("log", False)))


def _number(value: object) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return float(str(value))


@dataclass(frozen=True)
class Tuner:
    """A search around one configuration."""

    config: RunConfig
    space: list[Choice]
    out: Path
    name: str

    def search(self, num_trials: int, timeout: float | None = None) -> optuna.Study:
        """Run trials until there are `num_trials` in the study, counting earlier ones."""
        self._check_space()
        self.out.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            storage=f"sqlite:///{self.out / 'study.db'}",
            study_name=self.name,
            direction="minimize",
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(seed=self.config.seed),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
        )
        done = len([t for t in study.trials if t.state.is_finished()])
        if num_trials > done:
            study.optimize(self._objective, n_trials=num_trials - done, timeout=timeout)
        return study

    def _check_space(self) -> None:
        if not self.config.log.held_out_every:
            raise ConfigError("tuning needs the held-out loss: set log.held_out_every above 0")
        self._trial_config({c.name: c.choices[0] if c.choices else c.low for c in self.space}, 0)

    def _trial_config(self, values: Mapping[str, object], number: int) -> RunConfig:
        tree = cast("dict[str, object]", copy.deepcopy(to_plain(self.config)))
        apply_settings(tree, [f"{name}={json.dumps(value)}" for name, value in values.items()])
        tree["out"] = str(self.out / f"trial-{number:05d}")
        return build(RunConfig, tree)

    def _objective(self, trial: Trial) -> float:
        values = {choice.name: choice.suggest(trial) for choice in self.space}
        config = self._trial_config(values, trial.number)
        # A trial that was killed half-way is done again.
        shutil.rmtree(config.out, ignore_errors=True)

        def watch(step: int, loss: float) -> None:
            trial.report(loss, step)
            if trial.should_prune():
                raise optuna.TrialPruned

        try:
            result = Trainer(config, watch=watch).fit()
        except NonFiniteLoss as error:
            raise optuna.TrialPruned(str(error)) from error
        if result.interrupted:
            # Leaves the trial unfinished in the study: the next search does not count it.
            raise KeyboardInterrupt
        return float(result.held_out["loss"])  # type: ignore[arg-type]


def report(study: optuna.Study, out: Path) -> dict[str, object]:
    """The outcome as `report.json` and `report.md`, with a picture of what mattered."""
    finished = [t for t in study.trials if t.state == TrialState.COMPLETE]
    if not finished:
        raise ConfigError(f"{out}: no trial has finished yet, there is nothing to report")
    best = min(finished, key=lambda t: cast(float, t.value))
    importance = _importance(study, finished)
    result: dict[str, object] = {
        "trials": len(study.trials),
        "finished": len(finished),
        "pruned": sum(t.state == TrialState.PRUNED for t in study.trials),
        "best_trial": best.number,
        "best_loss": best.value,
        "best_settings": best.params,
        "importance": importance,
    }
    write_text(out / "report.json", json.dumps(result, indent=1))
    write_text(out / "report.md", _markdown(result, finished))
    _draw(study, finished, importance, out / "report.png")
    return result


def _importance(study: optuna.Study, finished: list[FrozenTrial]) -> dict[str, float]:
    """How much of the difference between trials each setting explains; needs a few of them."""
    varied = {name for t in finished for name in t.params}
    if len(finished) < 4 or len(varied) < 2:
        return {}
    found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    return {name: float(value) for name, value in found.items()}


def _markdown(result: Mapping[str, object], finished: list[FrozenTrial]) -> str:
    lines = ["# Search", "", f"{result['finished']} finished, {result['pruned']} pruned.", ""]
    best = cast("dict[str, object]", result["best_settings"])
    settings = " ".join(f"--set {name}={value}" for name, value in best.items())
    lines += [f"Best: trial {result['best_trial']}, loss {result['best_loss']:.4f}: `{settings}`"]
    lines += ["", "| trial | loss | settings |", "|---|---|---|"]
    for trial in sorted(finished, key=lambda t: cast(float, t.value))[:20]:
        shown = ", ".join(
            f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in trial.params.items()
        )
        lines.append(f"| {trial.number} | {trial.value:.4f} | {shown} |")
    return "\n".join(lines) + "\n"


def _draw(
    study: optuna.Study, finished: list[FrozenTrial], importance: Mapping[str, float], path: Path
) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for trial in study.trials:
        steps = sorted(trial.intermediate_values)
        values = [trial.intermediate_values[s] for s in steps]
        is_done = trial.state == TrialState.COMPLETE
        left.plot(steps, values, alpha=0.8 if is_done else 0.3, linestyle="-" if is_done else ":")
    left.set(title="trials (dotted: pruned)", xlabel="step", ylabel="held-out loss")
    names = sorted(importance, key=lambda name: importance[name])
    right.barh(names, [importance[name] for name in names])
    title = "importance of settings" if names else "importance: needs 4 finished trials, 2 settings"
    right.set(title=title)
    write_figure(path, figure)
    plt.close(figure)
