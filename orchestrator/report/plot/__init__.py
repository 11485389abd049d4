"""Pictures for notebooks: ``from orchestrator import plot``, then ``plot.curve("results/")``.

Each function draws into matplotlib Axes, which it returns. docs/guides/notebooks.md has examples.
"""

from orchestrator.report.plot.charts import curve, frontier
from orchestrator.report.plot.distributions import ecdf
from orchestrator.report.plot.timelines import timeline

__all__ = ["curve", "ecdf", "frontier", "timeline"]
