"""Reads the data files that lie beside modules."""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def data_beside(module: str, name: str) -> Any:
    """The content of the JSON file ``name`` in the folder of a module.

    ``module``: the ``__file__`` of that module. All callers get the same object, which must not be
    changed.
    """
    return json.loads(Path(module).with_name(name).read_text("utf-8"))
