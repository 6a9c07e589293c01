"""An audit from outside: training does not change, what it returns, and what it refuses."""

import copy
import json
import math
from typing import Any

import pytest
import torch
from tests.auditing.loops import Loop, audited, loss_of, made, warned

import equipoise as eq
from equipoise.auditing import audit


def test_training_does_not_change_by_a_bit() -> None:
    ends = []
    for watched in (False, True):
        model = made("attention")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loop = Loop(model, optimizer, after=lambda m=model: torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1))
        if watched:
            audited(loop, steps=5)
        else:
            loop.run(5)
        loop.run(3)
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_hooks_are_gone_afterwards_and_the_step_is_its_own_again() -> None:
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    audited(Loop(model, optimizer), steps=3)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert all(not p._backward_hooks for p in model.parameters())

    class Plain:
        def __init__(self, params: Any) -> None:
            self.param_groups = [{"params": list(params), "lr": 0.1}]

        def step(self) -> None:
            for p in self.param_groups[0]["params"]:
                p.data -= 0.1 * p.grad

        def zero_grad(self) -> None:
            for p in self.param_groups[0]["params"]:
                p.grad = None

    plain = Plain(model.parameters())
    loop = Loop(model, plain, step=lambda: plain.step())
    seen = audited(loop, steps=4)
    assert "step" not in vars(plain)
    assert {row.rule for row in seen.table} == {"SGD"}
    assert abs(seen.table[0].lr - 1) < 1e-3


def test_a_step_within_a_step_is_one_step() -> None:
    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step()
            return super().step(closure)

    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)  # so that both have hooks
    model = made()
    seen = audited(Loop(model, Outer(model.parameters(), lr=0.1)), steps=4)
    assert seen.recorded == 4
    assert abs(seen.table[0].lr - 2) < 1e-3


def test_it_is_done_after_its_steps() -> None:
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = Loop(model, optimizer)
    with audit(model, optimizer, steps=3) as seen:
        count = 0
        while not seen.done:
            loop.run(1)
            count += 1
        loop.run(2)
    assert count == 3
    assert seen.recorded == 3


def test_several_optimizers_are_one_audit() -> None:
    model = made()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    both = [torch.optim.SGD(matrices, lr=0.1), torch.optim.AdamW(rest, lr=1e-3)]

    def step() -> None:
        for one in both:
            one.step()

    seen = audited(Loop(model, both[0], step=step, zero=model.zero_grad), steps=4, optimizer=both)
    assert {row.rule for row in seen.table} == {"SGD", "Adam"}
    assert seen.recorded == 4


def test_equal_rows_fold() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(12, 12, bias=False) for _ in range(40)), torch.nn.Linear(12, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = audited(Loop(model, optimizer), steps=4)
    assert len(seen.table) <= 2
    assert sum(len(row.tensors) for row in seen.table) == 42


def test_what_it_writes(tmp_path: Any) -> None:
    model = made()
    seen = audited(Loop(model, torch.optim.AdamW(model.parameters(), lr=1e-3)), steps=3)
    data = json.loads(seen.save(tmp_path / "audit.json").read_text())
    assert data["schema"] == 1
    assert data["steps"] == 3
    assert data["table"][0]["rule"] == "Adam"
    page = seen.save(tmp_path / "audit.html").read_text()
    assert "AdamW" in page
    assert "0.weight" in page
    seen.show()


def test_names_go_into_the_page_as_text() -> None:
    model = torch.nn.ModuleDict({"<b>x</b>": torch.nn.Linear(12, 6)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inner = model["<b>x</b>"]
    seen = audited(Loop(inner, optimizer), steps=3, model=model)
    assert "<b>x</b>.weight" not in seen.to_html()
    assert "&lt;b&gt;x&lt;/b&gt;" in seen.to_html()


def test_large_tensors_are_sampled() -> None:
    model = made("attention")
    before = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    loop = Loop(model, optimizer)
    with audit(model, optimizer, steps=6, memory=0) as seen:
        loop.run(6)
    assert not warned(seen)
    assert all(math.isclose(r.lr, 1, rel_tol=1e-3) for r in seen.table)
    assert before is not model


def test_arguments_are_checked() -> None:
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="steps = 0: must be a whole number ≥ 1"):
        audit(model, optimizer, steps=0)
    with pytest.raises(ValueError, match=r"must be a torch\.nn\.Module"):
        audit(optimizer, optimizer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"optimizer = \[\]"):
        audit(model, [])
    with pytest.raises(ValueError, match="must have step"):
        audit(model, 3)
    with pytest.raises(ValueError, match="optimizer = LBFGS: it takes several steps"):
        audit(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match="severity = 'loud'"):
        audited(Loop(model, optimizer), steps=1).worse_than("loud")


def test_no_steps_and_fewer_steps_are_said() -> None:
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit(model, optimizer) as seen:
        pass
    assert [f.code for f in seen.findings] == ["audit-no-steps"]
    assert seen.worse_than("error")
    with audit(model, optimizer, steps=5) as seen:
        Loop(model, optimizer).run(2)
    assert "audit-fewer-steps" in [f.code for f in seen.findings]
    assert not seen.worse_than("warning")


def test_gradients_that_a_closure_computes_are_seen() -> None:
    """As Lightning calls every step."""
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loop = Loop(model, optimizer, zero=lambda: None)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, loop.generator)
        loss.backward()
        return loss

    returned: list[Any] = []
    loop.backward = lambda loss: None
    loop.step = lambda: returned.append(optimizer.step(closure=closure))
    seen = audited(loop, steps=4)
    assert warned(seen) == []
    assert {row.rule for row in seen.table} == {"Adam"}
    assert seen.table[0].lr == pytest.approx(1, rel=1e-3)
    assert all(isinstance(loss, torch.Tensor) for loss in returned), "the loss of the closure is handed on"

    def twice(closure: Any) -> None:
        closure()
        torch.optim.AdamW.step(optimizer, closure)

    loop.step = lambda: twice(closure)
    assert warned(audited(loop, steps=3)) == ["audit-dropped"], "two passes, one of them thrown away"

    class Two(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            closure()
            return super().step(closure)

    two = Two(model.parameters(), lr=0.1)
    loop.step = lambda: two.step(closure)
    assert "audit-closure" in warned(audited(loop, steps=3, optimizer=two))


def test_several_models_are_named() -> None:
    parts = [torch.nn.Linear(6, 4), torch.nn.Linear(4, 3), torch.nn.Sequential(torch.nn.Linear(3, 2))]
    optimizer = torch.optim.SGD([p for m in parts for p in m.parameters()], lr=0.1)
    with audit(parts, optimizer, steps=2) as seen:
        for _ in range(2):
            optimizer.zero_grad()
            parts[2](parts[1](parts[0](torch.randn(5, 6)))).square().sum().backward()
            optimizer.step()
    assert warned(seen) == []
    named = {name for row in seen.table for name in row.tensors}
    assert {"Linear 1: weight", "Linear 2: bias", "Sequential: 0.weight"} <= named


def test_sparse_complex_and_meta_are_said() -> None:
    table = torch.nn.Embedding(8, 4, sparse=True)
    sparse = torch.optim.SparseAdam(table.parameters())
    with audit(table, sparse, steps=2) as seen:
        for _ in range(2):
            sparse.zero_grad()
            table(torch.tensor([1, 2])).sum().backward()
            sparse.step()
    assert [(f.code, f.evidence) for f in seen.findings] == [("audit-not-recorded", "it has a sparse gradient")]

    turn = torch.nn.Parameter(torch.ones(4, dtype=torch.complex64))
    far = torch.nn.Parameter(torch.ones(3, device="meta"))
    real = torch.nn.Parameter(torch.ones(5))
    mixed = torch.optim.SGD([turn, far, real], lr=0.1)
    with audit(None, mixed, steps=2) as seen:
        for _ in range(2):
            mixed.zero_grad()
            (turn.abs().sum() + real.square().sum()).backward()
            mixed.step()
    said = {f.evidence for f in seen.findings if f.code == "audit-not-recorded"}
    assert said == {"it is complex", "it lies on the meta device: it has no values"}


def test_the_public_name() -> None:
    assert eq.audit is audit
