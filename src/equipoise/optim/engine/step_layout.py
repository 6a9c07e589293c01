"""How the parameters of a step are laid out: large ones by themselves, small ones in packs; compiled or eagerly."""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.optim.engine.chunks import Chunks, Rows, needed, rows_of
from equipoise.optim.engine.clock import Clock, value_of
from equipoise.optim.engine.compiled import SWITCHES, Calls, Kind, hopeless, kernel, warn
from equipoise.optim.engine.packs import Batch, KernelPlan, Pack, kernel_layout, kinds_of_step, laid, lies, local
from equipoise.optim.engine.rate import hollow, sent
from equipoise.optim.moves import Constrain, Move, Piece, direction, directions, step_numbers, turns
from equipoise.optim.options import GroupOptions, group_options
from equipoise.optim.rules import Rule
from equipoise.optim.sphere import RowMove

SMALL = 2**16
"""Parameters of fewer weights are packed: a call would cost more than their step."""
PACKED = ("flat", "neuron", "whole")
"""Kinds of rows that packs may have: elements, neurons, and tensors of one size that are a row each."""
PACK = 2**20
"""Weights in a pack at most: 4 MB each of weights and of gradients is kept for that."""
CHURN = 16
"""So many times packs may be made anew because other parameters have gradients; then there are none."""
AUTO_WEIGHTS, AUTO_STEP = 2**22, 10
"""`compile=None` compiles groups of so many weights, from this step on: where the seconds that it takes come back."""
AUTO_TOTAL = 2**29
"""Smaller groups on the CPU are compiled when so many weights have been stepped, step by step: 0.8 million weights at
step 671. At 4 to 7 ns a weight, eager steps have then cost as much more as compiling does."""


def wanted(group: GroupOptions, t: int) -> bool:
    """Whether a group's step shall be compiled: as it says, or if that pays by now."""
    asked = group.get("compile")
    if asked is not None:
        return bool(asked)
    if t < AUTO_STEP:
        return False
    weights = sum([p.numel() for p in group["params"]])
    return weights >= AUTO_WEIGHTS or (t * weights >= AUTO_TOTAL and group["params"][0].device.type == "cpu")


class StepLayout:
    """The steps of one optimizer that are not taken tensor by tensor: compiled ones, and rows of packs."""

    def __init__(self, rule: Rule, move: Move):
        self.rule, self.move = rule, move
        self._same = tuple(_identity(x) for x in (rule, move))
        self._churn = 0
        self._eager_only = False
        """There is no kernel for it, and there will be none."""
        self._plans: dict[tuple[Any, ...], KernelPlan] = {}
        self._workspaces: dict[tuple[Any, ...], Tensor] = {}
        self._clock = Clock("row_step")

    def step(
        self, pieces: list[Piece], grads: list[Tensor], t: int, group: GroupOptions
    ) -> tuple[list[Piece], list[Tensor]]:
        """Take the step of those parameters that can be compiled, or packed; return the others and their gradients.

        What is not compiled is packed where it moves by rows: some thirty operations a step, which for small tensors
        cost much more than their arithmetic.
        """
        compiled = not self._eager_only and wanted(group, t) and not hollow(pieces[0].w)
        if not compiled and group["foreach"] is False:
            return pieces, grads
        if not (self.rule.compiles and self.move.compiles) or (t == 1 and self.rule.starts(group)):
            return pieces, grads
        turning = isinstance(self.move, RowMove) and any(turns(piece.w, group) for piece in pieces)
        if turning and self.move.numbers(self.rule, t, 1, group, ()) is None:  # type: ignore[attr-defined]
            return pieces, grads  # the weights stay, to the bit, and nothing is begun
        if not compiled:
            return self._eager(pieces, grads, t, group)
        left: list[int] = []
        for batch in self._plan(pieces, grads, group).batches:
            if batch.rows is None:
                left += batch.members
            elif not self._run(batch, pieces, grads, t, group):
                left += self._packed(batch, pieces, grads, t, group)
        left.sort()
        return [pieces[i] for i in left], [grads[i] for i in left]

    def _eager(
        self, pieces: list[Piece], grads: list[Tensor], t: int, group: GroupOptions
    ) -> tuple[list[Piece], list[Tensor]]:
        """Step large parameters on the CPU chunk by chunk, small ones that turn in packs; return the others."""
        kinds = [self._chunked(piece, grad, group) for piece, grad in zip(pieces, grads, strict=True)]
        large = [piece.w.numel() >= SMALL for piece in pieces]
        flat = [i for i, kind in enumerate(kinds) if large[i] and kind == "flat"]
        for i in flat:
            w_, g_, averages = self._matrices(pieces[i], grads[i], "flat")
            Chunks(self.rule, self.move, t, group).flat(w_, g_, averages, self._plain_numbers(group))
        if isinstance(self.move, Constrain):
            self.move.hold([pieces[i] for i in flat], t, group)
        if not isinstance(self.move, RowMove):
            left = [i for i, kind in enumerate(kinds) if not large[i] or kind is None]
            return [pieces[i] for i in left], [grads[i] for i in left]
        turning = [i for i, kind in enumerate(kinds) if large[i] and kind in ("neuron", "tensor")]
        others = [i for i, kind in enumerate(kinds) if not large[i] or kind is None]
        left = []
        if others:
            some, theirs = [pieces[i] for i in others], [grads[i] for i in others]
            for batch in self._plan(some, theirs, group).batches:
                left += [others[i] for i in self._packed(batch, some, theirs, t, group)]
        turning += [i for i in left if kinds[i] in ("neuron", "tensor")]
        self._turn([pieces[i] for i in turning], [grads[i] for i in turning], [kinds[i] for i in turning], t, group)
        left = sorted(set(left) - set(turning))
        return [pieces[i] for i in left], [grads[i] for i in left]

    def _chunked(self, piece: Piece, grad: Tensor, group: GroupOptions) -> str | None:
        """What a step by chunks takes a parameter for: "flat", "neuron" or "tensor" rows; None: it does not take it."""
        w = piece.w
        if w.device.type != "cpu" or hasattr(w, "placements") or hollow(w) or self.rule.by_rows:
            return None
        rows = self._rows(w, group)
        rows = "tensor" if rows == "whole" else rows
        return rows if rows in ("flat", "neuron", "tensor") and lies(piece, grad, rows, self.rule.state) else None

    def _turn(
        self, pieces: list[Piece], grads: list[Tensor], kinds: Sequence[str | None], t: int, group: GroupOptions
    ) -> None:
        """The step of parameters whose rows turn; those that are at one step of the tracker turn together."""
        move = self.move
        assert isinstance(move, RowMove)
        sorts: dict[tuple[Any, ...], list[int]] = {}
        for i, (piece, grad) in enumerate(zip(pieces, grads, strict=True)):
            move.start(piece, group)
            copied = None if grad.stride() == piece.w.stride() else i  # by itself: one copy at a time
            sorts.setdefault((move.steps(piece.state), piece.w.dtype, copied), []).append(i)
        for (steps, dtype, _), members in sorts.items():
            numbers = move.numbers(self.rule, t, steps, group, ())
            assert numbers is not None
            rows: list[Rows] = []
            for i in members:
                columns = [pieces[i].state[name] for name in move.columns]
                w_, g_, averages = self._matrices(pieces[i], grads[i], kinds[i] or "")
                rows += rows_of(w_, g_, averages, columns, i)
            workspace = self._workspace("d", needed(rows, move.by_tensor(group)), dtype, pieces[members[0]].w.device)
            Chunks(self.rule, move, t, group).turn(rows, numbers, workspace)
            self._clock.tick([pieces[i].state for i in members])

    def _matrices(self, piece: Piece, grad: Tensor, rows: str) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Weights, gradient and averages as rows or flat, the gradient in the order of the weights."""
        w = piece.w
        layout = kernel_layout(w, "single" if rows == "tensor" else rows)
        grad = grad if grad.stride() == w.stride() else torch.empty_like(w, dtype=grad.dtype).copy_(grad)
        return laid(w, layout), laid(grad, layout), [laid(piece.state[name], layout) for name in self.rule.state]

    def _plain_numbers(self, group: GroupOptions) -> dict[str, Any]:
        """The numbers of a plain step; a constraint takes the place of decay."""
        return step_numbers(group) | ({"left": 1.0} if isinstance(self.move, Constrain) else {})

    def _workspace(self, name: str, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory to work in, kept from step to step."""
        key = (name, dtype, device)
        if key not in self._workspaces or self._workspaces[key].numel() < size:
            self._workspaces[key] = torch.empty(size, dtype=dtype, device=device)
        return self._workspaces[key]

    def _plan(self, pieces: list[Piece], grads: list[Tensor], group: GroupOptions) -> KernelPlan:
        """Who goes where: made once, and again when parameters, states or options are others than then."""
        options = tuple(group.get(name) for name in ("granularity", "rotate", "reference"))
        options += (isinstance(self.move, RowMove) and self.move.by_tensor(group),)
        key = (id(group), *options, group.get("speeds") is None, *map(id, [piece.w for piece in pieces]))
        plan = self._plans.get(key)
        if plan is None or not plan.holds(pieces, grads, self._clock):
            self._leave({id(piece.w) for piece in pieces})
            plan = self._plans[key] = self._sorted(pieces, grads, group)
        return plan

    def _leave(self, weights: set[int]) -> None:
        """Give up the plans of these weights: their states move out of the packs, which would stay for each of them."""
        for key, plan in list(self._plans.items()):
            if weights & {id(w) for w in plan.weights}:
                del self._plans[key]
                self._churn += 1
                for batch in plan.batches:
                    for pack in batch.packs:
                        pack.leave()

    def _packed(self, batch: Batch, pieces: list[Piece], grads: list[Tensor], t: int, group: GroupOptions) -> list[int]:
        """Step the packs of a batch eagerly, if they move by rows; return the members that are left."""
        move = self.move
        if not isinstance(move, RowMove) or not batch.columns or not batch.packs:
            return batch.members
        numbers = move.numbers(self.rule, t, move.steps(pieces[batch.members[0]].state), group, ())
        if numbers is None:
            return batch.members
        own = group_options(group, granularity="neuron")
        for pack in batch.packs:  # whole: by chunks it takes a tenth longer
            pack.fill(pieces, grads)
            g = move.prepare(pack.g.to(pack.w.dtype), pack.w, own)
            u = direction(g, pack.w, tuple(pack.averages), rule=self.rule, t=t, group=own)
            heights = pack.heights if move.by_tensor(group) else None
            columns, _ = move.rows(pack.w, directions(u, 1)[0], tuple(pack.columns), numbers, own, pack.w, heights)
            torch._foreach_copy_(pack.columns, list(columns))
            pack.empty(pieces)
        self._clock.tick([pieces[i].state for i in batch.members])
        return []

    def _sorted(self, pieces: list[Piece], grads: list[Tensor], group: GroupOptions) -> KernelPlan:
        sorts: dict[tuple[Any, ...], list[int]] = {}
        labels = [self._rows(piece.w, group) for piece in pieces]
        sizes = Counter(piece.w.numel() for piece, rows in zip(pieces, labels, strict=True) if rows == "whole")
        for i, (piece, g) in enumerate(zip(pieces, grads, strict=True)):
            rows = labels[i]
            if rows == "whole" and sizes[piece.w.numel()] < 2:  # nothing to be packed with
                rows = "tensor"
            if rows is None or not lies(piece, g, rows, self.rule.state):
                sorts.setdefault((None,), []).append(i)
                continue
            if rows != "flat" and isinstance(self.move, RowMove):
                self.move.start(piece, group)
            tracked = rows != "flat" and isinstance(self.move, RowMove)
            steps = value_of(piece.state["row_step"]) if tracked else None
            small = piece.w.numel() < SMALL and rows in PACKED and not hasattr(piece.w, "placements")
            packs = small and self._churn <= CHURN
            sorts.setdefault((rows, packs, steps, piece.w.dtype, g.dtype, g.device), []).append(i)
        return KernelPlan(
            [piece.w for piece in pieces],
            kinds_of_step(pieces, grads),
            [self._batch(key[0], len(key) > 1 and key[1], members, pieces, grads) for key, members in sorts.items()],
        )

    def _batch(
        self, rows: str | None, packs: bool, members: list[int], pieces: list[Piece], grads: list[Tensor]
    ) -> Batch:
        """Members by themselves, or in packs, rows of one length in each."""
        tracked = rows not in (None, "flat") and isinstance(self.move, RowMove)
        columns = self.move.columns if tracked and isinstance(self.move, RowMove) else ()
        batch = Batch(rows, members, self.rule.state, columns, [], [])
        if not packs or len(members) == 1:
            batch.alone.extend(members)
            return batch
        widths: dict[int, list[list[int]]] = {}
        for i in members:
            w = pieces[i].w
            width = 1 if rows == "flat" else w.numel() if rows == "whole" else w.numel() // w.shape[0]
            chunks = widths.setdefault(width, [[]])
            if sum(pieces[k].w.numel() for k in chunks[-1]) + w.numel() > PACK:
                chunks.append([])
            chunks[-1].append(i)
        for width, chunks in widths.items():
            if len(chunks) > 1 and len(chunks[-1]) == 1:  # a kernel takes two rows or more
                last = chunks.pop()
                chunks[-1] += last
            for chunk in chunks:
                workspace = self._pack_workspace(pieces[chunk[0]].w, grads[chunk[0]].dtype)
                batch.packs.append(
                    Pack(chunk, pieces, width, rows == "flat", workspace, self.rule.state, batch.columns)
                )
        return batch

    def _pack_workspace(self, w: Tensor, low: torch.dtype) -> tuple[Tensor, Tensor]:
        """Memory for the weights and the gradients of a pack, the same for all packs."""
        w_, g_ = (self._workspace(name, PACK + SMALL, kind, w.device) for name, kind in (("w", w.dtype), ("g", low)))
        return w_, g_

    def _rows(self, w: Tensor, group: GroupOptions) -> str | None:
        """What a row of a parameter is to a kernel; None where there is no kernel for it."""
        parts = group.get("granularity")
        if self.rule.by_rows:
            if isinstance(self.move, RowMove) or w.ndim == 0:
                return None
            return "single" if parts == "tensor" or w.shape[0] == 1 else "neuron" if parts == "neuron" else None
        if not isinstance(self.move, RowMove) or not turns(w, group):
            return "flat"
        if group.get("reference") == "paper" or group.get("speeds") is not None or w.ndim < 2:
            return None
        if self.move.by_tensor(group) and hasattr(w, "placements"):  # rows of other ranks share their number
            return None
        if w.shape[0] < 2 or w.numel() < 2 * w.shape[0]:
            return None
        if group.get("center") and parts != "neuron":
            return None
        if parts == "tensor":
            return "whole" if w.numel() < SMALL and not hasattr(w, "placements") else "tensor"
        if parts == "neuron":
            return "neuron"
        parts = int(parts or 1)
        return "part" if 1 < parts <= w.shape[0] and w.shape[0] % parts == 0 else None

    def _run(self, batch: Batch, pieces: list[Piece], grads: list[Tensor], t: int, group: GroupOptions) -> bool:
        """Run the kernel of that kind on all members, the small ones packed; False if there is none."""
        move, rows = self.move, batch.rows
        assert rows is not None
        first = batch.members[0]
        mine: dict[str, Any] | None = self._plain_numbers(group)
        sized = move.sized if batch.columns and isinstance(move, RowMove) else None
        if batch.columns:
            assert isinstance(move, RowMove)
            mine = move.numbers(self.rule, t, move.steps(pieces[first].state), group, ())
            if mine is None:  # the weights stay where they are, to the bit
                return False
        given = mine
        numbers = {f"rule.{k}": v for k, v in self.rule.numbers(t, group).items()}
        numbers |= {f"move.{k}": v for k, v in given.items()} | {"l2": float(group["l2"])}
        kind = Kind(
            rule=self.rule,
            move=move,
            switches=tuple((name, group[name]) for name in SWITCHES if name in group),
            l2=bool(group["l2"]),
            rows={"flat": "flat", "tensor": "whole", "single": "whole"}.get(rows, "row"),
            numbers=tuple(numbers),
            dtypes=(pieces[first].w.dtype, grads[first].dtype),
            device=grads[first].device,
            columns=len(batch.columns),
            same=self._same,
        )
        if not all(isinstance(value, int | float | Tensor) for value in numbers.values()):
            warn(str(kind), "its numbers must be numbers", bool(group.get("compile")))
            return False
        run = kernel(kind, loud=bool(group.get("compile")))
        if run is None:
            self._eager_only = hopeless(kind)
            return False
        dtype, made = pieces[first].w.dtype, {}

        def values(size: int) -> Tensor:
            """The numbers as a tensor, for rows of that many weights."""
            if size not in made:
                now = numbers if sized is None else numbers | {f"move.{k}": v for k, v in sized(given, size).items()}
                made[size] = sent(list(now.values()), dtype, kind.device)
            return made[size]

        by_tensor = bool(batch.columns) and isinstance(move, RowMove) and move.by_tensor(group)
        for pack in [] if by_tensor else batch.packs:
            pack.fill(pieces, grads)
            layout, matrices = tuple(pack.w.shape), [pack.w, pack.g, *pack.averages]
            run(Calls([values(layout[-1])], [layout], [[x] for x in matrices], [[x] for x in pack.columns]))
            pack.empty(pieces)
        alone = batch.members if by_tensor else batch.alone
        if hasattr(pieces[first].w, "placements"):
            alone = [i for i in alone if local(pieces[i].w).numel()]
        if alone and not run(self._calls(batch, alone, pieces, grads, values)):
            return False
        # As any change in place: a backward that needs the old weights is refused.
        torch.autograd.graph.increment_version([w for i in alone if not (w := pieces[i].w).is_inference()])
        if batch.columns:
            self._clock.tick([pieces[i].state for i in batch.members])
        if isinstance(move, Constrain):
            move.hold([pieces[i] for i in batch.members], t, group)
        return True

    def _calls(
        self,
        batch: Batch,
        members: list[int],
        pieces: list[Piece],
        grads: list[Tensor],
        values: Callable[[int], Tensor],
    ) -> Calls:
        """Members of a batch that are not in packs, for a kernel; `values` gives the numbers for rows of a width."""
        states = [pieces[i].state for i in members]
        ws, gs = [local(pieces[i].w) for i in members], [local(grads[i]) for i in members]
        for i, (w, g) in enumerate(zip(ws, gs, strict=True)):
            if g.stride() != w.stride():
                gs[i] = torch.empty_like(w, dtype=g.dtype).copy_(g)
        averages = [[local(state[name]) for state in states] for name in self.rule.state]
        columns = [[local(state[name]) for state in states] for name in batch.columns]
        if not columns:
            layouts = [kernel_layout(w, batch.rows or "") for w in ws]
            return Calls([values(1)] * len(ws), layouts, [ws, gs, *averages], columns)
        layouts = [(n.shape[0], w.numel() // n.shape[0]) for n, w in zip(columns[0], ws, strict=True)]
        return Calls([values(width) for _, width in layouts], layouts, [ws, gs, *averages], columns)


def _identity(x: Any) -> tuple[Any, ...]:
    """What makes two rules the same to a kernel, as they are when the optimizer begins."""
    try:
        key = (type(x), tuple(sorted(vars(x).items())))
        hash(key)
    except TypeError:  # attributes that can't be compared: the same only as itself
        return type(x), id(x)
    return key
