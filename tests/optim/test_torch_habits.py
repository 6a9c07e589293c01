"""What people do with torch optimizers: scaled gradients, clipping, torch's own checkpoints, schedulers."""

import copy
import pickle
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
import torch._dynamo

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
    assert subprocess.run([sys.executable, "-c", script], timeout=120).returncode == 0
