"""What requests contain; one file per kind, with the model of its keys (a ``Workload``) and what writes its requests.

Requests are a pure function of (workload, seed, session, turn): every client can write any of them.
The registry is ``WORKLOADS`` in spec/load.py; docs/extending.md says how to add one.
"""
