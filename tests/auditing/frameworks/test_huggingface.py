"""The callback in the real Hugging Face Trainer, and an audit of accelerate's optimizer."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from tests.auditing.loops import Loop, audited, made, warned
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from equipoise.auditing.frameworks.huggingface import AuditCallback

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning")


class Words(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        words = torch.randint(0, 50, (8,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": words, "labels": words}


def trainer(folder: Path, callback: AuditCallback, steps: int = 12, **options: Any) -> Trainer:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    options = {"learning_rate": 1e-3} | options
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=4, use_cpu=True, disable_tqdm=True,
        report_to=[], save_strategy="no", **options,
    )  # fmt: skip
    return Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Words(), callbacks=[callback])


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1, "gradient_accumulation_steps": 2, "warmup_steps": 4},
        {"bf16": True},
        {"optim": "sgd", "learning_rate": 0.05},
    ],
    ids=str,
)
def test_a_sound_training_has_no_warning(options: dict[str, Any], tmp_path: Path) -> None:
    callback = AuditCallback(10, show=False)
    trainer(tmp_path, callback, **options).train()
    assert callback.audit is not None
    assert callback.audit.recorded == 10
    assert warned(callback.audit) == []
    rates = [row.lr for row in callback.audit.table if math.isfinite(row.lr)]
    assert rates == pytest.approx([1] * len(rates), rel=0.01)


def test_it_stops_shows_and_names_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = AuditCallback(4, stop=True)
    one = trainer(tmp_path, callback)
    one.create_optimizer()
    groups = one.optimizer.param_groups  # type: ignore[union-attr]
    groups[1]["params"].append(groups[0]["params"][0])
    one.train()
    assert one.state.global_step == 4
    assert callback.audit is not None
    assert "audit-twice" in warned(callback.audit)
    assert "audit-twice" in capsys.readouterr().out


def test_accelerate() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = made("attention")
    schedule = torch.optim.lr_scheduler.LinearLR
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    wrapped, own, scheduler = accelerator.prepare(model, optimizer, schedule(optimizer, 0.1, total_iters=8))

    def end() -> None:
        accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
        own.step()
        scheduler.step()

    loop = Loop(model, own, passes=2, backward=accelerator.backward, step=end)
    seen = audited(loop, optimizer=own)
    assert warned(seen) == []
    assert {row.rule for row in seen.table} == {"Adam"}
