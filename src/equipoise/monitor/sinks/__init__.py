"""Sinks: where watch sends its numbers and findings besides the run.

Each needs its library only when it is made.

Comes in: rows and findings of a watched run. Goes out: calls of a tracker, a webhook or a command. Read `base` (what a
sink is), `sink_thread` and `sending` (so that training never waits for one), `summary` (what is sent of a row), then a
sink: `tensorboard`, `wandb`, `mlflow`, `trackio`, `logs`, `alerts`.
"""

from equipoise.monitor.sinks.alerts import Alerts, Command, Webhook
from equipoise.monitor.sinks.base import Place, Sink
from equipoise.monitor.sinks.logs import Logs
from equipoise.monitor.sinks.mlflow import MLflow
from equipoise.monitor.sinks.tensorboard import TensorBoard
from equipoise.monitor.sinks.trackio import Trackio
from equipoise.monitor.sinks.wandb import WandB

__all__ = [
    "BY_NAME",
    "Alerts",
    "Command",
    "Logs",
    "MLflow",
    "Place",
    "Sink",
    "TensorBoard",
    "Trackio",
    "WandB",
    "Webhook",
]

BY_NAME = {"logging": Logs, "mlflow": MLflow, "tensorboard": TensorBoard, "trackio": Trackio, "wandb": WandB}
"""The sinks that can be asked for by name."""
