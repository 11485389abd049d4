"""Which tests `make check` runs for a change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.touched_tests import ALWAYS, ENGINE_TESTS, ROOT, fast_tests


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


@pytest.mark.parametrize(
    ("file", "more"),
    [
        ("orchestrator/engines/toy.py", []),
        ("orchestrator/engines/vllm.py", ["tests/unit/engines/test_vllm.py"]),
        ("orchestrator/engines/recorded/toy.json", []),
        ("tests/contract/deployments.py", []),
        ("tests/contract/engines/toy/fullest.json", []),
    ],
)
def test_a_file_of_an_engine_has_the_tests_of_all_engines(file: str, more: list[str]) -> None:
    assert fast_tests([file], ROOT) == sorted([*ENGINE_TESTS, *more])


def test_a_file_that_contract_tests_read_has_all_of_them() -> None:
    every = sorted(ROOT.glob("tests/contract/test_*.py"))
    assert fast_tests(["tests/contract/prompts.jsonl"], ROOT) == [
        str(test.relative_to(ROOT)) for test in every
    ]


def test_what_is_always_run_exists() -> None:
    assert [name for name in (*ALWAYS, *ENGINE_TESTS) if not (ROOT / name).exists()] == []


def test_every_contract_test_over_the_registry_of_engines_is_a_test_of_engines() -> None:
    over_engines = [
        str(test.relative_to(ROOT))
        for test in ROOT.glob("tests/contract/test_*.py")
        if re.search(r"ENGINES\.(names|shipped)\(\)", test.read_text(encoding="utf-8"))
    ]
    assert [test for test in over_engines if test not in ENGINE_TESTS] == []
