"""The callback in the real Lightning Trainer."""

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from tests.auditing.loops import made, warned
from torch.utils.data import DataLoader, TensorDataset

from equipoise.auditing.frameworks.lightning import AuditCallback

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{start}")
    for start in (".*does not have many workers", ".*treespec, LeafSpec", ".*litlogger", ".*bf16")
]


class Module(pl.LightningModule):
    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.twice = made("mlp"), twice

    def training_step(self, batch: Any, i: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_before_zero_grad(self, optimizer: Any) -> None:
        if self.twice:
            self.lr_schedulers().step()  # type: ignore[union-attr]

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(folder: Path, callback: AuditCallback, module: Module, **options: Any) -> pl.Trainer:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(256, 12, generator=generator), torch.randint(6, (256,), generator=generator))
    trainer = pl.Trainer(
        max_steps=14, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, callbacks=[callback], **options,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data, batch_size=16))
    return trainer


@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.5}, {"precision": "bf16-mixed"}],
    ids=str,
)
def test_a_sound_fit_has_no_warning(options: dict[str, Any], tmp_path: Path) -> None:
    """Lightning calls step() with a closure, which the audit sees through."""
    callback = AuditCallback(10, show=False)
    fit(tmp_path, callback, Module(), **({"max_epochs": -1} | options))
    assert callback.audit is not None
    assert callback.audit.recorded == 10
    assert warned(callback.audit) == []
    rates = [row.lr for row in callback.audit.table if math.isfinite(row.lr)]
    assert rates == pytest.approx([1] * len(rates), rel=0.01)


def test_it_stops_shows_and_names_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = AuditCallback(5, stop=True)
    trainer = fit(tmp_path, callback, Module(twice=True))
    assert trainer.global_step == 5
    assert callback.audit is not None
    assert "audit-schedule-fast" in warned(callback.audit)
    assert "audit-schedule-fast" in capsys.readouterr().out
