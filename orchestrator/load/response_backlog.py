"""Responses that a client has not read yet: it reads them in its pauses, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator

from orchestrator.load.in_flight import InFlight
from orchestrator.load.response.reader import EventCounter, ResponseReader
from orchestrator.load.rows import RowCollector

# memory of finished responses; beyond it they are read even while bytes are waiting
MOST_UNREAD_BYTES = 128 * 1024 * 1024
REQUEST_BYTES = 3_000  # memory of a request, without the bytes that came
_END = object()


class ResponseBacklog:
    """Reads finished responses into rows, and counts parts of long streams that still run.

    A step takes less than a millisecond. ``open_requests``: those that still run. ``on_read`` is
    called with each response that was read to its end.
    """

    def __init__(
        self,
        reader: ResponseReader,
        rows: RowCollector,
        event_counter: EventCounter | None,
        open_requests: Collection[InFlight],
        on_read: Callable[[InFlight], None],
    ) -> None:
        self._reader = reader
        self._rows = rows
        self._event_counter = event_counter
        self._open_requests = open_requests
        self._on_read = on_read
        self._finished: deque[InFlight] = deque()  # oldest first
        self._finished_bytes = 0
        self._countable: list[InFlight] = []  # running streams of which a part can be counted
        # what is left of the response that is being read, or of the rows that are being flushed
        self._steps: Iterator[None] | None = None
        # rows must be flushed even while bytes wait (conversations make rows at any time)
        self.must_flush = False

    @property
    def is_too_large(self) -> bool:
        """Whether responses must be read even while bytes wait."""
        return self._finished_bytes > MOST_UNREAD_BYTES

    @property
    def has_work(self) -> bool:
        """Whether a step would read or count something; of full rows it does not know."""
        return bool(self._finished or self._steps or self._countable)

    def finished(self) -> list[InFlight]:
        """Responses that are over and wait to be read. May be called from any thread."""
        return list(self._finished)

    def add(self, request: InFlight) -> None:
        """Adds a request that is over."""
        self._finished.append(request)
        self._finished_bytes += _memory_bytes(request)

    def find_countable(self) -> None:
        """Looks among the open requests for long streams of which a part can be counted."""
        if self._event_counter is not None:
            self._countable = list(filter(self._event_counter.can_count, self._open_requests))

    def step(self) -> bool:
        """One step: flushes full rows first, then reads finished responses, then counts parts of
        running streams. Returns False where there is nothing to do.
        """
        if self._steps is None:
            if self._rows.full:
                self._steps = self._rows.flush()
            elif self._finished:
                request = self._finished.popleft()
                self._finished_bytes -= _memory_bytes(request)
                self._steps = self._read(request)
        if self._steps is None:
            return self._count()
        if next(self._steps, _END) is _END:
            self._steps = None
            self.must_flush = False
        return True

    def read_now(self, request: InFlight) -> None:
        """Reads a whole response at once, before those that wait."""
        for _ in self._read(request):
            pass
        self.must_flush = self.must_flush or self._rows.full

    def read_all(self) -> None:
        """Reads whatever is left."""
        while self.step():
            pass

    def _read(self, request: InFlight) -> Iterator[None]:
        yield from self._reader.finish(request)
        self._rows.add(request)
        self._on_read(request)

    def _count(self) -> bool:
        """Counts a part of a stream that still runs. Returns False where none is long enough."""
        while self._event_counter is not None and self._countable:
            request = self._countable.pop()
            if request in self._open_requests:
                self._event_counter.count(request)
                return True
        return False


def _memory_bytes(request: InFlight) -> int:
    """Roughly the memory of a finished response, with the bytes that came."""
    return REQUEST_BYTES + sum(map(len, request.parts))
