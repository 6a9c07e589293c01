"""The callback in the real Hugging Face Trainer, and watch in accelerate."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from tests.monitor.loops import loss_of, network
from tests.monitor.sinks.wandb_file import history
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import equipoise as eq
from equipoise.monitor.frameworks.huggingface import WatchCallback

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning")
WEIGHT = "transformer.h.0.attn.c_attn.weight"


class Words(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        words = torch.randint(0, 50, (8,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": words, "labels": words}


def trainer(folder: Path, steps: int, *callbacks: TrainerCallback, **options: Any) -> Trainer:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=50, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    options = {"report_to": []} | options
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=1,
        save_steps=3, use_cpu=True, disable_tqdm=True, **options,
    )  # fmt: skip
    return Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Words(), callbacks=list(callbacks))


def test_a_run_and_its_resumption_have_each_step_once(tmp_path: Path) -> None:
    first = trainer(tmp_path, 5, WatchCallback(every=1, strict=True))
    first.train()
    with eq.Run.open(tmp_path / "equipoise") as run:
        assert run.status == "finished"
        assert run.findings == []
        logged = {e["step"]: e["loss"] for e in first.state.log_history if "loss" in e}
        assert dict(zip(*run.series("loss"), strict=True)) == pytest.approx(logged)
        assert run.quantities["grad_norm"].per == "neuron", "the Trainer's own grad_norm does not hide it"
        last = first.model.get_parameter(WEIGHT)  # type: ignore[union-attr]
        assert run.series("norm", WEIGHT).values[-1] == pytest.approx(float(last.detach().norm()), rel=1e-5)
        before = run.series("rotation", WEIGHT).values
    second = trainer(tmp_path, 7, WatchCallback(every=1, strict=True))
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    with eq.Run.open(tmp_path / "equipoise") as run:
        assert run.status == "finished"
        assert list(run.series("loss").steps) == [1, 2, 3, 4, 5, 6, 7]
        assert list(run.series("rotation", WEIGHT).steps) == [1, 2, 3, 4, 5, 6, 7]
        assert run.series("rotation", WEIGHT).values[:3] == pytest.approx(before[:3])


def test_accumulation_counts_the_trainers_steps_and_sinks_join_its_run(tmp_path: Path) -> None:
    import wandb

    options = {"gradient_accumulation_steps": 2, "report_to": ["wandb"], "run_name": "mine", "save_strategy": "no"}
    made = trainer(tmp_path, 3, WatchCallback(tmp_path / "a", every=1, strict=True, sinks=["wandb"]), **options)
    with wandb.init(dir=tmp_path, project="mine"):
        made.train()
    with eq.Run.open(tmp_path / "a") as run:
        steps, rotation = run.series("rotation", WEIGHT)
        assert list(steps) == [1, 2, 3]
    rows = history(tmp_path).values()
    assert [row["train/loss"] for row in rows if "train/loss" in row]
    assert max(row.get("equipoise/step", 0) for row in rows) == 3
    assert {name for row in rows for name in row} >= {"equipoise/rotation/median", "train/loss"}
    assert rotation[0] > 0


class Fails(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            raise ZeroDivisionError


def test_an_exception_is_known_to_the_context(tmp_path: Path) -> None:
    callback = WatchCallback(tmp_path / "a", every=1, strict=True)
    made = trainer(tmp_path, 5, callback, Fails())
    with pytest.raises(ZeroDivisionError), callback:
        made.train()
    with eq.Run.open(tmp_path / "a") as run:
        assert run.status == "crashed"
        assert list(run.series("rotation", WEIGHT).steps) == [1, 2]


def test_training_that_begins_again_ends_the_run_before(tmp_path: Path) -> None:
    callback = WatchCallback(tmp_path / "a", every=1, resume=True, strict=True)
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, 5, callback, Fails()).train()
    assert callback.watch is not None
    left = callback.watch
    trainer(tmp_path, 3, callback, save_strategy="no").train()
    assert left._closed
    assert callback.watch is not left
    with eq.Run.open(tmp_path / "a") as run:
        assert run.status == "finished"
        assert list(run.series("rotation", WEIGHT).steps) == [1, 2, 3, 4, 5]


def test_a_run_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    trainer(tmp_path, 1, WatchCallback(), save_strategy="no").train()
    with pytest.raises(eq.monitor.RunError, match="resume"):
        trainer(tmp_path, 1, WatchCallback(), save_strategy="no").train()


def test_accelerates_optimizer_is_unwrapped(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True) as watch:
        for step in range(6):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, step))
                optimizer.step()
                optimizer.zero_grad()
        assert watch.step == 3
    with eq.Run.open(tmp_path) as run:
        assert list(run.series("rotation", "0.weight").steps) == [1, 2, 3]


def test_the_last_steps_are_measured_as_the_trainer_knows_its_length(tmp_path: Path) -> None:
    trainer(tmp_path, 23, WatchCallback(every=10, strict=True), save_strategy="no").train()
    with eq.Run.open(tmp_path / "equipoise") as run:
        assert list(run.series("norm", WEIGHT).steps) == [1, 10, 20, 22, 23]
