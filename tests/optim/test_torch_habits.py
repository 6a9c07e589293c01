"""What people do with torch optimizers: scaled gradients, clipping, torch's own checkpoints, schedulers."""

import copy
import pickle
import subprocess
import sys
import warnings
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import equipoise as eq


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def batch(t: int) -> torch.Tensor:
    return torch.randn(16, 6, generator=torch.Generator().manual_seed(t))


@pytest.mark.parametrize("make", [eq.AdamW, eq.RotationalAdamW, eq.Lion])
def test_grad_scaler_changes_nothing_and_skips_infinities(make: Any) -> None:
    scaled, plain = model(), model()
    a, b = make(scaled.parameters(), lr=0.01, weight_decay=0.1), make(plain.parameters(), lr=0.01, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for t in range(6):
        a.zero_grad()
        loss = scaled(batch(t)).square().mean()
        scaler.scale(loss).backward()
        if t == 3:
            next(scaled.parameters()).grad[0, 0] = torch.inf  # type: ignore[index]
        scaler.unscale_(a)
        torch.nn.utils.clip_grad_norm_(scaled.parameters(), 0.5)
        scaler.step(a)
        scaler.update()
        if t == 3:
            continue
        b.zero_grad()
        plain(batch(t)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        b.step()
    for p, q in zip(scaled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


def test_torchs_adamw_checkpoint_goes_on_in_ours() -> None:
    one, two = model(), model()
    theirs = torch.optim.AdamW(one.parameters(), lr=0.01, weight_decay=0.1)
    ours = eq.AdamW(two.parameters(), lr=0.01, weight_decay=0.1)
    for t in range(8):
        theirs.zero_grad()
        one(batch(t)).square().mean().backward()
        theirs.step()
        if t == 3:
            two.load_state_dict(one.state_dict())
            ours.load_state_dict(copy.deepcopy(theirs.state_dict()))  # torch shares the tensors
        if t > 3:
            ours.zero_grad()
            two(batch(t)).square().mean().backward()
            ours.step()
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1), lambda p: eq.SGDM(p, lr=1.0)),
        (lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1), lambda p: eq.Adam(p, lr=1.0)),
        (lambda p: torch.optim.RMSprop(p, lr=0.01, weight_decay=0.1), lambda p: eq.RMSProp(p, lr=1.0)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_checkpoints_of_torch_keep_their_meaning(theirs: Any, ours: Any, dtype: torch.dtype) -> None:
    """L2 stays L2, momentum stays, and low precision goes on in float32."""
    one = model().to(dtype)
    optimizer = theirs(one.parameters())
    if isinstance(optimizer, torch.optim.Adam) and "decoupled_weight_decay" not in optimizer.param_groups[0]:
        pytest.skip("states of Adam and AdamW are alike in older torch")

    def step(net: torch.nn.Module, opt: Any, t: int) -> None:
        opt.zero_grad()
        net(batch(t).to(dtype)).square().mean().backward()
        opt.step()

    for t in range(4):
        step(one, optimizer, t)
    two = copy.deepcopy(one)
    mine = ours(two.parameters())
    mine.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for t in range(4, 8):
        step(one, optimizer, t)
        step(two, mine, t)
    rtol, atol = (1e-5, 1e-7) if dtype == torch.float32 else (0.05, 0.01)
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (torch.optim.AdamW, eq.AdamW),
        (torch.optim.Adam, eq.RotationalAdamW),
        (torch.optim.AdamW, eq.AdamCPR),
        (torch.optim.SGD, eq.SGDM),
        (torch.optim.RMSprop, eq.RMSProp),
        (torch.optim.Muon, eq.Muon),
    ],
)
def test_groups_keep_our_keys_whatever_is_loaded(theirs: Any, ours: Any) -> None:
    params = [torch.nn.Parameter(torch.ones(3, 2))]
    peer, mine = theirs(params, lr=0.25), ours(params)
    names = [set(g) for g in mine.param_groups]
    mine.load_state_dict(peer.state_dict())
    assert [set(g) for g in mine.param_groups] == names
    assert mine.param_groups[0]["lr"] == 0.25
    mine.load_state_dict(mine.state_dict())
    for twin in (mine, copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        twin.add_param_group({"params": [torch.nn.Parameter(torch.ones(2, 2))]})
        assert [set(g) for g in twin.param_groups] == names * 2
    torch.optim.lr_scheduler.StepLR(peer, 1)
    fresh = ours(params)
    fresh.load_state_dict(peer.state_dict())
    assert set(fresh.param_groups[0]) == names[0] | {"initial_lr"}  # what a scheduler goes on from


def test_what_we_lack_is_refused() -> None:
    net = model()
    saved = torch.optim.AdamW(net.parameters(), amsgrad=True).state_dict()
    with pytest.raises(ValueError, match="amsgrad = True in the saved state: must be False"):
        eq.AdamW(net.parameters()).load_state_dict(saved)


def test_our_scheduler_drives_our_optimizer() -> None:
    net = model()
    optimizer = eq.RotationalAdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
    curve = eq.schedules.warmup_cosine(20, warmup=5, peak=1e-2)
    scheduler = eq.schedules.Scheduler(optimizer, lr=curve)
    used = []
    for t in range(20):
        optimizer.zero_grad()
        net(batch(t)).square().mean().backward()
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert used == curve.values(20).tolist()


@pytest.mark.parametrize("make", [eq.AdamW, eq.RotationalAdamW, eq.Lion])
def test_a_compiled_training_step_never_recompiles(make: Any) -> None:
    """Neither as steps are counted nor as a schedule moves lr, and it is the eager one."""
    torch.compiler.reset()
    nets = [model(), model()]
    optimizers = [make(net.parameters(), lr=1e-2, weight_decay=0.1) for net in nets]
    schedulers = [eq.schedules.Scheduler(o, lr=eq.schedules.cosine(8, peak=1e-2)) for o in optimizers]

    def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = torch.compile(train, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for t in range(8):
            with torch._dynamo.config.patch(error_on_recompile=t > 1):
                compiled(nets[0], optimizers[0], batch(t))
            train(nets[1], optimizers[1], batch(t))
            for scheduler in schedulers:
                scheduler.step()
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


def test_a_compiled_model_trains() -> None:
    net = model()
    optimizer = eq.RotationalAdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
    compiled = torch.compile(net, backend="eager")
    losses = []
    for t in range(20):
        optimizer.zero_grad()
        loss = (compiled(batch(t)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_importing_does_not_import_the_compiler() -> None:
    """It takes longer than all the rest, and most steps never need it."""
    script = "import sys, equipoise.optim; sys.exit('torch._dynamo' in sys.modules or 'torch._inductor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=600).returncode == 0


def switch(params: Any, **options: Any) -> eq.Switch:
    groups = [{**g, "params": list(g["params"])} if isinstance(g, dict) else g for g in params]
    first, second = ([{**g} if isinstance(g, dict) else g for g in groups] for _ in range(2))
    return eq.Switch(eq.AdamW(first, **options), torch.optim.SGD(second, momentum=0.9, **options), at=2)


TURN = {"weight_decay": 0.1}
EVERY: dict[str, Any] = {
    **{kind.__name__: kind for kind in (eq.SGDM, eq.RMSProp, eq.Adam, eq.AdamW, eq.SignSGDM, eq.Lion, eq.NormalizedGD)},
    **{kind.__name__: kind for kind in (eq.HyperballAdamW, eq.AdamCPR, eq.Muon, eq.HyperballMuon, eq.SteepestDescent)},
    **{
        kind.__name__: partial(kind, **TURN)
        for kind in (eq.RotationalSGDM, eq.RotationalAdamW, eq.RotationalAdamL2, eq.RotationalLion)
    },
    **{kind.__name__: partial(kind, **TURN) for kind in (eq.RotationalSignSGDM, eq.RotationalMuon)},
    "Rotational": lambda p, **o: eq.Rotational(torch.optim.AdamW(p, **TURN, **o)),
    "Rotational of SGD": lambda p, **o: eq.Rotational(torch.optim.SGD(p, **o, momentum=0.9), angle=0.01),
    "Rotational of Lion": lambda p, **o: eq.Rotational(eq.Lion(p, **TURN, **o)),
    "Switch": switch,
}
"""Every optimizer that people train with."""


def weights() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((6, 4), (3, 6), (6,))]


def take(optimizer: Any, params: list[torch.nn.Parameter], steps: range) -> list[torch.Tensor]:
    for t in steps:
        generator = torch.Generator().manual_seed(t)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
    return [p.detach().clone() for p in params]


def same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("name", EVERY)
def test_all_hooks_run_once(name: str) -> None:
    params, seen = weights(), []
    optimizer = EVERY[name](params, lr=0.01)
    handles = [
        register_optimizer_step_pre_hook(lambda o, *_: seen.append(("all, before", o))),
        register_optimizer_step_post_hook(lambda o, *_: seen.append(("all, after", o))),
        optimizer.register_step_pre_hook(lambda o, *_: seen.append(("before", o))),
        optimizer.register_step_post_hook(lambda o, *_: seen.append(("after", o))),
        optimizer.register_state_dict_pre_hook(lambda o: seen.append(("saves", o))),
        optimizer.register_state_dict_post_hook(lambda o, d: seen.append(("saved", o)) or {**d, "more": 1}),
        optimizer.register_load_state_dict_pre_hook(lambda o, d: seen.append(("loads", o)) or {**d, "less": 1}),
        optimizer.register_load_state_dict_post_hook(lambda o: seen.append(("loaded", o))),
    ]
    try:
        take(optimizer, params, range(4))  # a switch has switched
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        assert state["more"] == 1
        assert [word for word, _ in seen] == ["all, before", "before", "after", "all, after"] * 4 + [
            "saves", "saved", "loads", "loaded",
        ]  # fmt: skip
        assert all(o is optimizer for _, o in seen)
    finally:
        for handle in handles:
            handle.remove()
    take(optimizer, params, range(4, 5))
    assert len(seen) == 20


def test_hooks_of_what_is_inside_run_too() -> None:
    params, seen = weights(), []
    rotational = eq.Rotational(torch.optim.AdamW(params, weight_decay=0.1))
    rotational.inner.register_step_post_hook(lambda *_: seen.append("inner"))
    take(rotational, params, range(2))
    assert seen == ["inner"] * 2


SCHEDULERS: dict[str, Any] = {
    "OneCycleLR": lambda o, cycle: lr_scheduler.OneCycleLR(o, max_lr=0.01, total_steps=20, cycle_momentum=cycle),
    "CyclicLR": lambda o, cycle: lr_scheduler.CyclicLR(o, 0.001, 0.01, step_size_up=3, cycle_momentum=cycle),
    "CosineAnnealingLR": lambda o, cycle: lr_scheduler.CosineAnnealingLR(o, 20),
    "ReduceLROnPlateau": lambda o, cycle: lr_scheduler.ReduceLROnPlateau(o, patience=1),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", EVERY)
def test_schedulers_of_torch(name: str, scheduler: str) -> None:
    """Those that move momentum, too; and what is saved with a scheduler on it goes on, and can be copied."""
    params = weights()
    optimizer = EVERY[name](params, lr=0.01)
    can = "betas" in optimizer.defaults or "momentum" in optimizer.defaults
    curve = SCHEDULERS[scheduler](optimizer, can)
    used = []
    for t in range(6):
        take(optimizer, params, range(t, t + 1))
        used.append(float(optimizer.param_groups[0]["lr"]))
        curve.step(*([1.0] if scheduler == "ReduceLROnPlateau" else []))
    assert len(set(used)) > 1
    assert all(torch.isfinite(p).all() for p in params)
    others = weights()
    fresh = EVERY[name](others, lr=0.01)
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with torch.no_grad():
        for p, q in zip(others, params, strict=True):
            p.copy_(q)
    twins = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    expected = take(optimizer, params, range(6, 9))
    same(take(fresh, others, range(6, 9)), expected)
    for twin in twins:
        theirs = {p.shape: p for g in twin.param_groups for p in g["params"]}
        same(take(twin, [theirs[p.shape] for p in params], range(6, 9)), expected)


@pytest.mark.parametrize("name", EVERY)
def test_lr_as_a_tensor(name: str) -> None:
    params, others = weights(), weights()
    torchs = ("Rotational", "Rotational of SGD", "Switch")  # which ask for it
    more: dict[str, Any] = {"foreach": False} if name in torchs else {}
    a, b = EVERY[name](params, lr=torch.tensor(0.25), **more), EVERY[name](others, lr=0.25, **more)
    torch.testing.assert_close(take(a, params, range(5)), take(b, others, range(5)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", EVERY)
def test_groups_that_come_later(name: str) -> None:
    params = weights()
    optimizer = EVERY[name]([{"params": (p for p in params[:2]), "lr": 0.02}], lr=0.01)
    take(optimizer, params[:2], range(3))
    if name == "Switch":
        for one in (optimizer.first, optimizer.second):
            one.add_param_group({"params": params[2:]})
    else:
        optimizer.add_param_group({"params": params[2:]})
    before = [p.detach().clone() for p in params]
    take(optimizer, params, range(3, 6))
    assert all(not torch.equal(p, w) for p, w in zip(params, before, strict=True))
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)
    kept = [p.detach().clone() for p in params]
    optimizer.step()  # no gradient, no step
    same([p.detach() for p in params], kept)
    optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize("name", EVERY)
def test_parameters_in_every_form(name: str) -> None:
    """Named, in generators, without a gradient, frozen, empty; and none twice."""
    params = dict(zip("abc", weights(), strict=True))
    empty, frozen = torch.nn.Parameter(torch.zeros(0, 4)), torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)
    plain = weights()
    given = {**params, "empty": empty, "frozen": frozen}
    optimizer = EVERY[name](iter(given.items()), lr=0.01)
    twin = EVERY[name]([*plain, torch.nn.Parameter(torch.zeros(0, 4)), torch.nn.Parameter(torch.ones(2, 2))], lr=0.01)
    names = {n: p for g in optimizer.param_groups for n, p in zip(g["param_names"], g["params"], strict=True)}
    assert all(names[n] is p for n, p in given.items())
    empty.grad = torch.zeros(0, 4)
    same(take(optimizer, list(params.values()), range(4)), take(twin, plain, range(4)))
    assert torch.equal(frozen, torch.ones(2, 2))
    again = EVERY[name](iter(given.items()), lr=0.01)
    again.load_state_dict(optimizer.state_dict())
    assert [g["param_names"] for g in again.param_groups] == [g["param_names"] for g in optimizer.param_groups]
    if not name.startswith("Rotational of") and name not in ("Rotational", "Switch"):
        with pytest.raises(ValueError, match="params has a parameter twice"):
            EVERY[name]([plain[0], plain[0]], lr=0.01)
        with pytest.raises(ValueError, match="more than one parameter group"):
            EVERY[name]([{"params": [plain[0]]}, {"params": [plain[0]]}], lr=0.01)


def test_rotational_refuses_complex_parameters() -> None:
    z = torch.nn.Parameter(torch.ones(3, 3, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"parameters in torch\.complex64: must be real to be turned"):
        eq.Rotational(torch.optim.AdamW([z], weight_decay=0.1))
    w = torch.nn.Parameter(torch.ones(3, 3))
    kept = [{"params": [w]}, {"params": [z], "rotate": False}]
    optimizer = eq.Rotational(torch.optim.AdamW(kept, weight_decay=0.1))
    z.grad, w.grad = torch.ones_like(z), torch.randn(3, 3)
    optimizer.step()
    more = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="must be real"):
        optimizer.add_param_group({"params": [more]})
    assert len(optimizer.param_groups) == 2
