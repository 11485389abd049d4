"""``orchestrator logs``."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from orchestrator.results.store import Store
from tests.unit.analysis.test_launches import commit
from tests.unit.cli.commands import invoke
from tests.unit.results.builders import deployment_row


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(str(tmp_path), "exp")
    commit(store, "L0", deployment_row())
    return store


def test_where_no_launch_failed_it_says_how_to_see_the_others(store: Store) -> None:
    done = invoke("logs", store.uri)
    assert (done.status, done.stdout) == (0, "")
    assert "no launch failed; name a DEPLOYMENT" in done.stderr


def test_failed_launches_are_shown_with_the_end_of_their_log(store: Store) -> None:
    commit(store, "L1", deployment_row(), status="failed", reason="It died.", log_tail="a\nb\nc")
    done = invoke("logs", store.uri, "--lines", "2")
    assert done.stdout.splitlines() == ["label-d0, launch L1: failed: It died.", "b", "c", ""]


def test_a_deployment_is_named_by_part_of_its_label(store: Store) -> None:
    assert "label-d0, launch L0: served" in invoke("logs", store.uri, "label").stdout


def test_a_name_that_is_no_deployments_is_refused(store: Store) -> None:
    with pytest.raises(click.UsageError, match="no launch of a deployment like 'nobody'"):
        invoke("logs", store.uri, "nobody")


@pytest.mark.parametrize("lines", ["-1", "many"])
def test_the_number_of_lines_is_a_whole_number(lines: str, store: Store) -> None:
    with pytest.raises(click.BadParameter, match="give a whole number of at least 0"):
        invoke("logs", store.uri, "--lines", lines)
