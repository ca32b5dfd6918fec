"""The trainer: exact resume, accumulation, stages, carried states, trouble."""

import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from titans.errors import CheckpointError, ConfigError, FileError
from titans.models import TitansConfig, TitansForCausalLM
from titans.settings import to_yaml
from titans.training.checkpoint import Progress
from titans.training.config import TrainConfig
from titans.training.diagnosis import NonFiniteLoss, fast_forgetting
from titans.training.log import read_log
from titans.training.optim import GROUPS, group_of, learning_rate
from titans.training.phases import memory_parameters
from titans.training.run import Run
from titans.training.trainer import Trainer
from training.runs import timeless, tiny_config


class StopAt:
    """Kill a run the hard way: an exception in the middle of a measurement."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, step: int, loss: float) -> None:
        if step == self.step:
            raise KeyboardInterrupt


def assert_same_checkpoint(first: Path, second: Path) -> None:
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(first / name), load_file(second / name)
        assert ours.keys() == theirs.keys()
        for key, tensor in ours.items():
            assert torch.equal(tensor, theirs[key]), key


RESUMED = {
    "plain": (),
    "carried": ("data.carry_state=true", "train.micro_batch_size=2"),
    "open log line": ("log.every=7",),
    "two phases": ("train.core_steps=8",),
    "two phases, change at the checkpoint": ("train.core_steps=4", "checkpoint.every=4"),
}


@pytest.mark.parametrize("case", RESUMED)
def test_resume_is_exact(case: str, tmp_path: Path) -> None:
    settings = ("train.steps=16", "log.sample_every=8", "log.sample_tokens=4", *RESUMED[case])
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = Trainer(tiny_config(tmp_path / "a", *settings, variant="mac")).fit()
    config = tiny_config(tmp_path / "b", *settings, variant="mac")
    with pytest.raises(KeyboardInterrupt):
        # Dies at step 12, four steps after the last checkpoint... or at it.
        Trainer(config, watch=StopAt(12)).fit()
    resumed = Trainer(config, resume=True).fit()
    assert_same_checkpoint(whole.checkpoint, resumed.checkpoint)
    assert timeless(whole.folder) == timeless(resumed.folder)
    progress = [json.loads((r.checkpoint / "progress.json").read_text()) for r in (whole, resumed)]
    assert progress[0] == progress[1]


def test_a_checkpoint_is_complete(tmp_path: Path) -> None:
    result = Trainer(tiny_config(tmp_path, variant="mag")).fit()
    names = {path.name for path in result.checkpoint.iterdir()}
    assert {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "optimizer.safetensors",
        "progress.json",
        "run.yaml",
        "provenance.json",
        "rng-0.safetensors",
        "summary.json",
    } <= names
    assert not any(path.suffix in (".pt", ".pkl", ".bin") for path in result.checkpoint.iterdir())
    provenance = json.loads((result.checkpoint / "provenance.json").read_text())
    assert provenance["version"]
    assert provenance.keys() == {"package", "version", "commit"}
    folder = result.folder / "checkpoints"
    assert (folder / "last").resolve() == result.checkpoint.resolve()
    tokenizer = AutoTokenizer.from_pretrained(folder / "best")
    model = TitansForCausalLM.from_pretrained(folder / "best")
    out = model(**tokenizer("hello", return_tensors="pt"))
    assert out.logits.shape[-1] == len(tokenizer)


def test_accumulation_changes_nothing(tmp_path: Path) -> None:
    logs = []
    for size in (4, 1):
        folder = tmp_path / str(size)
        folder.mkdir()
        config = tiny_config(
            folder,
            f"train.micro_batch_size={size}",
            "data.carry_state=true",
            "train.memory_loss_weight=0.5",
            variant="mac",
        )
        result = Trainer(config).fit()
        logs.append([r["loss"] for r in read_log(result.folder)])
    assert logs[0] == pytest.approx(logs[1], abs=1e-5)


def test_it_learns(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "train.steps=60", "log.every=20", "data.sequence_len=32")
    losses = [r["loss"] for r in read_log(Trainer(config).fit().folder) if r["kind"] == "train"]
    assert losses[-1] < 0.75 * losses[0]


def test_carried_states_matter_and_are_reset(tmp_path: Path) -> None:
    run = Run(tiny_config(tmp_path, "data.carry_state=true", variant="mac"), resume=False)
    assert run.states is not None
    stepper = run.stepper
    batches = list(run.batches())
    starts = [int(b.fresh.sum()) for b in batches]
    assert starts[0] == 4 and 0 < sum(starts[1:]) < 4 * len(batches[1:])
    first, second = batches[0], batches[1]
    stepper._forward(first, 0)
    carried = stepper._forward(second, 0).logits
    cache = run.states.caches[0]
    assert cache is not None
    assert not any(t.requires_grad for t in cache.named_tensors().values())
    run.states.drop()
    alone = stepper._forward(second, 0).logits
    for row in range(4):
        same = torch.allclose(carried[row, 0], alone[row, 0], atol=1e-6)
        assert same == bool(second.fresh[row])


def test_carried_states_do_not_follow_the_optimizer(tmp_path: Path) -> None:
    run = Run(tiny_config(tmp_path, "data.carry_state=true", variant="mac"), resume=False)
    assert run.states is not None
    run.stepper._forward(next(run.batches()), 0)
    cache = run.states.caches[0]
    assert cache is not None
    before = {name: t.clone() for name, t in cache.named_tensors().items()}
    with torch.no_grad():
        for parameter in run.core.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(t, before[name]) for name, t in cache.named_tensors().items())


def test_two_phases_freeze_what_they_say(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path, "train.core_steps=4", "train.freeze_core=true", "train.steps=8", variant="mag"
    )
    start = {n: p.clone() for n, p in Run(config, resume=False).core.named_parameters()}
    with pytest.raises(KeyboardInterrupt):
        Trainer(config, watch=StopAt(8)).fit()
    memory = memory_parameters(Run(config, resume=True).core)
    assert any("memory" in name for name in memory) and len(memory) < len(start)
    middle = load_file(tmp_path / "run/checkpoints/step-00000004/model.safetensors")
    for name, value in start.items():
        assert torch.equal(value, middle[name]) == (name in memory), name
    end = load_file(Trainer(config, resume=True).fit().checkpoint / "model.safetensors")
    for name in start:
        assert torch.equal(middle[name], end[name]) == (name not in memory), name
    events = [r for r in read_log(tmp_path / "run") if r["kind"] == "event"]
    assert [(e["step"], e["phase"]) for e in events] == [(1, "core"), (5, "memory")]
    assert set(str(events[0]["frozen"]).split(", ")) == memory


def test_phases_need_a_memory_and_a_core(tmp_path: Path) -> None:
    for variant, message in (("swa", "has no memory"), ("lmm", "all memory")):
        with pytest.raises(ConfigError, match=message):
            Trainer(tiny_config(tmp_path, "train.core_steps=2", variant=variant))


def test_memory_loss_enters_the_gradient(tmp_path: Path) -> None:
    norms = []
    for weight in (0.0, 10.0):
        config = tiny_config(
            tmp_path, f"train.memory_loss_weight={weight}", f"out={tmp_path / str(weight)}",
            "train.steps=3", variant="mac",
        )  # fmt: skip
        records = read_log(Trainer(config).fit().folder)
        assert "memory_loss" in records[0]
        norms.append(records[0]["grad_norm"])
    assert norms[1] > 1.5 * norms[0]


def test_writing_at_a_cost_shrinks_the_steps(tmp_path: Path) -> None:
    steps = []
    for cost in (0.0, 100.0):
        settings = (f"train.write_cost={cost}", f"out={tmp_path / str(cost)}", "train.steps=20")
        Trainer(tiny_config(tmp_path, *settings, variant="lmm")).fit()
        log = [r for r in read_log(tmp_path / str(cost)) if r["kind"] == "train"]
        steps.append((log[0]["step_size"], log[-1]["step_size"]))
    assert steps[0][0] == pytest.approx(steps[1][0], rel=0.05)
    assert steps[1][1] < 0.7 * steps[0][1]


def test_a_run_starts_from_the_weights_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Trainer(tiny_config(tmp_path, f"out={tmp_path / 'a'}")).fit()
    last = tmp_path / "a" / "checkpoints" / "last"
    again = (f"start_from={last}", "train.learning_rate=1e-12", "train.steps=3")
    Trainer(tiny_config(tmp_path, f"out={tmp_path / 'b'}", *again)).fit()
    before = load_file(last / "model.safetensors")
    after = load_file(tmp_path / "b" / "checkpoints" / "last" / "model.safetensors")
    assert all(torch.allclose(after[name], before[name], atol=1e-9) for name in before)
    with pytest.raises(ConfigError, match="differs from the model section"):
        Trainer(tiny_config(tmp_path, "out=c", *again, "model.hidden_size=32")).fit()
    with pytest.raises(ConfigError, match="start_from: no checkpoint"):
        Trainer(tiny_config(tmp_path, "out=d", f"start_from={tmp_path / 'none'}")).fit()


@pytest.mark.parametrize("mode", ["full", "truncated"])
def test_gradient_modes_train(mode: str, tmp_path: Path) -> None:
    config = tiny_config(tmp_path, f"model.memory.gradient={mode}", variant="lmm")
    assert Trainer(config).fit().skipped_steps == 0


def test_bfloat16_and_gradient_checkpointing(tmp_path: Path) -> None:
    losses = []
    for number, settings in enumerate(
        [(), ("train.gradient_checkpointing=true",), ("train.precision=bfloat16",)]
    ):
        config = tiny_config(tmp_path, f"out={tmp_path / str(number)}", *settings, variant="mag")
        losses.append([r["loss"] for r in read_log(Trainer(config).fit().folder)])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=0.02)


def test_bad_steps_are_skipped_and_counted(tmp_path: Path) -> None:
    trainer = Trainer(tiny_config(tmp_path, "train.max_bad_steps=3"))
    original = trainer.run.stepper.step

    def sometimes_bad(batch, step, meter, stop):
        head = trainer.run.core.lm_head.weight
        if step in (2, 3):
            with torch.no_grad():
                saved = head.clone()
                head[0, 0] = float("nan")
            result = original(batch, step, meter, stop)
            with torch.no_grad():
                head.copy_(saved)
            return result
        return original(batch, step, meter, stop)

    trainer.run.stepper.step = sometimes_bad  # type: ignore[method-assign]
    result = trainer.fit()
    assert result.skipped_steps == 2
    assert all(r["loss"] is not None for r in read_log(result.folder) if r["step"] > 4)
    last = read_log(result.folder)[-2]
    assert last["skipped_steps"] == 2


def test_too_many_bad_steps_stop_with_a_diagnosis(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path, "train.max_bad_steps=2", "model.num_hidden_layers=2", variant="mac"
    )
    trainer = Trainer(config)
    with torch.no_grad():
        trainer.run.core.model.layers[1].feed_forward.parameters().__next__().fill_(float("inf"))
    with pytest.raises(NonFiniteLoss, match=r"2 steps in a row were not finite") as error:
        trainer.fit()
    text = str(error.value)
    assert "model.layers.1.feed_forward" in text
    assert "forget_gate by layer" in text and "train.learning_rate" in text
    found = json.loads((tmp_path / "run" / "diagnosis.json").read_text())
    assert found["first_bad_layer"].startswith("model.layers.1.feed_forward")
    assert len(found["gates"]["step_size"]) == 2


def test_a_gradient_that_jumps_is_told_once(tmp_path: Path) -> None:
    trainer = Trainer(tiny_config(tmp_path, "train.steps=30"))
    original = trainer.run.stepper.step

    def jump(batch, step, meter, stop):
        result = original(batch, step, meter, stop)
        return dataclasses.replace(result, grad_norm=5e3 if step >= 20 else result.grad_norm)

    trainer.run.stepper.step = jump  # type: ignore[method-assign]
    (warning,) = [r for r in read_log(trainer.fit().folder) if r["kind"] == "warning"]
    assert warning["step"] == 21 and "norm jumped to 5e+03 before clipping" in str(warning["text"])


def test_a_memory_that_forgets_too_fast_is_told_once(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "model.memory.forget_init=0.2", variant="mac")
    log = read_log(Trainer(config).fit().folder)
    (warning,) = [r for r in log if r["kind"] == "warning"]
    assert "fewer than the 8 of a segment" in str(warning["text"])
    progress, model = Progress(step=7), TitansConfig(variant="mac", segment_len=64)
    # ln(1/2) / ln(1 - 0.076) = 8.8 tokens.
    assert "forgets half in 9 tokens" in fast_forgetting(0.076, model, 256, progress)
    assert not fast_forgetting(0.076, model, 256, progress)
    assert not fast_forgetting(0.001, model, 256, progress) and not progress.forgets_fast
    assert "256 of a sequence" in fast_forgetting(0.003, TitansConfig(variant="lmm"), 256, progress)


SPARSE = ("checkpoint.every=1", "checkpoint.keep_last=1", "checkpoint.keep_best=false")


def test_good_checkpoints_outlive_bad_steps(tmp_path: Path) -> None:
    settings = (*SPARSE, "log.held_out_every=0", "train.max_bad_steps=3")
    Trainer(tiny_config(tmp_path, "train.steps=4", *settings)).fit()
    wrong = tiny_config(tmp_path, "train.steps=40", "train.learning_rate=1e30", *settings)
    trainer = Trainer(wrong, resume=True)
    # The fifth step is finite, and its update ruins the weights.
    with pytest.raises(NonFiniteLoss, match="3 steps in a row were not finite") as error:
        trainer.fit()
    folder = trainer.run.checkpoints
    assert [c.step for c in folder.all()][-2:] == [4, 5], "nothing is saved while steps are bad"
    assert f"{folder.path_of(5)}, holds the weights that gave the first" in str(error.value)
    assert f"delete it to --resume from {folder.path_of(4)}" in str(error.value)
    shutil.rmtree(folder.path_of(5))
    right = tiny_config(tmp_path, "train.steps=7", *settings)
    assert Trainer(right, resume=True).fit().steps == 7
    assert [c.step for c in folder.all()] == [6, 7], "the last one was not followed by a step"


def test_a_run_that_ends_in_bad_steps_says_so(tmp_path: Path) -> None:
    trainer = Trainer(tiny_config(tmp_path, "train.steps=8"))
    original = trainer.run.stepper.step

    def bad_at_the_end(batch, step, meter, stop):
        if step == 6:
            with torch.no_grad():
                trainer.run.core.lm_head.weight[0, 0] = float("nan")
        return original(batch, step, meter, stop)

    trainer.run.stepper.step = bad_at_the_end  # type: ignore[method-assign]
    with pytest.raises(NonFiniteLoss, match="2 steps in a row") as error:
        trainer.fit()
    folder = trainer.run.checkpoints
    assert [c.step for c in folder.all()] == [4]
    assert f"{folder.path_of(4)}, is from before them" in str(error.value)


def test_a_second_trainer_is_refused(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    first = Trainer(config)
    owner = rf"run is in use by process {os.getpid()} on \S+, started 20"
    for resume in (False, True):
        with pytest.raises(FileError, match=owner):
            Trainer(config, resume=resume)
    first.fit()
    config = tiny_config(tmp_path, "train.steps=9")
    Trainer(config, resume=True).fit()


def test_a_killed_trainer_leaves_no_lock(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "data.num_workers=1", "train.steps=100000")
    code = (
        "import sys; from titans.training.config import load_config;"
        "from titans.training.trainer import Trainer; Trainer(load_config(sys.argv[1])).fit()"
    )
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "c.yaml")]) as process:
        while not any((tmp_path / "run" / "checkpoints").glob("step-*")):
            assert process.poll() is None
            time.sleep(0.05)
        with pytest.raises(FileError, match=f"process {process.pid} on"):
            Trainer(config, resume=True)
        process.kill()
    # Its workers live on for seconds: they must not hold the lock.
    Trainer(config, resume=True).run.release()


def test_every_flipped_byte_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "data.carry_state=true", variant="mac")
    saved = Trainer(config).fit().checkpoint
    more = tiny_config(tmp_path, "data.carry_state=true", "train.steps=9", variant="mac")
    files = [p for p in sorted(saved.rglob("*")) if p.is_file()]
    assert any(p.parent.name == "carried" for p in files)
    chance = random.Random(7)
    for path in files:
        content = path.read_bytes()
        for _ in range(4):
            place = chance.randrange(len(content))
            flipped = bytes([content[place] ^ 1 << chance.randrange(8)])
            path.write_bytes(content[:place] + flipped + content[place + 1 :])
            with pytest.raises(CheckpointError, match="is damaged or missing"):
                Trainer(more, resume=True)
        path.unlink()
        with pytest.raises(CheckpointError, match=f"{path.name} is damaged or missing"):
            Trainer(more, resume=True)
        path.write_bytes(content)
    assert Trainer(more, resume=True).fit().steps == 9


def test_a_run_is_not_overwritten_and_needs_something_to_resume(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint to resume from"):
        Trainer(config, resume=True)
    Trainer(config).fit()
    with pytest.raises(CheckpointError, match=r"already holds a run \(step 8\): add --resume"):
        Trainer(config)
    with pytest.raises(ConfigError, match="a run cannot change its model"):
        Trainer(tiny_config(tmp_path, "model.num_hidden_layers=2"), resume=True)


def test_full_attention_cannot_carry(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="full attention would have to keep"):
        Trainer(tiny_config(tmp_path, "data.carry_state=true", variant="transformer"))


def test_parameter_groups(tmp_path: Path) -> None:
    core = Run(tiny_config(tmp_path, variant="mac"), resume=False).core
    memory = memory_parameters(core)
    groups = {name: group.name for name, group in group_of(core, memory).items()}
    assert set(groups.values()) == {g.name for g in GROUPS}
    for name, group in groups.items():
        parameter = core.get_parameter(name)
        if parameter.ndim == 1 or "embed" in name or "persistent" in name or ".gates." in name:
            assert group.endswith("vectors"), name
        if "memory_0" in name or "query_proj" in name or "value_proj" in name:
            assert group.startswith("memory"), name
    assert groups["lm_head.weight"] == "matrices"


@pytest.mark.parametrize(
    ("steps", "asked", "taken"),
    [(20, None, 2), (400, None, 40), (20, 50, 10), (8, 7, 7), (1, 5, 0)],
)
def test_the_warm_up_fits_the_run(steps: int, asked: int | None, taken: int) -> None:
    assert TrainConfig(steps=steps, warmup_steps=asked).warmup == taken


def test_learning_rate() -> None:
    config = TrainConfig(steps=100, warmup_steps=10, learning_rate=1.0, min_learning_rate_ratio=0.1)
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == 1.0 and rates[10] == 1.0
    assert all(a >= b for a, b in pairwise(rates[10:]))
    assert 0.1 < rates[-1] < 0.102
    constant = TrainConfig(steps=100, warmup_steps=0, min_learning_rate_ratio=1, learning_rate=0.5)
    assert {learning_rate(constant, step) for step in range(100)} == {0.5}
