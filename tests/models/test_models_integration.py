"""Hugging Face's tools, low precision, checkpointing and compilation around the models."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from support.models import VARIANTS, VOCAB, tiny_model, tiny_tokens
from titans.models import TitansForCausalLM


class Repeated(Dataset):
    """The same few rows over and over."""

    def __init__(self) -> None:
        self.rows = tiny_tokens(batch=4, time=20)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.rows[index % 4]
        return {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row}


@pytest.mark.parametrize("case", ["mac", "transformer"])
def test_trainer_trains_evaluates_and_saves(case: str, tmp_path: Path) -> None:
    model = tiny_model(case, dtype=torch.float32, initializer_range=0.05)
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=4,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        gradient_checkpointing=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Repeated(), eval_dataset=Repeated())
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    # Logits alone: what the memories report is no prediction.
    assert trainer.predict(Repeated()).predictions.ndim == 3
    trainer.save_model(str(tmp_path / "last"))
    loaded = TitansForCausalLM.from_pretrained(tmp_path / "last").eval()
    with torch.no_grad():
        ids = tiny_tokens()
        assert torch.equal(loaded(ids).logits, trainer.model.eval()(ids).logits)


@pytest.mark.parametrize("case", ["mac", "mac-predictive"])
def test_accumulated_gradients_are_those_of_one_batch(case: str, tmp_path: Path) -> None:
    """Rows with different numbers of targets count by them, in one call or in four."""
    rows = tiny_tokens(batch=4, time=20)
    labels = rows.clone()
    if case == "mac":  # the predictor's loss is of every token, with a target or without
        for number in range(4):
            labels[number, : 4 * number] = -100
    data = [{"input_ids": r, "labels": t} for r, t in zip(rows, labels, strict=True)]
    found = []
    for size in (4, 1):
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=4 // size,
            learning_rate=0.1,
            lr_scheduler_type="constant",
            optim="sgd",
            max_grad_norm=0.0,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
        )
        model = tiny_model(case)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        Trainer(model, arguments, train_dataset=data).train()  # type: ignore[arg-type]
        found.append({n: p.detach() - before[n] for n, p in model.named_parameters()})
    assert max(change.abs().max().item() for change in found[0].values()) > 1e-3
    for name, wanted in found[0].items():
        torch.testing.assert_close(found[1][name], wanted, atol=1e-7, rtol=1e-5, msg=name)


@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal", "transformer"])
def test_lora_trains_its_own_weights_alone(case: str) -> None:
    """With the lines of docs/compatibility.md."""
    model, ids = tiny_model(case, dtype=torch.float32), tiny_tokens()
    with torch.no_grad():
        wanted = model(ids).logits
    lora = get_peft_model(
        model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        torch.testing.assert_close(lora(input_ids=ids).logits, wanted, atol=1e-4, rtol=1e-4)
    before = {name: p.detach().clone() for name, p in lora.named_parameters()}
    optimizer = torch.optim.AdamW(lora.parameters(), lr=1e-2)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = lora.train()(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    changed = {n for n, p in lora.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {name for name in before if "lora_" in name}
    assert case == "transformer" or any("memory.key_proj.lora_A" in name for name in changed)
    lora.eval()
    with torch.no_grad():
        trained = lora(input_ids=ids).logits
        merged = lora.merge_and_unload()
        torch.testing.assert_close(merged(ids).logits, trained, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("case", ["mac", "transformer"])
def test_attention_weights_are_refused(case: str) -> None:
    model, ids = tiny_model(case), tiny_tokens(time=5)
    with pytest.raises(ValueError, match="output_attentions=True: attention runs in fused"):
        model(ids, output_attentions=True)
    with pytest.raises(ValueError, match="output_attentions=True"):
        model.generate(ids, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)
    with pytest.raises(ValueError, match="output_attentions=True"):
        tiny_model(case, output_attentions=True)(ids)


@pytest.mark.parametrize("case", [*VARIANTS, "mac-predictive"])
def test_gradient_checkpointing_changes_nothing(case: str) -> None:
    ids, grads = tiny_tokens(), []
    for enabled in (False, True):
        model = tiny_model(case).train()
        if enabled:
            model.gradient_checkpointing_enable()
        model(ids, labels=ids).loss.backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, wanted in grads[0].items():
        torch.testing.assert_close(grads[1][name], wanted, atol=1e-10, rtol=1e-7, msg=name)


@pytest.mark.parametrize("case", VARIANTS)
def test_bfloat16_autocast_stays_close(case: str) -> None:
    model = tiny_model(case, dtype=torch.float32, initializer_range=0.05)
    ids = tiny_tokens()
    with torch.no_grad():
        wide = model(ids).logits
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(ids, use_cache=True)
    assert torch.isfinite(out.logits).all()
    assert (out.logits.float() - wide).abs().max() < 0.1 * wide.abs().max()
    for block in out.past_key_values.blocks:
        if block.memory is not None:
            assert block.memory.memory.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model.train()(ids, labels=ids).loss
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("tied", [False, True])
def test_resized_vocabulary_keeps_the_old_tokens(tied: bool) -> None:
    model = tiny_model("mag", dtype=torch.float32, tie_word_embeddings=tied)
    ids = tiny_tokens()
    with torch.no_grad():
        before = model(ids).logits
        model.resize_token_embeddings(VOCAB + 6)
        after = model(ids).logits
    assert after.shape[-1] == model.config.vocab_size == VOCAB + 6
    assert torch.equal(after[..., :VOCAB], before)
    shared = model.lm_head.weight is model.model.embed_tokens.weight
    assert shared is tied


def test_embeddings_may_stand_in_for_tokens() -> None:
    model, ids = tiny_model("mac"), tiny_tokens()
    with torch.no_grad():
        embedded = model.model.embed_tokens(ids)
        assert torch.equal(model(inputs_embeds=embedded).logits, model(ids).logits)
        out = model(ids, output_hidden_states=True)
    assert len(out.hidden_states) == model.config.num_hidden_layers + 1
    assert torch.equal(model.lm_head(out.hidden_states[-1]), out.logits)
    with pytest.raises(ValueError, match="exactly one of input_ids"):
        model()
    with pytest.raises(ValueError, match="attention_mask must be"):
        model(ids, attention_mask=torch.ones(2, 3))


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal"])
def test_compiled_training_step_gives_the_same_gradients(case: str) -> None:
    """Run with JAXTYPING_DISABLE=1: executed shape checks do not compile."""
    ids, grads = tiny_tokens(time=11), []
    for compiled in (False, True):
        model = tiny_model(case, num_hidden_layers=1).train()
        call = torch.compile(model) if compiled else model
        call(ids, labels=ids, use_cache=False).loss.backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, wanted in grads[0].items():
        torch.testing.assert_close(grads[1][name], wanted, atol=1e-8, rtol=1e-5, msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("case", VARIANTS)
def test_gpu_equals_cpu(case: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model, ids = tiny_model(case), tiny_tokens()
    with torch.no_grad():
        wanted = model(ids).logits
        model.cuda()
        cache = model.new_cache(2)
        parts = [model(part.cuda(), past_key_values=cache).logits for part in ids.split(7, dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1).cpu(), wanted, atol=1e-9, rtol=0)
