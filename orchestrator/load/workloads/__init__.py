"""What requests contain. One file per kind: the model of its keys (a ``Workload``), and the ``Kind`` that makes them.

Requests are a pure function of (workload, seed, session, turn): any client can write any of them.
The registry is ``WORKLOADS`` in spec/load.py; docs/extending.md says how to add one.
"""
