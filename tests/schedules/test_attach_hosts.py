"""Tiny real runs in accelerate, Lightning and the Hugging Face Trainer: each drives the scheduler as a scheduler."""

from typing import Any

import numpy as np
import pytest
import torch

import equipoise.schedules as sch

T = 12
LR = sch.warmup_cosine(T, warmup=3, peak=0.05, final=0.005)
WD = sch.linear(T, peak=0.3, final=0.1)
DATA = torch.utils.data.TensorDataset(torch.randn(4 * T, 3), torch.randn(4 * T, 1))


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, sch.Scheduler, list[tuple[float, float]]]:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    scheduler = sch.Scheduler(optimizer, lr=LR, weight_decay=WD)
    used: list[tuple[float, float]] = []

    def note(running: Any, *_: Any) -> None:
        used.append((running.param_groups[0]["lr"], running.param_groups[0]["weight_decay"]))

    optimizer.register_step_pre_hook(note)
    return model, optimizer, scheduler, used


def check(used: list[tuple[float, float]]) -> None:
    assert np.array(used)[:, 0].tobytes() == LR.values().tobytes()
    assert np.array(used)[:, 1].tobytes() == WD.values().tobytes()


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, scheduler, used = parts()
    model, optimizer, loader, scheduler = accelerator.prepare(
        model, optimizer, torch.utils.data.DataLoader(DATA, batch_size=4), scheduler
    )
    for x, y in loader:
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    check(used)
    assert scheduler.state_dict()["last_epoch"] == T


@pytest.mark.filterwarnings("ignore")  # Lightning's own: workers, loggers, deprecations
def test_lightning(tmp_path: Any) -> None:
    lightning = pytest.importorskip("lightning")
    model, optimizer, scheduler, used = parts()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    trainer = lightning.Trainer(
        max_steps=T,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(DATA, batch_size=4))
    check(used)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    saved = torch.load(tmp_path / "run.ckpt", weights_only=False)["lr_schedulers"][0]
    assert saved == scheduler.state_dict()
    assert saved["last_epoch"] == T


@pytest.mark.filterwarnings("ignore")  # transformers' own: pinned memory, deprecations
def test_hugging_face_trainer(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": torch.nn.functional.mse_loss(self.inner(x), labels)}

    def trainer(steps: int) -> tuple[Any, list[tuple[float, float]], sch.Scheduler]:
        model, optimizer, scheduler, used = parts()
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=steps,
            per_device_train_batch_size=4,
            use_cpu=True,
            report_to=[],
            save_steps=5,
            logging_steps=1,
            disable_tqdm=True,
        )
        rows = [{"x": x, "labels": y} for x, y in DATA]
        return (
            transformers.Trainer(
                model=Model(model), args=arguments, train_dataset=rows, optimizers=(optimizer, scheduler)
            ),
            used,
            scheduler,
        )

    first, used, _ = trainer(5)
    first.train()
    second, rest, scheduler = trainer(T)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    check(used + rest)
    assert scheduler.last_epoch == T
    logged = [entry["learning_rate"] for entry in second.state.log_history if "learning_rate" in entry]
    assert logged[-1] == pytest.approx(LR(T))
