"""Finds out, before anything is measured, which models, request fields and token ids an endpoint
accepts.

It sends real requests for two tokens through the real client. Dialects are tried in turn, from the
one whose answers say most to the plainest. The next one is tried when the endpoint refuses a
dialect, be it with 400, with 422 or with another status that gateways give to fields that they do
not know.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from orchestrator.base.errors import InputError
from orchestrator.base.http import LIMIT_S, HttpResponse, ask
from orchestrator.base.redaction import mask_secrets, redact
from orchestrator.base.text import listed
from orchestrator.emulator.version import is_emulator
from orchestrator.load.client import LoadClient
from orchestrator.load.point import LoadPoint, Target
from orchestrator.spec.address import ServerAddress, parse_url
from orchestrator.spec.dialect import SGLANG_GENERATE, TGI_STREAM, Dialect
from orchestrator.spec.load import Arrivals, Lengths, Level
from orchestrator.workloads.content import SMALLER_IDS
from orchestrator.workloads.drawn import RandomWorkload
from orchestrator.workloads.kind import IdRange

if TYPE_CHECKING:
    from orchestrator.spec.settings import EngineSettings

_EXACT = ("usage", "token_ids", "continuous_usage", "native")
TRIAL_TOKENS = 2
MOST_LISTED = 10  # models in a sentence: gateways list hundreds
LOOPBACK = ("127.0.0.1", "::1", "localhost")
FORBIDDEN = 403
NOT_FOUND = 404
NOT_ALLOWED = 405
KEY_REFUSED = (401, FORBIDDEN)
KEY_HEADERS = ("authorization", "api-key", "x-api-key", "x-goog-api-key")
BUSY = (408, 429, 504)  # the next request may be answered
# Statuses that no plainer dialect would avoid: the request's key, its path, the time that it took
# or the rate of requests is to blame, and none of its fields.
FINAL = (401, NOT_FOUND, NOT_ALLOWED, 407, *BUSY)
_PLACE = re.compile(r"it is at (\S+) \(give")
_NATIVE = {
    "tgi": replace(TGI_STREAM, adapter_field="adapter_id"),
    "sglang": replace(SGLANG_GENERATE, adapter_field="lora_path"),
}


@dataclass(frozen=True, slots=True)
class EndpointDialect:
    """How to talk to an endpoint. ``id_range``: the range of token ids for prompts, None for the
    usual one. ``notes``: sentences for the user on what the endpoint cannot do.
    """

    dialect: Dialect
    id_range: IdRange | None
    notes: tuple[str, ...] = ()
    counts: bool = True  # it reports how many tokens it generated
    emulated: bool = False  # it is our emulator


def dialects(api: str) -> list[Dialect]:
    """The dialects to try for an API, best first."""
    if api in _NATIVE:
        return [_NATIVE[api]]
    wire = "openai_chat"
    path = "/v1/chat/completions"
    takes_ids = api == "completions"
    if takes_ids:
        wire = "openai_completions"
        path = "/v1/completions"
    full = Dialect(wire, path, prompt_token_ids=takes_ids, return_token_ids=True)
    newer = Dialect(wire, path, done_marker=False)  # OpenAI's own models
    candidates = [
        full,
        replace(full, return_token_ids=False),
        replace(full, return_token_ids=False, prompt_token_ids=False),
        Dialect(
            wire, path, length_control="generation_config", min_tokens_field=None, done_marker=False
        ),
        Dialect(wire, path, length_control="none", min_tokens_field=None, done_marker=False),
        replace(
            newer,
            length_control="none",
            min_tokens_field=None,
            max_tokens_field="max_completion_tokens",
        ),
    ]
    return [replace(dialect, adapter_field="model", images=api == "chat") for dialect in candidates]


def constraining(
    candidates: Sequence[Dialect], owner: str, settings: EngineSettings
) -> list[Dialect]:
    """The candidates with the fields by which ``owner``'s servers constrain answers."""
    from orchestrator.engines.endpoint import with_constraints

    return [with_constraints(plain, owner, settings) for plain in candidates]


def salted_first(
    candidates: Sequence[Dialect], owner: str, settings: EngineSettings
) -> list[Dialect]:
    """The candidates, preceded by a salted copy of each one to which ``with_salt`` gives a
    cache_salt.
    """
    from orchestrator.engines.endpoint import with_salt

    salted: list[Dialect] = []
    for plain in candidates:
        dialect = with_salt(plain, owner, settings)
        if dialect != plain:
            salted.append(dialect)
    return [*salted, *candidates]


@dataclass(frozen=True, slots=True)
class ModelListing:
    """What an endpoint answers when it is asked for its models. ``owners``: model -> who owns it,
    as the endpoint says; None if the endpoint has no list. ``answer``: the last response.
    """

    owners: dict[str, str] | None
    answer: HttpResponse

    @property
    def names(self) -> str:
        """The models, for a sentence."""
        return listed(list(self.owners or ()), MOST_LISTED) or "nothing"

    def without(self, adapters: Collection[str]) -> ModelListing:
        """The same without these LoRA adapters, which servers list beside the model itself."""
        if self.owners is None:
            return self
        owners = {name: owner for name, owner in self.owners.items() if name not in adapters}
        return replace(self, owners=owners)

    def note_on(self, model: str) -> str | None:
        """What the user should know about the list if the endpoint answers to ``model``; None if
        there is nothing to know.
        """
        if self.owners is None:
            return (
                f"the endpoint does not list its models ({self.answer.outcome}); it was asked "
                f"for {model!r} as given"
            )
        if model not in self.owners:
            return f"the endpoint lists {self.names}; it answers to {model!r}, too"
        return None


class TrialFailed(InputError):
    """A trial request failed. ``status``: the HTTP status of the answer; 0 if there was none.
    ``may_pass``: the next request may be answered (too many requests, no answer in time).
    """

    def __init__(self, text: str, status: int, may_pass: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.may_pass = may_pass


def list_models(target: Target, address: ServerAddress, limit_s: float = LIMIT_S) -> ModelListing:
    """Ask an endpoint for its models. Raises InputError for a bad URL, and when nothing answers."""
    origin = parse_url(target.url)
    answer = _ask(target, address.model_lists[0], limit_s)
    for path in address.model_lists[1:]:
        if answer.status == NOT_FOUND:
            answer = _ask(target, path, limit_s)
    if answer.status == 0:
        hint = "is the server up?"
        if origin.host in LOOPBACK and not origin.tls:
            hint += f" (orchestrator emulator --port {origin.port} imitates one)"
        if "TLS handshake" in answer.error:
            hint = "is it an http:// address?"
        elif "certificate" in answer.error:
            hint = "--insecure does without"
        raise InputError(f"no server answers at {target.url}: {answer.error}; {hint}")
    return ModelListing(_models(answer) if answer.status == 200 else None, answer)


def only_model(target: Target, listing: ModelListing, key_name: str | None = None) -> str:
    """The one model of an endpoint. Raises InputError where it does not list exactly one."""
    answer = listing.answer
    if answer.status in KEY_REFUSED:
        raise InputError(key_problem(target, answer.status, key_name))
    if answer.is_redirect:
        raise InputError(f"{target.url} does not list its models: {answer.outcome}")
    if listing.owners is None or len(listing.owners) != 1:
        names = listing.names if listing.owners else "no models"
        raise InputError(f"{target.url} lists {names}: name one with --model")
    return next(iter(listing.owners))


def key_problem(target: Target, status: int, key_name: str | None, from_file: bool = False) -> str:
    """The sentence that says that an endpoint wants a key, or refuses the key that it was sent.
    ``key_name``: the variable that holds the key. ``from_file``: an experiment file names that
    variable, not an option.
    """
    if target.api_key:
        where = f"the key in {key_name}" if key_name else "its key"
        return f"{target.url}: {where} was refused (HTTP {status})"
    if any(name.lower() in KEY_HEADERS for name, _ in target.headers):
        return f"{target.url}: the key in the header of --header was refused (HTTP {status})"
    setting = "api_key_env" if from_file else "--api-key-env"
    return f"{target.url} needs a key (HTTP {status}): name its variable with {setting}"


def _models(answer: HttpResponse) -> dict[str, str] | None:
    try:
        return {str(model["id"]): str(model.get("owned_by")) for model in answer.json()["data"]}
    except (AttributeError, KeyError, TypeError):
        return None


def detect_dialect(
    target: Target,
    candidates: Sequence[Dialect],
    tokenizer: str | None,
    timeout_s: float,
    address: ServerAddress | None = None,
    key_name: str | None = None,
    from_file: bool = False,
) -> EndpointDialect:
    """The first dialect in which an endpoint answers. Raises TrialFailed with the endpoint's last
    answer if there is none.

    ``timeout_s``: for each trial, in seconds; some endpoints load their model at the first request.
    ``address``: says at which paths the API may be; by default only the candidates' path is tried.
    ``from_file``: an experiment file names the endpoint, so sentences name no options of ``load``.
    """
    trials = _Trials(target, tokenizer, timeout_s, key_name, from_file)
    usual = candidates[0].path
    first_failure: TrialFailed | None = None
    for path in address.paths(usual) if address else [usual]:
        at_path = [replace(dialect, path=path) for dialect in candidates]
        try:
            return trials.first_answered(at_path)
        except TrialFailed as error:
            first_failure = first_failure or error
            if error.status not in (NOT_FOUND, NOT_ALLOWED):
                raise first_failure from None
    assert first_failure is not None
    raise first_failure


@dataclass(frozen=True, slots=True)
class _Trials:
    """Trial requests to an endpoint. The fields are the arguments of ``detect_dialect``."""

    target: Target
    tokenizer: str | None
    timeout_s: float
    key_name: str | None
    from_file: bool

    def first_answered(self, candidates: Sequence[Dialect]) -> EndpointDialect:
        """Try these dialects of one path in turn until one is answered. Raises TrialFailed."""
        row: dict[str, Any] = {}
        for dialect in candidates:
            takes_ids = dialect.prompt_token_ids and not self.tokenizer
            for id_range in SMALLER_IDS if takes_ids else (None,):
                row = self._row_of_two(dialect, id_range)
                if _answered(row):
                    return self._detected(dialect, id_range, row, candidates[0])
                if not (_is_refusal(row) or _may_be_refusal(row)):
                    raise self._failed(dialect, row)
                if not _refuses_ids(row):
                    break  # smaller token ids would be refused, too
        raise self._all_refused(candidates[0], row)

    def _row_of_two(self, dialect: Dialect, id_range: IdRange | None) -> dict[str, Any]:
        """The row of a trial request. If the request fails in a way that may be chance, a second
        one is sent and its row is returned, because answers in a plainer dialect would say less.
        """
        salted = dialect.salted("trial")
        row = self._send(salted, id_range)
        if _answered(row) or not _may_be_refusal(row):
            return row
        return self._send(salted, id_range)

    def _send(self, dialect: Dialect, id_range: IdRange | None) -> dict[str, Any]:
        return _row_of_trial(self.target, dialect, self.tokenizer, id_range, self.timeout_s)

    def _detected(
        self,
        dialect: Dialect,
        id_range: IdRange | None,
        row: dict[str, Any],
        best: Dialect,
    ) -> EndpointDialect:
        """What an answered trial shows. ``best``: the first dialect that was tried."""
        notes = _notes(dialect, best, row, self.from_file)
        reports_counts = row["token_count_source"] in _EXACT
        counts = row["output_tokens"] is None or reports_counts
        if not counts:
            instead = "one per streamed event is assumed"
            if self.tokenizer or self.from_file:
                instead = "the tokenizer counts its replies"
            notes.append(f"the endpoint reports no token counts: {instead}")
        dialect = replace(dialect, reports_counts=reports_counts)
        return EndpointDialect(dialect, id_range, tuple(notes), counts, _is_emulator(self.target))

    def _failed(self, dialect: Dialect, row: dict[str, Any]) -> TrialFailed:
        """The error for a trial that failed in a way that no plainer dialect would mend."""
        status = row["http_status"] or 0
        if status in KEY_REFUSED:
            return TrialFailed(self._key_problem(status), status)
        url = self.target.url + dialect.path
        error = _whole_place(str(row["error"]), url)
        text = f"{url} failed a trial request: {row['error_class']}: {error}"
        may_pass = status in BUSY or row["error_class"] == "timeout"
        return TrialFailed(text, status, may_pass)

    def _all_refused(self, best: Dialect, last_row: dict[str, Any]) -> TrialFailed:
        """The error for an endpoint that refused every dialect."""
        status = last_row["http_status"] or 0
        hint = """leave out a field that it refuses, like --extra-body '{"temperature": null}'"""
        if self.from_file:
            hint = "`orchestrator load` tries it with other fields (--extra-body)"
        if status == FORBIDDEN:
            hint = f"{self._key_problem(status)}; or {hint}"
        url = self.target.url + best.path
        refused = f"{url} refuses every kind of request we know"
        if not _is_refusal(last_row):  # its status says that it failed, not that it refuses
            refused = f"{url} failed a trial request of every kind we know"
        return TrialFailed(f"{refused}; its last answer: {last_row['error']}; {hint}", status)

    def _key_problem(self, status: int) -> str:
        return key_problem(self.target, status, self.key_name, self.from_file)


def _whole_place(error: str, url: str) -> str:
    """The error with the target of a redirect as a whole URL, because servers often name only its
    path.
    """
    return _PLACE.sub(lambda match: f"it is at {urljoin(url, match[1])} (give", error)


def _refuses_ids(row: dict[str, Any]) -> bool:
    """Whether the endpoint refuses a request because of the token ids of its prompt."""
    error = str(row["error"]).lower()
    return any(words in error for words in ("vocab", "token id", "invalid token"))


def _answered(row: dict[str, Any]) -> bool:
    """Whether the request was answered, even if with another number of tokens than it asked for."""
    answered: bool = row["status"] == "ok" or row["error_class"] == "wrong_length"
    return answered


def _is_refusal(row: dict[str, Any]) -> bool:
    """Whether the endpoint says that it does not take such requests."""
    if row["http_status"] == 200:
        # vLLM refuses token ids inside the stream; an error after the first chunk is no refusal
        return row["error_class"] in ("http_4xx", "stream_error") and not row["chunks"]
    return row["http_status"] in (400, 422)


def _may_be_refusal(row: dict[str, Any]) -> bool:
    """Whether a plainer request may be answered: gateways give many statuses to unknown fields."""
    status: int = row["http_status"] or 0
    return status >= 400 and status not in FINAL and not _is_refusal(row)


def _is_emulator(target: Target) -> bool:
    document = _ask(target, "/version").json()
    return isinstance(document, dict) and is_emulator(str(document.get("version")))


def _ask(target: Target, path: str, limit_s: float = LIMIT_S) -> HttpResponse:
    url = target.url.rstrip("/") + path
    answer = ask(
        url,
        api_key=target.api_key or "",
        limit_s=limit_s,
        more_headers=target.headers,
        verify_tls=target.verify_tls,
    )
    body = mask_secrets(answer.body.decode(errors="replace"), target.secrets).encode()
    error = redact(answer.error, target.secrets)
    location = redact(answer.location, target.secrets)
    if location:
        location = urljoin(url, location)
    return replace(answer, body=body, error=error, location=location)


def _row_of_trial(
    target: Target,
    dialect: Dialect,
    tokenizer: str | None,
    id_range: IdRange | None,
    timeout_s: float,
) -> dict[str, Any]:
    """Send one request of two tokens. Returns its row."""
    point = LoadPoint(
        targets=(target,),
        dialect=dialect,
        workload=RandomWorkload(
            name="trial", input_tokens=Lengths(fixed=16), output_tokens=Lengths(fixed=TRIAL_TOKENS)
        ),
        level=Level(control="concurrency", value=1),
        arrivals=Arrivals(),
        duration_s=None,
        requests=1,
        seed=time.time_ns() & 0xFFFFFFFF,  # a prompt that no measurement will send
        request_timeout_s=timeout_s,
        tokenizer=tokenizer,
        id_range=id_range,
    )
    client = LoadClient()
    client.prepare(point)
    row: dict[str, Any] = client.run(time.monotonic_ns()).requests.to_pylist()[0]
    return row


def _notes(
    dialect: Dialect, best: Dialect, row: dict[str, Any], from_file: bool = False
) -> list[str]:
    """What the endpoint cannot do, in sentences. ``best``: the first dialect that was tried.
    ``row``: the row of the trial that was answered.
    """
    notes = []
    if best.prompt_token_ids and not dialect.prompt_token_ids:
        notes.append("the endpoint takes no token ids: prompts are text")
    if dialect.length_control == "none":
        notes.append(
            "the endpoint has no way to fix the output length: requests may end early, see "
            "output_tokens"
        )
    elif row["error_class"] == "wrong_length":
        note = (
            f"the endpoint does not keep to the output length it is asked for ({row['error']}): "
            "such answers count as failed"
        )
        if not from_file:
            note = f"{note}, unless you give --natural-lengths"
        notes.append(note)
    return notes
