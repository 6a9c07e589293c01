"""Setting → Plan: what hyperparameters will do over a run, what looks wrong, and what published rules suggest.

Comes in: a model and its optimizer, flags, or a TOML file. Goes out: a `Plan` with forecasts and findings. Read
`setting` and `curves` (what a plan is made from), `live` and `toml` (where settings come from), `planning` (the
forecast), `checks` (the findings), `show` (the terminal), `suggestions` (what to set), `transfer` (a setting moved to
another size), `equivalents` (and to another optimizer); `pretrained` and `travel` are about fine-tuning.
"""

from equipoise.finding import SEVERITIES, Finding
from equipoise.planner.planning import SCHEMA, Plan, TensorPlan, plan, plan_setting
from equipoise.planner.setting import KINDS, Group, Setting, Tensor
from equipoise.planner.suggestions.pilot import Pilot, Short, make_optimizer
from equipoise.planner.suggestions.suggestion import Reason, Suggestion, suggest, suggest_setting
from equipoise.planner.toml import read_setting, write_setting
from equipoise.planner.transfer import Transfer, transfer

__all__ = [
    "KINDS",
    "SCHEMA",
    "SEVERITIES",
    "Finding",
    "Group",
    "Pilot",
    "Plan",
    "Reason",
    "Setting",
    "Short",
    "Suggestion",
    "Tensor",
    "TensorPlan",
    "Transfer",
    "make_optimizer",
    "plan",
    "plan_setting",
    "read_setting",
    "suggest",
    "suggest_setting",
    "transfer",
    "write_setting",
]
