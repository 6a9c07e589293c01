"""The look at the end of a run: it is left out, and said so, where it would take far longer than training allows."""

from pathlib import Path

from equipoise.monitor.attach.review import Reviewing


def test_a_review_that_would_take_too_long_is_left_out_and_said(tmp_path: Path) -> None:
    reviewing = Reviewing(tmp_path / "none", overhead=0.01)
    reviewing.measured(trained=60.0, tensors=10_000)
    (finding,) = reviewing.finish()
    assert (finding.code, finding.severity) == ("run-not-reviewed", "info")
    assert "10,000 tensors" in finding.evidence


def test_one_that_takes_less_is_made(tmp_path: Path) -> None:
    for trained, tensors in ((1.0, 500), (3600.0, 10_000)):
        reviewing = Reviewing(tmp_path / "none", overhead=0.01)
        reviewing.measured(trained, tensors)
        assert reviewing.finish() == [], "there is no run, of which nothing is said here"
