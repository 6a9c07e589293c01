"""Which steps are measured: every k-th, or enough to cover the whole run and then as many as fit into the overhead."""

from __future__ import annotations

import math

from equipoise import _check

COVER = 6
"""The wait for the next measured step is at most this part, one sixth, of the steps so far, whatever it costs: some 30
of the first 400 steps are measured, however short they are."""

FINE, MOST = 32, 0.05
"""Up to this share of the training time it is at most one 32nd: a run may end at any step, and its end must be seen.
`FAST_SHARE` of it goes by the clock."""

HELD, TRIALS = 0.06, 8
"""What a step needs to be measured afterwards is kept while that takes less than this share of a step, and for so many
steps to find out: the last step of a run is then measured whichever it is."""

FAST_SHARE, SLOW_SHARE = 0.55, 0.25
"""The parts of the allowed overhead that go to the rows of every measured step, and to spectra. The rest is for what
the clock does not see: numbers that are logged, caches that training finds cold."""


class Cadence:
    """Decides, after each measured step, which one is next.

    Coverage comes first, then cost. How long a run will be is not known, so measured steps are spread in proportion to
    the steps so far: closer than that as `overhead` allows.

    Args:
        every: measure each k-th step, and the first; None to let `overhead` decide.
        overhead: allowed share of the training time, spectra included; exceeded for coverage, which
            `COVER` takes at any cost, and `FINE` up to `MOST`.
        start: the step before the first.
        steps: the last step, where it is known; it is measured, and so is the one before.

    >>> cadence = Cadence(every=5)
    >>> [cadence.measures(step) for step in range(1, 12) if cadence.due(step)]
    [1, 5, 10]

    Where steps are counted with gaps, it is the first one from each k-th on.
    """

    def __init__(
        self, every: int | None = None, overhead: float = 0.01, start: int = 0, steps: int | None = None
    ) -> None:
        self.every = None if every is None else _check.whole("every", every, low=1)
        self.overhead = _check.number("overhead", overhead, low=0, high=1, open_low=True)
        self._end = math.inf if steps is None else _check.whole("steps", steps, low=1)
        self._start, self._next, self._last = start, start + 1, start
        self.measured = 0
        """How many steps were measured."""
        self.trained = self.watched = self.spectral = 0.0
        """Seconds so far of training, of watching, and of the part of it that went to spectra."""
        self._tick: float | None = None
        self._own = self._beside = 0.0
        self.step_time = math.nan
        """Seconds of a recent training step; pauses, as for evaluation, do not count."""
        self.cost = 0.0
        """Seconds that the last measured step took, without spectra."""
        self._setup = 0.0
        self._keeping, self._trials = math.inf, 0

    def due(self, step: int) -> bool:
        """Whether a step is measured."""
        return self.following(step - 1) == step

    def following(self, step: int) -> int:
        """The first step after this one that is measured, as far as is known."""
        following = self._next
        if self.every is not None and self._last > self._start:
            following = (self._last // self.every + 1) * self.every
        elif self.every is not None:
            following = step + 1
        if step < self._end:
            following = min(following, self._end - 1)
        return max(step + 1, int(following))

    def measures(self, step: int) -> int:
        """Take note that a step is measured; gives it back."""
        self._last = step
        self.measured += 1
        return step

    def begins(self, now: float) -> None:
        """A training step begins at this time, and the one before ends."""
        if self._tick is not None:
            self.trained_for(max(0.0, now - self._tick - self._own))
        self._tick, self._own = now, 0.0

    def spent(self, seconds: float) -> float:
        """Take note that this much of the training step was watching's own."""
        self._own += seconds
        return seconds

    def trained_for(self, seconds: float) -> None:
        """Count one training step, watching left out."""
        if math.isnan(self.step_time):
            self.step_time = seconds
        seconds = min(seconds, 3 * self.step_time)
        self.step_time += 0.1 * (seconds - self.step_time)
        self.trained += seconds

    def watched_for(self, seconds: float, spectra: float = 0.0) -> None:
        """Count the cost of one measured step, and the part of it that went to spectra."""
        self.watched += seconds
        self.spectral += spectra
        self.cost = seconds - spectra
        if self.measured <= 1:
            self._setup = self.cost  # code is loaded and memory laid out, once; nothing can be saved of it any more

    @property
    def keeps(self) -> bool:
        """Whether each step is kept until the next, should it be the last."""
        return self.every is None and (self.tries or self._keeping <= HELD * self.step_time)

    @property
    def tries(self) -> bool:
        """Whether it is still to be found out what that takes."""
        return self._trials < TRIALS

    def kept(self, seconds: float) -> None:
        """Count what it took to keep a step: the least so far, as the machine may have been busy in others."""
        self._keeping, self._trials = min(seconds, self._keeping), self._trials + 1

    def also(self, seconds: float) -> None:
        """Count what watching took in a step that is not measured, as to make a row of the one before."""
        self.watched += seconds

    def beside(self, total: float) -> None:
        """Count what the thread that writes has taken, so far and in all."""
        self.watched += total - self._beside
        self._beside = total

    @property
    def account(self) -> tuple[float, float, float, float]:
        """Seconds: cost of the last measured step, what was spent on such steps, of training, and of a step of it."""
        spent = self.watched - self.spectral - self._setup
        return self.cost, spent, self.trained, 0.0 if math.isnan(self.step_time) else self.step_time

    def plan(self, step: int, account: tuple[float, float, float, float] | None = None) -> None:
        """Choose the next step to measure, after one was.

        Args:
            step: the step that was measured.
            account: `account` of one process, where several must choose alike. Default: this one's own.
        """
        cost, spent, trained, step_time = account or self.account

        def paid(share: float) -> float:
            """Steps until a share of the training time has paid for what was measured, and for one more."""
            return (cost + spent - share * trained) / (share * step_time) if step_time > 0 else 1.0

        done = step - self._start
        fine = max(done / FINE, paid(max(FAST_SHARE * MOST, self.overhead)))
        wait = min(done / COVER, fine, paid(FAST_SHARE * self.overhead))
        self._next = step + max(1, math.ceil(wait))

    @property
    def credit(self) -> float:
        """Seconds that spectra may take now."""
        return SLOW_SHARE * self.overhead * self.trained - self.spectral

    @property
    def share(self) -> float:
        """Watching's share of the training time so far, without what the first measured step took to set up."""
        return self.seconds / self.trained if self.trained else math.nan

    @property
    def seconds(self) -> float:
        """What watching took so far, without what the first measured step took to set up."""
        return self.watched - self._setup
