"""The reference sweep: stages, edges that move, and that it is a function of what is stored."""

import math

import pytest
from tests.lab.workloads.synthetic_workloads import WORKLOAD, bowl, ended, swept

from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads import STAGES, WORKLOADS, best, planned
from equipoise.lab.workloads.sweep import SEEDS, SHRINKS, further, grid, others, settled, validation


def test_each_kind_is_judged_on_as_many_as_it_is_chosen_on() -> None:
    assert len(WORKLOADS) >= 12
    for kind in {w.kind for w in WORKLOADS.values()}:
        halves = [w.half for w in WORKLOADS.values() if w.kind == kind]
        assert 0 < halves.count("choosing") <= halves.count("held-out") + halves.count("fresh"), kind
    assert {w.trial.optimizer for w in WORKLOADS.values()} == {"adamw", "lion", "muon", "sgdm"}
    assert len({w.trial.key for w in WORKLOADS.values()}) == len(WORKLOADS)
    assert all(w.trial.precision == "float32" for w in WORKLOADS.values())
    assert all(w.proxy in ("", *WORKLOADS) and w.proxy != w.name for w in WORKLOADS.values())
    repeated = [w.epochs for w in WORKLOADS.values() if w.kind == "text repeated"]
    assert all(14 < epochs < 16 for epochs in repeated)


def test_the_first_stage_is_the_grid() -> None:
    plan = planned(WORKLOAD, {}, {})
    assert list(plan) == ["coarse"]
    found = [(t.lr, WORKLOAD.shrink(t.lr, t.weight_decay)) for t in plan["coarse"]]
    assert found == [(lr, pytest.approx(s, rel=1e-2)) for lr in WORKLOAD.lrs for s in SHRINKS]


@pytest.mark.parametrize(
    ("lr", "shrink", "lrs", "widest"),
    [
        (3e-3, 0.3, {1e-3, 3e-3, 1e-2}, 3.0),  # inside: nothing is added
        (3e-2, 0.3, {1e-3, 3e-3, 1e-2, 3e-2, 1e-1}, 3.0),
        (1e-4, 0.3, {3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2}, 3.0),
        (3e-3, 12.0, {1e-3, 3e-3, 1e-2}, 30.0),
        (3e-3, 0.0, {1e-3, 3e-3, 1e-2}, 3.0),  # no decay is an end with nothing beyond
    ],
)
def test_the_grid_grows_until_the_best_is_inside(lr: float, shrink: float, lrs: set[float], widest: float) -> None:
    known, _ = swept(bowl(lr, shrink))
    base = [o.trial for o in known.values() if o.trial.seed == 0]
    rows = {t.lr for t in base} - {t.lr for t in planned_fine(known)}
    assert lrs <= rows
    assert rows - lrs <= {o.trial.lr for o in known.values()} - set(WORKLOAD.lrs)
    top = settled(WORKLOAD, known)
    assert top is not None
    assert top.lr == lr
    assert min(lrs) < top.lr < max(lrs)
    grown = max(
        WORKLOAD.shrink(t.lr, t.weight_decay)
        for t in grid(WORKLOAD, [top.lr], (*SHRINKS, 10.0, 30.0))
        if t.key in known
    )
    assert grown == pytest.approx(widest, rel=1e-2)


def planned_fine(known: dict) -> list[Trial]:
    top = settled(WORKLOAD, known)
    assert top is not None
    return planned(WORKLOAD, known, {WORKLOAD.name: top})["fine"][:2]


def test_all_stages_come_and_the_best_has_all_seeds() -> None:
    known, order = swept(bowl(5.5e-3, 1.0))
    top = settled(WORKLOAD, known)
    assert top is not None
    plan = planned(WORKLOAD, known, {WORKLOAD.name: top})
    assert list(plan) == list(STAGES)
    assert [t.key for t in order[:9]] == [t.key for t in plan["coarse"]]
    chosen = best(WORKLOAD, known)
    assert chosen is not None
    assert chosen.lr == pytest.approx(5.4e-3, rel=0.05), "the fine stage comes nearer than the grid"
    assert all(t.key in known for t in others(chosen))
    assert validation(known)[chosen.key][1] == SEEDS
    tried = {(o.trial.schedule, o.trial.warmup) for o in known.values()}
    assert {("cosine", 0), ("cosine", 200), ("linear", 50), ("constant", 50)} <= tried
    assert len(known) < 70


def test_a_sweep_goes_on_from_any_part_of_it() -> None:
    whole, order = swept(bowl(3e-2, 1.0))
    half = {t.key: whole[t.key] for t in order[: len(order) // 2]}
    again, rest = swept(bowl(3e-2, 1.0), known=half)
    assert [t.key for t in rest] == [t.key for t in order[len(order) // 2 :]]
    assert again == whole


def test_what_diverges_moves_the_grid_down() -> None:
    def loss(trial: Trial) -> float:
        return math.inf if trial.lr > 5e-4 else bowl(1e-4, 0.3)(trial)

    known, _ = swept(loss)
    top = best(WORKLOAD, known)
    assert top is not None
    assert top.lr < 5e-4
    assert any(o.status == "diverged" for o in known.values())


def test_the_best_is_chosen_among_settings_with_all_seeds() -> None:
    lucky, steady = WORKLOAD.at(1e-3, 0.0), WORKLOAD.at(3e-3, 0.0)
    known = {lucky.key: ended(lucky, 1.9), steady.key: ended(steady, 2.0)}
    assert best(WORKLOAD, known) == lucky
    known |= {t.key: ended(t, 2.0) for t in others(steady)}
    assert best(WORKLOAD, known) == steady
    assert best(WORKLOAD, {}) is None


def test_values_beyond_the_grid_are_round() -> None:
    with pytest.raises(ValueError, match=r"value = 0\.002: must be 1 or 3 times a power of ten"):
        further(2e-3, up=True)
