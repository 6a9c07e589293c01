"""Trackio reads back what was sent, from its own database."""

from pathlib import Path

import pytest
from tests.monitor.sinks.sent_run import right, run


def read(project: str, name: str) -> dict[str, dict[int, float]]:
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs(project, name)
    steps = [row["step"] for row in rows]
    assert len(set(steps)) == len(steps)
    names = {key for row in rows for key in row if key.startswith("equipoise/")}
    return {key: {row["step"]: row[key] for row in rows if key in row} for key in names}


def test_rows_and_alerts_are_read_back(tmp_path: Path) -> None:
    import trackio

    path = tmp_path / "trackio-a"
    run(path, "trackio")
    sent = read("equipoise", "trackio-a")
    for name, values in right(path).items():
        assert sent[name] == pytest.approx(values), name
    alerts = next(r for r in trackio.Api().runs("equipoise") if r.name == "trackio-a").alerts()
    # A set: on a busy machine trackio has stored an alert twice that it was given once.
    assert {(a["title"], a["level"], a["step"]) for a in alerts} == {("equipoise: update-lost", "warn", 5)}
    run(path, "trackio", resume=3, first=10)
    assert list(read("equipoise", "trackio-a")["equipoise/log/loss"]) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_active_run_is_used_and_left_open(tmp_path: Path) -> None:
    import trackio

    mine = trackio.init(project="mine", name="b", embed=False)
    run(tmp_path, "trackio")
    trackio.log({"own": 1.0})
    trackio.finish()
    assert mine.name == "b"
    assert len(read("mine", "b")["equipoise/log/loss"]) == 5


def test_a_run_of_the_users_own_may_begin_later(tmp_path: Path) -> None:
    import trackio

    from equipoise.monitor.sinks import Trackio

    sink = Trackio(name="ours")
    trackio.init(project="mine", name="later", embed=False)
    sink.send(1, {"equipoise/a": 2.0})
    trackio.finish()
    sink.send(2, {"equipoise/a": 3.0})
    sink.close("finished")
    assert read("equipoise", "ours") == {"equipoise/a": {1: 2.0, 2: 3.0}}
