"""Notices that this machine will be taken back, from AWS, Google, Azure or a file. No Ray in here.

Ray itself watches none of them. Kubernetes only signals its own process: a ``preStop`` hook there
writes the remaining seconds into the file that ORCHESTRATOR_NOTICE_FILE names. Slurm signals the
job's script, which has all nodes drained (clusters/slurm.sbatch).
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

from orchestrator.base.http import ask

LINK_LOCAL = "http://169.254.169.254"
VENDOR = Path("/sys/class/dmi/id/sys_vendor")
LOOK_S = 2.0  # between two looks
ANSWER_LIMIT_S = 1.0
PREEMPTED_S = 30.0  # Google's notice names no time; it gives 30 s
MAINTENANCE_S = 60.0
AZURE_ENDS = ("Preempt", "Terminate", "Redeploy")  # the types of Azure's events that end a machine
NOTICE_FILE = "ORCHESTRATOR_NOTICE_FILE"
# used instead of LINK_LOCAL: a proxy of the cloud's metadata service
METADATA = "ORCHESTRATOR_METADATA_URL"


@dataclass(frozen=True, slots=True)
class Notice:
    """This machine will be gone in ``left_s`` seconds."""

    left_s: float
    why: str


NoticeSource = Callable[[], Notice | None]


def _get(url: str, method: str = "GET", headers: Mapping[str, str] = MappingProxyType({})) -> str:
    """The response's body, empty for a 404. Raises OSError."""
    answer = ask(url, method, limit_s=ANSWER_LIMIT_S, more_headers=list(headers.items()))
    if answer.status not in (200, 404):
        raise OSError(answer.error or f"HTTP {answer.status}")
    return answer.body.decode() if answer.status == 200 else ""


def _left_s(when: datetime) -> float:
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def aws(base: str = LINK_LOCAL) -> Notice | None:
    """The interruption of a spot instance, announced some two minutes ahead (IMDSv2)."""
    token = _get(f"{base}/latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    answer = _get(
        f"{base}/latest/meta-data/spot/instance-action", headers={"X-aws-ec2-metadata-token": token}
    )
    if not answer:
        return None
    action = json.loads(answer)
    left_s = _left_s(datetime.fromisoformat(action["time"]))
    return Notice(left_s, f"AWS: spot interruption ({action['action']})")


def google(base: str = LINK_LOCAL) -> Notice | None:
    """The preemption of a spot machine, or maintenance that ends it (live migration does not)."""
    instance = f"{base}/computeMetadata/v1/instance"
    if _get(f"{instance}/preempted", headers={"Metadata-Flavor": "Google"}).strip() == "TRUE":
        return Notice(PREEMPTED_S, "Google: preempted")
    event = _get(f"{instance}/maintenance-event", headers={"Metadata-Flavor": "Google"}).strip()
    return Notice(MAINTENANCE_S, f"Google: {event}") if event.startswith("TERMINATE") else None


def azure(base: str = LINK_LOCAL) -> Notice | None:
    """A scheduled event that takes this machine away. The service lists events of other machines in
    its set, too.
    """
    metadata = f"{base}/metadata"
    headers = {"Metadata": "true"}
    answer = _get(f"{metadata}/scheduledevents?api-version=2020-07-01", headers=headers)
    events = json.loads(answer or "{}").get("Events", ())
    ends = [event for event in events if event["EventType"] in AZURE_ENDS]
    if not ends:
        return None
    name = _get(
        f"{metadata}/instance/compute/name?api-version=2021-02-01&format=text", headers=headers
    )
    for event in ends:
        if name in event["Resources"]:
            before = event.get("NotBefore")  # empty once the event has begun
            left_s = _left_s(parsedate_to_datetime(before)) if before else 0.0
            return Notice(left_s, f"Azure: {event['EventType']}")
    return None


CLOUDS: Mapping[str, Callable[[str], Notice | None]] = {
    "Amazon": aws,
    "Google": google,
    "Microsoft": azure,
}


def in_file(path: Path) -> Notice | None:
    """The notice in a hook's file, which holds the remaining seconds at the time when it was
    written. An empty file means PREEMPTED_S.
    """
    with suppress(FileNotFoundError):
        announced_s = float(path.read_text().strip() or PREEMPTED_S)
        age_s = max(0.0, time.time() - path.stat().st_mtime)
        return Notice(max(0.0, announced_s - age_s), f"{path} says so")
    return None


def notice_sources(
    environment: Mapping[str, str] = os.environ, vendor: Path = VENDOR
) -> list[NoticeSource]:
    """The sources of notices on this machine: the file of a hook, if one is named, and the cloud
    that the machine is in, if it is a known one.
    """
    sources: list[NoticeSource] = []
    if environment.get(NOTICE_FILE):
        sources.append(partial(in_file, Path(environment[NOTICE_FILE])))
    vendor_name = ""
    with suppress(OSError):
        vendor_name = vendor.read_text()
    base = environment.get(METADATA, LINK_LOCAL).rstrip("/")
    for cloud, notice_of in CLOUDS.items():
        if vendor_name.startswith(cloud):
            sources.append(partial(notice_of, base))
    return sources


def first_notice(sources: list[NoticeSource]) -> Notice | None:
    """The first notice that a source gives. A source that fails or answers nonsense gives none."""
    for source in sources:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            notice = source()
            if notice is not None:
                return notice
    return None


def watch(act: Callable[[Notice], None]) -> None:
    """Calls ``act`` from a thread once this machine gets notice, and again as long as it raises,
    because the head may be unreachable for a while.

    Starts no thread where there is no source of notices.
    """
    sources = notice_sources()

    def wait() -> None:
        while True:
            with suppress(Exception):
                notice = first_notice(sources)
                if notice is not None:
                    act(notice)
                    return
            time.sleep(LOOK_S)

    if sources:
        threading.Thread(target=wait, name="notices", daemon=True).start()
