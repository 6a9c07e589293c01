"""Decide from the live weights whether a run trains from scratch or fine-tunes.

Fine-tuning is taken for granted where most parameters are frozen and not fresh themselves (adapters, probes), or where
what trains does not look like an initialisation. All usual initialisations draw the entries of a matrix independently
and alike, or make its rows or columns orthogonal. The norms and means of rows and columns then spread by known amounts
or less, whatever the distribution and its scale:

    Var(‖row‖²/n) = (κ − 1)σ⁴/n        Var(mean of a row) = σ²/n        n entries, κ = E x⁴/σ⁴

Training moves rows and columns by different amounts, and all four spreads grow. Each is compared with what it would
be, in its own standard errors. docs/log.md has the models that thresholds were chosen on, and others that they held on.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from equipoise.planner.setting import told

BEYOND = 6.0
"""Standard errors beyond which a spread is not that of an initialisation; of 1627 fresh ones the largest had 3.8."""

LEAST = 8
"""Rows and columns that a matrix must have to be told."""

MOST = 512
"""Rows and columns of a matrix that are looked at, evenly spaced."""

MATRICES = 64
"""Matrices that are looked at, evenly spaced through the model."""

BATCHES = 100
"""Batches that BatchNorm must have counted; a few are usual before training, to try a model out."""

MANY = 9
"""With so many frozen parameters for each that trains it is fine-tuning, whatever they look like. Fewer, if still most,
must look trained: somebody may have frozen a layer of a fresh network."""

ADAPTERS = re.compile(r"(^|[._])(lora|dora|loha|lokr|vera|adapters?|ia3|prompt_encoder|prefix)($|[._])", re.IGNORECASE)
"""Parts of the names of parameters that are added to a pretrained model."""

_NORM = re.compile(r"Norm(\d[dD])?$")
"""The names of the types of norms, torch's and others'."""


@dataclass(frozen=True)
class Verdict:
    """Whether a run is fine-tuning.

    Attributes:
        finetune: whether it is.
        why: what it was told by; empty where nothing speaks for it.
        frozen: parameters of the model that do not train.
    """

    finetune: bool
    why: str = ""
    frozen: int = 0

    @property
    def said(self) -> str:
        """The verdict in a line, where it is fine-tuning."""
        return (
            f"fine-tuning: {self.why}; pass finetune=False if it is not" if self.why else "fine-tuning: finetune=True"
        )


def judge(
    model: nn.Module | None, trained: Iterable[Tensor], *, finetune: bool | None = None, stepped: bool = False
) -> Verdict:
    """Tell fine-tuning from training from scratch.

    Args:
        model: the model; None where it is not known.
        trained: the parameters that train.
        finetune: what the user says; None asks the weights.
        stepped: whether the optimizer has taken steps, which then have shaped the weights.

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4))
    >>> judge(model, model.parameters()).finetune
    False
    >>> _ = model[0].requires_grad_(False)
    >>> judge(model, model.parameters()).why
    '94 % of the parameters are frozen'
    """
    told(finetune)
    trains = {id(p): p for p in trained if p.requires_grad}
    size = sum(_numel(p) for p in trains.values())
    named = [] if model is None else list(model.named_parameters())
    frozen = sum(_numel(p) for _, p in named if not p.requires_grad)
    if finetune is not None:
        return Verdict(finetune, frozen=frozen)
    left_out = sum(_numel(p) for _, p in named if p.requires_grad and id(p) not in trains)
    with torch.no_grad():
        if frozen > size and (frozen >= MANY * size or _base(model, [p for _, p in named if not p.requires_grad])):
            return Verdict(True, f"{_percent(frozen, frozen + size)} of the parameters are frozen", frozen)
        if frozen + left_out > size and _adapters([(n, p) for n, p in named if id(p) in trains]):
            share = _percent(frozen + left_out, frozen + left_out + size)
            return Verdict(True, f"only adapters train, {share} of the parameters do not", frozen + left_out)
        why = "" if stepped else _trained_before(model, list(trains.values()))
    return Verdict(bool(why), why, frozen)


def _numel(p: Tensor) -> int:
    return 0 if is_lazy(p) else p.numel()


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole
    return f"{min(share, 99.9):.1f} %" if share > 99 else f"{share:.0f} %"


def _adapters(named: Sequence[tuple[str, Tensor]]) -> bool:
    """Whether most of what trains is called an adapter, or is a zero matrix and the partner that makes it one."""
    found = {i for i, (name, _) in enumerate(named) if ADAPTERS.search(name)}
    matrices = [i for i, (_, p) in enumerate(named) if p.ndim == 2 and _readable(p)]
    for i, j in itertools.pairwise(matrices):
        a, b = named[i][1], named[j][1]
        rank = min(*a.shape, *b.shape)
        low = rank in a.shape and rank in b.shape and 2 * rank <= min(max(a.shape), max(b.shape))
        if low and bool(_here(a).any()) != bool(_here(b).any()):
            found |= {i, j}
    inside = sum(_numel(named[i][1]) for i in found)
    return 2 * inside > sum(_numel(p) for _, p in named)


def _base(model: nn.Module | None, frozen: Sequence[Tensor]) -> bool:
    """Whether frozen parameters are those of a pretrained model: some are quantised, or look trained."""
    return any(not p.is_floating_point() for p in frozen) or bool(_trained_before(model, frozen))


def _trained_before(model: nn.Module | None, params: Sequence[Tensor]) -> str:
    """What speaks for weights that were trained before; empty where nothing does."""
    norms = [] if model is None else [m for m in model.modules() if _NORM.search(type(m).__name__)]
    counted = [int(n) for m in norms if (n := getattr(m, "num_batches_tracked", None)) is not None and not n.is_meta]
    if counted and min(counted) >= BATCHES:
        return f"BatchNorm has counted {min(counted):,} batches"
    own = {id(p) for p in params}
    weights: list[Any] = [getattr(m, "weight", None) for m in norms]
    gains = [w for w in weights if id(w) in own and _readable(w) and w.numel() > 1]
    moved = [g for g in map(_vector, gains) if not bool((g == g[0]).all())]
    if 2 * len(moved) > len(gains) and _unlike(moved) > BEYOND:
        return f"the gains of {len(moved)} of {len(gains)} norms have moved"
    matrices = [p for p in params if p.ndim > 1 and _readable(p)]
    some = matrices[:: max(1, -(-len(matrices) // MATRICES))]
    off = [z for p in some if (z := strangeness(p)) is not None]
    strange = sum(z > BEYOND for z in off)
    # Half of them, and more than a table of tokens that somebody else has trained, or of positions as sines.
    enough = 2 * strange >= len(off) > 0 and strange >= min(2, len(off))
    return f"{strange} of {len(off)} matrices do not look like an initialisation" if enough else ""


def _readable(p: Any) -> bool:
    return not is_lazy(p) and not p.is_meta and p.is_floating_point() and p.numel() > 0


def _vector(p: Any) -> Tensor:
    """The part of a vector on this process."""
    return _here(p).flatten().cpu().double()


def _here(p: Any) -> Tensor:
    """The part of a tensor on this process: the others may not be asking."""
    return p.detach().to_local() if hasattr(p, "to_local") else p.detach()


def _unlike(vectors: Sequence[Tensor]) -> float:
    """By how many standard errors the means of vectors differ, if all entries were drawn alike; 0 for fewer than two.

    Some networks draw their gains at random, all from one distribution; training takes each norm to a place of its own.
    """
    if len(vectors) < 2:
        return 0.0
    whole = torch.cat(list(vectors))
    squares = sum(len(v) * float(v.mean() - whole.mean()) ** 2 for v in vectors) / float(whole.var())
    return (squares - (len(vectors) - 1)) / math.sqrt(2 * (len(vectors) - 1))


def strangeness(p: Tensor) -> float | None:
    """By how many standard errors the rows and columns of a matrix differ by more than independent entries make them.

    The largest of four: squared norms and means, of rows and of columns. Rows and columns of zeros do not count, as of
    a padding token. None for a matrix that is too small to be told, or whose entries are all of one size.

    Args:
        p: a parameter of two dimensions or more; the first one counts rows.

    >>> _ = torch.manual_seed(0)
    >>> w = torch.randn(64, 64)
    >>> strangeness(w) < 3, strangeness(w * torch.linspace(1, 2, 64)) > 6
    (True, True)
    """
    x = _here(p)
    x = x.reshape(len(x), -1) if len(x) else x.reshape(0, 1)
    x = x[:: max(1, -(-x.shape[0] // MOST)), :: max(1, -(-x.shape[1] // MOST))].cpu().double()
    x = x[x.any(1)]
    x = x[:, x.any(0)]
    if min(x.shape) < LEAST or not bool(x.isfinite().all()):
        return None
    x = x / x.square().mean().sqrt()
    flatness = float(x.pow(4).mean()) - 1
    if flatness < 1e-6:
        return None
    found = []
    for y in (x, x.T):
        count, entries = y.shape
        squares, means = y.square().mean(1), y.mean(1)
        norms = float(squares.var()) * entries / flatness
        centres = float(means.square().mean()) * entries
        found += [(norms - 1) / math.sqrt(2 / (count - 1)), (centres - 1) / math.sqrt(2 / count)]
    return max(found)
