"""When the tests that install packages are skipped, and when they fail."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import psutil
import pytest

from tests.documentation.index import installed_by, skip_unless_installable
from tests.harness import wait_for


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that has the package ``there`` alone."""
    folder = tmp_path / "simple" / "there"
    folder.mkdir(parents=True)
    wheel = "there-1.0-py3-none-any.whl"
    (folder / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", folder.parent.as_uri())
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def test_an_index_without_a_package_is_no_fault_of_a_page(index: None) -> None:
    with pytest.raises(pytest.skip.Exception, match="has no absent"):
        skip_unless_installable("there", "absent")


def test_a_package_that_is_there_could_have_been_installed(index: None) -> None:
    skip_unless_installable("there")


def test_an_installation_that_takes_too_long_is_ended_with_all_that_it_started(
    tmp_path: Path,
) -> None:
    started = tmp_path / "started"
    command = f"sleep 600 & echo $! > {started}; wait"
    with pytest.raises(pytest.skip.Exception, match="within 1 s"):
        installed_by(["bash", "-c", command], limit_s=1)
    pid = int(started.read_text())
    wait_for(lambda: has_ended(pid), 10, "what it started ends")


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_output_of_an_installation_has_both_streams() -> None:
    done = installed_by([sys.executable, "-c", "import sys; sys.exit('not there')"], limit_s=60)
    assert done.returncode == 1
    assert done.stdout == "not there\n"
