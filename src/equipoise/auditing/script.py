"""Run a training script, audit the first optimizers that step in it, and stop it when the steps are recorded."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from equipoise import _check
from equipoise.auditing.auditor import Audit
from equipoise.auditing.structure import model_with

TOGETHER = 2
"""Steps of one optimizer in which others are looked for."""


class EnoughError(BaseException):
    """Ends a script whose steps are recorded; not an `Exception`, so that no script takes it for one of its own."""


def audit_script(path: str | os.PathLike[str], args: Sequence[str] = (), *, steps: int = 20) -> Audit:
    """Audit the optimizers of a script, which is run as `python path args` and stopped after some steps.

    Optimizers that step in turn are audited together. The model is the largest that holds their parameters.

    Args:
        path: of the script.
        args: its arguments.
        steps: how many steps to record; the first two of the script find the optimizers.

    Returns:
        The `Audit`.
    """
    steps = _check.whole("steps", steps, low=1)
    if not os.path.isfile(path):
        raise ValueError(f"script = {os.fspath(path)!r}: is no file; give the path of a Python script")
    catch = _Catch(steps)
    had_args, had_path = sys.argv, list(sys.path)
    sys.argv = [os.fspath(path), *args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    ended = "it ended"
    try:
        runpy.run_path(os.fspath(path), run_name="__main__")
    except EnoughError:
        ended = ""
    except SystemExit as error:
        ended = f"it ended with exit code {error.code}" if error.code else "it ended"
    except Exception as error:
        ended = f"it failed with {type(error).__name__}: {error}"
    finally:
        sys.argv, sys.path[:] = had_args, had_path
        catch.detach()
    if catch.audit is None or not catch.audit.recorded:
        raise ValueError(
            f"script = {os.fspath(path)!r}: {ended}, and no torch.optim.Optimizer had made more than {catch.count} "
            f"steps, of which the first {TOGETHER} are needed to find the optimizers; let it train for some steps"
        )
    catch.audit.close()
    catch.audit.ended = ended
    return catch.audit


class _Catch:
    """Waits for optimizers that step, and audits them."""

    def __init__(self, steps: int) -> None:
        self.audit: Audit | None = None
        self._steps, self._depth = steps, 0
        self._seen: dict[int, tuple[Any, int]] = {}
        self._over = False
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    @property
    def count(self) -> int:
        """How many steps the optimizer with the most made."""
        return max((n for _, n in self._seen.values()), default=0)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._depth += 1

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._depth -= 1
        if self._depth:  # a step within a step
            return
        if self.audit is not None:
            if self._over:
                raise EnoughError
            return
        _, count = self._seen.get(id(optimizer), (optimizer, 0))
        self._seen[id(optimizer)] = optimizer, count + 1
        if count + 1 == TOGETHER:
            optimizers = [one for one, _ in self._seen.values()]
            model = model_with(optimizers)
            self.audit = Audit(model, optimizers, self._steps, full=self._full)

    def _full(self) -> None:
        self._over = True

    def detach(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
