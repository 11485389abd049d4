"""One request on its way: what was sent, the raw bytes that came back and when each read happened."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from orchestrator.load.http import Head
from orchestrator.load.schedule import Entry
from orchestrator.load.wire import Parsed
from orchestrator.load.workloads import Prompt


@dataclass(slots=True, eq=False)
class Exchange:
    """Written while it runs, read once by digest.py, then dropped. Instants are ``time.monotonic_ns``.

    ``parts[i]`` are the bytes of a read, ``times[i]`` when they were read. Plain token reads are counted while the
    stream goes on and their bytes dropped (settle.py): then ``settled[i]`` is the time of ``parsed.tokens[i]``.
    ``mark`` is how a read ends when it may be the last one; every read is looked at while it is empty (headers, bodies
    of known length).
    """

    entry: Entry
    target: int
    wire_bytes: bytes
    prompt_tokens: int
    output_tokens: int
    slot: int | None = None  # closed loop: which of the requests kept in flight
    prompt: Prompt | None = None  # kept only where the next turn needs it
    parts: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    odd: int = 0  # so many first parts were looked at and could not be settled
    settled: array[int] = field(default_factory=lambda: array("q"))
    parsed: Parsed = field(default_factory=Parsed)
    mark: bytes = b""
    head: Head | None = None
    received: int = 0  # bytes, counted while every read is looked at
    swept: int = 0  # parts at the last closer look
    retried: bool = False
    started_ns: int = 0  # handed to the transport
    sent_ns: int | None = None  # first byte handed to the socket
    ended_ns: int = 0
    error_class: str | None = None
    error: str | None = None

    def fail(self, error_class: str, error: str) -> None:
        """The first failure counts."""
        if self.error_class is None:
            self.error_class, self.error = error_class, error
