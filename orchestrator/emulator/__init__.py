"""A server that computes nothing: real HTTP streams whose timing comes from a stated model
(docs/reference/emulator.md).

profile.py    what is imitated: device, model, constants, faults
model.py      one data-parallel rank: its steps and what it can hold
step_costs.py how long a step takes, by formula        step_tables.py  by measured kernels
drafts.py     what speculative decoding costs and gives
batch.py      continuous batching with a virtual clock  drafting_batch.py  the same with drafts
prefix.py     the prefix cache
pacer.py      the same batch in real time             server.py   the process; flags.py its command line
app.py        routes, requests, faults                metrics.py  /metrics      api.py  bodies in, events out
http.py       the HTTP side of a connection

A program of its own: ``orchestrator emulator`` runs it by hand, ``engines/emulator.py`` starts it
as an engine.
"""
