"""The normalisations of convolutional networks."""

from __future__ import annotations

from torch import nn

from equipoise import _check

NORMS = ("batch", "group", "layer", "none")


def norm2d(kind: str, channels: int, *, groups: int = 32) -> nn.Module:
    """A normalisation of images.

    Args:
        kind: "batch"; "layer", over channels and places of a sample; "group", the same in groups of channels; "none".
        channels: of the image.
        groups: how many groups, or the next smaller number that divides the channels.
    """
    _check.choice("norm", kind, NORMS)
    if kind == "none":
        return nn.Identity()
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    count = 1 if kind == "layer" else next(g for g in range(min(groups, channels // 2), 0, -1) if channels % g == 0)
    return nn.GroupNorm(count, channels)
