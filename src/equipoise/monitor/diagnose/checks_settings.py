"""Checks of the settings that a run had: missing or misplaced decay, memory that is too short."""

from __future__ import annotations

from collections.abc import Iterator

from equipoise.finding import Finding
from equipoise.monitor.diagnose.evidence import Evidence
from equipoise.monitor.runs.recorded import META
from equipoise.planner.checks.rates import overshoot, short_memory


def check_overshoot(e: Evidence) -> Iterator[Finding]:
    """One step of decay removes the whole weight or more."""
    for g, recorded in enumerate(e.groups):
        layers = [i for i in e.members.get(g, ()) if e.rotates[i]]
        if layers:
            yield from overshoot(recorded, e.names[layers[0]], e.lost(g))


def check_known(e: Evidence) -> Iterator[Finding]:
    """Theory does not know the optimizer, so that nothing is compared with a forecast."""
    layers = [i for i in range(len(e.names)) if e.group[i] < len(e.groups)]
    strange = [e.names[i] for i in layers if not e.groups[e.group[i]].dynamics.known]
    if strange:
        notes = (e.meta(META) or {}).get("assumptions") or [f"{e.meta('optimizer')} is not known to the theory"]
        yield Finding(
            "optimizer-unknown",
            "info",
            strange[0],
            "; ".join(notes) + _more(strange),
            "an optimizer that has a forecast",
            "everything is measured and nothing is compared with a forecast: rely on what is measured, not on a plan",
            "equipoise.optim.dynamics_of lists what is known",
        )


def check_decay(e: Evidence) -> Iterator[Finding]:
    """Matrices without decay; gains and biases with it; L2 in Adam's gradient."""
    bare, gains, l2 = [], [], []
    decays = False
    for i, tensor in enumerate(e.tensors):
        g = int(e.group[i])
        if g >= len(e.groups) or not e.hyper("lr", g).any():
            continue
        group, wd = e.groups[g], float(e.hyper("weight_decay", g).max())
        if not e.rotates[i]:
            gains += [tensor.name] if wd > 0 else []
        elif group.dynamics.forecasts(len(tensor.shape)):
            decays |= wd > 0
            bare += [tensor.name] if wd == 0 and e.dense[i] else []
            l2 += [tensor.name] if wd > 0 and group.dynamics.optimizer == "adam_l2" else []
    if bare:
        yield Finding(
            "no-decay",
            "info",
            bare[0],
            f"weight_decay is 0 here{_more(bare)}" + (", but other layers decay" if decays else "")
            + ": the norm keeps growing and the effective learning rate falls as 1/√t",
            "a weight decay above 0 on matrices",
            "check that its group is meant to have no decay" if decays else "normal in a short run, and in fine-tuning",
            "[norm-note] Weight Decay Controls The Effective Learning Rate",
        )  # fmt: skip
    if gains:
        yield Finding(
            "decay-on-gains",
            "info",
            gains[0],
            f"gains and biases decay{_more(gains)}",
            "no decay on gains and biases",
            "decay pulls them towards 0 and nothing balances it; equipoise.param_groups excludes them from decay",
            "[kosson2024] appendix C.2",
        )
    if l2:
        yield Finding(
            "adam-l2",
            "info",
            l2[0],
            f"weight_decay is added to the gradient and divided by √v{_more(l2)}",
            "decoupled decay",
            "neurons rotate at speeds that depend on the size of their gradients; AdamW decays all of them alike",
            "[kosson2024] appendix I",
        )


def check_memory(e: Evidence) -> Iterator[Finding]:
    """Decay forgets all but the last few steps, or the memory is shorter than an epoch (if its length is known)."""
    per_epoch = e.meta("steps_per_epoch")
    per_epoch = per_epoch if isinstance(per_epoch, int | float) and 0 < per_epoch < e.last else 0
    for g, recorded in enumerate(e.groups):
        lost, layers = e.lost(g), [i for i in e.members.get(g, ()) if e.dense[i] and e.forecasts(i)]
        if layers and lost.any():
            time = 1 / float(lost[-max(1, e.last // 10) :].mean() if per_epoch else lost.mean())
            where, most = recorded.name or f"group {g}", len(layers) >= 0.5 * len(e.layers)
            yield from short_memory(recorded, where, lost, time, per_epoch, most)


def _more(names: list[str]) -> str:
    rest = len(names) - 1
    return f" ({rest} other tensor{'s' if rest > 1 else ''} too)" if rest else ""


CHECKS = (check_overshoot, check_known)
FROM_SCRATCH = (check_decay, check_memory)
"""Checks for training from scratch."""
