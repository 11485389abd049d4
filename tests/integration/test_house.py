"""The house stays small: what scripts/house.py counts holds."""

from __future__ import annotations

import pytest

from scripts import house

SOURCES = sorted(house.PACKAGE.rglob("*.py"))


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {str(path.relative_to(house.ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {path: size for path, size in lengths.items() if size > house.MOST_FILE_LINES} == {}


def test_no_function_is_longer_than_the_limit() -> None:
    functions = [found for path in SOURCES for found in house.functions(path)]
    assert len(functions) > 1000
    assert [name for size, name in functions if size > house.MOST_FUNCTION_LINES] == []


@pytest.mark.timeout(120)
def test_one_load_passes_few_files_of_the_load_path() -> None:
    files = house.load_walk()
    assert "load/client.py" in files
    assert len(files) <= house.MOST_LOAD_FILES


@pytest.mark.timeout(120)
def test_one_plan_passes_few_files() -> None:
    files = house.plan_walk()
    assert {"plan/make.py", "engines/vllm.py"} <= set(files)
    assert len(files) <= house.MOST_PLAN_FILES


@pytest.mark.timeout(120)
def test_one_failure_passes_few_files_from_log_to_row() -> None:
    files = house.failure_walk()
    assert {"engines/failures.py", "runner/commit.py"} <= set(files)
    assert len(files) <= house.MOST_FAILURE_FILES
