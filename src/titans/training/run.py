"""What a run consists of: data, model, optimizer, carried states; built, restored, saved.

Everything that a step depends on is (weights, optimizer, step number, carried states, RNG), and a
checkpoint holds exactly that, so a resumed run repeats the uninterrupted one bit for bit.
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path

from accelerate.utils import gather_object

from titans.data.batch import Batch, StepDataset, load_batches
from titans.data.streams import load_data
from titans.errors import CheckpointError, ConfigError
from titans.files import FolderLock
from titans.models import TitansForCausalLM
from titans.training import phases
from titans.training.build import build_model, take_weights
from titans.training.carry import CarriedStates
from titans.training.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    Progress,
    collect_weights,
    read_model,
    read_progress,
    restore_optimizer,
    restore_rng,
    write_progress,
    write_rng,
    write_weights,
)
from titans.training.config import RunConfig
from titans.training.metrics import Meter
from titans.training.optim import build_optimizer, optimizer_tensors
from titans.training.processes import Processes, is_sharded, split_again
from titans.training.step import Stepper


class Run:
    """One run, from its configuration or from its last checkpoint."""

    def __init__(self, config: RunConfig, *, resume: bool) -> None:
        self.config = config
        self.path = Path(config.out)
        self.checkpoints = CheckpointFolder.of(config)
        self.processes = Processes(find_unused=config.data.carry_state)
        self.lock = FolderLock(self.path) if self.processes.is_main else None
        try:
            self._build(self._find_start(resume))
        except BaseException:
            self.release()
            raise

    def _build(self, start: Checkpoint | None) -> None:
        config = self.config
        if self.processes.is_main:
            self.checkpoints.clean()
        self.rows = self.processes.rows(config.train.batch_size)
        self.data = load_data(config.data, batch_size=config.train.batch_size, seed=config.seed)
        self.core = self._load_model(start)
        phases.check_phases(config.train, self.core)
        self.memory_names = phases.memory_parameters(self.core)
        self.progress = Progress() if start is None else read_progress(start.path)
        self.states = self._new_states()
        self.is_proven = True
        """Whether a good step followed the newest checkpoint."""
        self.phase: phases.Phase | None = None
        self.frozen: list[str] = []
        """Names of the parameters that rest in the present phase."""
        self._prepare(start)

    @property
    def resumed(self) -> bool:
        """Whether the run went on from a checkpoint."""
        return self._start is not None

    def release(self) -> None:
        """Let other processes train in the folder."""
        if self.lock is not None:
            self.lock.release()

    def batches(self) -> Iterator[Batch]:
        """This process's rows of every step that is left."""
        dataset = StepDataset(
            self.data.train,
            self.rows,
            self.data.pad_token,
            self.progress.step,
            self.config.train.steps,
        )
        return load_batches(dataset, self.config.data.num_workers)

    def enter_phase(self) -> bool:
        """Switch to the phase of the next step, if it begins there. Returns whether it does."""
        phase = phases.phase_at(self.config.train, self.progress.step)
        if phase == self.phase:
            return False
        self._switch(phase)
        if self.states is not None:
            self.states.drop()
        return True

    def save(self, meter: Meter, held_out_loss: float | None) -> Checkpoint:
        """Write a checkpoint of this moment, unless there is one. All processes take part."""
        step = self.progress.step
        last = self.checkpoints.last()
        if last is not None and last.step == step:
            return last
        self.progress.micro_batch_size = self._micro_batch_size()
        self.progress.sums = [meter.sums]
        if self.processes.count > 1:
            self.progress.sums = gather_object(self.progress.sums)
        split_again(self.core)
        weights = collect_weights(self.core)
        optimizer = optimizer_tensors(self.core, self.optimizer)
        folder = self.checkpoints.begin(step, is_main=self.processes.is_main)
        self.processes.wait()
        with self.checkpoints.explained(step):
            write_rng(folder, self.processes.rank)
            if self.states is not None:
                self.states.save(folder / "carried", self._first_micro_batch())
            if self.processes.is_main:
                write_weights(folder, self.core, weights, self.data.tokenizer)
                write_progress(folder, self.config, self.progress, optimizer)
        self.processes.wait()
        if self.processes.is_main:
            self.checkpoints.commit(step, held_out_loss)
        self.processes.wait()
        self.is_proven = False
        return Checkpoint(self.checkpoints.path_of(step), step, held_out_loss)

    def prove(self) -> None:
        """A good step followed the newest checkpoint: older ones may go."""
        if self.processes.is_main and not self.is_proven:
            self.checkpoints.tidy()
        self.is_proven = True

    def saved_sums(self) -> dict[str, float]:
        """This process's part of the log line that was open when the checkpoint was made."""
        saved, rank = self.progress.sums, self.processes.rank
        if len(saved) == self.processes.count:
            return saved[rank]
        # Another number of processes than before: the main one takes over all sums.
        together = Meter()
        for sums in saved if rank == 0 else []:
            together.add(**sums)
        return together.sums

    def _find_start(self, resume: bool) -> Checkpoint | None:
        last = self._start = self.checkpoints.verify()
        if resume and last is None:
            raise CheckpointError(
                f"{self.path}: no checkpoint to resume from; leave --resume out to start"
            )
        if not resume and last is not None:
            raise CheckpointError(
                f"{self.path} already holds a run (step {last.step}): add --resume to continue "
                "it, or choose another folder with --set out=FOLDER"
            )
        return last

    def _load_model(self, start: Checkpoint | None) -> TitansForCausalLM:
        fresh = build_model(self.config, self.data)
        if start is None:
            if self.config.start_from is not None:
                take_weights(fresh, Path(self.config.start_from))
            return fresh
        model = read_model(start.path)
        for name in _names(self.config.model):
            before, now = (attrgetter(name)(m.config) for m in (model, fresh))
            if before != now:
                raise ConfigError(
                    f"{start.path} was trained with model.{name}={before!r}, the configuration "
                    f"says {now!r}: a run cannot change its model"
                )
        return model

    def _new_states(self) -> CarriedStates | None:
        if not self.config.data.carry_state:
            return None
        return CarriedStates(len(self.rows) // self._micro_batch_size())

    def _micro_batch_size(self) -> int:
        size = min(len(self.rows), self.config.train.micro_batch_size or len(self.rows))
        if len(self.rows) % size:
            raise ConfigError(
                f"train.micro_batch_size ({size}) must divide the {len(self.rows)} rows of a "
                "process"
            )
        return size

    def _first_micro_batch(self) -> int:
        return self.rows.start // self._micro_batch_size()

    def _prepare(self, start: Checkpoint | None) -> None:
        """Model, optimizer and states on their device and in their processes."""
        config = self.config.train
        if config.gradient_checkpointing:
            self.core.gradient_checkpointing_enable()
        self.core.train()
        if config.sharding == "full":
            self.processes.shard(self.core, free_early=self.states is None)
        else:
            self.core.to(self.processes.device)  # type: ignore[arg-type]
        self.optimizer = build_optimizer(self.core, config, self.memory_names)
        if start is not None:
            self._restore(start.path)
        # The phase of the last step done: the next one may begin another.
        self._switch(phases.phase_at(config, max(0, self.progress.step - 1)))

    def _restore(self, start: Path) -> None:
        restore_optimizer(start, self.core, self.optimizer)
        restore_rng(start, self.processes.rank)
        # With micro-batches of another size the rows belong to others: states start again.
        same_size = self.progress.micro_batch_size == self._micro_batch_size()
        if self.states is not None and same_size:
            folder = start / "carried"
            self.states.load(folder, self._first_micro_batch(), self.processes.device)

    def _switch(self, phase: phases.Phase) -> None:
        """Freeze and thaw. Data-parallel wrappers note what trains, so they are made again."""
        self.phase = phase
        self.frozen = phases.freeze(self.core, phase, self.memory_names)
        is_split = is_sharded(self.core)
        self.stepper = Stepper(
            config=self.config.train,
            model=self.core if is_split else self.processes.wrap(self.core),
            core=self.core,
            optimizer=self.optimizer,
            processes=self.processes,
            states=self.states,
        )


def _names(section: Mapping[str, object]) -> Iterator[str]:
    """The settings that a model section has, those of the memory as `memory.depth`."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _names(value))
        else:
            yield name
