"""Keeps pandas out of commands, which make no frames."""

import sys


def leave_pandas_out() -> None:
    """Makes every later import of pandas in this process fail; call it before pyarrow makes arrays.

    pyarrow imports pandas with the first array it makes: 0.35 s of CPU time that a command would
    spend at its start, and a load client while it sends requests. The process must be one of our
    own, not a notebook's.
    """
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas())


class _NoPandas:
    """An import hook that finds no pandas. (None in sys.modules would do for Python, but pyarrow's
    compiled imports would take it for the module.)
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ImportError("pandas is left out of this process")
