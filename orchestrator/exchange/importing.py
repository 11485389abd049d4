"""Reads files of other tools and stores their points; all files are read before any is stored."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from orchestrator import __version__
from orchestrator.analysis.attempt_summary import attempt_of_rows, store_computed
from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.base.redaction import redact
from orchestrator.exchange.import_formats import IMPORT_FORMATS
from orchestrator.exchange.imported import (
    ImportedPoint,
    ImportedRequest,
    ImportFile,
    UnreadableFiles,
)
from orchestrator.results.ids import digest, new_ulid
from orchestrator.results.manifest import FilePart, Manifest
from orchestrator.results.outcomes import RequestStatus
from orchestrator.results.records import (
    AttemptKey,
    DeploymentRow,
    ImportedRow,
    PointRow,
    RequestRow,
    TokenEventsRow,
)
from orchestrator.results.schemas import RECORDS, conform, table_of
from orchestrator.results.store import Store
from orchestrator.results.validity import Validity
from orchestrator.spec.settings import NO_HARDWARE

LARGEST_BYTES = 4 << 30  # a detailed file of a million requests has 2 GB


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file whose points were read. ``format_title``: the tool and its file."""

    file: ImportFile
    format_title: str
    points: Sequence[ImportedPoint]


@dataclass(frozen=True, slots=True)
class ImportNames:
    """What the files do not say of their points, as the user names it.

    ``deployment``: None: the model's name. ``workload``: the name of the prompts.
    """

    deployment: str | None
    workload: str


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file after its import.

    ``already_stored``: how many of its points an earlier import had stored.
    """

    read: ReadFile
    already_stored: int


def read_files(paths: Sequence[Path]) -> list[ReadFile]:
    """The points of these files, each found by its content.

    Raises ProblemsError with all problems of all files.
    """
    problems: list[Problem] = []
    by_format: dict[str, list[ImportFile]] = {}
    seen: dict[str, str] = {}
    for path in paths:
        try:
            file = _opened(path)
            if file.sha256 in seen:
                raise InputError(f"it has the same content as {seen[file.sha256]}")
            seen[file.sha256] = file.name
            by_format.setdefault(_format_of(file), []).append(file)
        except InputError as error:
            problems.append(Problem(str(error), str(path)))
    read: list[ReadFile] = []
    for name, files in by_format.items():
        reader = IMPORT_FORMATS[name]
        try:
            points = reader.read(files)
        except UnreadableFiles as error:
            for file_name, reasons in error.reasons.items():
                problems += [Problem(reason, file_name) for reason in reasons]
            continue
        for file in files:
            read.append(ReadFile(file, reader.title, points.get(file.name, ())))
    if problems:
        raise ProblemsError(problems)
    return read


def _opened(path: Path) -> ImportFile:
    """Raises InputError for what is no JSON and no JSON lines."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise InputError(f"it is larger than {LARGEST_BYTES >> 30} GiB")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(error.strerror or str(error)) from error
    return ImportFile(str(path), hashlib.sha256(content).hexdigest(), _documents(content))


def _documents(content: bytes) -> list[object]:
    """The JSON values of a file: one, or one a line."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError("it is no text in UTF-8, so no JSON") from error
    has_halves = r"\ud" in text.lower()
    decoder = json.JSONDecoder()
    documents: list[object] = []
    place = 0
    while True:
        while place < len(text) and text[place].isspace():
            place += 1
        if place == len(text):
            break
        try:
            document, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, place) + 1
            raise InputError(f"it is no JSON from line {line} on: {error}") from error
        documents.append(_whole_characters(document) if has_halves else document)
    if not documents:
        raise InputError("it is empty")
    return documents


def _whole_characters(document: object) -> object:
    """The same with a question mark for each half of a character, which our files cannot hold."""
    text = json.dumps(document, ensure_ascii=False)
    return json.loads(text.encode("utf-8", "replace"))


def _format_of(file: ImportFile) -> str:
    """The name of the one format that recognises the file. Raises InputError where none does."""
    names = [name for name in IMPORT_FORMATS if IMPORT_FORMATS[name].recognises(file)]
    if len(names) == 1:
        return names[0]
    if names:
        raise InputError(f"it looks like a file of each of {', '.join(names)}")
    titles = ", ".join(IMPORT_FORMATS[name].title for name in IMPORT_FORMATS)
    raise InputError(f"it is none of {titles}: {_seen(file.documents[0])}")


def _seen(document: object) -> str:
    """``it has the keys a, b, c and 7 more``."""
    if not isinstance(document, dict):
        return f"it is a JSON {type(document).__name__}"
    if not document:
        return "it is an empty object"
    names = [redact(name)[:40] for name in list(document)[:4]]
    more = f" and {len(document) - 4} more" if len(document) > 4 else ""
    return f"it has the keys {', '.join(names)}{more}"


def check_place(store: Store) -> None:
    """Raises InputError for an experiment that this program measured, or simulated."""
    if store.plan() is not None:
        raise InputError(
            f"{store.experiment!r} at {store.uri} is an experiment of this program, and imported "
            "points do not stand among its own: give another --name"
        )


def store_points(store: Store, files: Sequence[ReadFile], names: ImportNames) -> list[StoredFile]:
    """Stores the points of these files, each with its requests, and commits them one by one.

    A point that an earlier import stored is left as it is. Raises ProblemsError, before anything is
    stored, for files of which it stored points under other names, and ResultsError where the storage
    refuses.
    """
    _check_names(store, files, names)
    measured = {measurement_id for measurement_id, _ in store.attempts()}
    stored: list[StoredFile] = []
    for read in files:
        already_stored = 0
        for point in read.points:
            identity = _Identity.of(point, read.file, names)
            if identity.measurement_id in measured:
                already_stored += 1
                continue
            _store_point(store, point, read.file, names, identity)
            measured.add(identity.measurement_id)
        stored.append(StoredFile(read, already_stored))
    return stored


def _check_names(store: Store, files: Sequence[ReadFile], names: ImportNames) -> None:
    """Raises ProblemsError for files whose points stand in the store under other names: they would
    count twice.
    """
    rows = store.read("imported", ["file_sha256", "measurement_id"]).to_pylist()
    stored: dict[str, set[str]] = {}
    for row in rows:
        stored.setdefault(row["file_sha256"], set()).add(row["measurement_id"])
    problems: list[Problem] = []
    for read in files:
        ids = {_Identity.of(point, read.file, names).measurement_id for point in read.points}
        if stored.get(read.file.sha256, set()) - ids:
            reason = (
                "it was imported before under another --deployment or --workload, and its points "
                "would count twice: give the same, or another --name"
            )
            problems.append(Problem(reason, read.file.name))
    if problems:
        raise ProblemsError(problems)


@dataclass(frozen=True, slots=True)
class _Identity:
    """The ids of an imported point. Each is a point of its own: runs of other tools are not pooled,
    because their figures cannot be.
    """

    deployment_id: str
    point_id: str
    measurement_id: str

    @classmethod
    def of(cls, point: ImportedPoint, file: ImportFile, names: ImportNames) -> _Identity:
        deployment = {
            "source": point.tool,
            "model": point.model,
            "label": names.deployment or point.model,
        }
        content = {"file": file.sha256, "place": point.place, "workload": names.workload}
        deployment_id = digest(deployment)
        point_id = digest({"deployment": deployment_id, **content})
        return cls(deployment_id, point_id, digest({"point": point_id, "repeat": 0}))


def _store_point(
    store: Store,
    point: ImportedPoint,
    file: ImportFile,
    names: ImportNames,
    identity: _Identity,
) -> None:
    key = AttemptKey(measurement_id=identity.measurement_id, attempt_id=new_ulid())
    deployment = _deployment_row(point, names, identity, store.experiment)
    point_row = _point_row(point, names, identity, store.experiment, key)
    imported = ImportedRow(
        measurement_id=key.measurement_id,
        attempt_id=key.attempt_id,
        source=point.tool,
        source_version=point.version,
        file=Path(file.name).name,
        file_sha256=file.sha256,
        place=point.place,
        definitions=point.definitions,
        figures=point.figures,
        aggregates_json=json.dumps(point.aggregates),
        left_out=point.left_out,
    )
    requests = [_request_row(point, index, key) for index in range(len(point.requests))]
    gaps = [
        _gaps_row(request, index, key)
        for index, request in enumerate(point.requests)
        if request.gaps_s is not None and request.first_token_ns is not None
    ]
    tables: dict[str, Sequence[object]] = {
        "points": [point_row],
        "deployments": [deployment],
        "imported": [imported],
        "requests": requests,
        "token_events": gaps,
    }
    parts: list[FilePart] = []
    for table, rows in tables.items():
        if rows:
            data = table_of(rows, RECORDS[table])
            part = store.write_part(
                table,
                data,
                measurement_id=key.measurement_id,
                attempt_id=key.attempt_id,
                writer="import",
            )
            parts.append(part)
    manifest = store.commit(
        Manifest(
            kind="point",
            measurement_id=key.measurement_id,
            attempt_id=key.attempt_id,
            status="ok",
            created_unix_ns=time.time_ns(),
            files=tuple(parts),
            deployment_id=identity.deployment_id,
            point_id=identity.point_id,
            client_version=__version__,
        )
    )
    attempt = attempt_of_rows(
        store,
        manifest,
        point=point_row,
        deployment=deployment,
        requests=conform("requests", table_of(requests, RequestRow)),
        engine_metrics=store.read_manifests("engine_metrics", [manifest]),
        token_events=conform("token_events", table_of(gaps, TokenEventsRow)),
    )
    store_computed(store.computed, [replace(attempt, imported=imported).data()])


def _deployment_row(
    point: ImportedPoint, names: ImportNames, identity: _Identity, experiment: str
) -> DeploymentRow:
    """What is known of the server: its model, and what the user calls it."""
    return DeploymentRow(
        deployment_id=identity.deployment_id,
        experiment=experiment,
        label=names.deployment or point.model,
        engine="endpoint",
        model=point.model,
        hardware=NO_HARDWARE,
        accelerator=NO_HARDWARE,
        devices=0,
        nodes=1,
        replicas=1,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        settings_json="{}",
    )


def _point_row(
    point: ImportedPoint,
    names: ImportNames,
    identity: _Identity,
    experiment: str,
    key: AttemptKey,
) -> PointRow:
    load: dict[str, object] = {"arrivals": point.load.arrivals}
    if point.load.max_in_flight is not None:
        load["max_in_flight"] = point.load.max_in_flight
    workload = {"tool": point.tool, "workload": names.workload, "stated": point.workload}
    return PointRow(
        measurement_id=key.measurement_id,
        attempt_id=key.attempt_id,
        point_id=identity.point_id,
        deployment_id=identity.deployment_id,
        launch_id="",
        experiment=experiment,
        workload=names.workload,
        workload_json=json.dumps(workload, sort_keys=True),
        load_json=json.dumps(load),
        control=point.load.control,
        level=point.load.level,
        arrivals=point.load.arrivals,
        repeat=0,
        seed=0,
        status="ok",
        validity=Validity.UNCHECKED,
        validity_reasons=(reason_of(point),),
        evidence_json="{}",
        clients=0,
        clients_json="[]",
        window_start_ns=point.window.start_ns,
        window_end_ns=point.window.end_ns,
        started_unix_ns=point.started_unix_ns,
        requests_scheduled=len(point.requests),
        emulated=False,
        source=point.source,
        client_version=__version__,
    )


def reason_of(point: ImportedPoint) -> str:
    """Why an imported point is ``unchecked``."""
    return (
        f"measured by {point.source}: its client was not checked, and latencies count from sending, "
        "not from when a request was due"
    )


def _request_row(point: ImportedPoint, index: int, key: AttemptKey) -> RequestRow:
    request = point.requests[index]
    output_tokens = request.output_tokens
    chunks = request.chunks if request.chunks is not None else output_tokens or 0
    is_answered = request.error is None
    itl_kind = None
    if request.gaps_s is not None:
        itl_kind = "token" if chunks == output_tokens else "chunk"
    return RequestRow(
        measurement_id=key.measurement_id,
        attempt_id=key.attempt_id,
        request_index=index,
        client=0,
        replica=0,
        phase="measure",
        session=request.session,
        turn=request.turn,
        sent_ns=request.sent_ns,
        first_token_ns=request.first_token_ns,
        first_answer_ns=request.first_answer_ns,
        last_token_ns=request.last_token_ns,
        done_ns=request.done_ns,
        input_tokens_asked=0,
        input_tokens=request.input_tokens,
        output_tokens_asked=0,
        output_tokens=output_tokens,
        cached_tokens=request.cached_tokens,
        chunks=chunks,
        coalesced_chunks=0,
        itl_kind=itl_kind,
        status=RequestStatus.OK if is_answered else RequestStatus.ERROR,
        error=None if request.error is None else redact(request.error)[:500],
        http_status=request.http_status,
    )


def _gaps_row(request: ImportedRequest, index: int, key: AttemptKey) -> TokenEventsRow:
    """The gaps in whole us; the remainders are carried, so that they add up to the whole."""
    ends_us = np.rint(np.cumsum(request.gaps_s or ()) * 1e6).astype(np.int64)
    gaps_us = np.diff(ends_us, prepend=0)
    return TokenEventsRow(
        measurement_id=key.measurement_id,
        attempt_id=key.attempt_id,
        request_index=index,
        gaps_us=tuple(gaps_us.tolist()),
    )
