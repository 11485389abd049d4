"""A server that computes nothing: real HTTP streams whose timing comes from a stated model
(docs/reference/emulator.md).

profile.py    what is imitated: device, model, constants, faults
model.py      how long a step takes, and what a replica can hold      tables.py   steps from measured kernels
batch.py      continuous batching with a virtual clock  prefix.py     the prefix cache
pacer.py      the same batch in real time             server.py   the process; flags.py its command line
app.py        routes, requests, faults                metrics.py  /metrics      api.py  bodies in, events out
http.py       the HTTP side of a connection

A program of its own: ``orchestrator emulator`` runs it by hand, ``engines/emulator.py`` starts it
as an engine.
"""
