"""Checkpoints: folders that are whole or not there, and all that a run needs to continue.

    model.safetensors, config.json, tokenizer files     for `from_pretrained`
    optimizer.safetensors                               AdamW's averages, by parameter name
    progress.json                                       step, sums of the open log line
    rng-RANK.*, carried/                                per process: random numbers, memory states
    run.yaml, provenance.json                           the resolved config, version, commit
    summary.json                                        step, held-out loss, the files' checksums

A checkpoint is written to a hidden folder, flushed to the disk, and renamed into place. Old ones
are renamed out of sight before they are deleted. So a process may be killed at any moment, and a
folder called `step-...` is complete. `last` and `best` are links to two of them. The learning rate
and the position in the data follow from the step. Nothing is pickled.
"""

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from titans.errors import CheckpointError
from titans.files import (
    file_digest,
    free_space,
    is_out_of_space,
    make_readable,
    provenance,
    replace_link,
    sync,
    sync_folder,
)
from titans.models import TitansForCausalLM
from titans.settings import to_yaml
from titans.training.config import RunConfig
from titans.training.optim import set_optimizer_tensors
from titans.training.processes import whole

SUMMARY = "summary.json"
"""Written last: step and held-out loss of a checkpoint."""
_PREFIX = "step-"
_HIDDEN = (".saving-", ".deleting-")


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint."""

    path: Path
    step: int
    held_out_loss: float | None


class CheckpointFolder:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, keep_last: int, keep_best: bool) -> None:
        self.folder, self.keep_last, self.keep_best = folder, keep_last, keep_best

    @classmethod
    def of(cls, config: RunConfig) -> "CheckpointFolder":
        """Those of the run that `config` describes."""
        keep = config.checkpoint
        folder = Path(config.out) / "checkpoints"
        return cls(folder, keep_last=keep.keep_last, keep_best=keep.keep_best)

    def clean(self) -> None:
        """Remove what an interrupted save or deletion left behind, and set the links."""
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if path.name.startswith(_HIDDEN):
                    shutil.rmtree(path, ignore_errors=True)
            self._point()

    def all(self) -> list[Checkpoint]:
        """Complete checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        found = [_read(p) for p in self.folder.glob(f"{_PREFIX}*")]
        return sorted((c for c in found if c is not None), key=lambda c: c.step)

    def last(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        return next(reversed(self.all()), None)

    def best(self) -> Checkpoint | None:
        """The one with the lowest held-out loss."""
        measured = [c for c in self.all() if c.held_out_loss is not None]
        return min(measured, key=lambda c: c.held_out_loss, default=None)  # type: ignore[arg-type, return-value]

    def path_of(self, step: int) -> Path:
        """Where the checkpoint of `step` is, or will be."""
        return self.folder / f"{_PREFIX}{step:08d}"

    def begin(self, step: int, *, is_main: bool) -> Path:
        """A hidden folder to write the checkpoint of `step` into; the main process makes it."""
        part = self.folder / f"{_HIDDEN[0]}{self.path_of(step).name}"
        if is_main:
            with self.explained(step):
                self.folder.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
        return part

    def commit(self, step: int, held_out_loss: float | None) -> Checkpoint:
        """Everything is written: flush it, put it into its place, drop what is too old."""
        target = self.path_of(step)
        part = self.folder / f"{_HIDDEN[0]}{target.name}"
        with self.explained(step):
            sums = {name: file_digest(part / name) for name in _files(part)}
            summary = {"step": step, "held_out_loss": held_out_loss, "sha256": sums}
            summary["digest"] = _digest(summary)
            (part / SUMMARY).write_text(json.dumps(summary, indent=1))
            make_readable(part)
            sync_folder(part)
            part.rename(target)
            sync(self.folder)
            self._point()
        return Checkpoint(target, step, held_out_loss)

    @contextmanager
    def explained(self, step: int) -> Iterator[None]:
        """Turn a failure to write into a message that says what to do."""
        try:
            yield
        except Exception as error:
            self.clean()
            raise self._explain(error, self.path_of(step)) from error

    def tidy(self) -> None:
        """Delete what need not be kept; for the moment when the newest has proved good."""
        kept = self.all()[-self.keep_last :]
        best = self.best() if self.keep_best else None
        names = {c.path.name for c in kept} | ({best.path.name} if best else set())
        for checkpoint in self.all():
            if checkpoint.path.name not in names:
                self._delete(checkpoint.path)

    def verify(self) -> Checkpoint | None:
        """The newest checkpoint, every file of it as it was written."""
        newest = max(self.folder.glob(f"{_PREFIX}*"), default=None)
        if newest is None:
            return None
        found = _read(newest)
        wrong = "its summary.json" if found is None else _damage(newest)
        if found is None or wrong:
            raise CheckpointError(
                f"{newest}: {wrong} is damaged or missing; copy the folder again, or delete it to "
                "go on from the checkpoint before it"
            )
        return found

    def _point(self) -> None:
        """Point the links."""
        best = self.best() if self.keep_best else None
        for name, checkpoint in (("last", self.last()), ("best", best)):
            if checkpoint is not None:
                replace_link(self.folder / name, checkpoint.path.name)

    def _delete(self, path: Path) -> None:
        gone = path.with_name(f"{_HIDDEN[1]}{path.name}")
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _explain(self, error: Exception, target: Path) -> Exception:
        if not (isinstance(error, OSError) or is_out_of_space(error)):
            return error
        last = self.last()
        remains = f"the last good checkpoint is {last.path}" if last else "there is none before it"
        if is_out_of_space(error):
            return CheckpointError(
                f"{target}: the disk is full ({free_space(self.folder)}), the checkpoint was not "
                f"saved; {remains}. Make room and go on with --resume"
            )
        return CheckpointError(f"{target}: cannot be written ({error}); {remains}")


def _read(path: Path) -> Checkpoint | None:
    """None for a damaged summary. Those of old checkpoints have no digest."""
    try:
        summary = json.loads((path / SUMMARY).read_text())
        if summary.get("digest", _digest(summary)) != _digest(summary):
            return None
        return Checkpoint(path, int(summary["step"]), summary["held_out_loss"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _digest(summary: dict[str, object]) -> str:
    plain = {name: value for name, value in summary.items() if name != "digest"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def _damage(folder: Path) -> str:
    """The first file that is not as it was written; empty if all are."""
    sums = json.loads((folder / SUMMARY).read_text()).get("sha256", {})
    for name, wanted in sums.items():
        if not (folder / name).is_file() or file_digest(folder / name) != wanted:
            return name
    return ""


# What one holds


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    """Optimizer steps done (skipped ones count)."""
    tokens: int = 0
    """Tokens trained on, over all processes."""
    skipped_steps: int = 0
    """Steps left out because they were not finite."""
    bad_in_row: int = 0
    """How many of them were the last ones."""
    sums: list[dict[str, float]] = field(default_factory=list)
    """The open line of the log, one entry per process."""
    micro_batch_size: int = 0
    """Rows per carried state."""
    usual_grad_norm: float = 0.0
    """A slow mean of the gradient's norm before clipping, against which jumps are seen."""
    forgets_fast: bool = False
    """The memory forgets faster than it should last, and the user was told."""


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep Hugging Face's bars for each file out of a run's display."""
    was_on = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers.utils.logging.enable_progress_bar()


def read_model(folder: Path) -> TitansForCausalLM:
    """The model of a checkpoint."""
    with no_progress_bars():
        return TitansForCausalLM.from_pretrained(folder)


def collect_weights(model: nn.Module) -> dict[str, Tensor]:
    """The whole weights. Every process must ask."""
    return {name: whole(t).detach().cpu() for name, t in model.state_dict().items()}


def write_weights(
    folder: Path,
    model: PreTrainedModel,
    weights: dict[str, Tensor],
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """What `from_pretrained` needs."""
    with no_progress_bars():
        model.save_pretrained(folder, state_dict=weights)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def write_progress(
    folder: Path, config: RunConfig, progress: Progress, optimizer: dict[str, Tensor]
) -> None:
    """What a resumed run needs beside the weights, and where the checkpoint came from."""
    save_file({k: v.contiguous() for k, v in optimizer.items()}, folder / "optimizer.safetensors")
    (folder / "progress.json").write_text(json.dumps(asdict(progress)))
    (folder / "run.yaml").write_text(to_yaml(config))
    (folder / "provenance.json").write_text(json.dumps(provenance(), indent=1))


def write_rng(folder: Path, rank: int) -> None:
    """This process's random number generators."""
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    save_file(tensors, folder / f"rng-{rank}.safetensors")
    numpy_state = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()  # type: ignore[index, call-overload]
    plain = {"python": random.getstate(), "numpy": numpy_state}
    (folder / f"rng-{rank}.json").write_text(json.dumps(plain))


def restore_rng(folder: Path, rank: int) -> None:
    """Put back what `write_rng` wrote. A process that was not there before keeps its own."""
    if not (folder / f"rng-{rank}.safetensors").is_file():
        return
    try:
        tensors = load_file(folder / f"rng-{rank}.safetensors")
        torch.set_rng_state(tensors["torch"])
        if "cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["cuda"])
        plain = json.loads((folder / f"rng-{rank}.json").read_text())
        version, internal, gauss = plain["python"]
        random.setstate((version, tuple(internal), gauss))
        np.random.set_state(plain["numpy"])
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder}: the random numbers of process {rank} cannot be read ({error}); copy the "
            "checkpoint again"
        ) from error


def read_progress(folder: Path) -> Progress:
    """How far the run was."""
    try:
        return Progress(**json.loads((folder / "progress.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder}: not a checkpoint to resume from ({error})") from error


def restore_optimizer(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Put the optimizer's state back."""
    path = folder / "optimizer.safetensors"
    try:
        set_optimizer_tensors(model, optimizer, load_file(path))
    except (OSError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{path}: does not belong to this model ({error})") from error
