"""What an optimizer says of one tensor, held against what it did."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from equipoise.auditing.behaviour import NO_GRADIENT, STILL, UNKNOWN, Behaviour
from equipoise.auditing.candidates import Candidate
from equipoise.auditing.infer import said_of
from equipoise.auditing.record import Track

LR, LR_LOW = 0.03, 0.1
"""Shares by which an inferred lr may differ from what is said: in float32, and in fewer bits."""

DECAY, DECAY_LOW = 0.1, 0.3
"""The same of weight decay."""

FACTOR = 0.01
"""By how much an averaging factor may differ."""

UNEVEN = 0.05
"""Range of the steps' rates, over what is said, in float32."""

LOST, DECAY_LOST = 0.3, 0.5
"""Shares of updates and of decay that rounding may take."""


@dataclass(frozen=True)
class Difference:
    """One thing that differs on one tensor: a finding without its place.

    Attributes:
        code: of the finding.
        severity: as `Finding`'s.
        evidence: what was measured.
        expected: what was said.
        advice: what to do.
    """

    code: str
    severity: str
    evidence: str
    expected: str
    advice: str


def said_text(track: Track) -> str:
    """What the group says, in a line."""
    first = track.said[0]
    one = said_of(track)
    lrs = [s.lr for s in track.said]
    lr = f"{lrs[0]:.4g}" if max(lrs) == min(lrs) else f"{lrs[0]:.3g} to {lrs[-1]:.3g}"
    words = [one.word, f"lr {lr}"]
    if first.weight_decay:
        words.append(f"wd {first.weight_decay:g} {_kind_said(track)}")
    words += [f"{k} {v:g}" for k, v in one.named.items() if v]
    return ", ".join(words) + ("" if first.dynamics.known else " (read so; not known)")


def does_text(track: Track, found: Behaviour) -> str:
    """What it does, in a line."""
    if found.word in (NO_GRADIENT, STILL, UNKNOWN):
        return found.word
    lrs = [s.lr for s in track.said]
    steady = max(lrs) == min(lrs)
    words = [found.word]
    if found.candidate is not None and not found.candidate.by_rows and math.isfinite(found.lr.value):
        rate = found.lr.value * (lrs[0] or 1.0)
        words.append(f"lr {rate:.3g}" if steady else f"lr × {found.lr.value:.3g}")
    if found.kind:
        words.append(f"wd {found.decay.value:.3g} {found.kind}")
    words += [f"{k} {v.value:.3g}" for k, v in found.factors.items() if v.value > 1e-3]
    return ", ".join(words)


def _kind_said(track: Track) -> str:
    dynamics = track.said[0].dynamics
    if dynamics.coupled:
        return "coupled"
    return {"independent": "independent", "cautious": "masked"}.get(dynamics.decay, "decoupled")


def differences(track: Track, found: Behaviour) -> Iterator[Difference]:
    """All that differs on one tensor.

    Args:
        track: its recorded steps.
        found: what was inferred from them.
    """
    first = track.said[0]
    said = said_of(track)
    # Notes say what a rule is read without; of those that hold norms, how they are planned.
    known = first.dynamics.known and not (first.notes and first.dynamics.move == "decay")
    match found.word:
        case w if w == NO_GRADIENT:
            yield from _without_gradient(track, found)
            return
        case w if w == STILL:
            yield from _still(track, found)
            return
        case w if w == UNKNOWN:
            yield _unknown(found, said, known)
            return
        case _:
            pass
    one = found.candidate
    assert one is not None
    severity = "warning" if known else "info"
    if _other_rule(one, said):
        yield Difference(
            "audit-rule", "error" if known else "info",
            f"steps are those of {one.word} ({_percent(1 - found.unexplained**2)} of them explained)",
            f"{said.word}, as the optimizer says",
            "See which branch of step() these parameters take, and by which flag of their group",
        )  # fmt: skip
        return
    if not found.fits:
        yield Difference(
            "audit-unexplained", "info" if one.rule == "muon" else severity,
            f"{_percent(found.unexplained)} of the step is not explained by {one.word}, the nearest rule",
            "less than 1 %, and 20 % for Muon",
            "Nothing, if its iteration runs in bfloat16: where a gradient has not full rank it blows up rounding"
            if one.rule == "muon"
            else "Look for what else changes weights or gradients in step(): a mask, noise, a projection, clipping",
        )  # fmt: skip
        return
    if one.corrected != said.corrected and one.rule.startswith("adam"):
        yield Difference(
            "audit-bias-correction", severity, f"steps are those of {one.word}", said.word,
            "Set bias_correction as you mean it; without it the first steps are larger",
        )  # fmt: skip
    low = track.dtype.itemsize < 4
    yield from _factors(found, said, severity)
    if not one.by_rows and first.dynamics.move == "decay":
        yield from _lr(track, found, severity, LR_LOW if low else LR)
        yield from _decay(track, found, severity, DECAY_LOW if low else DECAY)
    if found.lost > LOST:
        yield Difference(
            "audit-update-lost", "warning",
            f"rounding to {_dtype(track)} takes {_percent(found.lost)} of the update", "less than 30 %",
            "Keep master weights in float32, round stochastically, or add with Kahan's compensation",
        )  # fmt: skip
    if found.decay_lost > DECAY_LOST:
        yield _decay_lost(track, found)


def _decay_lost(track: Track, found: Behaviour) -> Difference:
    return Difference(
        "audit-decay-lost", "warning",
        f"rounding to {_dtype(track)} takes {_percent(found.decay_lost)} of the weight decay: lr·wd = "
        f"{track.said[0].lr * track.said[0].weight_decay:.2g} of a weight is less than half of its last bit",
        "less than 50 %", "Keep master weights in float32, or decay every so many steps by as much more",
    )  # fmt: skip


def _other_rule(one: Candidate, said: Candidate) -> bool:
    if one.rule != said.rule:
        return True
    plain = one.rule == "sgdm" and (one.factors[0] < 1e-3) != (said.factors[0] < 1e-3)
    return plain or (one.nesterov != said.nesterov and one.rule == "sgdm" and min(one.factors[0], said.factors[0]) > 0)


def _without_gradient(track: Track, found: Behaviour) -> Iterator[Difference]:
    if "moves-without-gradient" in found.notes:
        yield Difference(
            "audit-moves-without-gradient", "warning", "the weights moved although no gradient came", "they stay",
            "Look for what else writes to them; of tensors without a gradient torch's optimizers do not even decay",
        )  # fmt: skip
    elif not track.param.requires_grad:
        yield Difference(
            "audit-frozen", "info", "requires_grad is False, and the optimizer has it", "trained or left out",
            "Nothing, if it is frozen on purpose",
        )  # fmt: skip
    else:
        yield Difference(
            "audit-no-gradient", "warning", f"no gradient came in {len(track.steps)} steps", "a gradient",
            "Check that the loss uses it: a branch that is never taken, a detach(), a layer that was replaced",
        )  # fmt: skip


def _still(track: Track, found: Behaviour) -> Iterator[Difference]:
    if "lr-zero" in found.notes:
        return
    if "gradient-zero" in found.notes:
        yield Difference(
            "audit-gradient-zero", "warning", f"its gradient was exactly 0 in all {len(track.steps)} steps",
            "not 0", "Look for a mask, a zero factor or a zero layer behind it, or a loss that does not depend on it",
        )  # fmt: skip
    elif found.lost:
        low = (
            track.param.element_size() < 4
        )  # in float32 its gradient is no more than rounding, as a bias' before a norm
        yield Difference(
            "audit-update-lost", "error" if low else "info",
            f"it does not move: rounding to {_dtype(track)} takes the whole update", "less than 30 %",
            "Keep master weights in float32, round stochastically, or add with Kahan's compensation",
        )  # fmt: skip
        if found.decay_lost:
            yield _decay_lost(track, found)
    else:
        yield Difference(
            "audit-still", "error", f"it did not move in {len(track.steps)} steps, with a gradient and lr > 0",
            "it moves", "See whether the optimizer steps copies of the parameters, and whether they are written back",
        )  # fmt: skip


def _unknown(found: Behaviour, said: Candidate, known: bool) -> Difference:
    if "not-finite" in found.notes:
        return Difference(
            "audit-not-finite", "error", "a gradient or a step was not finite", "finite",
            "Find the first tensor that is not: torch.autograd.set_detect_anomaly(True)",
        )  # fmt: skip
    if "part" in found.notes:
        return Difference(
            "audit-unknown", "info", "only some rows of the matrix are here, from which Muon's step does not follow",
            "the whole matrix", "Give the audit more memory; of a sharded matrix, audit one that is not",
        )  # fmt: skip
    share = f"{_percent(found.unexplained)} of the step is left by the nearest rule"
    if not known:
        return Difference(
            "audit-unknown", "info", share, "a rule that the audit knows", "Nothing: the optimizer is not known either"
        )
    return Difference(
        "audit-rule", "error", f"steps are those of no rule that the audit knows: {share}",
        f"{said.word}, as the optimizer says",
        "Look for what else changes these weights or gradients in step(), and whether it is the class that you meant",
    )  # fmt: skip


def _factors(found: Behaviour, said: Candidate, severity: str) -> Iterator[Difference]:
    for name, wanted in said.named.items():
        value = found.factors.get(name)
        if value is None or not math.isfinite(value.error):
            continue
        off = abs(value.value - wanted)
        # In 1 − β, which is one over the steps that the average spans, .999 and .99 are far apart.
        far = off > FACTOR or off > 0.5 * (1 - wanted)
        if far and off > 6 * value.error:
            yield Difference(
                "audit-betas", severity, f"{name} is {value}", f"{wanted:g}, as the group says",
                "See whether the group's value reaches the step, and whether the averages are kept in enough bits",
            )  # fmt: skip


def _lr(track: Track, found: Behaviour, severity: str, share: float) -> Iterator[Difference]:
    first = track.said[0]
    lrs = [s.lr for s in track.said][: len(found.rates)] or [first.lr]
    sign = -1.0 if first.maximize else 1.0
    if not max(lrs):
        yield Difference(
            "audit-lr", severity, f"it steps with lr {found.lr}", "0, as the group says",
            "See from where the optimizer takes its lr: it may have kept one of its own",
        )  # fmt: skip
        return
    value = found.lr
    if math.isinf(value.error):
        return
    if value.value * sign < 0 and abs(value.value) > 4 * value.error:
        yield Difference(
            "audit-ascent", "error", f"it steps up the gradient, with {abs(value.value):.3g} times its lr",
            "down the gradient", "Turn the sign of the loss, of maximize, or of the lr",
        )  # fmt: skip
        return
    told = [(r, x) for r, x in zip(found.rates, lrs, strict=False) if math.isfinite(r)]
    rates = tuple(r for r, _ in told)
    if len(rates) > 2 and max(lrs) > 1.1 * min(lrs) and min(lrs) >= 0 and _steady(rates):
        mean = sum(rates) / len(rates)
        yield Difference(
            "audit-schedule", severity, f"every step has lr {mean:.3g}",
            f"{lrs[0]:.3g} to {lrs[-1]:.3g}, as the group says",
            "The schedule changes a group that the step does not read; give it the optimizer that steps",
        )  # fmt: skip
        return
    ratios = [r / x * sign for r, x in told if x > 0]
    if len(ratios) > 2 and _spread(ratios) > UNEVEN and share < LR_LOW and found.candidate.rule != "muon":  # type: ignore[union-attr]
        yield Difference(
            "audit-lr", severity, f"it steps with {min(ratios):.3g} to {max(ratios):.3g} times its lr, by the step",
            "1 at every step", "See what scales single steps: bias correction, clipping or a schedule inside of step()",
        )  # fmt: skip
        return
    if value.away(sign, share):
        guess = _ratio(found, value.value * sign)
        yield Difference(
            "audit-lr", severity, f"it steps with {value} times its lr{guess}", "1",
            "See what scales the step between the group and the weights, or set lr to what you mean",
        )  # fmt: skip


def _ratio(found: Behaviour, value: float) -> str:
    """What a factor on lr may come from."""
    for name, beta in found.factors.items():
        if name in ("momentum", "beta1") and 0.01 < beta.value < 1:
            if abs(value * (1 - beta.value) - 1) < 0.02:
                return f": 1/(1 − {name}), a sum where an average is said"
            if abs(value / (1 - beta.value) - 1) < 0.02:
                return f": 1 − {name}, an average where a sum is said"
    return ""


def _spread(values: list[float]) -> float:
    middle = sorted(values)[len(values) // 2]
    return (max(values) - min(values)) / abs(middle) if middle else math.inf


def _steady(rates: tuple[float, ...]) -> bool:
    mean = sum(rates) / len(rates)
    return all(abs(r - mean) < 0.02 * abs(mean) for r in rates)


def _decay(track: Track, found: Behaviour, severity: str, share: float) -> Iterator[Difference]:
    first = track.said[0]
    wd = first.weight_decay
    if not found.kind and (not math.isfinite(found.decay.error) or found.decay.error > 0.1 * wd or not wd):
        return  # none, and none is said; or it cannot be told
    lrs = [s.lr for s in track.said if s.lr > 0]
    if not lrs:
        return
    wanted = wd
    if not first.coupled and wd:
        shares = [s.dynamics.lost(s.lr, s.weight_decay) for s in track.said if s.lr > 0]
        wanted = sum(d * s for d, s in zip(shares, lrs, strict=True)) / sum(s * s for s in lrs)
    value = found.decay
    if found.kind and wd and (found.kind == "coupled") != first.coupled:
        yield Difference(
            "audit-decay-kind", severity, f"decay is {found.kind}: {_means(found.kind)}",
            f"{_kind_said(track)}: {_means(_kind_said(track))}",
            "Use the class whose decay you mean: Adam has L2, AdamW decoupled decay",
        )  # fmt: skip
        return
    if found.kind == "masked" and first.dynamics.decay != "cautious":
        yield Difference(
            "audit-decay-kind", severity, "decay acts only where it agrees with the update", _kind_said(track),
            "Set the optimizer's mask as you mean it",
        )  # fmt: skip
        return
    if not found.kind and wd and abs(value.value) < 0.05 * wanted:
        yield Difference(
            "audit-decay", severity, f"there is no decay (wd {value})", f"wd {wanted:.3g}",
            "See whether the step reads the group's weight_decay",
        )  # fmt: skip
        return
    if found.decay_lost > DECAY_LOST or not found.kind or math.isinf(value.error):
        return
    if value.away(wanted, share):
        yield Difference(
            "audit-decay", severity, f"wd is {value}, {_kind_words(found, lrs)}", f"{wanted:.3g}, as the group says",
            "See what scales decay between the group and the weights, such as lr, its peak or a schedule",
        )  # fmt: skip


def _kind_words(found: Behaviour, lrs: list[float]) -> str:
    return f"{found.kind}: {found.decay.value * lrs[0]:.2g} of the weight at the first step"


def _means(kind: str) -> str:
    return {
        "coupled": "in the gradient, before the averages",
        "decoupled": "off the weights, times lr",
        "independent": "off the weights, whatever the lr",
        "masked": "off the weights where it agrees with the update",
    }.get(kind, kind)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _dtype(track: Track) -> str:
    return str(track.dtype).removeprefix("torch.")
