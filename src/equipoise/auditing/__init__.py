"""Audit an optimizer: does it do what it says?

Comes in: a model, its optimizer, and a loop that trains for some steps (`audit`). Goes out: a table tensor × what it
says × what it does, and findings. In the order to read: `record` (hooks), `candidates` (what it may do), `fit` (least
squares), `recorded` (what they are fitted on), `infer` and `low_precision` (which of them it did: a `behaviour`),
`said` and `structure` (comparison), `table`, `auditor`. Beside them: `script` (training scripts), `ranks` (what ranks
trained), `previous` (before and after a resume).
"""

from equipoise.auditing.auditor import Audit, audit
from equipoise.auditing.script import audit_script
from equipoise.auditing.table import Row

__all__ = ["Audit", "Row", "audit", "audit_script"]
