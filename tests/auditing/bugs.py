"""Public bugs, each written out in a few lines after its thread, and the finding that must name it.

Every second one, in this order, was used to choose thresholds (`CHOSEN`); the others (`JUDGED`) were run once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.auditing.loops import CLASSES, STEPS, WIDTH, Loop, audited, made
from torch import Tensor, nn

from equipoise.auditing import Audit, audit
from equipoise.geometry import polar


@dataclass(frozen=True)
class Bug:
    """A public bug.

    Attributes:
        where: repository and number of the thread.
        what: what is wrong, in a few words.
        code: the finding that names it.
        run: trains with it under an audit.
    """

    where: str
    what: str
    code: str
    run: Callable[[], Audit]


BUGS: list[Bug] = []


def bug(where: str, what: str, code: str) -> Callable[[Callable[[], Audit]], Callable[[], Audit]]:
    def keep(run: Callable[[], Audit]) -> Callable[[], Audit]:
        BUGS.append(Bug(where, what, code, run))
        return run

    return keep


class Hand(torch.optim.Optimizer):
    """A hand-written optimizer: `update` says what one parameter does."""

    def __init__(self, params: Any, lr: float = 1e-2, **defaults: Any) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.0} | defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, self.state[p], group)

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise NotImplementedError


def averages(g: Tensor, state: dict[str, Any], b1: float = 0.9, b2: float = 0.999) -> tuple[Tensor, Tensor, int]:
    if not state:
        state.update(step=0, exp_avg=torch.zeros_like(g), exp_avg_sq=torch.zeros_like(g))
    state["step"] += 1
    m, v = state["exp_avg"], state["exp_avg_sq"]
    m.lerp_(g, 1 - b1)
    v.mul_(b2).addcmul_(g, g, value=1 - b2)
    return m, v, state["step"]


def adam(m: Tensor, v: Tensor, t: int, b1: float = 0.9, b2: float = 0.999) -> Tensor:
    return (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + 1e-8)


def trained(optimizer: Any, model: nn.Module, **parts: Any) -> Audit:
    return audited(Loop(model, optimizer, **parts))


# Rules


@bug("deepspeedai/DeepSpeed#8441", "Muon without ZeRO steps along the raw gradient", "audit-rule")
def _() -> Audit:
    class MuonWithAuxAdam(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.add_(g.reshape(p.shape), alpha=-group["lr"])

    model = made("linear")
    matrices = [p for p in model.parameters() if p.ndim == 2]
    return trained(MuonWithAuxAdam(matrices, lr=0.02, momentum=0.95, use_muon=True), model)


@bug("deepspeedai/DeepSpeed#8438", "under zero.Init no parameter is tagged for Muon", "audit-no-muon")
def _() -> Audit:
    class MuonWithAuxAdam(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            p.sub_(adam(*averages(g, state)), alpha=group["lr"])

    model = made("linear")
    flags = [{"params": list(model.parameters()), "use_muon": False, "betas": (0.9, 0.999), "lr": 1e-3}]
    return trained(MuonWithAuxAdam(flags), model)


@bug("hiyouga/LlamaFactory#8041", "the log counts zero Muon parameters, all are AdamW's", "audit-no-muon")
def _() -> Audit:
    class Muon(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.sub_(adam(*averages(g, state, 0.9, 0.95), 0.9, 0.95), alpha=group["lr"])

    model = made("attention")
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 9], "use_muon": True},
        {"params": list(model.parameters()), "use_muon": False},
    ]
    return trained(Muon(groups, lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95)), model)


@bug("PaddlePaddle/Paddle#12231", "Nesterov's momentum is subtracted from the step", "audit-rule")
def _() -> Audit:
    class SGD(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            v = state.setdefault("momentum_buffer", torch.zeros_like(g))
            v.mul_(group["momentum"]).add_(g)
            p.add_(g - group["momentum"] * v, alpha=-group["lr"])

    model = made()
    return trained(SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True), model)


@bug("frgfm/Holocron#1", "bias correction is done in place and spoils the averages", "audit-rule")
def _() -> Audit:
    class Adam(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            m, v, t = averages(g, state)
            m.div_(1 - 0.9**t)
            v.div_(1 - 0.999**t)
            p.addcdiv_(m, v.sqrt().add(1e-8), value=-group["lr"])

    model = made()
    return trained(Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8), model)


# Bias correction


@bug("allenai/OLMo-core#317", "the step count stays at 1", "audit-bias-correction")
def _() -> Audit:
    class SkipStepAdamW(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            m, v, _ = averages(g, state, 0.9, 0.95)
            state["step"] = 0
            p.sub_(adam(m, v, 1, 0.9, 0.95), alpha=group["lr"])

    class AdamW(SkipStepAdamW):
        pass

    model = made()
    return trained(AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8), model)


@bug("oxiglade/mlx-rs#301", "Adam lacks bias correction", "audit-bias-correction")
def _() -> Audit:
    class Adam(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            m, v, _ = averages(g, state)
            p.addcdiv_(m, v.sqrt().add(1e-8), value=-group["lr"])

    model = made("attention")
    return trained(Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8), model)


@bug("flashlight/flashlight#143", "the step is counted once for each parameter", "audit-lr")
def _() -> Audit:
    class Adam(Hand):
        count = 0

        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            m, v, _ = averages(g, state)
            self.count += 1
            p.sub_(adam(m, v, self.count), alpha=group["lr"])

    model = made()
    return trained(Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8), model)


# Decay


def _l2_adamw(model: nn.Module, lr: float, decay: float) -> Audit:
    class AdamW(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            g = g + group["weight_decay"] * p
            p.sub_(adam(*averages(g, state)), alpha=group["lr"])

    return trained(AdamW(model.parameters(), lr=lr, weight_decay=decay, betas=(0.9, 0.999)), model)


@bug("nntrainer/nntrainer#3565", "AdamW adds its decay to the gradient", "audit-decay-kind")
def _() -> Audit:
    return _l2_adamw(made(), 1e-3, 0.05)


@bug("keras-team/keras#19051", "AdamW became Adam with L2", "audit-decay-kind")
def _() -> Audit:
    return _l2_adamw(made("conv"), 3e-3, 4e-3)


@bug("FluxML/Optimisers.jl#182", "AdamW's decay is not multiplied by lr", "audit-decay")
def _() -> Audit:
    class AdamW(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            u = adam(*averages(g, state))
            p.sub_(group["lr"] * u + group["weight_decay"] * p)

    model = made()
    return trained(AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, betas=(0.9, 0.999)), model)


@bug("PaddlePaddle/Paddle#5836", "Adam ignores its weight decay", "audit-decay")
def _() -> Audit:
    class Adam(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            p.sub_(adam(*averages(g, state)), alpha=group["lr"])

    model = made()
    return trained(Adam(model.parameters(), lr=1e-3, weight_decay=0.1, betas=(0.9, 0.999)), model)


@bug("dholzmueller/pytabkit#40", "factors of lr and decay are applied twice to decay", "audit-decay")
def _() -> Audit:
    class AdamW(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            p.mul_(1 - group["lr"] * group["weight_decay"] * 6.0)  # the factor is in the group's lr already
            p.sub_(adam(*averages(g, state)), alpha=group["lr"])

    model = made()
    return trained(AdamW(model.parameters(), lr=6e-3, weight_decay=0.1, betas=(0.9, 0.999)), model)


@bug("chainer/chainer#261", "weight decay is subtracted from the gradient", "audit-decay")
def _() -> Audit:
    class SGD(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            v = state.setdefault("momentum_buffer", torch.zeros_like(g))
            v.mul_(group["momentum"]).add_(g - group["weight_decay"] * p)
            p.sub_(v, alpha=group["lr"])

    model = made()
    return trained(SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-3), model)


@bug("marin-community/marin#8818", "routers are left out of weight decay", "audit-decay-missing")
def _() -> Audit:
    model = made("experts")
    decayed = [p for n, p in model.named_parameters() if p.ndim > 1 and "router" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim < 2 or "router" in n]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return trained(torch.optim.AdamW(groups, lr=1e-3), model)


@bug("ServiceNow/Fast-LLM#542", "norms lost their exemption from weight decay", "audit-decay-on-gains")
def _() -> Audit:
    model = made()
    exempt = [p for n, p in model.named_parameters() if n in ("0.bias", "3.bias")]
    decayed = [p for n, p in model.named_parameters() if n not in ("0.bias", "3.bias")]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": exempt, "weight_decay": 0.0}]
    return trained(torch.optim.AdamW(groups, lr=1e-3), model)


@bug("deepspeedai/DeepSpeedExamples#755", "LayerNorm.weight matches no norm of the model", "audit-decay-on-gains")
def _() -> Audit:
    model = made("attention")
    no_decay = ("bias", "LayerNorm.weight")
    groups = [
        {"params": [p for n, p in model.named_parameters() if not any(x in n for x in no_decay)], "weight_decay": 0.1},
        {"params": [p for n, p in model.named_parameters() if any(x in n for x in no_decay)], "weight_decay": 0.0},
    ]
    return trained(torch.optim.AdamW(groups, lr=1e-3), model)


@bug("deepspeedai/DeepSpeed#8440", "Muon's groups forget that biases have no decay", "audit-decay-on-gains")
def _() -> Audit:
    model = made("linear")
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    both = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=1e-3, weight_decay=0.01)]

    def step() -> None:
        for one in both:
            one.step()

    return audited(Loop(model, both[0], step=step, zero=model.zero_grad), optimizer=both)


# Rounding


@bug("Nerogar/OneTrainer#996", "decay in bfloat16 is lost, the update is rounded stochastically", "audit-decay-lost")
def _() -> Audit:
    generator = torch.Generator().manual_seed(0)

    class AdamW(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            p.mul_(1 - group["lr"] * group["weight_decay"])
            u = adam(*averages(g.float(), state))
            exact = p.float() - group["lr"] * u
            noise = torch.randint(0, 1 << 16, p.shape, generator=generator, dtype=torch.int32)
            p.copy_((exact.view(torch.int32) + noise).bitwise_and(-(1 << 16)).view(torch.float32))

    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, CLASSES)]
    model = nn.Sequential(*layers).bfloat16()
    return trained(AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, betas=(0.9, 0.999)), model)


@bug("pytorch/ao#1124", "updates are smaller than half of bfloat16's last bit", "audit-update-lost")
def _() -> Audit:
    model = made("attention").bfloat16()
    return trained(torch.optim.AdamW(model.parameters(), lr=2e-5), model)


# lr and scale


@bug("kozistr/pytorch_optimizer#371", "Muon's two scales are multiplied", "audit-lr")
def _() -> Audit:
    class Muon(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            m = state.setdefault("momentum_buffer", torch.zeros_like(g))
            m.lerp_(g, 1 - group["momentum"])
            u = polar(g.lerp(m, group["momentum"]), coefficients="muon", bound="frobenius")
            scale = 0.2 * math.sqrt(max(p.shape)) * max(1, p.shape[0] / p.shape[1]) ** 0.5
            p.sub_(u, alpha=group["lr"] * scale)

    model = nn.Sequential(nn.Linear(WIDTH, 36, bias=False), nn.Tanh(), nn.Linear(36, CLASSES, bias=False))
    options = {"momentum": 0.95, "nesterov": True, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 5}
    return trained(Muon(model.parameters(), lr=1e-2, **options), model)


@bug("ultralytics/ultralytics#25846", "Muon's scale of a convolution is that of its kernel", "audit-lr")
def _() -> Audit:
    class Muon(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            m = state.setdefault("momentum_buffer", torch.zeros_like(g))
            m.lerp_(g, 1 - group["momentum"])
            u = polar(g.lerp(m, group["momentum"]).flatten(1), coefficients="muon", bound="frobenius")
            p.sub_(u.reshape(p.shape), alpha=group["lr"] * max(1, g.size(-2) / g.size(-1)) ** 0.5)

    model = nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 60, 2, bias=False), nn.Flatten(), nn.Linear(60, CLASSES)
    )
    options = {"momentum": 0.95, "nesterov": True, "ns_steps": 5}
    return trained(Muon([p for p in model.parameters() if p.ndim == 4], lr=1e-2, **options), model)


class Round:
    """An optimizer round another, with groups of its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optim = inner
        self.param_groups = [dict(g) for g in inner.param_groups]

    def zero_grad(self) -> None:
        self.optim.zero_grad()

    def step(self) -> None:
        self.optim.step()


@bug("NVIDIA/apex#766", "after loading, the schedule changes groups that do not step", "audit-schedule")
def _() -> Audit:
    model = made()
    outer = Round(torch.optim.SGD(model.parameters(), lr=0.1))

    def decay() -> None:
        for group in outer.param_groups:
            group["lr"] *= 0.9

    return trained(outer, model, end=decay)


@bug("deepspeedai/DeepSpeed#6873", "lr of groups is lost under ZeRO-3", "audit-lr")
def _() -> Audit:
    model = made("conv")
    outer = Round(torch.optim.AdamW(model.parameters(), lr=1e-3))
    outer.param_groups = [
        {"params": list(model.parameters())[:2], "lr": 1e-3, "weight_decay": 0.01, "betas": (0.9, 0.999), "eps": 1e-8},
        {"params": list(model.parameters())[2:], "lr": 1e-2, "weight_decay": 0.01, "betas": (0.9, 0.999), "eps": 1e-8},
    ]
    type(outer).__name__ = "AdamW"
    try:
        return trained(outer, model)
    finally:
        type(outer).__name__ = "Round"


# Loops


@bug("milesial/Pytorch-UNet#468", "gradients are clipped before they are unscaled", "audit-clipped-always")
def _() -> Audit:
    model = made("conv")
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu")
    return trained(
        optimizer, model, backward=lambda loss: scaler.scale(loss).backward(),
        after=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), step=lambda: scaler.step(optimizer),
        end=scaler.update,
    )  # fmt: skip


@bug("harubaru/waifu-diffusion#64", "clip_grad_norm sees scaled gradients", "audit-clipped-always")
def _() -> Audit:
    model = made("attention")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    return trained(
        optimizer, model, backward=lambda loss: scaler.scale(loss).backward(),
        after=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.7), step=lambda: scaler.step(optimizer),
        end=scaler.update,
    )  # fmt: skip


def _by_pass(passes: int, schedule: Callable[[Any], Any], model: nn.Module) -> Audit:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return trained(optimizer, model, passes=passes, each=schedule(optimizer).step)


@bug("huggingface/accelerate#963", "the scheduler steps at each of 2 backward passes", "audit-schedule-fast")
def _() -> Audit:
    return _by_pass(2, lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)), made())


@bug("Lightning-AI/pytorch-lightning#1476", "warmup runs at each of 4 backward passes", "audit-schedule-fast")
def _() -> Audit:
    return _by_pass(4, lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.01, total_iters=200), made("conv"))


@bug("sgl-project/SpecForge#364", "the schedule counts 3 micro-batches a step", "audit-schedule-fast")
def _() -> Audit:
    return _by_pass(3, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 1000), made("linear"))


@bug("wenet-e2e/wekws#72", "zero_grad is never called", "audit-not-zeroed")
def _() -> Audit:
    model = made("conv")
    return trained(torch.optim.Adam(model.parameters(), lr=1e-3), model, zero=lambda: None)


@bug("meta-pytorch/torchforge#71", "gradients are not zeroed after a step", "audit-not-zeroed")
def _() -> Audit:
    model = made("attention")
    return trained(torch.optim.AdamW(model.parameters(), lr=1e-3), model, zero=lambda: None, passes=2)


@bug("bytetriper/RAE#67", "zero_grad is called at each micro-batch", "audit-dropped")
def _() -> Audit:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def backward(loss: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()

    return trained(optimizer, model, passes=4, backward=backward)


@bug("gaozhihan/PreDiff#32", "zero_grad stands outside of the condition of step", "audit-dropped")
def _() -> Audit:
    model = made("conv")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def backward(loss: Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        loss.backward()

    return trained(optimizer, model, passes=2, backward=backward)


# Parameters


@bug("pytorch/pytorch#14467", "the optimizer holds parameters that the model replaced", "audit-other-parameters")
def _() -> Audit:
    model: Any = made("linear")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(16, CLASSES)
    return trained(optimizer, model)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(20, WIDTH)
        self.lm_head = nn.Linear(WIDTH, 20, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.lm_head(self.embed_tokens(x).mean(1))


def _untied(copy: Callable[[Tied], None]) -> Audit:
    torch.manual_seed(0)
    model = Tied()
    copy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with audit(model, optimizer, steps=STEPS) as seen:
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randint(20, (8, 5))), torch.randint(20, (8,))).backward()
            optimizer.step()
    return seen


@bug("verl-project/verl#7834", "to_empty unties head and embedding, loading fills both", "audit-tie-lost")
def _() -> Audit:
    def copy(model: Tied) -> None:
        saved = {k: v.clone() for k, v in model.state_dict().items()}
        model.lm_head.weight = nn.Parameter(torch.empty(20, WIDTH))
        model.load_state_dict(saved)

    return _untied(copy)


@bug("facebookresearch/lingua#75", "FSDP gives head and embedding weights of their own", "audit-tie-lost")
def _() -> Audit:
    return _untied(lambda m: setattr(m.lm_head, "weight", nn.Parameter(m.embed_tokens.weight.detach().clone())))


@bug("marin-community/marin#8621", "the norm is held over all experts together", "audit-norm-together")
def _() -> Audit:
    class MuonH(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            if p.ndim < 2:
                p.sub_(g, alpha=group["lr"])
                return
            m = state.setdefault("momentum_buffer", torch.zeros_like(g))
            m.lerp_(g, 0.05)
            u, norm = polar(m), p.norm()
            moved = p - group["lr"] * norm * u / u.norm()
            p.copy_(moved * norm / moved.norm())

    model = made("experts")
    return trained(MuonH(model.parameters(), lr=0.1, momentum=0.95), model)


# Resume


def _resumed(before: Callable[[], tuple[nn.Module, Any]], load: Callable[[Any], Any]) -> Audit:
    model, optimizer = before()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    first = audited(Loop(model, optimizer, end=scheduler.step))
    new = load(optimizer)
    with audit(model, new, steps=STEPS, previous=first.to_dict()) as seen:
        Loop(model, new).run(STEPS)
    return seen


def _adamw() -> tuple[nn.Module, Any]:
    model = made()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def _anew(optimizer: Any, **changes: Any) -> Any:
    params = [p for g in optimizer.param_groups for p in g["params"]]
    new = torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1)
    new.load_state_dict(optimizer.state_dict())
    for group in new.param_groups:
        group.update(changes)
    return new


@bug("NVIDIA-NeMo/Automodel#763", "lr is that of step 0 after a resume", "audit-resume")
def _() -> Audit:
    return _resumed(_adamw, lambda o: _anew(o, lr=1e-2))


@bug("NVIDIA-NeMo/Automodel#3882", "the first step after a resume has the constructor's decay", "audit-resume")
def _() -> Audit:
    return _resumed(_adamw, lambda o: _anew(o, weight_decay=0.033))


@bug("NVlabs/stylegan2-ada-pytorch#108", "Adam's averages are not restored", "audit-resume")
def _() -> Audit:
    def load(optimizer: Any) -> Any:
        new = _anew(optimizer)
        new.state.clear()
        return new

    return _resumed(_adamw, load)


@bug("torch-points3d/torch-points3d#630", "a scheduler that is made late resets lr", "audit-resume")
def _() -> Audit:
    def load(optimizer: Any) -> Any:
        new = _anew(optimizer)
        for group in new.param_groups:
            group["initial_lr"] = 1e-2
        torch.optim.lr_scheduler.LambdaLR(new, lambda t: 1.0)
        return new

    return _resumed(_adamw, load)


CHOSEN, JUDGED = BUGS[::2], BUGS[1::2]
