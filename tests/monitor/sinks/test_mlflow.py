"""MLflow's client reads back what was sent, from a database in a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.monitor.sinks.sent_run import right, run

import equipoise as eq

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One for all: MLflow takes seconds to make its tables."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def mlflow(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    import mlflow

    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(database)
    yield mlflow
    mlflow.set_tracking_uri(before)


def metrics(mlflow: object, run_id: str) -> dict[str, dict[int, float]]:
    client = mlflow.MlflowClient()  # type: ignore[attr-defined]
    out = {}
    for name in client.get_run(run_id).data.metrics:
        values = client.get_metric_history(run_id, name)
        assert len({m.step for m in values}) == len(values), name
        out[name] = {m.step: m.value for m in values}
    return out


def known(path: Path) -> str:
    with eq.Run.open(path) as stored:
        return stored.meta["sinks"]["mlflow"]["run_id"]


def test_metrics_and_tags_are_read_back(tmp_path: Path, mlflow: object) -> None:
    run(tmp_path / "a", "mlflow")
    sent = metrics(mlflow, known(tmp_path / "a"))
    for name, values in right(tmp_path / "a").items():
        assert sent[name] == pytest.approx(values), name
    stored = mlflow.MlflowClient().get_run(known(tmp_path / "a"))  # type: ignore[attr-defined]
    assert stored.info.status == "FINISHED"
    assert stored.info.run_name == "a"
    text = "step 5: 0.weight: evidence. Expected: expected. To do: advice. (source)"
    assert stored.data.tags["equipoise/update-lost"] == text
    run(tmp_path / "a", "mlflow", resume=3, first=10)
    assert list(metrics(mlflow, known(tmp_path / "a"))["equipoise/log/loss"]) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_active_run_is_used_and_left_open(tmp_path: Path, mlflow: object) -> None:
    with mlflow.start_run() as mine:  # type: ignore[attr-defined]
        run(tmp_path / "a", "mlflow")
        assert known(tmp_path / "a") == mine.info.run_id
        assert mlflow.active_run().info.status == "RUNNING"  # type: ignore[attr-defined]
    assert len(metrics(mlflow, mine.info.run_id)["equipoise/log/loss"]) == 5
