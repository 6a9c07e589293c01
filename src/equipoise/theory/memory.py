"""What each batch contributes to the final weights, and schedules for given contributions.  [theory] 3 and 5.

A decoupled step w_t = a_t w_{t−1} − η_t u_t unrolls to w_T = P·w_0 − Σ_j c_j u_j. The contributions c_j say how long a
batch is remembered; lr and weight decay can be chosen so that they follow any wanted profile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from equipoise import _check
from equipoise._check import Array
from equipoise.theory import _scan
from equipoise.theory.directions import kept_share


@dataclass(frozen=True)
class Memory:
    """What each batch and the initialisation contribute to the weights; entry j belongs to step j + 1.

    Attributes:
        weights: c_j = η_j Π_{i>j} a_i, the contribution of u_j to −w_T (with momentum: of gradient g_j).
        init_share: P = Π_i a_i, the share of the initial weights left.
        effective_steps: N_eff = (Σc)²/Σc², how many batches are remembered as if equally.
        period: steps over which memory falls to 1/e at the end of the run: Σ η_iλ_i = 1.
        lost: 1 − a_i, the share that each step's decay takes from what was there.
    """

    weights: Array = field(repr=False)
    init_share: float
    effective_steps: float
    period: float
    lost: Array = field(repr=False)

    @property
    def share(self) -> Array:
        """The contributions over their sum."""
        return self.weights / self.weights.sum()

    def period_to(self, fraction: float) -> float:
        """How many steps before the end memory was `fraction` of its last value: Σ η_iλ_i = ln(1/fraction).

        Between steps it is interpolated. Where the whole run forgets less than that, the run's mean rate is carried
        on; without decay it is infinite.
        """
        share = _check.number("fraction", fraction, low=0, high=1, open_low=True, open_high=True)
        return _period(self.lost, -math.log(share))

    def age_quantile(self, quantile: ArrayLike) -> Array:
        """Age in steps below which that share of the memory lies; the last batch has age 1.

        >>> memory(lr=0.1, weight_decay=0.0, steps=10).age_quantile([0.5]).round(9)
        array([5.])
        """
        p = np.asarray(quantile, dtype=np.float64)
        if not np.all((p >= 0) & (p <= 1)):
            raise ValueError(f"quantile = {quantile!r}: must be in [0, 1]")
        newest_first = np.concatenate([[0.0], np.cumsum(self.weights[::-1])])
        return np.interp(p * newest_first[-1], newest_first, np.arange(len(newest_first), dtype=np.float64))

    @property
    def mean_age(self) -> float:
        """The mean age of what is remembered, in steps; the last batch has age 1."""
        ages = np.arange(len(self.weights), 0, -1)
        return float(ages @ self.share)

    def parts(self, count: int = 10) -> Array:
        """The share that each of `count` equal parts of the run contributes; sums to 1."""
        n = _check.whole("count", count, low=1)
        total = np.concatenate([[0.0], np.cumsum(self.share)])
        edges = np.linspace(0, len(self.weights), n + 1)
        return np.diff(np.interp(edges, np.arange(len(total)), total))

    def per_epoch(self, steps_per_epoch: int) -> Array:
        """The share that each epoch contributes; the last one may be incomplete; sums to 1."""
        n = _check.whole("steps_per_epoch", steps_per_epoch, low=1)
        starts = np.arange(0, len(self.weights), n)
        return np.add.reduceat(self.share, starts)

    def per_batch(self, steps_per_epoch: int) -> Array:
        """The share that each batch of the data contributes over all epochs, if epochs keep their order."""
        n = _check.whole("steps_per_epoch", steps_per_epoch, low=1)
        padded = np.zeros(math.ceil(len(self.weights) / n) * n)
        padded[: len(self.weights)] = self.share
        return padded.reshape(-1, n).sum(0)


def memory(
    *,
    lr: ArrayLike,
    weight_decay: ArrayLike,
    steps: int | None = None,
    momentum: float = 0.0,
    bias_correction: bool = False,
    decay: str = "lr",
    lr_max: float | None = None,
    kept: ArrayLike | None = None,
    average: ArrayLike | None = None,
) -> Memory:
    """What each step's update, or gradient, contributes to the final weights, or to an average of weights.

        c_j = η_j Π_{i>j} a_i        P = Π_i a_i        N_eff = (Σc)²/Σc²
        of an average Σ_t b_t w_t:   c_j = η_j S_j,   S_j = b_j + a_{j+1}S_{j+1}

    Args:
        lr: learning rate, a number or one a step.
        weight_decay: weight decay, a number or one a step.
        steps: number of steps; may be left out where an array tells it.
        momentum: averaging factor of m ← βm + (1−β)g; the contributions are then those of the gradients.
        bias_correction: whether that average is divided by 1 − β^t.
        decay: decay kind (cautious decay depends on the gradients and is counted as full decay).
        lr_max: the η_max of corrected decay. Default: the largest lr.
        kept: a_t themselves, instead of `decay`.
        average: b_t, how much the weights after each step count in an average that is used in the place of the last
            weights, as `ema_weights` gives them. What is missing to a sum of 1 is the share of the initial weights.

    Reference: [theory] 3, 10; [memory-article] Eq. 4, 6, 9, 11; [tian2025] for averages. The article's e^{−κ}
    approximates the products and overflows in long runs; the products themselves are taken here. With constant weight
    decay λ Σ c_j = 1 − P.

    >>> m = memory(lr=3e-3, weight_decay=0.1, steps=1000)
    >>> f"{m.init_share:.10f} {m.period:.1f}"
    '0.7407848779 3333.3'
    """
    given = {} if average is None else {"average": average}
    T = _check.length(steps, lr=lr, weight_decay=weight_decay, **given)
    eta = _check.series("lr", lr, T, low=0)
    lam = _check.series("weight_decay", weight_decay, T, low=0)
    beta = _check.number("momentum", momentum, low=0, high=1, open_high=True)
    a = kept_share(eta, lam, decay=decay, lr_max=lr_max) if kept is None else _check.series("kept", kept, T)
    if not eta.any():
        raise ValueError("lr = 0 at every step: must be > 0 somewhere, or no batch contributes")
    later, share = np.ones(T), 0.0
    if average is None:
        later[:-1] = np.cumprod(a[:0:-1], dtype=np.longdouble)[::-1]  # extended precision: rounding does not add up
    else:
        b = _check.series("average", average, T, low=0)
        share = 1.0 - float(b.sum())
        if share < -1e-9:
            raise ValueError(f"average sums to {1 - share:.6g}: must be at most 1; divide it by its sum")
        factors = np.append(1.0, a[:0:-1])  # backwards in time: a_{j+1} for step j
        later = _scan.run_recursion("first_order", factors, b[::-1].copy(), outputs=1, steps=T)[0][::-1]
    c = eta * later
    if not c.any():
        raise ValueError(
            "average = 0 wherever a batch has been learnt: must be > 0 at some step from the first lr > 0 on"
        )
    if beta > 0:
        # c̃_j = (1−β) Σ_{i≥j} β^{i−j} b_i c_i, a first-order recursion backwards in time.
        b = 1 / (1 - beta ** np.arange(1, T + 1)) if bias_correction else 1.0
        c = (1 - beta) * _scan.run_recursion("first_order", np.full(T, beta), (b * c)[::-1].copy(), outputs=1, steps=T)[
            0
        ][::-1]
    lost, scaled = 1 - a, c / c.max()  # squares of small ones would be lost
    return Memory(
        weights=c,
        init_share=float(later[0] * a[0]) + max(share, 0.0),
        effective_steps=float(scaled.sum() ** 2 / (scaled @ scaled)),
        period=_period(lost, 1.0),
        lost=lost,
    )


def _period(lost: Array, amount: float) -> float:
    back = np.concatenate([[0.0], np.cumsum(lost[::-1])])
    if back[-1] == 0:
        return math.inf
    if back[-1] < amount:
        return len(lost) * amount / float(back[-1])
    return float(np.interp(amount, back, np.arange(len(back), dtype=np.float64)))


def design_lr(weights: ArrayLike, *, weight_decay: ArrayLike, lr_first: float) -> Array:
    """The learning rates whose memory is proportional to `weights`, for given weight decay.

    From c_j ∝ w_j: η_j = r η_{j−1}/(1 + r λ_j η_{j−1}) with r = w_j/w_{j−1}, which telescopes to

        η_j = w_j / (w_1/η_1 + Σ_{i=2..j} λ_i w_i)

    Always possible. Uniform weights and constant λ give [memory-article]'s Eq. 16, 1/η_j = 1/η_{j−1} + λ, exactly.

    Args:
        weights: wanted contribution of each step, > 0; only ratios matter.
        weight_decay: a number or one a step (the first one has no influence on the ratios).
        lr_first: η_1.

    Reference: [theory] 3, "Inverse design".

    >>> lr = design_lr([1.0] * 4, weight_decay=0.5, lr_first=1.0)
    >>> [round(1 / x, 12) for x in lr.tolist()]
    [1.0, 1.5, 2.0, 2.5]
    """
    w = _check.series("weights", weights, None, low=0, open_low=True)
    lam = _check.series("weight_decay", weight_decay, len(w), low=0)
    first = _check.number("lr_first", lr_first, low=0, open_low=True)
    _check.below_one(first * lam[:1], np.array([first]), lam[:1], "lr · weight_decay")
    load = lam * w
    load[0] = w[0] / first
    return np.asarray(w / np.cumsum(load, dtype=np.longdouble), dtype=np.float64)


def design_lr_tied(weights: ArrayLike, *, lr_first: float, weight_decay_first: float) -> tuple[Array, Array]:
    """Learning rates and weight decays with λ_j = αη_j whose memory is proportional to `weights`.

    α = λ_1/η_1 keeps λ/η, and so the equilibrium norm, constant. Uniform weights give the exact form of
    [memory-article]'s Eq. 17, η_j = (−1 + √(1 + 4αη²_{j−1}))/(2αη_{j−1}); the printed one spreads by 0.23 % at λη =
    .01.

    Returns:
        The learning rates and the weight decays.

    Reference: [theory] 3.

    >>> lr, wd = design_lr_tied([1.0, 1.0, 1.0], lr_first=0.1, weight_decay_first=0.1)
    >>> m = memory(lr=lr, weight_decay=wd)
    >>> bool(abs(m.weights / m.weights[0] - 1).max() < 1e-15)
    True
    """
    w = _check.series("weights", weights, None, low=0, open_low=True)
    eta = _check.number("lr_first", lr_first, low=0, open_low=True)
    lam = _check.number("weight_decay_first", weight_decay_first, low=0)
    _check.below_one(np.array([eta * lam]), np.array([eta]), np.array([lam]), "lr · weight_decay")
    alpha = lam / eta
    ratio = np.ones(len(w))
    ratio[1:] = w[1:] / w[:-1]
    lr = _scan.run_recursion("tied_design", ratio, alpha, eta, outputs=1, steps=len(w))[0]
    return lr, alpha * lr


def design_weight_decay(weights: ArrayLike, *, lr: ArrayLike, first: float = 0.0) -> Array:
    """The weight decays whose memory is proportional to `weights`, for given learning rates.

        λ_j η_j = 1 − (w_{j−1}/w_j)(η_j/η_{j−1})

    Args:
        weights: wanted contribution of each step, > 0; only ratios matter.
        lr: learning rate, a number or one a step, > 0.
        first: λ_1, which forgets only the initialisation and is free.

    Raises:
        ValueError: where a negative weight decay would be needed: decay can only make the past count less, so
            w_j/η_j must not fall. The message names the first such step and what would do.

    Reference: [theory] 3, "Inverse design".

    >>> design_weight_decay([1.0, 2.0, 4.0], lr=1.0)
    array([0. , 0.5, 0.5])
    """
    w = _check.series("weights", weights, None, low=0, open_low=True)
    eta = _check.series("lr", lr, len(w), low=0, open_low=True)
    lost = 1 - (w[:-1] / w[1:]) * (eta[1:] / eta[:-1])
    lost[np.abs(lost) < 4 * np.finfo(float).eps] = 0.0
    if (lost < 0).any():
        j = int(np.argmax(lost < 0)) + 1
        raise ValueError(
            f"weights fall too fast for lr at step {j + 1}: weights[{j - 1}] = {w[j - 1]:.6g} → {w[j]:.6g} with lr "
            f"{eta[j - 1]:.6g} → {eta[j]:.6g} needs weight_decay = {lost[j - 1] / eta[j]:.6g} < 0; "
            f"the ratio weights/lr must not fall: raise weights[{j}] to ≥ {w[j - 1] * eta[j] / eta[j - 1]:.6g}, "
            f"lower lr[{j}] to ≤ {w[j] * eta[j - 1] / w[j - 1]:.6g}, or use design_lr, which is always possible"
        )
    lam1 = _check.number("first", first, low=0)
    return np.concatenate([[lam1], lost / eta[1:]])


def ema_weights(steps: int, *, beta: float) -> Array:
    """How much the weights after each step count in w̄ ← βw̄ + (1−β)w at the end, which starts as those after the first.

        b_t = (1−β)β^{T−t},   b_1 = β^{T−1}

    Args:
        steps: T.
        beta: share of itself that the average keeps in a step.

    >>> ema_weights(3, beta=0.5)
    array([0.25, 0.25, 0.5 ])
    """
    last = _check.whole("steps", steps, low=1)
    kept = _check.number("beta", beta, low=0, high=1, open_high=True)
    b = (1 - kept) * kept ** np.arange(last - 1, -1, -1, dtype=np.float64)
    b[0] = kept ** (last - 1)
    return b


def design_average(weights: ArrayLike, *, lr: ArrayLike, weight_decay: ArrayLike = 0.0) -> Array:
    """How much the weights after each step must count in an average whose memory is proportional to `weights`.

        S_t = weights_t/η_t,   b_t ∝ S_t − a_{t+1}S_{t+1}

    With a constant lr and no decay, weights that fall linearly are those of an lr that falls linearly, and the average
    is the mean: averaging takes the place of decaying the lr.

    Args:
        weights: wanted contribution of each step, > 0; only ratios matter.
        lr: learning rate, a number or one a step, > 0.
        weight_decay: weight decay, a number or one a step.

    Returns:
        b, which sums to 1.

    Raises:
        ValueError: where a negative share would be needed: an average can only make late steps count less than they
            do in the last weights. The message names the first such step.

    Reference: [tian2025], for weight_decay = 0; [theory] 3, 10.

    >>> design_average([4.0, 3.0, 2.0, 1.0], lr=0.1)
    array([0.25, 0.25, 0.25, 0.25])
    """
    w = _check.series("weights", weights, None, low=0, open_low=True)
    eta = _check.series("lr", lr, len(w), low=0, open_low=True)
    lam = _check.series("weight_decay", weight_decay, len(w), low=0)
    sums = w / eta
    later = np.append(kept_share(eta, lam)[1:] * sums[1:], 0.0)
    b = sums - later
    b[np.abs(b) < 4 * np.finfo(float).eps * sums] = 0.0
    if (b < 0).any():
        j = int(np.argmax(b < 0))
        raise ValueError(
            f"weights rise too fast for an average at step {j + 2}: weights[{j}] = {w[j]:.6g} → {w[j + 1]:.6g}; "
            f"weights[{j + 1}] must be at most {w[j + 1] * sums[j] / later[j]:.6g}, its ratio in the last weights; "
            "use design_lr, which is always possible"
        )
    return b / b.sum()


def unroll(init: ArrayLike, updates: ArrayLike, *, lr: ArrayLike, weight_decay: ArrayLike) -> Array:
    """The weights after all steps in closed form: w_k = P·w_0 − Σ_j c_j s_j.

    Args:
        init: w_0.
        updates: s_1 … s_k, stacked along the first axis.
        lr: learning rate, a number or one a step.
        weight_decay: weight decay, a number or one a step.

    Reference: [theory] 5; [notepad] "A closed form for weight decay updates", whose printed indices are wrong: the
    factor of s_j is η_j Π_{i>j} a_i.

    >>> unroll([1.0], [[1.0], [0.0]], lr=0.5, weight_decay=1.0)
    array([0.])
    """
    s = np.asarray(updates, dtype=np.float64)
    m = memory(lr=lr, weight_decay=weight_decay, steps=len(s))
    return m.init_share * np.asarray(init, dtype=np.float64) - np.tensordot(m.weights, s, axes=(0, 0))


def travel_bound(
    init_norm: float,
    update_norms: ArrayLike,
    *,
    lr: ArrayLike,
    weight_decay: ArrayLike,
    kept: ArrayLike | None = None,
) -> float:
    """A bound on E‖w_k − w_0‖ from the norms of w_0 and of the updates: (1 − P)E‖w_0‖ + Σ_j c_j E‖s_j‖.

    Args:
        init_norm: ‖w_0‖.
        update_norms: ‖s_j‖ of each step, without lr.
        lr: learning rate, a number or one a step.
        weight_decay: weight decay, a number or one a step.
        kept: the share of the weights that each step's decay keeps, instead of 1 − lr·weight_decay.

    Reference: [theory] 5; [notepad] drops the first term because E[w_0] = 0, but E‖w_0‖ is not.

    >>> travel_bound(1.0, [1.0, 1.0], lr=0.5, weight_decay=1.0)
    1.5
    """
    s = np.asarray(update_norms, dtype=np.float64)
    m = memory(lr=lr, weight_decay=weight_decay, steps=len(s), kept=kept)
    return (1 - m.init_share) * _check.number("init_norm", init_norm, low=0) + float(m.weights @ s)
