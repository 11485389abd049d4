"""Finds the Ray cluster to join within seconds, where Ray itself waits minutes for one that is gone;
then watches the cluster's head, and ends the driver before Ray ends it without a message.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from urllib.parse import urlsplit

from orchestrator.base.errors import InputError
from orchestrator.cluster.ray.private import bootstrap_address, head_answers

ANSWER_LIMIT_S = 5.0
LOOK_S = 2.0  # between two questions to the head
SILENT_S = 10.0  # the user is notified after this long without an answer
# the variable with the seconds of silence after which Ray ends the driver without a message
RAY_LIMIT = "RAY_gcs_rpc_server_reconnect_timeout_s"
DEFAULT_RAY_LIMIT_S = "60"
BEFORE_RAY_S = 15.0  # this program ends the driver so much earlier than Ray would
COMMIT_S = 5.0  # of these, launches have so long to commit their rows
CONTINUES = "What was measured is kept: once a cluster runs again, the same command continues"


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The address for ``ray.init``, and a note for the user, if there is something to know."""

    address: str | None
    note: str | None = None


def live_address(address: str | None) -> ClusterAddress:
    """The address of the cluster to join.

    ``address``: as the user gave it. None and ``auto`` are looked up as Ray does: in RAY_ADDRESS,
    then in the file that the last ``ray start`` left on this machine.

    Raises InputError for a cluster that does not answer, if ``address`` or RAY_ADDRESS asks for it.
    If only the file names such a cluster, a new one is started here.
    """
    if address is not None and "://" in address:
        _check_scheme(address)
        return ClusterAddress(address)  # Ray Client has its own time limit
    try:
        cluster = bootstrap_address(address)
    except (ConnectionError, ValueError) as error:
        raise InputError(f"no Ray cluster at {address}: {error}") from error
    if cluster is None:
        return ClusterAddress("local")
    if head_answers(cluster, ANSWER_LIMIT_S):
        # Ray sends the token it keeps for this user only to a cluster that it found by itself
        return ClusterAddress("auto" if address is None else address)
    variable = os.environ.get("RAY_ADDRESS")
    if address is None and not variable:
        gone = f"the Ray cluster last started here ({cluster}) is gone"
        return ClusterAddress("local", f"{gone}: this sweep starts one on this machine")
    named_by = address or f"RAY_ADDRESS={variable}"
    raise InputError(
        f"no Ray cluster answers at {cluster} ({named_by}) within {ANSWER_LIMIT_S:g} s: is it up, "
        "and its port open?"
    )


def why_not_joined(address: str | None, error: Exception, is_started_here: bool = False) -> str:
    """Why the cluster at an address cannot be joined, or none be started, and what to do.

    ``address``: as the user gave it. A cluster that nobody named was found on this machine, and may
    be another user's.
    """
    named = os.environ.get("RAY_ADDRESS") if address in (None, "auto") else address
    place = named or "this machine"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Version mismatch"):
        sentence = f"the Ray cluster at {place} cannot be joined: {' '.join(lines)}"
        remedy = "run with the cluster's versions of Ray and Python"
    else:
        reason = lines[0] if lines else type(error).__name__
        sentence = f"no Ray cluster at {place}: {reason}"
        remedy = "one that asks for a token needs RAY_AUTH_MODE=token here"
    remedies = [] if "RAY_AUTH" in sentence else [remedy]
    if named is None and not is_started_here:
        remedies.append(
            "it was found here without being named, and may be another user's: --address local "
            "measures without Ray"
        )
    return f"{sentence} ({'; '.join(remedies)})" if remedies else sentence


def _check_scheme(address: str) -> None:
    """Raises InputError for a URL that is no Ray Client's."""
    if address.startswith(("http://", "https://")):
        host = urlsplit(address).hostname or "HEAD"
        raise InputError(
            f"--address {address}: that is an address for `ray job submit`; give the cluster's own,"
            f" {host}:6379, or leave it out in a submitted job"
        )
    if not address.startswith("ray://"):
        raise InputError(f"--address {address}: give HOST:PORT, auto or local")


def watch_head(address: str, tell: Callable[[str], None], stop: Event) -> None:
    """Implements ``Cluster.watch``: asks the cluster's head (its GCS) as long as this process lives.

    Running engines and clients do without the head for a while, and Ray reconnects to one that
    comes back in time.
    """
    ray_limit_s = float(os.environ.get(RAY_LIMIT, DEFAULT_RAY_LIMIT_S))
    limit_s = max(SILENT_S, ray_limit_s - BEFORE_RAY_S)
    silent_s = 0.0
    was_told_of_silence = False
    last_look_s = time.monotonic()
    while silent_s < limit_s:
        answers = head_answers(address, ANSWER_LIMIT_S)
        now_s = time.monotonic()
        # A pause and a question take no longer than this. If more time went by, this process stood
        # still, and an answer could not have reached it.
        silent_s += min(now_s - last_look_s, LOOK_S + ANSWER_LIMIT_S)
        last_look_s = now_s
        if answers:
            if was_told_of_silence:
                tell(f"the cluster's head answers again after {silent_s:.0f} s")
            silent_s = 0.0
            was_told_of_silence = False
        elif SILENT_S <= silent_s < limit_s and not was_told_of_silence:
            was_told_of_silence = True
            silence = f"the cluster's head ({address}) has been silent for {silent_s:.0f} s"
            tell(f"{silence}: this run ends at {limit_s:g} s. {CONTINUES}")
        time.sleep(LOOK_S)
    tell(
        f"the cluster's head ({address}) is lost: it has not answered for {silent_s:.0f} s. This "
        f"run ends. {CONTINUES}"
    )
    stop.set()
    time.sleep(COMMIT_S)
    os._exit(1)  # other threads are blocked in calls to Ray
