"""Where engines and clients run: one protocol (protocol.py), two kinds of cluster, opened by
open_cluster.py.

A new kind of cluster is a class like LocalCluster, a line in open_cluster.py, and a test module
like tests/cluster/test_contract.py.
"""
