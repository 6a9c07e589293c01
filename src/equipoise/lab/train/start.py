"""Pretrained weights to start from: those of another trial, trained once per machine and stored with the data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.lab.data.packages.places import data_folder
from equipoise.lab.train.trial import Trial

WEIGHTS = "weights.pt"


def load_start(model: nn.Module, fields: Mapping[str, Any], device: torch.device | str = "cpu") -> None:
    """Give a model the weights that another trial ends with; tensors of another shape, as a head, stay as they are.

    Args:
        model: is changed in place.
        fields: of the trial to start from, which is trained first where its weights are not there.
        device: where to train it.
    """
    own, found = model.state_dict(), weights_of(Trial.from_dict(fields), str(device))
    shared = {name: w for name, w in found.items() if name in own and own[name].shape == w.shape}
    count, whole = (sum(w.numel() for w in tensors.values()) for tensors in (shared, own))
    if 2 * count < whole:
        raise ValueError(
            f"start: must be a trial of the same model, but only {count} of {whole} numbers are in tensors of the same "
            "name and shape"
        )
    model.load_state_dict(shared, strict=False)


def weights_of(trial: Trial, device: str | None = None) -> dict[str, Tensor]:
    """The weights that a trial ends with; they are kept in `weights` of the data folder."""
    from equipoise.lab.train.training import train

    folder = data_folder() / "weights" / trial.key
    file = folder / WEIGHTS
    if not file.is_file():
        result = train(trial, folder / "trial", device=device, keep=file)
        if not file.is_file():
            raise ValueError(f"start: the trial {trial.key} {result.status}, and has no weights to start from")
    return torch.load(file, map_location="cpu", weights_only=True)


def save_weights(model: nn.Module, file: str | os.PathLike[str]) -> None:
    """Write a model's weights, whole or not at all."""
    place = Path(file)
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_suffix(".part")
    torch.save({name: w.detach().cpu() for name, w in model.state_dict().items()}, part)
    part.replace(place)
