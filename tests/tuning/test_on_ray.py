"""Searches on a Ray cluster of this machine: they find what searches here find, and lose nothing by a dead worker."""

import os
import time
from collections.abc import Iterator

import pytest

from equipoise.tuning import Trial, tune

pytest.importorskip("optuna")
ray = pytest.importorskip("ray")

# Ray's own.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

SPACE = {"x": (0.0, 4.0)}


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One for all tests, which join it, as starting one takes seconds."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def test_trials_run_in_other_processes_and_all_are_told() -> None:
    pid = os.getpid()

    def train(trial: Trial) -> float:
        assert os.getpid() != pid
        return (trial.x - 2) ** 2

    found = tune(train, space=SPACE, trials=6, seed=0, on="ray", jobs=2, tell=quiet)
    assert len(found.trials) == 6
    assert not found.failed
    assert found.loss == pytest.approx(min((t.params["x"] - 2) ** 2 for t in found.trials))


def test_reports_stop_hopeless_trials() -> None:
    def train(trial: Trial) -> float:
        level = 0.0 if trial.number < 4 else 9.0
        for step in range(3):
            trial.report(step, level)
        return level

    found = tune(train, space=SPACE, trials=6, seed=0, on="ray", tell=quiet)
    assert sorted(found.stopped) == [4, 5]
    assert "median" in found.stopped[4]


def test_a_trial_that_raises_dies_or_gives_nan_is_failed_with_its_message() -> None:
    def train(trial: Trial) -> float:
        if trial.number == 0:
            raise RuntimeError("out of luck")
        if trial.number == 1:
            os._exit(3)
        return float("nan") if trial.number == 2 else 1.0

    found = tune(train, space=SPACE, trials=4, seed=0, on="ray", tell=quiet)
    assert sorted(found.failed) == [0, 1, 2]
    for number, said in enumerate(("out of luck", "on Ray", "nan")):
        assert said in found.failed[number]
    assert found.loss == 1.0


def test_a_trial_that_hangs_is_killed() -> None:
    found = tune(lambda trial: time.sleep(3600) or 0.0, space=SPACE, trials=1, on="ray", timeout=3, tell=quiet)
    assert "no end after 3 s" in found.failed[0]


def test_what_several_jobs_need_is_said() -> None:
    with pytest.raises(ValueError, match='on="ray" trains several'):
        tune(lambda trial: 0.0, space=SPACE, jobs=2, tell=quiet)
    with pytest.raises(ValueError, match="on = 'slurm'"):
        tune(lambda trial: 0.0, space=SPACE, on="slurm", tell=quiet)
