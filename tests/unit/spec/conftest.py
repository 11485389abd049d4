"""Hypothesis without deadlines: how long one example takes says more about the machine than about
the code.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")
