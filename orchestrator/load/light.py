"""Keeps what the load path does not need out of its processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas:
    """An import hook that knows no pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ImportError("pandas is left out of this process")
        return None


def leave_pandas_out() -> None:
    """For processes of our own only. pyarrow imports pandas, where it is installed, with the first array it makes:
    0.35 s of CPU that would be counted as the client's."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas())
