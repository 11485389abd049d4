"""Which tests `make check` runs for a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.touched_tests import ALWAYS, ROOT, fast_tests


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("orchestrator/load/clock.py", ["tests/unit/load/test_clock.py"]),
        ("tests/unit/load/test_clock.py", ["tests/unit/load/test_clock.py"]),
        ("orchestrator/load/inner.py", ["tests/unit/load/test_other.py"]),  # nothing mirrors it
        ("orchestrator/__init__.py", []),
        ("orchestrator/load/constants.json", []),
        ("tests/unit/load/test_gone.py", []),
        ("docs/index.md", []),
    ],
)
def test_a_change_has_the_tests_that_mirror_or_import_it(
    file: str, tests: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "tests" / "unit" / "load"
    folder.mkdir(parents=True)
    (folder / "test_clock.py").write_text("from orchestrator.load.clock import now")
    (folder / "test_other.py").write_text("from orchestrator.load.inner import x\n")
    (folder / "test_third.py").write_text("from orchestrator.load.inner_parts import x\n")
    assert fast_tests([file], tmp_path) == tests


def test_what_is_always_run_exists() -> None:
    assert [name for name in ALWAYS if not (ROOT / name).exists()] == []
