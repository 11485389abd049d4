"""What reads the pages of ``watch`` in the tests of the documentation."""

from __future__ import annotations

from pathlib import Path

import pandas  # noqa: F401  # loaded first: commands would keep it out of this process
import pytest

from tests.documentation import reader
from tests.documentation.reader import is_served, run_until_read
from tests.harness import free_port, wait_for


def test_a_command_that_ends_by_itself_interrupts_no_test() -> None:
    done = run_until_read(lambda: False, "watch", "results/", "--no-such-option")
    assert done.returncode == 2


def test_a_page_that_is_not_read_in_time_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()

    def is_read() -> bool:
        wait_for(lambda: is_served(f"http://127.0.0.1:{port}/"), 60, "the page is served")
        return False

    monkeypatch.setattr(reader, "READ_LIMIT_S", 0.01)
    with pytest.raises(AssertionError, match="nothing was read"):
        run_until_read(is_read, "watch", str(tmp_path), "--port", str(port))


def test_a_page_is_read_and_its_command_interrupted(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    done = run_until_read(lambda: is_served(url), "watch", str(tmp_path), "--port", str(port))
    assert done.returncode == 0
    assert f"at {url}" in " ".join(done.stdout.split())
