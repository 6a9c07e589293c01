"""Findings that `watch` raises about itself."""

from __future__ import annotations

from pathlib import Path

from equipoise.finding import Finding


def update_lost(name: str, step: int, share: float, dtype: str, limit: float) -> Finding:
    """Low precision loses most of a step.

    Args:
        name: of the tensor.
        step: of the measurement.
        share: of weights that did not change.
        dtype: of the weights.
        limit: the share that is usual.
    """
    return Finding(
        "update-lost",
        "warning",
        name,
        f"step {step} left {share:.0%} of the {dtype.removeprefix('torch.')} weights unchanged",
        f"at most {limit:.0%}",
        "keep float32 weights (autocast computes in low precision), or use an optimizer with a float32 copy",
        "docs/watch.md",
    )


def watch_failed(step: int, error: Exception, limit: int) -> Finding:
    """Something went wrong inside watch.

    Args:
        step: at which.
        error: what.
        limit: after how many failures watch gives up.
    """
    return Finding(
        "watch-failed",
        "warning",
        f"step {step}",
        f"{type(error).__name__}: {error}",
        "no failures",
        f"training is not affected; watch stops measuring after {limit} failures",
        "docs/watch.md",
    )


def sink_failed(name: str, error: Exception) -> Finding:
    """A sink is off from now on.

    Args:
        name: of the sink.
        error: what went wrong.
    """
    return Finding(
        "sink-failed",
        "warning",
        f"sink {name}",
        f"{type(error).__name__}: {error}",
        "a sink that accepts what it is sent",
        "the run itself has everything; fix the sink before the next run",
        "docs/send.md",
    )


def other_parameters(others: int, count: int) -> Finding:
    """Some of the optimizer's parameters are not the model's.

    Args:
        others: how many.
        count: of how many.
    """
    return Finding(
        "other-parameters",
        "warning",
        "optimizer",
        f"{others} of the optimizer's {count} parameters do not belong to the model",
        "only parameters of the model",
        "they are watched without names; pass a module that holds all, such as torch.nn.ModuleList([model, loss])",
        "docs/watch.md",
    )


def forward_not_seen(compiled: bool) -> Finding:
    """No forward pass was looked at.

    Args:
        compiled: whether the model is compiled and spread over processes.
    """
    return Finding(
        "forward-not-seen",
        "info",
        "forward pass",
        "a model that is compiled and sharded is not looked at"
        if compiled
        else "no measured step had a training pass through the model that was given to eq.watch",
        "one in each measured step",
        "give eq.watch the model whose call trains: the compiled one, if it is compiled; it must be called itself, in "
        "training mode and with gradients",
        "docs/watch.md",
    )


def not_reviewed(path: Path, tensors: int, seconds: float) -> Finding:
    """The run is not looked at when it ends, as there are so many tensors.

    Args:
        path: of the run.
        tensors: how many.
        seconds: what looking would take.
    """
    return Finding(
        "run-not-reviewed",
        "info",
        str(path),
        f"a review of {tensors:,} tensors takes about {seconds:.0f} s, more than 2 % of the training so far",
        "a review when the run ends",
        "Run.open(path).diagnose() and equipoise report make it",
        "docs/watch.md",
    )
