"""The measured quantities, as formulas over a few inner products, in numpy and float64, for neurons and tensors.

Letters: w weight before the step, Δ its change, g gradient, m momentum, d the share of w that decoupled decay takes,
U = Δ + d·w the gradient part of the change (−ηu), and for cautious decay ŵ the part of w that decays (else w itself).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.store.layout import Quantity
from equipoise.theory import rotation_angle

Array = NDArray[np.float64]

QUANTILES = (0.1, 0.5, 0.9)

PER_TENSOR = (
    Quantity("norm", "", "neuron", "‖w‖ after the step"),
    Quantity("rotation", "radian", "neuron", "angle by which the step turned the weights"),
    Quantity("update", "", "neuron", "‖U‖, norm of the gradient part of the change"),
    Quantity("grad_norm", "", "neuron", "‖g‖, after clipping and unscaling; inf where it is not finite"),
    Quantity("decay", "", "tensor", "norm of the decay part of the change, d‖w‖"),
    Quantity("change", "", "tensor", "‖Δ‖, norm of the whole change"),
    Quantity("radial_change", "", "tensor", "⟨Δ,w⟩/‖w‖, the part of the change along the weights"),
    Quantity("relative_update", "", "tensor", "‖U‖/‖w‖, the size of the step on the normalised weights"),
    Quantity("effective_lr", "", "tensor", "η/‖w‖; for SGD η/‖w‖²"),
    Quantity("grad_weight_cos", "", "tensor", "cosine between gradient and weights"),
    Quantity("grad_momentum_cos", "", "tensor", "cosine between the gradient and the momentum before it"),
    Quantity("momentum_norm", "", "tensor", "‖m‖ before the step"),
    Quantity("radial_decay", "", "tensor", "λ_u, the radial part of the direction seen as more weight decay"),
    Quantity("total_decay", "", "tensor", "λ_e = λ + λ_u"),
    Quantity("c_err", "", "tensor", "C_err = ‖u‖² over that of a random walk"),
    Quantity("budget_decay", "", "tensor", "change of ‖w‖² by decay"),
    Quantity("budget_push", "", "tensor", "change of ‖w‖² by the length of the update"),
    Quantity("budget_radial", "", "tensor", "change of ‖w‖² by the radial part of the update"),
    Quantity("unchanged", "", "tensor", "share of weights that a step left as they were; low precision alone"),
    Quantity("dead", "", "tensor", "share of neurons without a gradient in the last two thirds of the run so far"),
    Quantity("angle", "radian", "neuron", "angle to the weights at the start, of sampled neurons"),
)
BY_NEURON = tuple(q.name for q in PER_TENSOR if q.per == "neuron" and q.name != "angle")
"""Quantities with quantiles over neurons."""

BY_SAMPLED = (*BY_NEURON, "radial_change", "grad_weight_cos")
"""Quantities of sampled neurons: with these a neuron's own forecast can be made (`compare`)."""

GLOBAL = (
    Quantity("balance_neurons", "", "global", "coefficient of variation of rotation over all neurons"),
    Quantity("balance_layers", "", "global", "coefficient of variation of rotation over tensors of two dimensions"),
    Quantity("total_grad_norm", "", "global", "‖g‖ of all tensors together, after clipping and unscaling"),
    Quantity("skipped", "", "global", "1 where the step changed nothing because gradients were not finite"),
    Quantity("step_time", "second", "global", "time of a training step, watching left out"),
    Quantity("watch_share", "", "global", "time that watching took so far, as a share of training's"),
)
PER_GROUP = (
    Quantity("lr", "", "global", "learning rate of a group"),
    Quantity("weight_decay", "", "global", "weight decay of a group"),
    Quantity("memory", "step", "global", "effective number of steps remembered so far"),
    Quantity("init_share", "", "global", "share of the initial weights that is left"),
)


@dataclass(frozen=True)
class Hyper:
    """The hyperparameters of each unit (tensor, or neuron of one), one entry each; letters as in `GroupState`."""

    lr: Array
    weight_decay: Array
    lost: Array
    coupled: NDArray[np.bool_]
    cautious: NDArray[np.bool_]
    sign: Array
    """−1 where the step goes up the gradient."""
    square: Array
    by_gradient: NDArray[np.bool_]

    def spread(self, counts: NDArray[np.int64]) -> Hyper:
        """Each entry repeated for the neurons of its tensor."""
        return Hyper(**{name: np.repeat(value, counts, axis=-1) for name, value in vars(self).items()})

    @staticmethod
    def together(steps: Sequence[Hyper]) -> Hyper:
        """Those of several steps, one line a step."""
        return Hyper(**{name: np.stack([getattr(one, name) for one in steps]) for name in vars(steps[0])})


def formulas(s: dict[str, Array], h: Hyper, *, only: Sequence[str] | None = None) -> dict[str, Array]:
    """Quantities of each unit from its inner products.

    Args:
        s: `sums.SUMS`, one array each; NaN where something was not measured. "dw" is Δ·w here, with w before the step.
        h: hyperparameters.
        only: the names wanted; None for all but "unchanged", "dead" and "angle".
    """
    d = h.lost
    cw, cd = s["ww"], s["dw"]
    if h.cautious.any():
        cw, cd = np.where(h.cautious, s["cw"], cw), np.where(h.cautious, s["cd"], cd)
    norm, change = np.sqrt(s["ww"]), np.sqrt(s["dd"])
    norm = np.where(norm > 0, norm, np.nan)  # a tensor at 0 has no direction, and no relative size
    along = s["dw"] / norm
    uu = np.maximum(s["dd"] + 2 * d * cd + d * d * cw, 0.0)  # ‖Δ + d·ŵ‖²
    wu = s["dw"] + d * cw  # ⟨w,U⟩
    out = {
        "norm": np.sqrt(np.maximum(s["ww"] + 2 * s["dw"] + s["dd"], 0.0)),
        "rotation": rotation_angle(norm=norm, change_norm=change, radial=along),
        "update": np.sqrt(uu),
        "grad_norm": np.sqrt(s["gg"]),
        "radial_change": along,
    }
    out["grad_weight_cos"] = s["gw"] / (out["grad_norm"] * norm)
    if only is not None:
        return {name: out[name] for name in only}
    direction = -wu / (h.lr * s["ww"])
    radial = np.where(h.coupled, h.sign * s["gw"] / s["ww"], direction)
    decay = np.where(h.coupled, h.weight_decay, d / h.lr)
    expected = np.where(h.by_gradient, h.square * s["gg"], h.square)
    return out | {
        "decay": d * np.sqrt(cw),
        "change": change,
        "relative_update": out["update"] / norm,
        "effective_lr": h.lr / np.where(h.by_gradient, norm * norm, norm),
        "grad_momentum_cos": s["gm"] / (out["grad_norm"] * np.sqrt(s["mm"])),
        "momentum_norm": np.sqrt(s["mm"]),
        "radial_decay": radial,
        "total_decay": decay + radial,
        "c_err": uu / (h.lr**2 * expected),
        "budget_decay": -(2 * d - d * d) * cw,
        "budget_push": uu,
        "budget_radial": 2 * (wu - d * (cd + d * cw)),
    }


def angle_from(start: Array, change: Array, dot: Array) -> Array:
    """Angle between w₀ and w₀ + D from ‖w₀‖², ‖D‖² and ⟨D,w₀⟩, as exact for small angles as for large ones."""
    norm = np.sqrt(start)
    return rotation_angle(norm=norm, change_norm=np.sqrt(change), radial=dot / norm)


def distances(norm: Array, angle: Array, start: Array) -> Array:
    """‖w − w₀‖/‖w₀‖ of tensors; NaN where something is not known, or the tensor began at 0.

    Args:
        norm: ‖w‖.
        angle: to w₀, of sampled neurons.
        start: ‖w₀‖.
    """
    with np.errstate(all="ignore"):
        grown = np.asarray(norm, np.float64) / np.where(start > 0, start, np.nan)
        return np.sqrt((grown - 1) ** 2 + 4 * grown * np.sin(np.asarray(angle, np.float64) / 2) ** 2)


def variation(values: Array) -> Array:
    """Coefficient of variation of the finite values of each line; NaN where there are none or their mean is 0."""
    finite = np.isfinite(values)
    count = finite.sum(-1)
    with np.errstate(all="ignore"):
        mean = np.where(finite, values, 0.0).sum(-1) / count
        deviation = np.where(finite, values - mean[..., None], 0.0)
        return np.sqrt((deviation * deviation).sum(-1) / count) / np.where(mean == 0, np.nan, mean)


class Quantiles:
    """Quantiles over the neurons of many tensors, those of equal count sorted together.

    Args:
        starts: where each tensor's neurons begin.
        counts: how many it has.
        shares: the quantiles.
    """

    def __init__(self, starts: Sequence[int], counts: Sequence[int], shares: Sequence[float] = QUANTILES) -> None:
        self._tensors, self._shares = len(counts), shares
        self._alike: dict[int, tuple[list[int], NDArray[np.int64]]] = {}
        for count in dict.fromkeys(counts):
            which = [i for i, c in enumerate(counts) if c == count]
            self._alike[count] = which, np.array([starts[i] for i in which])[:, None] + np.arange(count)

    def __call__(self, values: Array) -> Array:
        """Quantiles of each tensor, by step if values are; linear between neurons, as numpy's."""
        out = np.empty((*values.shape[:-1], self._tensors, len(self._shares)))
        for count, (which, places) in self._alike.items():
            ordered = np.sort(values.astype(np.float32)[..., places], axis=-1)
            at = np.array(self._shares) * (count - 1)
            low = at.astype(np.int64)
            high = np.minimum(low + 1, count - 1)
            lower = ordered[..., low]
            out[..., which, :] = lower + (at - low) * (ordered[..., high] - lower)
        return out


class MemorySoFar:
    """Effective steps and share of the initial weights of a run so far, one step at a time; as `theory.memory`'s.

    Σc and Σc² of all steps so far decay with every step: Σc ← aΣc + η, Σc² ← a²Σc² + η², P ← aP.

    >>> memory = MemorySoFar()
    >>> for _ in range(10):
    ...     memory.step(0.1, 0.0)
    >>> round(memory.effective_steps, 9)
    10.0
    """

    def __init__(self) -> None:
        self._sum = self._square = 0.0
        self.init_share = 1.0

    def step(self, lr: float, lost: float) -> None:
        """Take in a step with learning rate η whose decay took the share `lost`."""
        a = 1.0 - lost
        self._sum = a * self._sum + lr
        self._square = a * a * self._square + lr * lr
        self.init_share *= a

    @property
    def effective_steps(self) -> float:
        """N_eff = (Σc)²/Σc²; 0 before the first step with lr > 0."""
        return self._sum**2 / self._square if self._square else 0.0
