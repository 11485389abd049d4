"""Which Ray cluster to join, found out in seconds: Ray itself waits minutes for one that is gone."""

from __future__ import annotations

import os

import grpc
from ray._private import services
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated.gcs_service_pb2 import CheckAliveRequest
from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

from orchestrator.errors import InputError

ANSWER_LIMIT_S = 5.0
_NOBODY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.DEADLINE_EXCEEDED)


def live_address(address: str | None) -> tuple[str | None, str | None]:
    """What to give ``ray.init``, and a sentence for the user or None.

    ``address``: as given by the user; None and ``auto`` are looked up as Ray does (RAY_ADDRESS, then the file that the
    last ``ray start`` on this machine left). A cluster that was named and does not answer is an InputError; one that
    only an old file names is passed over, and a new one is started here.
    """
    if address is not None and "://" in address:
        return address, None  # Ray Client has a limit of its own
    try:
        found = services.canonicalize_bootstrap_address(address)
    except (ConnectionError, ValueError) as error:
        raise InputError(f"no Ray cluster at {address}: {error}") from error
    if found is None:
        return "local", None
    if _answers(found):
        return found, None
    if address is None and not os.environ.get("RAY_ADDRESS"):
        return "local", f"the Ray cluster last started here ({found}) is gone: this sweep starts one on this machine"
    who = f"RAY_ADDRESS={os.environ['RAY_ADDRESS']}" if os.environ.get("RAY_ADDRESS") and not address else address
    raise InputError(
        f"no Ray cluster answers at {found} ({who}) within {ANSWER_LIMIT_S:g} s: is it up, and its port open?"
    )


def _answers(address: str) -> bool:
    """Whether a head node is there, and not just anything that listens (a proxy answers for every address)."""
    channel = init_grpc_channel(address)
    try:
        NodeInfoGcsServiceStub(channel).CheckAlive(CheckAliveRequest(), timeout=ANSWER_LIMIT_S)
    except grpc.RpcError as error:
        return error.code() not in _NOBODY
    finally:
        channel.close()
    return True
