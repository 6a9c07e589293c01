"""Parameter groups from the model: which parameters decay, which rotate, and their options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, final

from torch import Tensor, nn

from equipoise import _check
from equipoise.optim.model.roles import ROLES, ParameterRole, bare, known_parameters, unmatched

if TYPE_CHECKING:
    from rich.console import RenderableType

    from equipoise.optim.model.invariance import Invariance

RESERVED = ("params", "param_names", "name")
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "module")


@final
class ParamGroups(list[dict[str, Any]]):
    """Parameter groups for any torch optimizer: a list of plain dicts that prints as a table.

    Each group has `params`, `param_names`, `name`, `role`, `rotate`, and your options; `weight_decay` is in
    it only if it differs from the optimizer's. An optimizer writes its defaults into the dicts, as torch does, so make
    new ones for each optimizer.

    Args:
        groups: the dicts.
        tied: for each tied parameter, the other names under which it is used.
        frozen: names of parameters left out because they do not require a gradient.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]] = (),
        *,
        tied: Mapping[str, tuple[str, ...]] | None = None,
        frozen: Sequence[str] = (),
    ):
        super().__init__(groups)
        self.tied = dict(tied or {})
        self.frozen = tuple(frozen)
        self._own = {g["name"]: [k for k in g if k not in (*RESERVED, "role", "weight_decay")] for g in self}

    @property
    def roles(self) -> dict[str, str]:
        """The role of every parameter, by its name."""
        return {name: group["role"] for group in self for name in group["param_names"]}

    def __rich__(self) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
        table.add_column("role")
        table.add_column("tensors", justify="right")
        table.add_column("weights", justify="right")
        table.add_column("decay", no_wrap=True)
        table.add_column("options")
        table.add_column("such as", overflow="fold")
        for group in self:
            decay = group.get("weight_decay")
            own = self._own.get(group["name"], [])
            options = ", ".join(f"{k} {_short(group[k])}" for k in own if k in group)
            weights = sum(p.numel() for p in group["params"])
            names = group["param_names"]
            some = names[0] + (", …" if len(names) > 1 else "")
            cells = ("optimizer's" if decay is None else "none" if decay == 0 else f"{decay:g}", options, some)
            table.add_row(group["role"], str(len(names)), f"{weights:,}", *(Text(c) for c in cells))
        notes = [Text(f"tied: {name} is also {', '.join(others)}", style="dim") for name, others in self.tied.items()]
        if self.frozen:
            some = ", ".join(self.frozen[:2]) + (", …" if len(self.frozen) > 2 else "")
            notes.append(Text(f"frozen and left out: {len(self.frozen)} ({some})", style="dim"))
        return Group(table, *notes)

    def __str__(self) -> str:
        return rendered(self)


def rendered(thing: Any, width: int = 110) -> str:
    """What Rich makes of a thing, as plain text without trailing blanks.

    Args:
        thing: anything that Rich can show.
        width: of the text, in characters.
    """
    from rich.console import Console

    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(thing)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def param_groups(
    model: nn.Module,
    *,
    no_decay: Sequence[str] = ("gain", "bias"),
    roles: Mapping[str, Mapping[str, Any]] | None = None,
    overrides: Mapping[str, str | Mapping[str, Any]] | None = None,
    head: str | Sequence[str] | None = None,
    invariance: Invariance | None = None,
    frozen: bool = False,
) -> ParamGroups:
    """Parameter groups by the role of each parameter, which follows from the type of its module.

    Every parameter is in one group. Roles are "matrix", "conv", "embedding", "head", "gain" and "bias". Gains and
    biases do not decay and do not rotate. Nor do parameters that the author of the model has marked
    (`param._no_weight_decay`, or timm's `no_weight_decay()`). Everything else decays, including embeddings, as in
    nanoGPT and transformers.

    The output layer is the first of these that exists: the layers that `head` names; what the model returns from
    `get_output_embeddings`, and the last layer of modules called head, classifier, score or logits; a Linear tied to an
    embedding; a Linear called fc, out, output, decoder, generator and the like; the last Linear, if no other layer
    follows and it is not part of repeated blocks or of attention. Parallel layers in a ModuleList or ModuleDict are
    output layers together. A weight tied between embedding and output layer is an "embedding".

    Args:
        model: any module, compiled or wrapped by DDP or FSDP2; names are those of the plain one.
        no_decay: roles that do not decay.
        roles: options for a role, such as `{"embedding": {"lr": 1e-3}}`.
        overrides: a role or options, or both, for parameters whose name matches a pattern, such as
            `{"*.qkv.weight": "matrix", "pos_embed": {"role": "gain", "lr": 1e-4}}`. If several patterns match, later
            ones override earlier ones. A tied parameter is matched by any of its names.
        head: names or patterns of the output layers; an empty list if there is none.
        invariance: the result of `scale_invariance`; then only scale-invariant tensors rotate, at their granularity.
        frozen: include parameters that do not require a gradient.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 2))
    >>> groups = param_groups(model, roles={"head": {"lr": 1e-4}})
    >>> [(g["name"], len(g["params"]), g.get("weight_decay"), g.get("lr")) for g in groups]
    [('matrix', 1, None, None), ('head', 1, None, 0.0001), ('gain', 1, 0.0, None), ('bias', 3, 0.0, None)]
    """
    for role in no_decay if not isinstance(no_decay, str) else [no_decay]:
        _check.choice("no_decay", role, ROLES)
    given = {role: _options(f"roles[{role!r}]", options) for role, options in (roles or {}).items()}
    for role, options in given.items():
        _check.choice("roles", role, ROLES)
        if "role" in options:
            raise ValueError(f"roles[{role!r}]: must not have 'role'; use overrides to change a role")
    known = known_parameters(model, head=head)
    changes = _changes(overrides or {}, known)
    marked = _marked(bare(model))
    kept = [k for k in known if frozen or k.param.requires_grad]
    if not kept:
        raise ValueError(f"model = {type(model).__name__}: must have at least one parameter that takes a gradient")
    found: dict[Any, dict[str, Any]] = {}
    for k in kept:
        role = changes.get(k.name, {}).get("role", k.role)
        asked = {key: value for key, value in (given.get(role, {}) | changes.get(k.name, {})).items() if key != "role"}
        options: dict[str, Any] = {}
        if (
            role in no_decay
            or getattr(k.param, "_no_weight_decay", False)
            or marked.intersection(map(unwrapped, k.names))
        ):
            options["weight_decay"] = 0.0
        options = _turning(k, role, invariance) | options | asked
        if options.get("weight_decay") == 0 and options.get("angle") is None and "rotate" not in asked:
            options["rotate"] = False  # without decay there is no equilibrium to rotate at
        if not options["rotate"] and "granularity" not in asked:
            options.pop("granularity", None)
        group = found.setdefault((role, _key(options)), {})
        if not group:
            group |= {"params": [], "param_names": [], "name": role, "role": role, **options}
        group["params"].append(k.param)
        group["param_names"].append(k.name)
    groups = sorted(found.values(), key=lambda g: ROLES.index(g["role"]))  # stable: the model's order within a role
    _name(groups)
    tied = {k.name: k.tied for k in kept if k.tied}
    return ParamGroups(groups, tied=tied, frozen=[k.name for k in known if not (frozen or k.param.requires_grad)])


def _turning(k: ParameterRole, role: str, invariance: Invariance | None) -> dict[str, Any]:
    """Whether and how a parameter rotates.

    Where the first dimension does not count outputs, rows are no neurons, so the whole tensor turns as one.
    """
    if role in ("gain", "bias"):
        return {"rotate": False}
    if invariance is not None:
        granularity = invariance[k.name].granularity if k.name in invariance else None
        if granularity is None:
            return {"rotate": False}
        return {"rotate": True} | ({} if granularity == "neuron" else {"granularity": granularity})
    return {"rotate": True} | ({"granularity": "tensor"} if k.param.ndim < 2 or not k.rows else {})


def _options(argument: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{argument} = {value!r}: must be a dict of options")
    for key in RESERVED:
        if key in value:
            raise ValueError(f"{argument}: must not have {key!r}; the groups set it")
    return dict(value)


def _changes(
    overrides: Mapping[str, str | Mapping[str, Any]], known: Sequence[ParameterRole]
) -> dict[str, dict[str, Any]]:
    """What the overrides say about each parameter, later ones over earlier ones."""
    changes: dict[str, dict[str, Any]] = {}
    for pattern, value in overrides.items():
        options = {"role": value} if isinstance(value, str) else _options(f"overrides[{pattern!r}]", value)
        if "role" in options:
            _check.choice(f"overrides[{pattern!r}]", options["role"], ROLES)
        hits = [k for k in known if any(fnmatchcase(name, pattern) for name in k.names)]
        if not hits:
            raise ValueError(unmatched("overrides", pattern, [name for k in known for name in k.names]))
        for k in hits:
            changes[k.name] = changes.get(k.name, {}) | options
    return changes


def _marked(model: nn.Module) -> set[str]:
    """Names that the model's author does not want to decay, as timm's models say."""
    marked: set[str] = set()
    for path, module in model.named_modules():
        said: Any = getattr(module, "no_weight_decay", None)
        names: Any = said() if callable(said) else ()
        marked |= {unwrapped(f"{path}.{name}" if path else name) for name in names}
    return marked


def unwrapped(name: str) -> str:
    """The name of a parameter without what wrappers, as torch.compile and DistributedDataParallel, put into it."""
    return ".".join(piece for piece in name.split(".") if piece not in WRAPPERS)


def _key(value: Any) -> Any:
    """What sets options apart: plain values by themselves, tensors and other objects by which ones they are."""
    if isinstance(value, Mapping):
        return ("dict", *sorted(((str(k), _key(v)) for k, v in value.items()), key=lambda item: item[0]))
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(_key, value))
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    return id(value)


def _name(groups: Sequence[dict[str, Any]]) -> None:
    """Give every group a name of its own: its role, and where a role has several, the options that set it apart."""
    for role in ROLES:
        same = [g for g in groups if g["role"] == role]
        for i, group in enumerate(same[1:], start=1):
            own = {k: v for k, v in group.items() if k not in (*RESERVED, "role")}
            others = [k for k in same[0] if k not in (*RESERVED, "role", *own)]
            apart = [f"{k}={_short(v)}" for k, v in own.items() if _key(same[0].get(k)) != _key(v)]
            name = f"{role} ({', '.join(apart + [f'no {k}' for k in others])})"
            taken = {g["name"] for g in same[:i]}
            group["name"] = name if name not in taken else f"{name} {i}"


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Tensor):
        return f"{value.item():g}" if value.numel() == 1 else f"{'×'.join(map(str, value.shape))} tensor"
    return f"{value:g}" if isinstance(value, float) else str(value)
