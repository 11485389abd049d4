"""The store of a sweep's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.results.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "x")
