"""Runs the fast tests of what was changed since main: ``make check``.

    python scripts/touched_tests.py [--since REF] [--list]

For a file of the program these are the unit tests that mirror it, or, where none does, those of its
room that import it; a changed test is run itself. For a file of an engine the tests of all engines
are run, too, and for a file that contract tests read these tests. A few tests of everything come
first. Tests of real engines, of clusters and of browsers are left to ``make test``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = (  # whatever was changed: names and links that exist, tables and helps that are true
    "tests/unit/base",
    "tests/unit/cli/test_command.py",
    "tests/unit/documentation",
    "tests/unit/test_documented_tables.py",
    "tests/unit/test_imported_names.py",
)
LEFT_OUT = "not (vllm or sglang or transformers or llama_cpp or cluster or chaos or browser)"
TEST_FOLDERS = ("tests/unit/", "tests/contract/")
CONTRACT = "tests/contract/"
ENGINE_FACTS = (
    "orchestrator/engines/",
    "tests/contract/deployments.py",
    "tests/contract/engines/",
    "tests/contract/recorded.py",
)
ENGINE_TESTS = (  # those that run over every engine, and those that list all engines
    "tests/contract/test_deployments.py",
    "tests/contract/test_engine_flags.py",
    "tests/contract/test_engine_logs.py",
    "tests/contract/test_engines.py",
    "tests/contract/test_quantizations.py",
    "tests/contract/test_recipes.py",
    "tests/contract/test_request_fields.py",
    "tests/contract/test_routers.py",
    "tests/unit/engines/test_command_lines.py",
    "tests/unit/spec/test_documentation.py",
    "tests/unit/spec/test_schema.py",
)


def changed_files(since: str) -> list[str]:
    """Files that differ from where this branch left ``since``, new ones too."""
    base = _git("merge-base", since, "HEAD").strip()
    changed = _git("diff", "--name-only", "--diff-filter=d", base).splitlines()
    new = _git("ls-files", "--others", "--exclude-standard").splitlines()
    return sorted({*changed, *new})


def _git(*argv: str) -> str:
    return subprocess.run(
        ["git", *argv], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def fast_tests(files: Iterable[str], root: Path) -> list[str]:
    """The test files of these changed files."""
    tests: set[str] = set()
    for file in files:
        path = Path(file)
        if file.startswith(ENGINE_FACTS):
            tests.update(ENGINE_TESTS)
        elif file.startswith(CONTRACT) and not path.name.startswith("test_"):
            contract_tests = (root / CONTRACT).glob("test_*.py")
            tests |= {str(test.relative_to(root)) for test in contract_tests}
        if file.startswith(TEST_FOLDERS) and path.name.startswith("test_"):
            tests.add(file)
        elif file.startswith("orchestrator/") and path.suffix == ".py":
            tests |= _tests_of_module(path, root)
    return sorted(test for test in tests if (root / test).exists())


def _tests_of_module(path: Path, root: Path) -> set[str]:
    """The test file that mirrors a module, or those of its room that import it."""
    folder = root / "tests" / "unit" / Path(*path.parts[1:-1])
    mirror = folder / f"test_{path.stem}.py"
    if mirror.exists():
        return {str(mirror.relative_to(root))}
    if len(path.parts) < 3:
        return set()
    room = root / "tests" / "unit" / path.parts[1]
    name = re.escape(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    imports = re.compile(rf"^\s*(from|import) {name}\b", re.MULTILINE)
    return {
        str(test.relative_to(root))
        for test in room.rglob("test_*.py")
        if imports.search(test.read_text())
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the fast tests of what was changed.")
    parser.add_argument("--since", default="main", help="a branch or commit; default main")
    parser.add_argument("--list", action="store_true", help="only print the files")
    arguments = parser.parse_args()
    touched = [
        test for test in fast_tests(changed_files(arguments.since), ROOT) if test not in ALWAYS
    ]
    if arguments.list:
        print("\n".join([*ALWAYS, *touched]))
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "--durations=5", "-m", LEFT_OUT]
    return subprocess.run([*command, *ALWAYS, *touched], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
