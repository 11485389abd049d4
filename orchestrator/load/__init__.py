"""The load path: arrivals, workloads, one striped schedule, wires, transport, client, validity."""
