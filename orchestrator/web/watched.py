"""Watches a folder of results, and reads it again when something in it has changed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pyarrow import fs

from orchestrator.base.errors import InputError
from orchestrator.report.documents.run import RunDocument, experiment_runs
from orchestrator.report.page.html import PageContent, page_content
from orchestrator.report.selection import experiments, ranked_by_files
from orchestrator.results.blobs import Blobs
from orchestrator.results.location import parse_location
from orchestrator.results.root import Results, open_results
from orchestrator.results.runs import Runs, RunState

LOCAL_PAUSE_S = 2.0  # between two looks at a folder of this machine
REMOTE_PAUSE_S = 10.0  # between two listings of an object store, which costs money
IDLE_SHARE = 0.01  # share of a core that looking takes while nothing changes
# share of a core that reading measurements takes: the sweep's own clients may run beside it
READING_SHARE = 0.2
# The page's stops (``report/page/stops.py``) are chosen from the latencies that are known by then.
# Stops are chosen again once there are this many times the requests.
GROWTH_OF_STOPS = 2.0


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file as its folder lists it: another stamp means that the file was written again."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class StampedFiles:
    """The files that tell whether anything changed.

    ``commits``: the files of measurements, launches and plans. ``records``: the files of runs,
    which change with each heartbeat.
    """

    commits: frozenset[FileStamp] = frozenset()
    records: frozenset[FileStamp] = frozenset()


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known at one moment, ``seen_unix_s``.

    ``edition``: grows with each new choice of stops, after which a page that is open must be loaded
    again; it begins with the time, so that another process does not count from the same number.
    ``serial``: grows with each new content. ``attempts``: how many attempts are in the bins.
    """

    content: PageContent
    runs: tuple[RunDocument, ...] = ()
    seen_unix_s: float = 0.0
    edition: int = 0
    serial: int = 0
    attempts: int = 0


class WatchedResults:
    """Looks at results and keeps what it has read."""

    def __init__(self, uri: str, experiment: str | None = None) -> None:
        """Knows nothing until the first look. ``experiment``: None: all that are there."""
        self.uri = uri
        self.experiment = experiment
        self.now = Watched(
            page_content(uri, ranked_by_files(())), edition=time.time_ns() // 1_000_000
        )
        self._listing = StampedFiles()
        self._run_states: list[RunState] = []  # at the last look
        self._requests_of_stops = 0  # how many there were when the stops were chosen
        self._looking_cpu_s = 0.0  # processor time of the last look, for listing files
        self._reading_cpu_s = 0.0  # the same, for reading what changed

    @property
    def pause_s(self) -> float:
        """How long to wait before the next look, given the processor time of the last one."""
        is_local = parse_location(self.uri).is_local
        least_s = LOCAL_PAUSE_S if is_local else REMOTE_PAUSE_S
        idle_s = self._looking_cpu_s / IDLE_SHARE
        return max(least_s, idle_s, self._reading_cpu_s / READING_SHARE)

    def absence(self) -> str | None:
        """A sentence if the named experiment is not there yet but others are; else None."""
        results = self._results()
        if results is None or self._names(results):
            return None
        there = ", ".join(results.experiments)
        return f"no experiment {self.experiment!r} at {self.uri} yet; there: {there}"

    def look(self) -> bool:
        """Reads what changed since the last look; returns whether anything did.

        A run that died changes no file, so its process and its silence are checked at each look.
        Raises OrchestratorError where the storage does not answer.
        """
        began_s = time.thread_time()
        results = self._results()
        listing = self._list(results)
        listed_s = time.thread_time()
        self._looking_cpu_s = listed_s - began_s
        self._reading_cpu_s = 0.0
        now = self.now
        if listing.commits != self._listing.commits:
            try:
                now = self._with_content(self._read(results))
            finally:
                self._reading_cpu_s = time.thread_time() - listed_s
        runs = tuple(self._runs(results))
        run_states = [run.state for run in runs]
        if listing == self._listing and run_states == self._run_states:
            return False
        self.now = replace(now, runs=runs, seen_unix_s=time.time())
        self._run_states = run_states
        self._listing = listing  # last, so that what could not be read is read at the next look
        return True

    def _with_content(self, content: PageContent) -> Watched:
        """What is known, with content that was read anew."""
        edition = self.now.edition
        if content.payload.bins.stops is not self.now.content.payload.bins.stops:
            self._requests_of_stops = content.payload.requests
            edition += 1
        return replace(
            self.now,
            content=content,
            edition=edition,
            serial=self.now.serial + 1,
            attempts=len(content.payload.bins),
        )

    def _list(self, results: Results | None) -> StampedFiles:
        if results is None:
            return StampedFiles()
        blobs = Blobs(parse_location(results.uri))
        commits: list[FileStamp] = []
        records: list[FileStamp] = []
        for name in self._names(results):
            commits += _stamps(blobs.listing(f"{name}/commits"))
            commits += _stamps(blobs.listing(name, recursive=False))  # its plan
            records += _stamps(blobs.listing(f"{name}/runs", recursive=False))
        return StampedFiles(frozenset(commits), frozenset(records))

    def _results(self) -> Results | None:
        """The results at the URI; None while there is no experiment."""
        try:
            return open_results(self.uri)
        except InputError:
            return None

    def _names(self, results: Results) -> list[str]:
        return [name for name in results.experiments if self.experiment in (None, name)]

    def _read(self, results: Results | None) -> PageContent:
        """The content of the page, with the stops as they were unless they must be chosen anew."""
        if results is None or not self._names(results):
            return page_content(self.uri, ranked_by_files(()))
        ranked = ranked_by_files(experiments(results, self.experiment))
        content = page_content(self.uri, ranked, self.now.content.payload.bins)
        if content.payload.requests < GROWTH_OF_STOPS * self._requests_of_stops:
            return content
        return page_content(self.uri, ranked)

    def _runs(self, results: Results | None) -> Iterator[RunDocument]:
        if results is None:
            return
        for name in self._names(results):
            yield from experiment_runs(Runs(results.uri, name)).runs


def _stamps(files: Iterable[fs.FileInfo]) -> Iterator[FileStamp]:
    """The stamps of files, except written pages, which hold nothing that other files do not."""
    for file in files:
        if file.is_file and not file.base_name.endswith(".html"):
            yield FileStamp(file.path, file.size, file.mtime_ns or 0)
