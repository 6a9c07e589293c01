"""A switch between two optimizers."""

# pyright: reportIncompatibleVariableOverride=false, reportPrivateUsage=false, reportPrivateImportUsage=false
# (groups and state are properties here, attributes in torch, which has hooks and more under private names alone)

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import Any, final

import torch
from torch.optim import Optimizer

from equipoise import _check
from equipoise.optim.engine.holder import Held, Holder, steppable, within_a_step
from equipoise.optim.engine.rate import readable
from equipoise.optim.engine.saved import is_count

SECOND = "second."
"""What options and states of the second optimizer are called by, after this."""

COUNT = "switch_steps"
"""The number of a Switch's steps, in its groups."""

RATIO = {"lr": "switch_lr_ratio", "weight_decay": "switch_weight_decay_ratio"}
"""What schedulers on a Switch move for both: the second's over the first's, in its groups; None if unknown."""

BEGUN = "switch_begun"
"""Whether there was a state of the first, and of the second, in the groups: else what is saved of it is zeros."""

_NO_OPTION = ("params", "param_names", COUNT, BEGUN, *RATIO.values())


@final
class Switch(Holder):
    """One optimizer until a step, another after it, abruptly or blended.

    During a blend both take their step from the same weights, and the weights move by (1−s) of the first's change and s
    of the second's, s rising from 0 to 1 in a line.

    Groups have the options of the first optimizer under their own names and those of the second with the prefix
    `second.`. A change of `lr` or `weight_decay` there, for example by a scheduler, changes both optimizers in their
    initial ratio. Other options belong to one of them. You can also attach schedulers to `first` and `second`, but not
    to these and to the Switch.

    Args:
        first: the optimizer of the first `at` steps.
        second: the optimizer of the rest, over the same parameters.
        at: number of steps that only the first optimizer takes.
        blend: number of steps over which one replaces the other.

    Reference: [notepad] 3.2, Adam2SGD and SGD2Adam.

    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> optimizer = Switch(torch.optim.SGD([w], lr=0.1), torch.optim.SGD([w], lr=0.5), at=1)
    >>> for _ in range(2):
    ...     w.grad = torch.ones(1)
    ...     _ = optimizer.step()
    >>> round(w.item(), 6)
    0.4
    """

    kept = ("first", "second", "at", "blend", "_groups", "_homes", "_layout", "_seen")

    def __init__(self, first: Optimizer, second: Optimizer, at: int, *, blend: int = 0):
        self.first, self.second = steppable("first", first), steppable("second", second)
        self.at, self.blend = _check.whole("at", at), _check.whole("blend", blend)
        self._groups: list[dict[str, Any]] = []
        self._homes: list[tuple[int, int]] = []
        """For each group, which of the first's and of the second's it belongs to."""
        self._layout: tuple[int, ...] = ()
        self._seen: list[dict[str, Any]] = []
        """Options of the groups as they were last looked at."""
        self._regroup()
        self._hold(self._groups)
        self._begin()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin()

    def _begin(self) -> None:
        self._state = _Both(self)
        self.register_step_pre_hook(_look)  # before anyone else's, who shall see what schedulers did

    # Groups

    @Held
    def defaults(self) -> dict[str, Any]:
        """The first optimizer's."""
        return self.first.defaults

    @Held
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameters that share a group in both optimizers, with the options of both."""
        self._regroup()
        return self._groups

    def _regroup(self) -> None:
        """Make the groups, and again when the two got more."""
        layout = tuple(len(g["params"]) for o in (self.first, self.second) for g in o.param_groups)
        if layout == self._layout:
            return
        mine, theirs = ({id(p) for g in o.param_groups for p in g["params"]} for o in (self.first, self.second))
        if mine != theirs:
            raise ValueError(f"second has {len(theirs)} parameters: must be the same {len(mine)} as first's")
        home = {id(p): j for j, g in enumerate(self.second.param_groups) for p in g["params"]}
        count, before = self._steps, dict(zip(self._homes, self._groups, strict=True))
        made: dict[tuple[int, int], dict[str, Any]] = {}
        for i, group in enumerate(self.first.param_groups):
            lists = {name: group[name] for name in ("params", "param_names") if name in group}
            for k, p in enumerate(group["params"]):
                at = (i, home[id(p)])
                if at not in made:
                    made[at] = before.get(at, {COUNT: count}) | {name: [] for name in lists}
                for name, items in lists.items():
                    made[at][name].append(items[k])
        self._layout, self._homes, self._groups = layout, list(made), list(made.values())
        self._seen = [{} for _ in made]
        for own, (first, second) in zip(self._groups, self._pairs(), strict=True):
            for name, ratio in RATIO.items():
                if name in first and name in second and ratio not in own:
                    known = readable(first[name]) and readable(second[name]) and float(first[name])
                    own[ratio] = float(second[name]) / float(first[name]) if known else None
        self._show()

    def _pairs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [(self.first.param_groups[i], self.second.param_groups[j]) for i, j in self._homes]

    def _show(self) -> None:
        """Have the groups say what the two's say."""
        begun = (_begun(self.first), _begun(self.second))
        for own, seen, (first, second) in zip(self._groups, self._seen, self._pairs(), strict=True):
            own[BEGUN] = begun
            for prefix, group in (("", first), (SECOND, second)):
                for name, value in group.items():
                    if name not in _NO_OPTION:
                        number = torch.is_tensor(value) and value.ndim == 0  # schedulers change it in place
                        own[prefix + name] = value.clone() if number else value
                        seen[prefix + name] = _plain(own[prefix + name])

    def look(self) -> None:
        """Do to the two what was done to the groups, and have the groups say what was done to the two."""
        self._regroup()
        wanted: dict[tuple[int, int, str], Any] = {}
        for own, seen, home, pair in zip(self._groups, self._seen, self._homes, self._pairs(), strict=True):
            for key in [key for key in seen if _plain(own[key]) != seen[key]]:
                which, name = (1, key.removeprefix(SECOND)) if key.startswith(SECOND) else (0, key)
                asked = {(which, home[which], name): own[key]}
                if key in RATIO and key in pair[1] and _plain(own[SECOND + key]) == seen[SECOND + key]:
                    asked[1, home[1], key] = _scaled(key, own)
                for at, value in asked.items():
                    if at in wanted and readable(value) and _plain(wanted[at]) != _plain(value):
                        raise ValueError(
                            f"{at[2]} moved differently in groups that are one in {('first', 'second')[at[0]]}: give "
                            "both the same groups, or attach schedulers to first and to second"
                        )
                    wanted[at] = value
        for (which, i, name), value in wanted.items():
            group = (self.second if which else self.first).param_groups[i]
            if torch.is_tensor(group[name]) and group[name].ndim == 0:
                group[name].fill_(value)
            else:
                number = torch.is_tensor(value) and value.ndim == 0 and readable(value)
                group[name] = value.item() if number else value
        self._show()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the two optimizers may need different options.

        Args:
            param_group: a group.
        """
        if self._ready:
            raise ValueError("add_param_group: must be called on first and on second, each with its own options")

    # Steps

    @property
    def _steps(self) -> int:
        return max((int(group[COUNT]) for group in self._groups), default=0)

    @property
    def share(self) -> float:
        """s, the second optimizer's share of the next step."""
        if self._steps < self.at:
            return 0.0
        return min(1.0, (self._steps - self.at + 1) / (self.blend + 1))

    @torch._disable_dynamo
    def _step(self) -> None:
        self.look()
        s = self.share
        with within_a_step():
            if s in (0.0, 1.0):
                (self.second if s else self.first).step()
            else:
                self._blend(s)
        count = self._steps + 1
        for group in self._groups:
            group[COUNT] = count

    def _blend(self, s: float) -> None:
        params = [p for g in self._groups for p in g["params"] if p.grad is not None]
        before = [p.detach().clone() for p in params]
        self.first.step()
        after = [p.detach().clone() for p in params]
        for p, old in zip(params, before, strict=True):
            p.copy_(old)
        self.second.step()
        for p, one in zip(params, after, strict=True):
            p.lerp_(one, 1 - s)

    # State

    @Held
    def state(self) -> MutableMapping[Any, Any]:
        """The states of both, those of the second after `second.`; of one that has not begun, zeros."""
        return self._state

    def _saved(self) -> dict[str, Any]:
        self.look()
        groups = self._groups
        number = {id(p): k for k, p in enumerate(p for g in groups for p in g["params"])}
        return {
            "state": {number[id(p)]: state for p, state in self.state.items() if state},
            "param_groups": [g | {"params": [number[id(p)] for p in g["params"]]} for g in groups],
        }

    def _load(self, state_dict: dict[str, Any]) -> None:
        groups, saved = self.param_groups, state_dict["param_groups"]
        sizes, wanted = ([len(g["params"]) for g in some] for some in (saved, groups))
        if sizes != wanted or any(COUNT not in g for g in saved):
            raise ValueError("state_dict: must be one that a Switch of such optimizers saved, with groups of this size")
        for group in saved:
            _check_own(group)
        state = {
            id(p): state_dict["state"].get(key, {})
            for own, group in zip(groups, saved, strict=True)
            for p, key in zip(own["params"], group["params"], strict=True)
        }
        begun = saved[0][BEGUN]
        parts = [
            self._part(which, one, saved, state if begun[which] else {})
            for which, one in enumerate((self.first, self.second))
        ]
        for own, group in zip(groups, saved, strict=True):
            own.update({name: value for name, value in group.items() if name != "params"})
        for one, part in zip((self.first, self.second), parts, strict=True):
            one.load_state_dict(part)
        self._show()

    def _part(
        self, which: int, one: Optimizer, saved: list[dict[str, Any]], state: dict[int, dict[str, Any]]
    ) -> dict[str, Any]:
        """What one of the two has of a saved state."""
        said: list[dict[str, Any]] = [{} for _ in one.param_groups]
        for home, own, seen, group in zip(self._homes, self._groups, self._seen, saved, strict=True):
            alone = set(own) - set(seen)  # what the groups of the Switch alone have is its scheduler's, or no option
            said[home[which]] |= _of(which, {name: value for name, value in group.items() if name not in alone})
        groups, states, number = [], {}, 0
        for here, options in zip(one.param_groups, said, strict=True):
            ids = list(range(number, number + len(here["params"])))
            number += len(ids)
            kept = {name: value for name, value in here.items() if name != "param_names"}
            groups.append(kept | options | {"params": ids})
            mine = ((k, _of(which, state.get(id(p), {}))) for k, p in zip(ids, here["params"], strict=True))
            states |= {k: held for k, held in mine if held}
        return {"state": states, "param_groups": groups}


def _check_own(group: dict[str, Any]) -> None:
    """Refuse a saved group whose counts and ratios are none."""
    if not is_count(group[COUNT]):
        raise ValueError(f"{COUNT} = {group[COUNT]!r} in the saved state: must be a whole number ≥ 0")
    begun = group.get(BEGUN)
    if not isinstance(begun, tuple | list) or len(begun) != 2 or not all(isinstance(b, bool) for b in begun):
        raise ValueError(f"{BEGUN} = {begun!r} in the saved state: must be two of True and False")
    for name in RATIO.values():
        if group.get(name) is not None:
            _check.number(f"{name} in the saved state", group[name], low=0)


class _Both(MutableMapping[Any, Any]):
    """The states of a Switch's two as one: never empty, as torch would step an optimizer that has none.

    Of one that has not begun there is what its first step will make, as zeros: a distributed checkpoint is loaded into
    states of the same names.
    """

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._made: list[dict[Any, dict[str, Any]] | None] = [None, None]

    def __getitem__(self, p: Any) -> dict[str, Any]:
        both: dict[str, Any] = {}
        for which, one in enumerate(self._two()):
            mine = one.state.get(p, {}) if _begun(one) else self._zeros(which, p)
            both |= {SECOND * which + name: value for name, value in mine.items()}
        return both

    def __setitem__(self, p: Any, state: dict[str, Any]) -> None:
        for which, one in enumerate(self._two()):
            if _begun(one):
                one.state[p] = _of(which, state)

    def __delitem__(self, p: Any) -> None:
        for one in self._two():
            one.state.pop(p, None)

    def __iter__(self) -> Iterator[Any]:
        return (p for g in self._switch.param_groups for p in g["params"])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _two(self) -> tuple[Optimizer, Optimizer]:
        return self._switch.first, self._switch.second

    def _zeros(self, which: int, p: Any) -> dict[str, Any]:
        made = self._made[which]
        if made is None:
            found = _first_state(self._two()[which])
            self._made[which] = made = {q: {n: _thin(x) for n, x in state.items()} for q, state in found.items()}
        return {name: torch.zeros_like(x) if torch.is_tensor(x) else x for name, x in made.get(p, {}).items()}


def _thin(x: Any) -> Any:
    """A tensor of that shape that takes no memory; what is none, and a DTensor, as it is."""
    return x.new_zeros(()).expand(x.shape) if torch.is_tensor(x) and not hasattr(x, "placements") else x


def _begun(one: Optimizer) -> bool:
    return any(one.state.values())


def _of(which: int, both: dict[str, Any]) -> dict[str, Any]:
    """What is the first's, or the second's, of options or states of both."""
    mine = {name: value for name, value in both.items() if name.startswith(SECOND) == bool(which)}
    return {name.removeprefix(SECOND): value for name, value in mine.items()}


def _first_state(one: Optimizer) -> dict[Any, dict[str, Any]]:
    """What a first step makes of an optimizer's state, found by one of lr 0; all is left as it was."""
    params = [p for g in one.param_groups for p in g["params"]]
    weights, grads, groups = [p.detach().clone() for p in params], [p.grad for p in params], one.param_groups
    options = [dict(g) for g in groups]
    held = {id(o): o for o in (one, getattr(one, "inner", one))}.values()
    aside = [{name: value for name, value in vars(o).items() if name in _ASIDE} for o in held]
    try:
        for o in held:
            o._optimizer_step_pre_hooks, o._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        for p in params:
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        for group in groups:
            group["lr"] = torch.zeros_like(group["lr"]) if torch.is_tensor(group["lr"]) else 0.0
        with torch.no_grad(), within_a_step():
            one.step()
        return {p: dict(state) for p, state in one.state.items()}
    finally:
        one.state.clear()
        for p, w, g in zip(params, weights, grads, strict=True):
            p.data.copy_(w)
            p.grad = g
        for group, kept in zip(one.param_groups, options, strict=True):
            group.clear()
            group.update(kept)
        for o, kept in zip(held, aside, strict=True):
            vars(o).pop("_opt_called", None)
            vars(o).update(kept)


_ASIDE = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_opt_called", "skipped")


def _look(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    optimizer.look()


def _scaled(name: str, own: dict[str, Any]) -> Any:
    """What the second has where the first has what a group says."""
    ratio = own[RATIO[name]]
    if ratio is None:
        raise ValueError(
            f"{name} was 0, or on a device, in first at the beginning: must be a number > 0 to move both in proportion;"
            " or attach schedulers to first and to second"
        )
    return (float(own[name]) if readable(own[name]) else own[name]) * ratio


def _plain(value: Any) -> Any:
    """An option as what it can be told from another by: its value, or which object it is, and of which version."""
    if torch.is_tensor(value):
        return value.item() if value.ndim == 0 and readable(value) else (id(value), value._version)
    return value if value is None or isinstance(value, int | float | str | tuple) else id(value)
