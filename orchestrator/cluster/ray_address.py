"""Which Ray cluster to join, found out in seconds: Ray itself waits minutes for one that is gone."""

from __future__ import annotations

import os

from orchestrator.cluster.ray_private import bootstrap_address, head_answers
from orchestrator.errors import InputError

ANSWER_LIMIT_S = 5.0


def live_address(address: str | None) -> tuple[str | None, str | None]:
    """What to give ``ray.init``, and a sentence for the user or None.

    ``address``: as given by the user; None and ``auto`` are looked up as Ray does (RAY_ADDRESS, then the file that the
    last ``ray start`` on this machine left). A cluster that was named and does not answer is an InputError; one that
    only an old file names is passed over, and a new one is started here.
    """
    if address is not None and "://" in address:
        return address, None  # Ray Client has a limit of its own
    try:
        found = bootstrap_address(address)
    except (ConnectionError, ValueError) as error:
        raise InputError(f"no Ray cluster at {address}: {error}") from error
    if found is None:
        return "local", None
    if head_answers(found, ANSWER_LIMIT_S):
        # one that Ray finds by itself may ask for the token that Ray keeps for this user: only then does it give it
        return "auto" if address is None else address, None
    if address is None and not os.environ.get("RAY_ADDRESS"):
        return "local", f"the Ray cluster last started here ({found}) is gone: this sweep starts one on this machine"
    who = f"RAY_ADDRESS={os.environ['RAY_ADDRESS']}" if os.environ.get("RAY_ADDRESS") and not address else address
    raise InputError(
        f"no Ray cluster answers at {found} ({who}) within {ANSWER_LIMIT_S:g} s: is it up, and its port open?"
    )
