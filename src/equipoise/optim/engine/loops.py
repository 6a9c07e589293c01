"""C++ loops for the graph of a step, so that a row is still in the cache when it is read again.

A graph has values of three levels: numbers, columns (one number a row) and matrices. A sum over a row makes a column of
a matrix, and what depends on the column needs another loop over the row:

    for each row:   loop 0: new averages, direction d, ‖w‖², ⟨d,w⟩, ‖d‖²;   keep and push;   loop 1: w ← keep·w − push·d

Between the loops, d stays in a buffer of the row. Inductor takes roots and quotients twice instead, or keeps a buffer
as large as the tensor. A tensor that is one row is shared by the threads, which wait for each other between loops.

The sum of a column over all rows is a number, and what depends on it waits for all rows. So the rows are gone through
in stages, between which d stays in a buffer of the tensor:

    for each row:   loop 0: new averages, direction d, ‖w‖², ⟨d,w⟩, ‖d‖²;   Σ over the rows
    for each row:   keep and push;   loop 1: w ← keep·w − push·d
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torch.fx import Graph, Node

BLOCK = 4096
"""Weights that are summed in their own type; sums of blocks are added in double."""

OPERATIONS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}",
    "abs": "std::abs({0})", "sqrt": "std::sqrt({0})", "sign": "T({0} > 0) - T({0} < 0)", "where": "{0} ? {1} : {2}",
    "clamp_min": "{0} < {1} ? {1} : {0}", "clamp_max": "{0} > {1} ? {1} : {0}",
    "addcmul": "{0} + {1} * {2}", "hypot": "std::hypot({0}, {1})",
    "maximum": "{0} < {1} || {1} != {1} ? {1} : {0}", "minimum": "{0} > {1} || {1} != {1} ? {1} : {0}",
}  # fmt: skip
"""Torch's operations on numbers in C++; a NaN stays one."""
CONDITIONS = {
    "gt": "{0} > {1}", "lt": "{0} < {1}", "ge": "{0} >= {1}", "le": "{0} <= {1}",
    "eq": "{0} == {1}", "ne": "{0} != {1}",
    "bitwise_and": "{0} && {1}", "bitwise_or": "{0} || {1}", "bitwise_not": "!{0}",
}  # fmt: skip
SUMS = {
    "sum": ("0", "+", "{0} + {1}"),
    "total": ("0", "+", "{0} + {1}"),
    "amax": ("-INFINITY", "max", "{0} > {1} ? {0} : {1}"),
}
"""Reductions: what they begin with, their name in OpenMP, and how they take in a number."""
UNCHANGED = ("clone", "alias", "detach", "unsqueeze", "squeeze", "view", "expand", "_to_copy", "convert_element_type")
"""Operations that change no value: the level of a value stands for its shape."""
CHEAP = ("add", "sub", "mul", "addcmul", "neg", "abs", "sign", "where", *CONDITIONS)
"""Operations that are repeated in a later loop, where the result of others is kept in a buffer."""

NUMBER, COLUMN, MATRIX = range(3)


class UnsupportedError(Exception):
    """The graph has something that these loops do not know."""


@dataclass(eq=False)
class Value:
    """One value of the graph; there is one for each operation on the same arguments."""

    op: str
    args: tuple[Any, ...]
    level: int
    phase: int
    """The first loop that can use it. A matrix is computed in that loop, a column before it."""
    name: str


@dataclass
class Loop:
    """One loop over the matrix or the row."""

    sums: list[Value]
    columns: list[Value]
    """To be computed before it."""
    kept: list[Value] = field(default_factory=list)
    """Values to put into a buffer for later loops."""
    written: list[Value] = field(default_factory=list)
    """Arguments that get their new values."""
    names: dict[Value, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


class Loops:
    """The loops of one graph.

    Args:
        graph: as `make_fx` makes it of a function that copies its results into its arguments. The first argument has
            the numbers, as a vector.
        levels: of the other arguments.
        whole: the matrices have one row, which the threads share.
    """

    def __init__(self, graph: Graph, levels: list[int], whole: bool):
        self.whole = whole
        self.inputs: list[Value] = []
        self.stores: dict[Value, Value] = {}
        """What arguments become."""
        self.buffers: list[Value] = []
        self._made: dict[tuple[Any, ...], Value] = {}
        self._read(graph, levels)
        self._needed = self._all_needed()
        self._totals = [x for x in self._needed if x.op == "total"]
        self._count = 1 + max((x.phase for x in self._needed if x.level == MATRIX or x.op == "total"), default=0)
        self.stages = [range(a, b) for a, b in pairwise(sorted({0, self._count, *(x.phase for x in self._totals)}))]
        """The loops of each time that the rows are gone through."""
        self.shared = whole or len(self.stages) > 1
        """Whether buffers are of whole tensors, for all threads, and not of rows."""
        self.loops = [Loop(self._sums(p), self._columns(p)) for p in range(self._count)]
        self._written: dict[Value, int] = {}
        """The loop in which an argument is written: after that its old value is gone."""
        for p in reversed(range(self._count)):  # what a loop needs, an earlier one keeps
            self._fill(p)

    def _value(self, op: str, *args: Any, level: int | None = None, phase: int | None = None) -> Value:
        values = [x for x in args if isinstance(x, Value)]
        level = max((x.level for x in values), default=NUMBER) if level is None else level
        phase = max((x.phase for x in values), default=0) if phase is None else phase
        return self._made.setdefault((op, *args), Value(op, args, level, phase, f"x{len(self._made)}"))

    def _read(self, graph: Graph, levels: list[int]) -> None:
        found: dict[Node, Any] = {}
        for node in graph.nodes:
            if node.op == "placeholder" and not found:
                found[node] = None  # the numbers
            elif node.op == "placeholder":
                found[node] = self._value("load", len(self.inputs), level=levels[len(self.inputs)])
                self.inputs.append(found[node])
            elif node.op == "call_function":
                found[node] = self._called(node, found)

    def _called(self, node: Node, found: dict[Node, Any]) -> Any:
        target: Any = node.target
        args: list[Any] = [found[x] if isinstance(x, Node) else x for x in node.args]
        if target is operator.getitem:
            return self._value("number", args[1])
        name = getattr(getattr(target, "overloadpacket", None), "__name__", str(target))
        if name == "unbind" and args[0] is None:
            return None
        if name in UNCHANGED or (name == "slice" and args[1:3] == [0, 0]):
            return args[0]
        if name == "copy":
            return args[1]
        if name == "copy_":
            self.stores[args[0]] = args[1]
            return args[0]
        if name == "scalar_tensor":
            return args[0]
        if name == "sym_size" and args[1] == 1:
            return self._value("width")
        if name == "slice" and args[1:4] == [1, 0, 1]:
            return self._value("first", args[0], level=COLUMN)
        if name == "sum" and len(args) == 1 and args[0].level == COLUMN:
            return args[0] if self.whole else self._value("total", args[0], level=NUMBER, phase=args[0].phase + 1)
        if name in SUMS and args[0].level == MATRIX and args[1] in ([1], [-1]):
            return self._value(name, args[0], level=COLUMN, phase=args[0].phase + 1)
        if name == "pow" and args[1] in (2, 0.5):
            return self._value("mul", args[0], args[0]) if args[1] == 2 else self._value("sqrt", args[0])
        if name in OPERATIONS | CONDITIONS and not node.kwargs:
            return self._value(name, *args)
        raise UnsupportedError(f"no loop for {node.format_node()}")

    def _all_needed(self) -> list[Value]:
        """The values that the new ones depend on, in the order in which they are made."""
        found: set[Value] = set()
        todo: list[Any] = list(self.stores.values())
        while todo:
            value = todo.pop()
            if isinstance(value, Value) and value not in found:
                found.add(value)
                todo += value.args
        return [x for x in self._made.values() if x in found]

    def _columns(self, p: int) -> list[Value]:
        return [x for x in self._needed if x.level == COLUMN and x.phase == p]

    def _sums(self, p: int) -> list[Value]:
        return [x for x in self._columns(p + 1) if x.op in SUMS and x.args[0].phase == p]

    def _fill(self, p: int) -> None:
        loop = self.loops[p]
        for place, value in self.stores.items():
            if place.level == MATRIX and place not in self._written and _phase(value) == p:
                self._write(place, p)
        for value in (*loop.kept, *(x.args[0] for x in loop.sums)):
            self._compute(value, p)
        for place in loop.written:  # grows: what it reads may have to be written here, too
            self._compute(self.stores[place], p)

    def _write(self, place: Value, p: int) -> None:
        self._written[place] = p
        self.loops[p].written.append(place)

    def _compute(self, value: Any, p: int) -> str:
        """The name of a value in loop p: computed, loaded, or loaded from where an earlier loop has left it."""
        loop = self.loops[p]
        if not isinstance(value, Value) or value.level < MATRIX:
            return _text(value)
        if value in loop.names:
            return loop.names[value]
        place = next((x for x, new in self.stores.items() if new is value), None)
        if value.op == "load":
            if value in self.stores and value not in self._written:
                self._write(value, p)  # no later loop needs the old one
            text = f"get({value.name}[c])"
        elif value.phase < p and place is not None and self._is_left(place, value.phase):
            if place not in self._written:
                self._write(place, value.phase)
            text = f"{place.name}[c]"
        elif value.phase < p and not self._is_cheap(value, p):
            if value not in self.buffers:
                self.buffers.append(value)
                self.loops[value.phase].kept.append(value)
            text = f"buffer{self.buffers.index(value)}[c]"
        else:
            text = _formula(value, [self._compute(x, p) for x in value.args])
        loop.names[value] = f"{value.name}_c"
        loop.lines.append(f"const {_type(value)} {value.name}_c = {text};")
        return loop.names[value]

    def _is_left(self, place: Value, p: int) -> bool:
        """Whether an argument can be written in loop p, as no later one needs its old value."""
        used = max((x.phase for x in self._needed if place in x.args), default=0)
        return self._written.get(place, p) == p and used <= p

    def _is_cheap(self, value: Any, p: int) -> bool:
        """Whether a value of an earlier loop is easily computed again in loop p."""
        if not isinstance(value, Value) or value.level < MATRIX:
            return True
        if value.op == "load":
            return self._written.get(value, p) >= p
        return value.op in CHEAP and all(self._is_cheap(x, p) for x in value.args)

    def _column_lines(self, columns: list[Value]) -> list[str]:
        lines = []
        for x in columns:
            if x.op == "load":
                text = f"{x.name}_all[r]"
            elif x.op == "first":
                text = _at_first(x.args[0])
            elif x.op in SUMS:
                text = f"T({x.name}_sum)"
            else:
                text = _formula(x, [_text(y) for y in x.args])
            lines.append(f"const {_type(x)} {x.name} = {text};")
        return lines

    def _loop_lines(self, p: int) -> list[str]:
        """A loop over a row, or over a thread's part of the only one."""
        loop = self.loops[p]
        if not (loop.written or loop.kept or loop.sums):
            return []
        lines = [f"double {x.name}_sum = {SUMS[x.op][0]};" for x in loop.sums]
        lines += ["#pragma omp for schedule(static) nowait"] if self.whole else []
        lines += [
            f"for (int64_t b = 0; b < C; b += {BLOCK}) {{",
            f"const int64_t end = std::min<int64_t>(C, b + {BLOCK});",
        ]
        lines += [f"T {x.name}_b = {SUMS[x.op][0]};" for x in loop.sums]
        clauses = "".join(f" reduction({SUMS[x.op][1]}:{x.name}_b)" for x in loop.sums)
        lines += [f"#pragma omp simd{clauses}", "for (int64_t c = b; c < end; ++c) {", *loop.lines]
        lines += [f"buffer{self.buffers.index(x)}[c] = {loop.names[x]};" for x in loop.kept]
        lines += [f"{x.name}[c] = {self._compute(self.stores[x], p)};" for x in loop.written]
        lines += [_taken(x, f"{x.name}_b", self._compute(x.args[0], p)) for x in loop.sums]
        lines += ["}", *(_taken(x, f"{x.name}_sum", f"double({x.name}_b)") for x in loop.sums), "}"]
        if self.whole and (self.buffers or loop.sums):
            lines += _exchanged(loop.sums)
        return lines

    def _row_lines(self, rows: list[str]) -> tuple[list[str], int]:
        """The stages of a tensor, and how many columns a later stage needs of an earlier one."""
        texts: list[list[str]] = []
        for stage in self.stages:
            parts = [(*self._column_lines(self._columns(p)), *self._loop_lines(p)) for p in stage]
            texts.append([line for part in parts for line in part])
        texts[-1] += [*self._column_lines(self._columns(self._count)), *self._ends()]
        used = [set(re.findall(r"\bx\d+\b", " ".join(text))) for text in texts]
        made = [[x for p in stage for x in self._columns(p)] for stage in self.stages]
        later = [set().union(*used[i + 1 :]) for i in range(len(used))]
        waiting = [x for some, names in zip(made, later, strict=True) for x in some if x.name in names]
        waiting = [x for x in waiting if x.op != "load"]
        place = {x: f"columns[r * {len(waiting)} + {i}]" for i, x in enumerate(waiting)}
        lines: list[str] = []
        for i, stage in enumerate(self.stages):
            before = [x for some in made[:i] for x in some if x.name in used[i]]
            sums = [x for x in self._totals if x.phase == stage.stop]
            lines += [f"double {x.name}_sum = 0;" for x in sums]
            lines += ["#pragma omp for schedule(static) nowait", "for (int64_t r = 0; r < R; ++r) {", *rows]
            lines += self._column_lines([x for x in before if x.op == "load"])
            lines += [f"const {_type(x)} {x.name} = {place[x]};" for x in before if x in place]
            lines += [*texts[i], *(f"{place[x]} = {x.name};" for x in made[i] if x in place)]
            lines += [*(_taken(x, f"{x.name}_sum", x.args[0].name) for x in sums), "}"]
            lines += _exchanged(sums) if self.shared else []
            lines += self._number_lines(stage.stop) if sums else []
        return lines, len(waiting)

    def _number_lines(self, phase: int) -> list[str]:
        """The numbers that are known when all loops before a phase are done, and not earlier."""
        lines = []
        for x in self._needed:
            if x.level == NUMBER and x.op != "width" and x.phase == phase:
                known = {"number": f"n[{x.args[0]}]", "total": f"T({x.name}_sum)"}
                text = known[x.op] if x.op in known else _formula(x, [_text(y) for y in x.args])
                lines.append(f"const {_type(x)} {x.name} = {text};")
        return lines

    def _ends(self) -> list[str]:
        return [f"{x.name}_all[r] = {_text(value)};" for x, value in self.stores.items() if x.level == COLUMN]

    def source(self, types: list[str]) -> str:
        """The text of `void step(const int64_t* a)`, which steps several tensors.

        a has the number of tensors, the threads, the size of a buffer, and the address of the buffers; then for each
        tensor its rows, its columns, and the addresses of the numbers and the other arguments. There are as many
        buffers as in `buffers`. They are as large as the largest tensor if they are `shared`; if not, each thread has
        its own, as long as the longest row.

        Args:
            types: in C++, of the arguments but the numbers, which are of the first one's.
        """
        tensor = ["const int64_t R = x[0], C = x[1]; const T* const n = (const T*)x[2];"]
        rows = []
        for i, (x, kind) in enumerate(zip(self.inputs, types, strict=True)):
            kind = kind if x in self.stores else f"const {kind}"
            tensor.append(f"{kind}* const {x.name}_all = ({kind}*)x[{3 + i}];")
            if x.level == MATRIX:
                rows.append(f"{kind}* const {x.name} = {x.name}_all + r * C;")
        tensor += self._number_lines(0)
        mine = "0" if self.shared else f"omp_get_thread_num() * {len(self.buffers)}"
        row = " + r * C" if self.shared else ""
        rows += [f"T* const buffer{i} = (T*)a[3] + ({mine} + {i}) * a[2]{row};" for i in range(len(self.buffers))]
        waiting = 0
        if self.whole:
            body = ["const int64_t r = 0;", *rows]
            for p, loop in enumerate(self.loops):
                body += [*self._column_lines(loop.columns), *self._loop_lines(p)]
            body += [*self._column_lines(self._columns(self._count)), "#pragma omp master", "{", *self._ends(), "}"]
        else:
            body, waiting = self._row_lines(rows)
        each = 3 + len(self.inputs)
        top = [PRELUDE, f"typedef {types[0]} T;", 'extern "C" void step(const int64_t* a) {']
        if self.shared:
            most = max(len(self._totals), *(len(loop.sums) for loop in self.loops))
            top.append(f"std::vector<std::vector<double>> all(a[1], std::vector<double>({most}));")
        if waiting:
            top.append("int64_t highest = 0;")
            top.append(f"for (int64_t i = 0; i < a[0]; ++i) highest = std::max(highest, a[4 + i * {each}]);")
            top.append(f"std::vector<T> columns(highest * {waiting});")
        top += ["#pragma omp parallel num_threads(a[1])", "for (int64_t i = 0; i < a[0]; ++i) {"]
        top += [f"const int64_t* const x = a + 4 + i * {each};"]
        return "\n".join([*top, *tensor, *body, "}", "}"]) + "\n"


PRELUDE = """
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#include <omp.h>
static inline float get(float x) { return x; }
static inline double get(double x) { return x; }
static inline float get(uint16_t x) {  // bfloat16
    const uint32_t bits = uint32_t(x) << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}"""


def _exchanged(sums: list[Value]) -> list[str]:
    """The sums of all threads. Nobody may be in another loop, or at another tensor, until all are done."""
    lines = [f"all[omp_get_thread_num()][{i}] = {x.name}_sum;" for i, x in enumerate(sums)]
    lines.append("#pragma omp barrier")
    for i, x in enumerate(sums):
        lines.append(f"{x.name}_sum = {SUMS[x.op][0]};")
        taken = _taken(x, f"{x.name}_sum", f"all[t][{i}]")
        lines.append(f"for (int t = 0; t < omp_get_num_threads(); ++t) {taken}")
    return [*lines, "#pragma omp barrier"] if sums else lines


def _phase(value: Any) -> int:
    return value.phase if isinstance(value, Value) else 0


def _type(value: Value) -> str:
    return "bool" if value.op in CONDITIONS else "T"


def _text(value: Any) -> str:
    """A number or a column in C++."""
    if not isinstance(value, Value):
        return {math.inf: "T(INFINITY)", -math.inf: "T(-INFINITY)"}.get(value, f"T({value!r})")
    return "T(C)" if value.op == "width" else value.name


def _formula(value: Value, args: list[str]) -> str:
    return (OPERATIONS | CONDITIONS)[value.op].format(*args)


def _taken(x: Value, total: str, part: str) -> str:
    return f"{total} = {SUMS[x.op][2].format(total, part)};"


def _at_first(value: Any) -> str:
    """The first number of a row."""
    if not isinstance(value, Value) or value.level < MATRIX:
        return _text(value)
    if value.op == "load":
        return f"get({value.name}[0])"
    return f"({_formula(value, [_at_first(x) for x in value.args])})"
