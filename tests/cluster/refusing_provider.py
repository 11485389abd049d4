"""Ray's fake nodes, except those of one type, for which there is never capacity."""

from __future__ import annotations

from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE

REFUSED_TYPE = "spot"


class RefusingProvider(FakeMultiNodeProvider):  # type: ignore[misc]
    """Runs in Ray's autoscaler, a process of its own."""

    def create_node_with_resources_and_labels(
        self, node_config: Any, tags: dict[str, str], count: int, resources: Any, labels: Any
    ) -> None:
        if tags[TAG_RAY_USER_NODE_TYPE] == REFUSED_TYPE:
            raise NodeLaunchException("NoCapacity", "there is no capacity in this zone", None)
        super().create_node_with_resources_and_labels(node_config, tags, count, resources, labels)
