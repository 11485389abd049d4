"""Leases of a host: one launch alone on it, cores and ports never twice, whoever holds them and
however that dies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from orchestrator.engines import leases
from orchestrator.engines.leases import LOCK, PREFIX, Lease, living
from orchestrator.errors import Occupied, PlacementError

CORES = (0, 1, 2, 3)
ROOT = pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
NOBODY = 65534


def as_user(uid: int, do: Callable[[], object]) -> str:
    """What it raised as that user, "" when nothing; in a process of its own."""
    readable, writable = os.pipe()
    if not (child := os.fork()):
        said = ""
        try:
            os.setuid(uid)
            do()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writable, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writable)
    with os.fdopen(readable) as file:
        return file.read()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """As /tmp is: everybody may write, nobody may remove what is another's."""
    # tmp_path is its user's alone
    path = Path(f"/tmp/test-leases-{os.getpid()}-{time.monotonic_ns()}")
    path.mkdir()
    path.chmod(0o1777)
    return path


def test_an_exclusive_launch_is_alone_on_its_host(tmp_path: Path) -> None:
    first, second = Lease("a", tmp_path), Lease("b", tmp_path)
    first.take("s", exclusive=True)
    with pytest.raises(Occupied, match=f"is held by launch a of user {os.getuid()}"):
        second.take("t", exclusive=True)
    with pytest.raises(Occupied, match="launch a"):
        second.take("t", exclusive=False)
    first.release()
    first.release()
    second.take("t", exclusive=False)
    with pytest.raises(Occupied, match="launch b"):
        first.take("s", exclusive=True)
    Lease("c", tmp_path).take("t", exclusive=False)


def test_a_load_client_keeps_its_host_from_becoming_anothers_alone(tmp_path: Path) -> None:
    client, second, other, own = (Lease(name, tmp_path) for name in ("client", "client", "a", "b"))
    assert client.share("s") is False
    with pytest.raises(Occupied, match=f"held by a load client of user {os.getuid()}"):
        other.take("t", exclusive=True)
    other.take("t", exclusive=False)
    other.release()
    own.take("s", exclusive=True)
    assert second.share("s") is False
    for lease in (own, second, client):
        lease.release()
    other.take("t", exclusive=True)


def test_a_load_client_is_told_that_its_host_is_anothers_alone_and_is_seen_there(
    tmp_path: Path,
) -> None:
    Lease("a", tmp_path).take("t", exclusive=True)
    assert Lease("client", tmp_path).share("s") is True
    assert sorted((one.launch, one.sweep, one.client) for one in living(tmp_path)) == [
        ("a", "t", False),
        ("client", "s", True),
    ]


def test_what_was_refused_holds_nothing(tmp_path: Path) -> None:
    first, second = Lease("a", tmp_path), Lease("b", tmp_path)
    first.take("s", exclusive=True)
    with pytest.raises(Occupied):
        second.take("t", exclusive=True)
    assert [one.launch for one in living(tmp_path)] == ["a"]


def test_ranks_of_one_launch_share_their_host_and_no_core(tmp_path: Path) -> None:
    ranks = [Lease("a", tmp_path) for _ in range(3)]
    assert [rank.take("s", True, CORES, 2) for rank in ranks[:2]] == [(0, 1), (2, 3)]
    with pytest.raises(PlacementError, match="4 of them for this launch's other ranks") as caught:
        ranks[2].take("s", True, CORES, 1)
    assert not isinstance(caught.value, Occupied), "waiting would change nothing"


def test_cores_of_others_are_left_alone_and_waited_for(tmp_path: Path) -> None:
    first, second, third = (Lease(name, tmp_path) for name in "abc")
    assert first.take("s", False, CORES, 3) == (0, 1, 2)
    assert second.take("t", False, CORES, 1) == (3,)
    with pytest.raises(Occupied, match="4 of them in use; 2 more"):
        third.take("t", False, CORES, 2)
    first.release()
    assert third.take("t", False, CORES, 2) == (0, 1)
    with pytest.raises(PlacementError, match="has 4 cores") as caught:
        Lease("d", tmp_path).take("t", False, CORES, 5)
    assert not isinstance(caught.value, Occupied)


def test_a_gpu_that_another_ray_gives_too_is_waited_for(tmp_path: Path) -> None:
    first, second, third = (Lease(name, tmp_path) for name in "abc")
    first.take("s", False, gpus=["GPU-1", "GPU-2"])
    with pytest.raises(Occupied, match=f"GPU GPU-2 is held by launch a of user {os.getuid()}"):
        second.take("t", False, gpus=["GPU-2", "GPU-3"])
    third.take("t", False, gpus=["GPU-3"])
    with pytest.raises(
        PlacementError, match="GPU GPU-1 was given to two ranks of this launch"
    ) as caught:
        Lease("a", tmp_path).take("s", False, gpus=["GPU-1"])
    assert not isinstance(caught.value, Occupied), "it would wait for itself"
    first.release()
    second.take("t", False, gpus=["GPU-2"])


def test_ports_of_others_are_not_given(tmp_path: Path) -> None:
    first, second = Lease("a", tmp_path), Lease("b", tmp_path)
    mine = first.take_ports(3, np.random.default_rng(0)) + first.take_ports(
        2, np.random.default_rng(0)
    )
    assert len(set(mine)) == 5
    assert not set(mine) & set(second.take_ports(5, np.random.default_rng(0)))
    first.release()
    assert Lease("c", tmp_path).take_ports(5, np.random.default_rng(0)) == mine


def test_a_lease_ends_with_its_holder_however_that_dies(tmp_path: Path) -> None:
    code = f"""import pathlib, time
from orchestrator.engines.leases import Lease
Lease("a", pathlib.Path({str(tmp_path)!r})).take("s", True, (0, 1), 2) and print(flush=True)
time.sleep(60)"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(Occupied):
        Lease("b", tmp_path).take("s", True)
    holder.kill()
    holder.communicate()
    assert Lease("b", tmp_path).take("s", True, CORES, 4) == CORES
    assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 1, "what the dead left is gone"


def test_a_lease_is_kept_from_being_taken_for_an_old_file(tmp_path: Path) -> None:
    lease = Lease("a", tmp_path)
    lease.take("s", True)
    (path,) = tmp_path.glob(f"{PREFIX}*")
    os.utime(path, (0, 0))
    lease.touch()
    assert path.stat().st_mtime > 1e9


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"launch": 1}', "[" * 50_000, '{"cores": "x"}', "\x00\xff"]
)
def test_files_of_others_that_are_no_leases_are_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / f"{PREFIX}x"
    path.write_text(text)
    with path.open() as file:
        leases.fcntl.flock(file, leases.fcntl.LOCK_EX)
        (tmp_path / f"{PREFIX}link").symlink_to("/etc/passwd")
        os.mkfifo(tmp_path / f"{PREFIX}pipe")
        assert living(tmp_path) == []
    assert Path("/etc/passwd").exists()


def test_a_lease_shows_no_control_characters_of_others(tmp_path: Path) -> None:
    said = {"launch": "\x1b[31mx\x07", "sweep": "s", "exclusive": True, "cores": [], "ports": []}
    path = tmp_path / f"{PREFIX}x"
    path.write_text(json.dumps(said))
    with path.open() as file:
        leases.fcntl.flock(file, leases.fcntl.LOCK_EX)
        assert [one.launch for one in living(tmp_path)] == ["x"]


def test_a_lock_that_somebody_keeps_is_no_place_now_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    living(tmp_path)
    monkeypatch.setattr(leases, "LOCK_LIMIT_S", 0.05)
    with (tmp_path / LOCK).open() as file:
        leases.fcntl.flock(file, leases.fcntl.LOCK_EX)
        with pytest.raises(Occupied, match="cannot be read"):
            Lease("a", tmp_path).take("s", True)
    with pytest.raises(PlacementError, match="cannot be read") as caught:
        living(tmp_path / "missing")
    assert not isinstance(caught.value, Occupied)


@ROOT
def test_another_user_sees_a_lease_and_can_neither_remove_nor_write_it(shared: Path) -> None:
    mask = os.umask(0o077)
    try:
        lease = Lease("a", shared)
        lease.take("s", True, CORES, 2)
    finally:
        os.umask(mask)
    (path,) = shared.glob(f"{PREFIX}*")
    assert "is held by launch a of user 0" in as_user(
        NOBODY, lambda: Lease("b", shared).take("t", True)
    )
    assert "PermissionError" in as_user(NOBODY, path.unlink)
    assert "PermissionError" in as_user(NOBODY, lambda: path.open("a"))
    assert path.exists()
    lease.release()
    assert as_user(NOBODY, lambda: Lease("b", shared).take("t", True)) == ""


@ROOT
def test_what_another_user_left_is_no_lease_any_more_and_stays_his(shared: Path) -> None:
    assert as_user(0, lambda: Lease("dead", shared).take("s", True)) == ""
    assert as_user(NOBODY, lambda: Lease("b", shared).take("t", True)) == ""
    assert any("dead" in path.name for path in shared.iterdir())
    assert living(shared) == []
    assert [path.name for path in shared.iterdir()] == [LOCK], "root removes what is left of both"
