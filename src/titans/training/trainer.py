"""The training loop. `Trainer(config).fit()` trains one run; `stages.py` one after the other.

    batch -> step -> log -> held-out loss -> sample -> checkpoint

What a run consists of is in `run.py`, a step in `step.py`, a checkpoint in `checkpoint.py`.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from titans.data.batch import Batch
from titans.errors import ConfigError
from titans.files import write_text
from titans.settings import to_yaml
from titans.training.checkpoint import Checkpoint
from titans.training.config import RunConfig
from titans.training.console import Console, StopOnSignal
from titans.training.diagnosis import (
    NonFiniteLoss,
    diagnose,
    fast_forgetting,
    gradient_jump,
)
from titans.training.log import RunLog
from titans.training.metrics import Meter, held_out_loss, means, sample_text
from titans.training.processes import is_sharded, split_again
from titans.training.run import Run
from titans.training.step import StepResult, autocast

Watch = Callable[[int, float], None]
"""Called with (step, held-out loss); may raise to end the run (hyper-parameter search does)."""
_PHASES = {
    "core": "core only: the memory is off the path and frozen",
    "all": "the memory has joined: everything trains",
    "memory": "the memory has joined: the core is frozen",
}


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: Path
    steps: int
    checkpoint: Path
    held_out: dict[str, object]
    """The last measurement; empty if there was none."""
    skipped_steps: int
    interrupted: bool
    seconds: float


class Trainer:
    """Trains one run and reports on it."""

    def __init__(
        self, config: RunConfig, *, resume: bool = False, watch: Watch | None = None
    ) -> None:
        if config.stages:
            raise ConfigError(
                f"the configuration has {len(config.stages)} stages, here one run is wanted: give "
                "the config.yaml of one of its stages"
            )
        self.config, self.watch = config, watch
        self.run = Run(config, resume=resume)
        self.meter = Meter(self.run.saved_sums())
        self.held_out: dict[str, object] = {}
        self._is_main = self.run.processes.is_main
        self._stop = False

    def fit(self) -> RunResult:
        """Train to the last step, or until interrupted."""
        began, progress, limit = time.perf_counter(), self.run.progress, self.config.train.steps
        self.console = Console(total=limit, start=progress.step, is_main=self._is_main)
        self.log = self._open_log()
        try:
            with StopOnSignal(self._ask_to_stop):
                self._announce()
                for batch in self._timed_batches():
                    result = self._train_step(batch)
                    self._after_step(result)
                    if result.should_stop:
                        break
                checkpoint = self._save_last()
        finally:
            self.run.release()
            self.console.close()
            if self.log is not None:
                self.log.close()
        return RunResult(
            folder=self.run.path,
            steps=progress.step,
            checkpoint=checkpoint.path,
            held_out=self.held_out,
            skipped_steps=progress.skipped_steps,
            interrupted=progress.step < limit,
            seconds=time.perf_counter() - began,
        )

    def _train_step(self, batch: Batch) -> StepResult:
        began, progress = time.perf_counter(), self.run.progress
        if self.run.enter_phase():
            self._tell_phase()
        self._batch = batch = batch.to(self.run.processes.device)
        result = self.run.stepper.step(batch, progress.step, self.meter, self._stop)
        progress.step += 1
        progress.tokens += result.num_tokens
        self.meter.add(tokens=result.num_tokens / self.run.processes.count)
        if result.is_finite:
            progress.bad_in_row = 0
            self.run.prove()
            self._warn(gradient_jump(result.grad_norm, progress))
        else:
            self._count_bad_step()
        self.meter.seconds += time.perf_counter() - began
        return result

    def _after_step(self, result: StepResult) -> None:
        config = self.config
        self.console.advance(self.run.progress.step)
        if self._is_due(config.log.every):
            self._log_line(result)
        saves = self._is_due(config.checkpoint.every)
        if config.log.held_out_every and (saves or self._is_due(config.log.held_out_every)):
            self._measure_held_out()
        if self._is_due(config.log.sample_every):
            self._sample()
        if saves and not self.run.progress.bad_in_row:
            measured = self.held_out.get("loss")
            self.run.save(self.meter, measured if isinstance(measured, float) else None)

    def _save_last(self) -> Checkpoint:
        """The checkpoint that a run leaves behind; after bad steps the last one before them."""
        run = self.run
        if not run.progress.bad_in_row:
            checkpoint = run.save(self.meter, None)
            # No step follows that could prove it.
            loss = checkpoint.held_out_loss
            if loss is not None and math.isfinite(loss):
                run.prove()
            return checkpoint
        last = run.checkpoints.last()
        if last is None or run.progress.step == self.config.train.steps:
            self._give_up()
        self._say(f"the last {run.progress.bad_in_row} steps were bad and are not saved")
        return last

    def _is_due(self, every: int) -> bool:
        step = self.run.progress.step
        return every > 0 and (step % every == 0 or step == self.config.train.steps)

    def _timed_batches(self) -> Iterator[Batch]:
        batches = self.run.batches()
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            waited = time.perf_counter() - began
            self.meter.waited += waited
            self.meter.seconds += waited
            if batch is None:
                return
            yield batch

    def _ask_to_stop(self) -> None:
        self._stop = True
        self._say("stopping after this step; once more stops at once, without saving")

    def _count_bad_step(self) -> None:
        run = self.run
        run.progress.skipped_steps += 1
        run.progress.bad_in_row += 1
        step, bad = run.progress.step, run.progress.bad_in_row
        self._say(f"step {step}: loss or gradient not finite, step skipped ({bad} in a row)")
        if bad >= self.config.train.max_bad_steps:
            self._give_up()
        run.optimizer.zero_grad(set_to_none=True)

    def _give_up(self) -> NoReturn:
        """End the run with what is wrong and where to go on from."""
        run = self.run
        found = diagnose(run.core, self._batch, run.progress.step, run.progress.bad_in_row)
        if self._is_main:
            write_text(run.path / "diagnosis.json", json.dumps(found.plain(), indent=1))
        raise NonFiniteLoss(f"{found.text()}\n  {self._where_to_go_on()}")

    def _where_to_go_on(self) -> str:
        saved = self.run.checkpoints.all()
        if not saved:
            return "No checkpoint was saved before them."
        last, last_good_step = saved[-1], self.run.progress.step - self.run.progress.bad_in_row
        if last.step < last_good_step:
            return f"The last checkpoint, {last.path}, is from before them: --resume begins there."
        text = f"The last checkpoint, {last.path}, holds the weights that gave the first of them"
        if len(saved) == 1:
            return f"{text}; there is no older one."
        return f"{text}; delete it to --resume from {saved[-2].path}, which a good step followed."

    def _measure_held_out(self) -> None:
        run, step = self.run, self.run.progress.step
        self.held_out = held_out_loss(
            run.core,
            run.data,
            run.processes.device,
            num_batches=self.config.log.held_out_batches,
            carry=self.config.data.carry_state,
            autocast=autocast(self.config.train, run.processes.device),
        )
        split_again(run.core)
        self._record("held_out", step, self.held_out)
        shown = ", ".join(
            f"{name.replace('_', ' ')} {self.held_out[name]:.4f}"
            for name in ("loss", "bits_per_byte", "accuracy")
            if name in self.held_out
        )
        self._say(f"step {step}: held-out {shown}")
        if self.watch is not None:
            self.watch(step, float(self.held_out["loss"]))  # type: ignore[arg-type]

    def _sample(self) -> None:
        """Only the main process, and not with split weights: they would all have to take part."""
        tokenizer, step = self.run.data.tokenizer, self.run.progress.step
        if tokenizer is None or is_sharded(self.run.core) or not self._is_main:
            return
        text = sample_text(self.run.core, tokenizer, self.config.log, self.config.seed)
        self._record("sample", step, {"text": text})
        self._say(f"sample at step {step}:\n{text}\n")

    def _open_log(self) -> RunLog | None:
        if not self._is_main:
            return None
        self.run.path.mkdir(parents=True, exist_ok=True)
        write_text(self.run.path / "config.yaml", to_yaml(self.config))
        return RunLog(self.run.path, self.config.log, resume_step=self.run.progress.step)

    def _log_line(self, result: StepResult) -> None:
        run, meter = self.run, self.meter
        names = sorted(meter.sums)
        totals = run.processes.sum([meter.sums[name] for name in names])
        sums = dict(zip(names, totals, strict=True))
        values = means(sums, run.data.bytes_per_token)
        values |= {
            "learning_rate": result.learning_rate,
            "grad_norm": sums.get("grad_norm", 0.0) / max(1.0, sums.get("steps", 0.0)),
            "tokens": run.progress.tokens,
            "skipped_steps": run.progress.skipped_steps,
            "seconds": meter.seconds,
            "tokens_per_second": sums["tokens"] / max(meter.seconds, 1e-9),
            "data_wait": meter.waited / max(meter.seconds, 1e-9),
        }
        self._record("train", run.progress.step, values)
        self.console.show(run.progress.step, values)
        length = self._batch.tokens.shape[1]
        gate = values.get("forget_gate")
        self._warn(fast_forgetting(gate, run.core.config, length, run.progress))
        self.meter = Meter()

    def _announce(self) -> None:
        run = self.run
        sizes = {name: p.numel() for name, p in run.core.named_parameters()}
        memory = sum(size for name, size in sizes.items() if name in run.memory_names)
        self._say(
            f"{run.core.config.variant}: {sum(sizes.values()):,} parameters, {memory:,} of them "
            f"the memory's; {run.processes.count} process(es) on {run.processes.device.type}; "
            f"run {run.path}"
        )
        if idle := run.processes.idle:
            self._say(idle)
        train = self.config.train
        if train.warmup_steps is not None and train.warmup != train.warmup_steps:
            self._say(f"warm-up shortened from {train.warmup_steps} to {train.warmup} steps")
        if run.resumed:
            self._say(f"resumed at step {run.progress.step}")
        elif self.config.train.core_steps:
            self._tell_phase()

    def _tell_phase(self) -> None:
        run = self.run
        self._say(f"{_PHASES[run.phase or 'all']} ({len(run.frozen)} frozen tensors)")
        values = {"phase": run.phase, "frozen": ", ".join(run.frozen)}
        self._record("event", run.progress.step + 1, values)

    def _warn(self, text: str) -> None:
        if text:
            self._record("warning", self.run.progress.step, {"text": text})
            self._say(text)

    def _record(self, kind: str, step: int, values: dict[str, object]) -> None:
        if self.log is not None:
            self.log.write(kind, step, values)

    def _say(self, text: str) -> None:
        self.console.say(text)
