"""Leases of a host: one launch alone on it, cores and ports never twice, whoever holds them and
however that dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from orchestrator.base.errors import Occupied, PlacementError
from orchestrator.node import leases
from orchestrator.node.leases import (
    LOCK,
    PREFIX,
    TICKET_PREFIX,
    Lease,
    Owner,
    Wish,
    living,
    waiting,
)

CORES = (0, 1, 2, 3)
ROOT = pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
NOBODY = 65534
USER = pwd.getpwuid(os.getuid()).pw_name


def wish(sweep: str, exclusive: bool, cores: int = 0, gpus: Sequence[str] = ()) -> Wish:
    return Wish(Owner(sweep), exclusive, cores, tuple(gpus))


def as_user(uid: int, do: Callable[[], object]) -> str:
    """What it raised as that user, "" when nothing; in a process of its own."""
    readable, writable = os.pipe()
    if not (child := os.fork()):
        message = ""
        try:
            os.setuid(uid)
            do()
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(writable, message.encode())
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
    first.take(wish("s", True))
    with pytest.raises(Occupied, match=f"is held by launch a of user {USER}"):
        second.take(wish("t", True))
    with pytest.raises(Occupied, match="launch a"):
        second.take(wish("t", False))
    first.release()
    first.release()
    second.take(wish("t", False))
    with pytest.raises(Occupied, match="launch b"):
        first.take(wish("s", True))
    Lease("c", tmp_path).take(wish("t", False))


def test_load_client_keeps_exclusive_launches_of_others_away(tmp_path: Path) -> None:
    client, second, other, own = (Lease(name, tmp_path) for name in ("client", "client", "a", "b"))
    assert client.share(Owner("s")) is False
    with pytest.raises(Occupied, match="held by a load client of"):
        other.take(wish("t", True))
    other.take(wish("t", False))
    other.release()
    own.take(wish("s", True))
    assert second.share(Owner("s")) is False
    for lease in (own, second, client):
        lease.release()
    other.take(wish("t", True))


def test_load_client_is_told_of_an_exclusive_launch_on_its_host(
    tmp_path: Path,
) -> None:
    Lease("a", tmp_path).take(wish("t", True))
    assert Lease("client", tmp_path).share(Owner("s")) is True
    assert sorted((lease.launch, lease.sweep, lease.client) for lease in living(tmp_path)) == [
        ("a", "t", False),
        ("client", "s", True),
    ]


def test_refused_launch_holds_nothing(tmp_path: Path) -> None:
    first, second = Lease("a", tmp_path), Lease("b", tmp_path)
    first.take(wish("s", True))
    with pytest.raises(Occupied):
        second.take(wish("t", True))
    assert [lease.launch for lease in living(tmp_path)] == ["a"]


def test_ranks_of_one_launch_share_their_host_and_no_core(tmp_path: Path) -> None:
    ranks = [Lease("a", tmp_path) for _ in range(3)]
    assert [rank.take(wish("s", True, 2), CORES) for rank in ranks[:2]] == [(0, 1), (2, 3)]
    with pytest.raises(PlacementError, match="4 of them for this launch's other ranks") as caught:
        ranks[2].take(wish("s", True, 1), CORES)
    assert not isinstance(caught.value, Occupied), "waiting would change nothing"


def test_cores_of_other_launches_are_waited_for(tmp_path: Path) -> None:
    first, second, third = (Lease(name, tmp_path) for name in "abc")
    assert first.take(wish("s", False, 3), CORES) == (0, 1, 2)
    assert second.take(wish("t", False, 1), CORES) == (3,)
    with pytest.raises(Occupied, match="4 of them in use; 2 more"):
        third.take(wish("t", False, 2), CORES)
    first.release()
    assert third.take(wish("t", False, 2), CORES) == (0, 1)
    with pytest.raises(PlacementError, match="has 4 cores") as caught:
        Lease("d", tmp_path).take(wish("t", False, 5), CORES)
    assert not isinstance(caught.value, Occupied)


def test_gpu_of_another_launch_is_waited_for(tmp_path: Path) -> None:
    first, second, third = (Lease(name, tmp_path) for name in "abc")
    first.take(wish("s", False, gpus=["GPU-1", "GPU-2"]))
    with pytest.raises(Occupied, match=f"GPU GPU-2 is held by launch a of user {USER}"):
        second.take(wish("t", False, gpus=["GPU-2", "GPU-3"]))
    third.take(wish("t", False, gpus=["GPU-3"]))
    with pytest.raises(
        PlacementError, match="GPU GPU-1 was given to two ranks of this launch"
    ) as caught:
        Lease("a", tmp_path).take(wish("s", False, gpus=["GPU-1"]))
    assert not isinstance(caught.value, Occupied), "it would wait for itself"
    first.release()
    second.take(wish("t", False, gpus=["GPU-2"]))


def test_ports_of_others_are_not_given(tmp_path: Path) -> None:
    first, second = Lease("a", tmp_path), Lease("b", tmp_path)
    mine = first.take_ports(3, np.random.default_rng(0)) + first.take_ports(
        2, np.random.default_rng(0)
    )
    assert len(set(mine)) == 5
    assert not set(mine) & set(second.take_ports(5, np.random.default_rng(0)))
    first.release()
    assert Lease("c", tmp_path).take_ports(5, np.random.default_rng(0)) == mine


def test_lease_ends_when_its_holder_is_killed(tmp_path: Path) -> None:
    code = f"""import pathlib, time
from orchestrator.node.leases import Lease, Owner, Wish
Lease("a", pathlib.Path({str(tmp_path)!r})).take(Wish(Owner("s"), True, 2), (0, 1))
print(flush=True)
time.sleep(60)"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(Occupied):
        Lease("b", tmp_path).take(wish("s", True))
    holder.kill()
    holder.communicate()
    assert Lease("b", tmp_path).take(wish("s", True, 4), CORES) == CORES
    assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 1, "what the dead left is gone"


def test_touched_lease_does_not_look_old(tmp_path: Path) -> None:
    lease = Lease("a", tmp_path)
    lease.take(wish("s", True))
    (path,) = tmp_path.glob(f"{PREFIX}*")
    os.utime(path, (0, 0))
    lease.touch()
    assert path.stat().st_mtime > 1e9


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"launch": 1}', "[" * 50_000, '{"cores": "x"}', "\x00\xff"]
)
def test_files_that_are_no_leases_are_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / f"{PREFIX}x"
    path.write_text(text)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (tmp_path / f"{PREFIX}link").symlink_to("/etc/passwd")
        os.mkfifo(tmp_path / f"{PREFIX}pipe")
        assert living(tmp_path) == []
    assert Path("/etc/passwd").exists()


def test_a_lease_shows_no_control_characters_of_others(tmp_path: Path) -> None:
    document = {
        "launch": "\x1b[31mx\x07",
        "sweep": "s",
        "exclusive": True,
        "cores": [],
        "ports": [],
    }
    path = tmp_path / f"{PREFIX}x"
    path.write_text(json.dumps(document))
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [lease.launch for lease in living(tmp_path)] == ["x"]


def test_lock_that_is_kept_too_long_is_occupied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    living(tmp_path)
    monkeypatch.setattr(leases, "LOCK_LIMIT_S", 0.05)
    with (tmp_path / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Occupied, match="cannot be read"):
            Lease("a", tmp_path).take(wish("s", True))
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).symlink_to(tmp_path / "nowhere")
    with pytest.raises(PlacementError, match="cannot be read") as caught:
        living(tmp_path)
    assert not isinstance(caught.value, Occupied)


@ROOT
def test_lock_can_be_taken_by_all_users(shared: Path) -> None:
    mask = os.umask(0o077)
    try:
        assert as_user(NOBODY, lambda: living(shared)) == ""
    finally:
        os.umask(mask)
    assert (shared / LOCK).stat().st_uid == NOBODY
    assert as_user(NOBODY - 1, lambda: Lease("b", shared).take(wish("t", True))) == ""


def test_a_missing_folder_of_leases_is_made_for_all_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shared" / "leases"
    monkeypatch.setenv(leases.FOLDER, str(folder))
    lease = Lease("a")
    lease.take(wish("s", True))
    assert [holding.launch for holding in living()] == ["a"]
    assert folder.stat().st_mode & 0o7777 == 0o1777
    lease.release()
    folder.chmod(0o755)
    assert leases.folder_problem() is None
    assert folder.stat().st_mode & 0o7777 == 0o755  # what somebody else made stays as it is


def test_folder_that_cannot_be_made_is_an_error_with_a_remedy(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    problem = leases.folder_problem(tmp_path / "file")
    assert problem is not None
    assert "cannot be made: File exists; name one in ORCHESTRATOR_LEASES" in problem
    with pytest.raises(PlacementError, match="cannot be made: File exists"):
        Lease("a", tmp_path / "file" / "below").take(wish("s", True))


@ROOT
def test_other_users_see_a_lease_and_cannot_change_it(shared: Path) -> None:
    mask = os.umask(0o077)
    try:
        lease = Lease("a", shared)
        lease.take(wish("s", True, 2), CORES)
    finally:
        os.umask(mask)
    (path,) = shared.glob(f"{PREFIX}*")
    assert "is held by launch a of user root" in as_user(
        NOBODY, lambda: Lease("b", shared).take(wish("t", True))
    )
    assert "PermissionError" in as_user(NOBODY, path.unlink)
    assert "PermissionError" in as_user(NOBODY, lambda: path.open("a"))
    assert path.exists()
    lease.release()
    assert as_user(NOBODY, lambda: Lease("b", shared).take(wish("t", True))) == ""


@ROOT
def test_dead_lease_of_another_user_is_ignored_and_stays(shared: Path) -> None:
    assert as_user(0, lambda: Lease("dead", shared).take(wish("s", True))) == ""
    assert as_user(NOBODY, lambda: Lease("b", shared).take(wish("t", True))) == ""
    assert any("dead" in path.name for path in shared.iterdir())
    assert living(shared) == []
    assert [path.name for path in shared.iterdir()] == [LOCK], "root removes what is left of both"


def in_line(folder: Path, launch: str, wanted: Wish, since_ns: int = 0) -> Lease:
    lease = Lease(launch, folder)
    lease.queue(wanted, since_ns)
    return lease


def test_launch_that_waits_longest_gets_the_host_next(tmp_path: Path) -> None:
    holder = Lease("a", tmp_path)
    holder.take(wish("s", True))
    later, first = (
        in_line(tmp_path, "later", wish("t", True), 20),
        in_line(tmp_path, "first", wish("u", True), 10),
    )
    assert [ticket.launch for ticket in waiting(tmp_path)] == ["first", "later"]
    holder.release()
    for lease, sweep in ((Lease("next of a", tmp_path), "s"), (later, "t")):
        with pytest.raises(Occupied, match="goes first to launch first of user"):
            lease.take(wish(sweep, True))
    first.take(wish("u", True))
    assert [ticket.launch for ticket in waiting(tmp_path)] == ["later"]
    with pytest.raises(Occupied, match="held by launch first"):
        later.take(wish("t", True))
    first.release()
    later.take(wish("t", True))
    assert waiting(tmp_path) == []


def test_launch_that_gives_a_host_back_keeps_its_place_in_line(
    tmp_path: Path,
) -> None:
    lease = in_line(tmp_path, "a", wish("s", True), 10)
    lease.take(wish("s", True))
    lease.put_back()
    assert [(ticket.launch, ticket.since_ns) for ticket in waiting(tmp_path)] == [("a", 10)]
    assert living(tmp_path) == []
    lease.release()
    assert waiting(tmp_path) == []


def test_launches_that_want_different_things_do_not_wait_for_each_other(tmp_path: Path) -> None:
    holder = Lease("holder", tmp_path)
    holder.take(wish("s", False, 2, ["GPU-1"]), CORES)
    in_line(tmp_path, "gpu", wish("t", False, 0, ["GPU-1"]), 10)
    in_line(tmp_path, "cores", wish("t", False, 1), 20)
    other = Lease("other", tmp_path)
    other.take(wish("u", False, 1, ["GPU-2"]), CORES)
    other.release()
    with pytest.raises(Occupied, match="GPU GPU-1 is held by launch holder"):
        other.take(wish("u", False, 0, ["GPU-1"]), CORES)
    with pytest.raises(Occupied, match="those that are free go first to launch cores"):
        other.take(wish("u", False, 2), CORES)
    holder.release()
    with pytest.raises(Occupied, match="GPU GPU-1 goes first to launch gpu"):
        other.take(wish("u", False, 0, ["GPU-1"]), CORES)
    with pytest.raises(Occupied, match="goes first to launch gpu"):
        other.take(wish("u", True), CORES)


def test_ranks_of_one_launch_do_not_wait_for_each_other(tmp_path: Path) -> None:
    ranks = [in_line(tmp_path, "a", wish("s", True, 2), 10) for _ in range(2)]
    assert [rank.take(wish("s", True, 2), CORES) for rank in ranks] == [(0, 1), (2, 3)]


def test_ticket_of_a_dead_or_silent_launch_does_not_count(tmp_path: Path) -> None:
    code = f"""import pathlib, time
from orchestrator.node.leases import Lease, Owner, Wish
Lease("dead", pathlib.Path({str(tmp_path)!r})).queue(Wish(Owner("s"), True))
print(flush=True)
time.sleep(60)"""
    waiter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert waiter.stdout is not None
    waiter.stdout.readline()
    lease = Lease("a", tmp_path)
    with pytest.raises(Occupied, match="goes first to launch dead"):
        lease.take(wish("t", True))
    waiter.kill()
    waiter.communicate()
    lease.take(wish("t", True))
    lease.release()
    hangs = in_line(tmp_path, "hangs", wish("s", True))
    (path,) = tmp_path.glob(f"{TICKET_PREFIX}*")
    os.utime(path, (0, 0))
    lease.take(wish("t", True))
    lease.release()
    hangs.take(wish("s", True))  # it asks again


def test_load_client_gives_way_to_tickets_unless_its_launch_is_there(
    tmp_path: Path,
) -> None:
    own = Lease("own", tmp_path)
    own.take(wish("s", True))
    in_line(tmp_path, "other", wish("t", True))
    assert Lease("client", tmp_path).share(Owner("s")) is False
    own.release()
    assert Lease("client", tmp_path).share(Owner("s")) is True


def test_holder_of_a_host_is_named_with_user_and_results(tmp_path: Path) -> None:
    here = Owner("tag", "qwen3", "/data/runs", 4711, socket.gethostname())
    away = Owner("tag", "qwen3", "s3://bucket/\x1b[31mruns", 4711, "login1")
    for owner, where in (
        (here, "pid 4711, results in /data/runs"),
        (away, "pid 4711 on login1, results in s3://bucket/runs"),
    ):
        lease = Lease("a", tmp_path)
        lease.take(Wish(owner, True))
        with pytest.raises(Occupied) as caught:
            Lease("b", tmp_path).take(wish("t", True))
        named = f"experiment qwen3 (user {USER}, {where})"
        assert str(caught.value) == f"host {socket.gethostname()} is held by {named}"
        lease.release()


def test_leases_of_older_releases_count_and_they_find_ours(tmp_path: Path) -> None:
    old = {"launch": "old", "sweep": "s", "exclusive": True, "cores": [], "ports": []}
    path = tmp_path / f"{PREFIX}x"
    path.write_text(json.dumps(old))
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Occupied, match="held by launch old"):
            Lease("a", tmp_path).take(wish("t", True))
    lease = Lease("a", tmp_path)
    lease.take(wish("t", True))
    (path,) = tmp_path.glob(f"{PREFIX}a*")
    assert json.loads(path.read_text())["sweep"] == "t"


@ROOT
def test_ticket_of_another_user_counts(shared: Path) -> None:
    mask = os.umask(0o077)
    try:
        lease = in_line(shared, "a", wish("s", True))
    finally:
        os.umask(mask)
    (path,) = shared.glob(f"{TICKET_PREFIX}*")
    assert "goes first to launch a of user root" in as_user(
        NOBODY, lambda: Lease("b", shared).take(wish("t", True))
    )
    assert "PermissionError" in as_user(NOBODY, path.unlink)
    lease.release()
    assert as_user(NOBODY, lambda: Lease("b", shared).take(wish("t", True))) == ""
