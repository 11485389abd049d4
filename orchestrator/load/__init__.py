"""The load path: arrivals, one striped schedule, wires, transport, client, validity. What requests
contain is in ``workloads``.
"""
