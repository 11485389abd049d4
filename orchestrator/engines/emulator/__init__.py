"""An engine that computes nothing: real HTTP streams whose timing comes from a stated model (docs/emulator.md).

profile.py   what is imitated: device, model, constants, faults      model.py      how long a step takes
batch.py     continuous batching with a virtual clock                simulate.py   a schedule in virtual time
pacer.py     the same batch in real time                             fit.py        constants from measured results
flags.py, server.py, app.py, http.py, requests.py, answers.py, metrics.py      the HTTP server
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """``Emulator`` is loaded when the registry asks for it, so that the server's process starts without it."""
    if name != "Emulator":
        raise AttributeError(name)
    from orchestrator.engines.emulator.engine import Emulator

    return Emulator
