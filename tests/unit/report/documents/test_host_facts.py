"""What hosts were found to be, by titles."""

from __future__ import annotations

from orchestrator.report.documents.host_facts import HostFact, host_facts
from orchestrator.results.stored_json import host_environment


def test_each_value_stands_once_and_what_is_not_known_is_left_out() -> None:
    gpus = [{"name": "H100", "power_limit_w": 700.0}]
    hosts = [
        host_environment({"cpu": "EPYC", "cores": 8, "kernel": "6.8", "gpus": gpus}),
        host_environment({"cpu": "EPYC", "cores": 16, "driver": None, "gpus": gpus}),
    ]
    assert host_facts(hosts) == (
        HostFact("CPU", ("EPYC",)),
        HostFact("CPU cores", ("16", "8")),
        HostFact("kernel", ("6.8",)),
        HostFact("GPU", ("H100",)),
        HostFact("power limit", ("700 W",)),
    )
    assert host_facts([]) == ()
