"""Schedules for every hyperparameter: pure curves step → value, and one object that attaches them to an optimizer.

- Curves: `constant` … `wsd`, put together by `warmup`, `join`, `scale`, `product`, `add`, `clip`, made by `named`.
- By memory: `equal_memory`, `equal_memory_tied`, `from_weights` with `uniform`, `recency`, `curriculum`.
- From elsewhere: `from_array`, `from_function`, `from_torch`, `from_transformers`.
- `Scheduler` drives lr, weight decay, betas, momentum and eps of a torch optimizer. It alone imports torch.
- `convert_decay`, `torch_decay`: between the kinds of weight decay.
- `rotational_lr`, `baseline_lr`, `variant_rotation`: effective steps carried over to a rotational variant and back.
- `growing_lr`: the lr that does what lr and weight decay do, without weight decay.
- `rescaled`: lr and weight decay for weights that are larger or smaller.

Comes in: a number of steps, or a curve from elsewhere. Goes out: a `Schedule`. Read `base` (what a schedule is),
`curves`, `phases` and `compose` (the shapes), `names`, `table` (lists of values) and `foreign` (torch's), `memory`
(curves for given contributions of batches), `decay` (kinds of decay), `attach` (the one file that imports torch),
`transplant` (to and from rotational variants).
"""

from typing import TYPE_CHECKING, Any

from equipoise.schedules.base import Schedule
from equipoise.schedules.compose import add, clip, join, product, scale, warmup
from equipoise.schedules.curves import constant, cosine, exponential, inverse_sqrt, linear, polynomial
from equipoise.schedules.decay import convert_decay, torch_decay
from equipoise.schedules.foreign import from_torch, from_transformers
from equipoise.schedules.memory import (
    curriculum,
    equal_memory,
    equal_memory_tied,
    from_weights,
    recency,
    tied_lr,
    uniform,
)
from equipoise.schedules.names import NAMES, named
from equipoise.schedules.phases import TAILS, cosine_restarts, one_cycle, step, warmup_cosine, warmup_linear, wsd
from equipoise.schedules.table import from_array, from_function
from equipoise.schedules.transplant import baseline_lr, growing_lr, rescaled, rotational_lr, variant_rotation

if TYPE_CHECKING:
    from equipoise.schedules.attach import Scheduler

__all__ = [
    "NAMES",
    "TAILS",
    "Schedule",
    "Scheduler",
    "add",
    "baseline_lr",
    "clip",
    "constant",
    "convert_decay",
    "cosine",
    "cosine_restarts",
    "curriculum",
    "equal_memory",
    "equal_memory_tied",
    "exponential",
    "from_array",
    "from_function",
    "from_torch",
    "from_transformers",
    "from_weights",
    "growing_lr",
    "inverse_sqrt",
    "join",
    "linear",
    "named",
    "one_cycle",
    "polynomial",
    "product",
    "recency",
    "rescaled",
    "rotational_lr",
    "scale",
    "step",
    "tied_lr",
    "torch_decay",
    "uniform",
    "variant_rotation",
    "warmup",
    "warmup_cosine",
    "warmup_linear",
    "wsd",
]


if not TYPE_CHECKING:  # which would take any name for one that is there

    def __getattr__(name: str) -> Any:
        """`Scheduler`, and torch with it, is imported when it is first asked for."""
        if name == "Scheduler":
            from equipoise.schedules.attach import Scheduler

            return Scheduler
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
