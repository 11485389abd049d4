"""What a launch starts, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.plan.model import Deployment
from orchestrator.sweep.admission import Nodes
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.launch_notes import LaunchNotes


@dataclass(frozen=True, slots=True)
class LaunchHooks:
    """What a launch calls while it takes its hosts.

    ``on_hosts`` is called when the hosts are its own. ``on_wait`` is called while it waits in line,
    with the text of the ``HeldHost``. ``is_better_off_elsewhere`` says whether it should queue
    again instead of waiting longer.
    """

    on_hosts: Callable[[], None] = lambda: None
    on_wait: Callable[[str], None] = lambda text: None
    is_better_off_elsewhere: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A deployment whose engines are to start on the ``nodes`` that admission chose.

    ``notes``: collects what is found out about the launch.
    """

    context: SweepContext
    deployment: Deployment
    nodes: Nodes
    notes: LaunchNotes
    hooks: LaunchHooks = LaunchHooks()
