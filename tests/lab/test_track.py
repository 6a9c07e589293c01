"""The optimizer track goes on where it was, trains no more than it needs, and finds the shortest runs that pass."""

from __future__ import annotations

import numpy as np
import pytest
import track

SPEED = {"adamw": 1.0, "muon": 1.5, "hyperball_muon": 1.9, "brake_muon": 0.8}


def loss(trial: track.Trial) -> float:
    """Of a made-up run: a power of its length, a bowl in ln(lr), and noise by seed."""
    entry = next(e for e in track.ENTRIES if e.optimizer == trial.optimizer)
    middle = entry.lrs[min(1, len(entry.lrs) - 1)]
    noise = np.random.default_rng([trial.seed, trial.steps]).normal(0, 2e-3)
    return float(
        2 * (trial.steps * SPEED[trial.optimizer]) ** -0.1 * (1 + 0.02 * np.log(trial.lr / middle) ** 2 + noise)
    )


def run(names: list[str], done: track.Losses) -> int:
    count = 0
    some = [e for e in track.ENTRIES if e.name in names]
    while todo := [t for e in some if (t := track.ahead(e, done)) is not None]:
        assert todo[0].key not in done
        done[todo[0].key] = loss(todo[0])
        count += 1
    return count


def test_it_finds_the_shortest_runs() -> None:
    done: track.Losses = {}
    names = ["adamw", "muon", "hyperball", "brake"]
    trained = run(names, done)
    assert run(names, done) == 0
    assert trained < 150  # 4 × 8 for a rung each, and what finds lrs and rungs
    aim = track.target(done)
    assert aim is not None
    for entry in (e for e in track.ENTRIES if e.name in names):
        lr = track.best_lr(entry, done)
        assert lr == entry.lrs[1]
        steps = track.fewest(entry, done)
        assert steps is not None
        # AdamW's own loss after the reference is the target, which it is not below with p < 0.01.
        assert steps / track.REFERENCE == pytest.approx(1 / SPEED[entry.optimizer], rel=0.13)
        assert steps >= track.REFERENCE / SPEED[entry.optimizer] * 0.99
    assert track.fewest(track.ENTRIES[2], done) is None


def test_it_goes_on_where_it_was() -> None:
    """Whatever was stored, in whatever order, counts, and one more outcome is all that a run of one trial adds."""
    whole: track.Losses = {}
    run(["adamw", "muon"], whole)
    order = np.random.default_rng(0).permutation(list(whole))
    part = {key: whole[key] for key in order[: len(order) // 2]}
    run(["adamw", "muon"], part)
    assert part == whole
    assert [track.fewest(e, part) for e in track.ENTRIES[:2]] == [track.fewest(e, whole) for e in track.ENTRIES[:2]]


def test_others_wait_for_the_target() -> None:
    hyperball = next(e for e in track.ENTRIES if e.name == "hyperball")
    done = {hyperball.trial(lr, track.REFERENCE, 0).key: 3.0 for lr in hyperball.lrs}
    assert track.ahead(hyperball, done) is None
    assert track.fewest(hyperball, done) is None


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], None),
        ([1.005], None),
        ([1.02], False),
        ([0.99] * 8, True),
        ([1.0] * 8, False),
        ([0.98, 0.995] * 4, True),
        ([0.98, 1.0] * 4, False),
        ([0.9, 1.09] * 4, False),
        ([0.9] * 7 + [float("inf")], False),
        ([float("inf")], False),
    ],
)
def test_a_length_passes_with_eight_seeds_below(losses: list[float], expected: bool | None) -> None:
    assert track.passes(losses, 1.0) is expected
