"""Parameter groups: every parameter in one group, by what its module is."""

import copy
import pickle
from typing import Any

import pytest
import torch
from tests.optim.model import example_models
from torch import nn
from torch.nn.utils import parametrizations

import equipoise as eq
from equipoise.optim import ParamGroups, add_gains
from equipoise.optim.model.roles import ROLES


def role_of(model: nn.Module, **options: Any) -> dict[str, str]:
    return eq.param_groups(model, **options).roles


@pytest.mark.parametrize("name", example_models.ZOO)
def test_every_parameter_lands_in_one_group_and_norms_and_biases_do_not_decay(name: str) -> None:
    model, _ = example_models.make(name)
    groups = eq.param_groups(model)
    params = [p for g in groups for p in g["params"]]
    assert {id(p) for p in params} == {id(p) for p in model.parameters()}
    assert len(params) == len({id(p) for p in params})
    names = dict(model.named_parameters())
    assert all(names[n] is p for g in groups for n, p in zip(g["param_names"], g["params"], strict=True))
    assert len({g["name"] for g in groups}) == len(groups)
    for g in groups:
        assert g["role"] in ROLES
        undecayed = g["role"] in ("gain", "bias")
        assert g.get("weight_decay") == (0.0 if undecayed else None)
        assert g["rotate"] is not undecayed
    roles = groups.roles
    for path, module in model.named_modules():
        for short, _ in module.named_parameters(recurse=False):
            full = f"{path}.{short}" if path else short
            if "Norm" in type(module).__name__ or "norm" in path.rpartition(".")[2].lower():
                assert roles[full] == ("bias" if short == "bias" else "gain")
            elif "bias" in short:
                assert roles[full] == "bias"


HEADS = {
    "mlp": ["4.weight"],
    "resnet-batch": ["fc.weight"],
    "vgg": ["classifier.2.weight"],
    "vit": ["head.weight"],
    "gpt": [],
    "translator": ["generator.weight"],
    "gpt2": [],
    "bert": ["classifier.weight"],
}
EMBEDDINGS = {
    "vit": ["cls_token", "pos_embed"],
    "gpt": ["wpe.weight", "wte.weight"],
    "gpt2": ["transformer.wpe.weight", "transformer.wte.weight"],
    "translator": ["source.weight", "target.weight"],
    "bert": [f"bert.embeddings.{n}_embeddings.weight" for n in ("position", "token_type", "word")],
    "mlp": [],
}


@pytest.mark.parametrize("name", HEADS)
def test_heads(name: str) -> None:
    roles = role_of(example_models.make(name)[0])
    assert [n for n, role in roles.items() if role == "head"] == HEADS[name]


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings(name: str) -> None:
    roles = role_of(example_models.make(name)[0])
    assert sorted(n for n, role in roles.items() if role == "embedding") == EMBEDDINGS[name]


@pytest.mark.parametrize(("name", "other"), [("gpt", "lm_head.weight"), ("gpt2", "lm_head.weight")])
def test_tied_parameters_stand_once_and_the_table_says_so(name: str, other: str) -> None:
    groups = eq.param_groups(example_models.make(name)[0])
    (tied,) = groups.tied.items()
    assert tied[1] == (other,)
    assert groups.roles[tied[0]] == "embedding"
    assert f"tied: {tied[0]} is also {other}" in str(groups)


def test_a_hugging_face_body_has_no_head_and_its_columns_are_no_rows() -> None:
    body: Any = example_models.make("bert")[0]
    assert "head" not in role_of(body.bert).values()
    groups = eq.param_groups(example_models.make("gpt2")[0])
    assert [g.get("granularity") for g in groups if g["role"] == "matrix"] == ["tensor"]


class Odd(nn.Module):
    """Modules and bare parameters that names and shapes alone would get wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(4, 4, 3, groups=4)
        self.up = nn.ConvTranspose2d(4, 2, 2)
        self.one = nn.Linear(6, 1)
        self.rnn = nn.LSTM(4, 4, proj_size=2)
        self.cell = nn.GRUCell(4, 4)
        self.attn = nn.MultiheadAttention(4, 2, kdim=3, add_bias_kv=True)
        self.norm3 = nn.LayerNorm([4, 2, 2])
        self.rms = type("LlamaRMSNorm", (example_models.LayerScale,), {})(4)
        self.heads_norm = type("HeadRMSNorm", (Odd2D,), {})()
        self.act = nn.PReLU(4)
        self.positional_embedding = nn.Parameter(torch.randn(7, 4))
        self.class_embedding = nn.Parameter(torch.randn(4))
        self.gamma = nn.Parameter(torch.ones(4, 1, 1))
        self.logit_scale = nn.Parameter(torch.ones(()))
        self.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))
        self.text_projection = nn.Parameter(torch.randn(4, 4))


class Odd2D(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 4))


def test_roles_come_from_the_type_of_the_module() -> None:
    roles = role_of(Odd(), head=[])
    expected = {
        "depthwise.weight": "conv",
        "up.weight": "conv",
        "one.weight": "matrix",
        "rnn.weight_ih_l0": "matrix",
        "rnn.weight_hr_l0": "matrix",
        "rnn.bias_hh_l0": "bias",
        "cell.weight_hh": "matrix",
        "attn.q_proj_weight": "matrix",
        "attn.in_proj_bias": "bias",
        "attn.bias_k": "bias",
        "attn.out_proj.weight": "matrix",
        "norm3.weight": "gain",
        "norm3.bias": "bias",
        "rms.gamma": "gain",
        "heads_norm.weight": "gain",
        "act.weight": "gain",
        "positional_embedding": "embedding",
        "class_embedding": "embedding",
        "gamma": "gain",
        "logit_scale": "gain",
        "relative_position_bias_table": "bias",
        "text_projection": "matrix",
    }
    assert {n: roles[n] for n in expected} == expected
    groups = eq.param_groups(Odd(), head=[])
    turned_whole = [n for g in groups if g.get("granularity") == "tensor" for n in g["param_names"]]
    assert turned_whole == ["up.weight", "class_embedding"]


def test_parametrised_tensors_have_the_role_of_their_module() -> None:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Conv1d(3, 4, 2)),
        parametrizations.spectral_norm(nn.Embedding(5, 4)),
        add_gains(nn.Linear(4, 4)),
        nn.LayerNorm(4),
    )
    assert role_of(model) == {
        "0.parametrizations.weight.original1": "conv",
        "1.parametrizations.weight.original": "embedding",
        "2.parametrizations.weight.original": "matrix",
        "0.parametrizations.weight.original0": "gain",
        "2.parametrizations.weight.0.gain": "gain",
        "3.weight": "gain",
        "0.bias": "bias",
        "2.bias": "bias",
        "3.bias": "bias",
    }
    thin = parametrizations.weight_norm(nn.Linear(4, 1, bias=False))  # size and direction both have one dimension
    assert list(role_of(thin, head=[]).values()) == ["matrix", "gain"]
    assert role_of(model, overrides={"2.weight": "head"})["2.parametrizations.weight.original"] == "head"


def test_where_the_head_is_looked_for() -> None:
    class Named(nn.Module):
        def __init__(self, **modules: nn.Module):
            super().__init__()
            for name, module in modules.items():
                self.add_module(name, module)

    def heads(model: nn.Module, **options: Any) -> list[str]:
        return [n for n, role in role_of(model, **options).items() if role == "head"]

    linear = lambda: nn.Linear(4, 4)  # noqa: E731
    # The head need not come last, may be several, and is the last layer of what is called so.
    assert heads(Named(head=linear(), body=linear())) == ["head.weight"]
    assert heads(Named(mlp_head=nn.Sequential(linear(), linear()), head_dist=linear())) == [
        "mlp_head.1.weight",
        "head_dist.weight",
    ]
    # Names in repeated blocks, and repeated blocks at the end, are no output layers.
    blocks = nn.ModuleList(Named(fc=linear(), out=linear()) for _ in range(2))
    assert heads(Named(blocks=blocks)) == []
    assert heads(Named(blocks=blocks, norm=nn.LayerNorm(4))) == []
    assert heads(Named(blocks=blocks, out=linear())) == ["out.weight"]
    # A body that ends in a norm has none; a chain that ends in a Linear has.
    assert heads(nn.Sequential(linear(), nn.LayerNorm(4))) == []
    assert heads(nn.Sequential(linear(), nn.ReLU(), linear(), nn.Softmax(1))) == ["2.weight"]
    assert heads(linear()) == ["weight"]
    assert heads(Named(head=linear(), body=linear()), head="body") == ["body.weight"]
    assert heads(Named(head=linear()), head=[]) == []


class Net(nn.Module):
    """Modules by name, after a body."""

    def __init__(self, **modules: nn.Module):
        super().__init__()
        self.body = nn.Linear(8, 8)
        for name, module in modules.items():
            self.add_module(name, module)


def classifiers(*widths: int) -> list[nn.Module]:
    return [nn.Linear(8, width) for width in widths]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)])


PARALLEL: dict[str, tuple[nn.Module, list[str]]] = {
    "list of heads": (Net(heads=nn.ModuleList(classifiers(3, 5))), ["heads.0", "heads.1"]),
    "square": (Net(heads=nn.ModuleList(classifiers(8, 8))), ["heads.0", "heads.1"]),
    "dict": (Net(heads=nn.ModuleDict({"a": nn.Linear(8, 3), "b": nn.Linear(8, 2)})), ["heads.a", "heads.b"]),
    "head is a list": (Net(head=nn.ModuleList(classifiers(3, 3))), ["head.0", "head.1"]),
    "head is a dict": (Net(head=nn.ModuleDict({"a": mlp(), "b": mlp()})), ["head.a.2", "head.b.2"]),
    "heads of layers": (Net(heads=nn.ModuleList([mlp(), mlp()])), ["heads.0.2", "heads.1.2"]),
    "after fc": (Net(fc=nn.Linear(8, 8), heads=nn.ModuleList(classifiers(3, 2))), ["heads.0", "heads.1"]),
    "two lists": (
        Net(box_heads=nn.ModuleList(classifiers(4, 4)), class_heads=nn.ModuleList(classifiers(9, 9))),
        ["box_heads.0", "box_heads.1", "class_heads.0", "class_heads.1"],
    ),
    "another name": (Net(tasks=nn.ModuleDict({"a": nn.Linear(8, 3), "b": nn.Linear(8, 3)})), ["tasks.a", "tasks.b"]),
    "one is called so": (
        Net(tasks=nn.ModuleDict({"classifier": nn.Linear(8, 3), "b": nn.Linear(8, 3)})),
        ["tasks.classifier", "tasks.b"],
    ),
    "the model itself": (nn.ModuleDict({"a": nn.Linear(8, 3), "b": nn.Linear(8, 2)}), ["a", "b"]),
    "not last": (Net(heads=nn.ModuleList(classifiers(3, 5)), after=nn.LayerNorm(4)), []),
    "a chain": (Net(layers=nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 4)])), ["layers.1"]),
    "a chain called head": (Net(head=nn.ModuleList([nn.Linear(8, 6), nn.Linear(6, 4)])), ["head.1"]),
    "a chain in a head": (Net(head=Scores()), ["head.layers.2"]),
    "attention": (nn.MultiheadAttention(4, 2), []),
    "attention at the end": (Net(attn=nn.MultiheadAttention(4, 2)), []),
}  # fmt: skip


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_heads_are_heads_together(name: str) -> None:
    model, wanted = PARALLEL[name]
    assert [n.removesuffix(".weight") for n, role in role_of(model).items() if role == "head"] == wanted


def test_a_list_of_heads_may_be_named() -> None:
    model = Net(branches=nn.ModuleList(classifiers(3, 5)), after=nn.Linear(8, 8))
    roles = role_of(model, head="branches")
    assert [n for n, role in roles.items() if role == "head"] == ["branches.0.weight", "branches.1.weight"]


def test_tensors_as_options_are_told_apart() -> None:
    model = nn.Sequential(*(nn.Linear(2, 3000) for _ in range(3)))
    one, other = torch.ones(3000), torch.ones(3000)
    other[1500] = 2.0
    speeds = {"0.weight": {"speeds": one}, "1.weight": {"speeds": other}, "2.weight": {"speeds": one}}
    groups = eq.param_groups(model, overrides=speeds, head=[])
    assert [g["param_names"] for g in groups if "speeds" in g] == [["0.weight", "2.weight"], ["1.weight"]]
    assert [g["name"] for g in groups][:2] == ["matrix", "matrix (speeds=3000 tensor)"]
    rates = [torch.tensor(0.1), torch.tensor(0.1 + 1e-7)]
    groups = eq.param_groups(model, overrides={f"{i}.weight": {"lr": lr} for i, lr in enumerate(rates)}, head=[])
    assert [g["lr"] for g in groups if "lr" in g] == rates
    assert len({g["name"] for g in groups}) == len(groups)
    pairs = {"0.weight": {"betas": (0.9, 0.99)}, "1.weight": {"betas": (0.9, 0.99)}, "2.weight": {"betas": (0.9, 0.9)}}
    groups = eq.param_groups(model, overrides=pairs, head=[])
    assert [len(g["params"]) for g in groups if "betas" in g] == [2, 1]


def test_options_of_roles_and_patterns() -> None:
    model = example_models.make("vit")[0]
    groups = eq.param_groups(
        model,
        roles={"head": {"lr": 0.5}},
        overrides={
            "blocks.*.weight": {"lr": 0.1},
            "blocks.0.fc?.weight": {"weight_decay": 0.3},
            "pos_embed": {"role": "gain", "lr": 0.2},
            "cls_token": "bias",
        },
    )
    by_name = {n: g for g in groups for n in g["param_names"]}
    assert by_name["head.weight"]["lr"] == 0.5
    assert "lr" not in by_name["patch_embed.weight"]
    assert (by_name["blocks.0.fc1.weight"]["lr"], by_name["blocks.0.fc1.weight"]["weight_decay"]) == (0.1, 0.3)
    assert by_name["blocks.1.fc1.weight"].get("weight_decay") is None
    assert by_name["pos_embed"]["role"] == "gain"
    assert (by_name["pos_embed"]["weight_decay"], by_name["pos_embed"]["rotate"]) == (0.0, False)
    assert by_name["cls_token"]["role"] == "bias"
    names = [g["name"] for g in groups]
    assert names[:3] == ["matrix", "matrix (lr=0.1)", "matrix (lr=0.1, weight_decay=0.3)"]
    assert len(set(names)) == len(names)
    later = eq.param_groups(model, overrides={"*": {"lr": 1.0}, "head.*": {"lr": 2.0}})
    assert {g["lr"] for g in later if g["role"] == "head"} == {2.0}
    first = eq.param_groups(model, overrides={"head.*": {"lr": 2.0}, "*": {"lr": 1.0}})
    assert {g["lr"] for g in first} == {1.0}


def test_without_decay_there_is_no_rotation() -> None:
    model = example_models.make("vit")[0]
    groups = eq.param_groups(model, no_decay=("gain", "bias", "embedding"))
    assert [(g["weight_decay"], g["rotate"]) for g in groups if g["role"] == "embedding"] == [(0.0, False)]
    eq.RotationalAdamW(groups, lr=1e-3, weight_decay=0.1)
    asked = eq.param_groups(model, overrides={"head.weight": {"weight_decay": 0.0, "angle": 1e-3}})
    assert [g["rotate"] for g in asked if g["role"] == "head"] == [True]


def test_the_authors_marks_are_kept() -> None:
    model: Any = example_models.make("vit")[0]
    model.no_weight_decay = lambda: {"pos_embed"}
    model.blocks[0].fc1.weight._no_weight_decay = True
    by_name = {n: g for g in eq.param_groups(model) for n in g["param_names"]}
    assert by_name["pos_embed"]["weight_decay"] == by_name["blocks.0.fc1.weight"]["weight_decay"] == 0.0
    assert "weight_decay" not in by_name["cls_token"]


def test_the_authors_marks_are_kept_in_wrappers_and_parents() -> None:
    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pos_embed = nn.Parameter(torch.randn(1, 3, 4))
            self.inner = nn.Sequential(nn.Linear(4, 4))

        def no_weight_decay(self) -> set[str]:
            return {"pos_embed", "inner.0.weight"}

    def undecayed(model: nn.Module) -> list[str]:
        groups = eq.param_groups(model, no_decay=())
        return [n for g in groups if g.get("weight_decay") == 0 for n in g["param_names"]]

    parent = nn.Sequential(Marked(), nn.Linear(4, 4))
    assert sorted(undecayed(parent)) == ["0.inner.0.weight", "0.pos_embed"]
    whole: Any = torch.compile(Marked(), backend="eager")
    assert sorted(undecayed(whole)) == ["inner.0.weight", "pos_embed"]
    part: Any = Marked()
    part.inner[0] = torch.compile(part.inner[0], backend="eager")
    assert sorted(undecayed(part)) == ["inner.0._orig_mod.weight", "pos_embed"]


def test_frozen_parameters_are_left_out_unless_asked_for() -> None:
    model: Any = example_models.make("bert")[0]
    model.bert.embeddings.requires_grad_(False)
    groups = eq.param_groups(model)
    assert len(groups.frozen) == 5
    assert not any("embeddings" in n for n in groups.roles)
    assert "frozen and left out: 5" in str(groups)
    assert len(eq.param_groups(model, frozen=True).roles) == len(list(model.parameters()))


def test_the_table_shows_counts_and_options() -> None:
    text = str(eq.param_groups(example_models.make("vit")[0], roles={"embedding": {"lr": 0.001}}))
    row = next(line for line in text.splitlines() if line.startswith("embedding"))
    for piece in ("2", "96", "lr 0.001", "rotate yes", "cls_token"):
        assert piece in row
    assert "none" in next(line for line in text.splitlines() if line.startswith("gain"))


OPTIMIZERS = [torch.optim.AdamW, torch.optim.SGD, eq.AdamW, eq.RotationalAdamW, eq.HyperballAdamW, eq.AdamCPR]


@pytest.mark.parametrize("make", OPTIMIZERS, ids=lambda m: f"{m.__module__.split('.')[0]}.{m.__name__}")
@pytest.mark.parametrize("name", ["vit", "gpt2"])
def test_any_optimizer_takes_them_and_its_state_goes_round(make: Any, name: str) -> None:
    decay: dict[str, Any] = {} if make is eq.AdamCPR else {"weight_decay": 0.1}

    def start() -> tuple[nn.Module, Any, torch.optim.Optimizer]:
        model, run = example_models.make(name)
        return model, example_models.loss_of(run), make(eq.param_groups(model), lr=1e-2, **decay)

    def step(loss: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    model, loss, optimizer = start()
    assert [g["param_names"] for g in optimizer.param_groups] == [g["param_names"] for g in eq.param_groups(model)]
    before = copy.deepcopy(model.state_dict())
    step(loss, optimizer)
    # The key bias of attention has no gradient but rounding; all else must have moved.
    assert all(not torch.equal(before[n], v) for n, v in model.state_dict().items())
    twin, twin_loss, other = start()
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
    assert [g["role"] for g in other.param_groups] == [g["role"] for g in optimizer.param_groups]
    step(loss, optimizer)
    step(twin_loss, other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_rotation_keeps_norms_where_groups_say_so() -> None:
    model, run = example_models.make("gpt2")
    optimizer = eq.RotationalAdamW(eq.param_groups(model), lr=1e-2, weight_decay=0.1)
    names = dict(model.named_parameters())
    conv1d, table = names["transformer.h.0.mlp.c_fc.weight"], names["transformer.wte.weight"]
    whole, rows, inputs = conv1d.norm().item(), table.norm(dim=1).clone(), conv1d.norm(dim=1).clone()
    example_models.loss_of(run)().backward()
    optimizer.step()
    assert conv1d.norm().item() == pytest.approx(whole)
    assert not torch.allclose(conv1d.norm(dim=1), inputs)
    torch.testing.assert_close(table.norm(dim=1), rows)


def test_copies_keep_what_is_known() -> None:
    groups = eq.param_groups(example_models.make("gpt")[0])
    twin = copy.deepcopy(groups)
    assert isinstance(twin, ParamGroups)
    assert (str(twin), twin.tied, twin.frozen) == (str(groups), groups.tied, groups.frozen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overrides": {"*.qvk.weight": "matrix"}}, r"overrides = '\*.qvk.weight': must match a name of the model"),
        ({"overrides": {"blocks.0.fc3.weight": "matrix"}}, "such as blocks.0.fc"),
        ({"overrides": {"*": "vector"}}, "'vector': must be one of bias, conv"),
        ({"overrides": {"*": 3}}, "must be a dict of options"),
        ({"overrides": {"*": {"params": []}}}, "must not have 'params'"),
        ({"roles": {"vector": {"lr": 1}}}, "roles = 'vector': must be one of"),
        ({"roles": {"head": {"role": "gain"}}}, "use overrides"),
        ({"no_decay": ("norm",)}, "no_decay = 'norm': must be one of"),
        ({"head": "lm_head"}, "head = 'lm_head': must match"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eq.param_groups(example_models.make("vit")[0], **options)


@pytest.mark.parametrize("model", [[], nn.ReLU(), nn.Linear(2, 2).requires_grad_(False), nn.LazyLinear(3)])
def test_models_without_parameters_are_refused(model: Any) -> None:
    wanted = "run a batch" if isinstance(model, nn.LazyLinear) else "Module|at least one parameter"
    with pytest.raises(ValueError, match=wanted):
        eq.param_groups(model)
