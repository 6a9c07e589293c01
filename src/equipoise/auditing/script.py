"""Run a training script, audit the optimizers that step in it, and stop it when the steps are recorded."""

from __future__ import annotations

import gc
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from equipoise import _check
from equipoise.auditing.auditor import Audit
from equipoise.auditing.structure import models_with
from equipoise.optim.dynamics_of import stepping

TOGETHER = 2
"""Steps of one optimizer in which others are looked for."""

PATIENCE = 10
"""The same, where there are others that have parameters and did not step yet."""

LOOKS = 4
"""Backward passes after which optimizers that are not torch's are looked for."""


class EnoughError(BaseException):
    """Ends a script whose steps are recorded; not an `Exception`, so that no script takes it for one of its own."""


def audit_script(path: str | os.PathLike[str], args: Sequence[str] = (), *, steps: int = 20) -> Audit:
    """Audit the optimizers of a script, which is run as `python path args` and stopped after some steps.

    Optimizers that step in turn are audited together. Models are those that hold their parameters.

    Args:
        path: of the script.
        args: its arguments.
        steps: how many steps to record; the first two of the script find the optimizers.

    Returns:
        The `Audit`.
    """
    steps = _check.whole("steps", steps, low=1)
    name = os.fspath(path)
    if not os.path.isfile(path):
        raise ValueError(f"script = {name!r}: is no file; give the path of a Python script")
    catch = _Catch(steps)
    had_args, had_path = sys.argv, list(sys.path)
    sys.argv = [name, *args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    ended = "it ended"
    try:
        runpy.run_path(name, run_name="__main__")
    except EnoughError:
        ended = ""
    except SystemExit as error:
        ended = f"it ended with exit code {error.code}" if error.code else "it ended"
    except Exception as error:
        ended = f"it failed with {type(error).__name__}: {error}{_place(error, name)}"
    finally:
        sys.argv, sys.path[:] = had_args, had_path
        catch.detach()
    if catch.audit is None or not catch.audit.recorded:
        raise ValueError(f"script = {name!r}: {catch.refused or catch.why_not(ended, bool(args))}")
    catch.audit.close()
    catch.audit.ended = ended
    return catch.audit


def _place(error: Exception, path: str) -> str:
    """The line of the script that an error came through."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    return f" (line {lines[-1]})" if lines else ""


class _Catch:
    """Waits for optimizers that step, and audits them."""

    def __init__(self, steps: int) -> None:
        self.audit: Audit | None = None
        self.refused = ""
        """Why an optimizer cannot be audited."""
        self._steps, self._depth, self._looks = steps, 0, 0
        self._seen: dict[int, tuple[Any, int]] = {}
        self._patched: dict[int, tuple[Any, Any]] = {}
        self._idle: set[str] = set()
        self._over = False
        self._earlier = _living()  # of this process, before the script
        self._handles = [
            register_optimizer_step_pre_hook(lambda o, a, kw: self._before()),
            register_optimizer_step_post_hook(lambda o, a, kw: self._after(o)),
        ]
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._look  # Tensor.backward calls it

    def _before(self) -> None:
        self._depth += 1

    def _after(self, optimizer: Any) -> None:
        self._depth -= 1
        if self._depth:  # a step within a step
            return
        if self.audit is not None:
            if self._over:
                raise EnoughError
            return
        _, count = self._seen.get(id(optimizer), (optimizer, 0))
        self._seen[id(optimizer)] = optimizer, count + 1
        if count + 1 >= TOGETHER and (count + 1 >= PATIENCE or not self._others()):
            self._begin([one for one, _ in self._seen.values()])

    def _begin(self, optimizers: list[Any]) -> None:
        for key in list(self._patched):
            self._restore(key)
        try:
            self.audit = Audit(models_with(optimizers), optimizers, self._steps, full=self._full)
        except ValueError as error:
            self.refused = str(error)
            raise EnoughError from None
        for key, (one, _) in self._seen.items():
            if not isinstance(one, torch.optim.Optimizer):
                self._patch(key, one)

    def _full(self) -> None:
        self._over = True

    # Optimizers that have not stepped

    def _made(self) -> list[Any]:
        """The script's optimizers of torch's kind."""
        earlier = {id(one) for one in self._earlier}
        return [one for one in _living() if id(one) not in earlier]

    def _others(self) -> list[Any]:
        """Optimizers of torch's kind with parameters of their own that have not stepped."""
        mine = {id(p) for one, _ in self._seen.values() for g in one.param_groups for p in g["params"]}
        found = []
        for one in self._made():
            params = [p for g in getattr(one, "param_groups", []) for p in g["params"]]
            if id(one) not in self._seen and params and not any(id(p) in mine for p in params):
                found.append(one)
        return found

    def _look(self, *args: Any, **kwargs: Any) -> Any:
        """Before the first backward passes: look for optimizers that no hook of torch's tells of."""
        if self.audit is None and self._looks < LOOKS:
            self._looks += 1
            self._idle |= {type(one).__name__ for one in self._others()}
            for one in gc.get_objects():
                if _hand_written(one) and id(one) not in self._patched:
                    self._patch(id(one), one)
        return self._backward(*args, **kwargs)

    def _patch(self, key: int, one: Any) -> None:
        own, had = one.step, vars(one).get("step")

        def step(*args: Any, **kwargs: Any) -> Any:
            self._before()
            made = own(*args, **kwargs)
            self._after(one)
            return made

        one.step = step
        self._patched[key] = one, had

    def _restore(self, key: int) -> None:
        one, had = self._patched.pop(key)
        if had is None:
            del one.step
        else:
            one.step = had

    # The end

    def why_not(self, ended: str, with_args: bool) -> str:
        """Why nothing was recorded, and what to do."""
        if "exit code" in ended and not self._seen:
            hint = "" if with_args else "; give its own arguments after --: equipoise audit train.py -- --epochs 1"
            return f"{ended} before any optimizer stepped{hint}"
        if "failed" in ended:
            return f"{ended}, before enough steps were made; see that it runs by itself"
        counts = [f"{type(one).__name__} made {n} step{'s' if n > 1 else ''}" for one, n in self._seen.values()]
        if counts:
            least = PATIENCE if self._others() else TOGETHER
            why = f", as {type(self._others()[0]).__name__} has not stepped" if self._others() else ""
            return (
                f"{ended}, and {', '.join(counts)}: at least {least + 1} are needed, of which {least} find the "
                f"optimizers{why}; let it train longer"
            )
        if self._idle:
            return (
                f"{ended}, and step() of {', '.join(sorted(self._idle))} was never called; let it train for some steps"
            )
        return (
            f"{ended}, and no optimizer stepped in this process; an optimizer is what has step() and param_groups. "
            "Where the script starts others that train, put eq.audit into its own loop"
        )

    def detach(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        for key in list(self._patched):
            self._restore(key)
        torch.autograd.backward = self._backward


def _living() -> list[Any]:
    return [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]


def _hand_written(one: Any) -> bool:
    """Whether an object is an optimizer that is not torch's and holds none."""
    kind = type(one)
    if issubclass(kind, type | torch.optim.Optimizer) or not callable(getattr(kind, "step", None)):
        return False
    try:
        groups = object.__getattribute__(one, "__dict__").get("param_groups")
    except AttributeError:
        return False
    right = isinstance(groups, list) and groups and isinstance(groups[0], dict) and "params" in groups[0]
    return bool(right) and stepping(one) is one
