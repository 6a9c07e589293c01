"""The callback in the real Lightning Trainer."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.monitor.loops import network
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.monitor.frameworks.lightning import WatchCallback

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{start}")
    for start in (
        ".*does not have many workers",
        ".*treespec, LeafSpec",
        ".*Checkpoint directory .* exists",
        ".*resuming from a checkpoint that ended before the epoch",
        ".*litlogger",
    )
]


class Module(pl.LightningModule):
    def __init__(self, optimizers: int = 1, fails: int | None = None) -> None:
        super().__init__()
        self.net, self.fails, self.count = network(), fails, optimizers
        self.automatic_optimization = optimizers == 1
        self.losses: list[float] = []

    def training_step(self, batch: Any, i: int) -> torch.Tensor:
        if self.fails == i:
            raise ZeroDivisionError
        loss = (self.net(batch[0]) - 1).square().mean()
        self.losses.append(float(loss.detach()))
        if self.count > 1:
            for optimizer in self.optimizers():  # type: ignore[union-attr]
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():  # type: ignore[union-attr]
                optimizer.step()
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", (self.net(batch[0]) - 1).square().mean())

    def configure_optimizers(self) -> Any:
        if self.count == 1:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)
        first, *rest = self.net.parameters()
        return [torch.optim.SGD([first], lr=1e-2), torch.optim.AdamW(rest, lr=1e-2)]


def fit(
    folder: Path, steps: int, module: Module, callback: WatchCallback, ckpt: Path | None = None, **options: Any
) -> None:
    data = TensorDataset(torch.randn(32, 12, generator=torch.Generator().manual_seed(1)))
    loader: DataLoader[Any] = DataLoader(data, batch_size=4)
    saves = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    trainer = pl.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, callbacks=[callback, saves], **options,
    )  # fmt: skip
    trainer.fit(module, loader, loader, ckpt_path=ckpt)


def test_a_run_and_its_resumption_have_each_step_once(tmp_path: Path) -> None:
    module = Module()
    fit(tmp_path, 10, module, WatchCallback(every=1, strict=True))
    with eq.Run.open(tmp_path / "equipoise") as run:
        assert run.status == "finished"
        assert list(run.series("loss").steps) == list(range(1, 11))
        assert run.series("loss").values == pytest.approx(module.losses)
        assert list(run.series("val_loss").steps) == [8, 10]
        last = float(dict(module.named_parameters())["net.0.weight"].detach().norm())
        assert run.series("norm", "net.0.weight").values[-1] == pytest.approx(last, rel=1e-5)
    fit(tmp_path, 12, Module(), WatchCallback(every=1, strict=True), tmp_path / "step=6.ckpt")
    with eq.Run.open(tmp_path / "equipoise") as run:
        assert run.status == "finished"
        assert list(run.series("loss").steps) == list(range(1, 13))
        assert list(run.series("rotation", "net.0.weight").steps) == list(range(1, 13))


def test_accumulated_batches_are_one_step_with_the_loss_of_its_last(tmp_path: Path) -> None:
    module = Module()
    fit(tmp_path, 3, module, WatchCallback(tmp_path / "a", every=1, strict=True), accumulate_grad_batches=2)
    with eq.Run.open(tmp_path / "a") as run:
        assert list(run.series("rotation", "net.0.weight").steps) == [1, 2, 3]
        losses = dict(zip(*run.series("loss"), strict=True))
        assert losses[3] == pytest.approx(module.losses[-1])


def test_an_exception_closes_the_run_as_crashed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, 5, Module(fails=2), WatchCallback(tmp_path / "a", every=1, strict=True))
    with eq.Run.open(tmp_path / "a") as run:
        assert run.status == "crashed"
        assert list(run.series("rotation", "net.0.weight").steps) == [1, 2]


@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization")
def test_one_of_several_optimizers(tmp_path: Path) -> None:
    fit(tmp_path, 6, Module(2), WatchCallback(tmp_path / "a", optimizer=1, every=1, strict=True))
    with eq.Run.open(tmp_path / "a") as run:
        assert "net.0.weight" not in run.tensors
        assert len(run.series("rotation", "net.3.weight")) == 3, "Lightning counts the steps of both"
    fit(tmp_path, 6, Module(2), WatchCallback(tmp_path / "all", every=1, strict=True))
    with eq.Run.open(tmp_path / "all") as run:
        for name in ("net.0.weight", "net.3.weight"):
            assert len(run.series("rotation", name)) == 3
    with pytest.raises(ValueError, match="optimizer = 2: the module has 2"):
        fit(tmp_path, 6, Module(2), WatchCallback(tmp_path / "b", optimizer=2))


def test_the_last_steps_are_measured_as_the_trainer_knows_its_length(tmp_path: Path) -> None:
    fit(tmp_path, 23, Module(), WatchCallback(every=10, strict=True))
    with eq.Run.open(tmp_path / "equipoise") as run:
        assert list(run.series("norm", "net.0.weight").steps) == [1, 10, 20, 22, 23]
