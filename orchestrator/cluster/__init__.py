"""Where engines and clients run: one protocol (protocol.py), two kinds of cluster, opened by
open_cluster.py.

machine_facts.py, model_downloads.py and reachability.py run on the machines of a cluster and say
what doctor wants to know of them.

A new kind of cluster is a class like LocalCluster, a line in open_cluster.py, and a test module
like tests/cluster/test_contract.py.
"""
