from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.ray_on_this_machine import RayOnThisMachine


@pytest.fixture(scope="package")
def two_nodes() -> Iterator[RayOnThisMachine]:
    """A two-node Ray cluster on this machine, shared by all tests that do not break it."""
    with RayOnThisMachine(nodes=2, cpus=4) as cluster:
        yield cluster
