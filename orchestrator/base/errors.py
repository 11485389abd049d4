"""The exceptions that may leave a room. Those that one room raises and handles itself are defined
there.

OrchestratorError
├── InputError            the user's input is wrong; nothing was started; exit status 2
│   └── ProblemsError     several problems found at once, each with its place in a file
├── EngineFailure         an engine did not start, died or misbehaved: a row, and the sweep goes on
├── PlacementError        the cluster could not give what a deployment needs
│   ├── Occupied          others use it now: no failure, the launch queues again
│   └── NoClient          clients did not start on some nodes: others are tried
└── ResultsError          the results store is unreadable or refuses a write
    └── DamagedError      a committed file is not whole

A failed *request* is never an exception: it is a row in ``requests``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class FailureClass(StrEnum):
    """Who or what is to blame for a failure. The class decides how often a point or launch is tried
    again (docs/reference/failures.md).
    """

    retries: int
    meaning: str
    _value_: str

    def __new__(cls, value: str, retries: int, meaning: str) -> FailureClass:
        member = str.__new__(cls, value)
        member._value_ = value
        member.retries = retries
        member.meaning = meaning
        return member

    BAD_CONFIG = "bad_config", 0, "the configuration is wrong; a retry changes nothing"
    ENGINE_CRASH = "engine_crash", 1, "the engine died"
    INFRA = (
        "infra",
        3,
        "the cluster failed, not the configuration; retried on another node if one is free",
    )
    TIMEOUT = "timeout", 1, "it took too long"
    CLIENT_BOUND = (
        "client_bound",
        0,
        "the load generator was the limit; repeated with twice the clients instead",
    )


_BAD = FailureClass.BAD_CONFIG
_CRASH = FailureClass.ENGINE_CRASH
_INFRA = FailureClass.INFRA
_TIMEOUT = FailureClass.TIMEOUT
_BOUND = FailureClass.CLIENT_BOUND


class FailureKind(StrEnum):
    """What went wrong, as ``failure_kind`` stores it. Each kind belongs to one class
    (docs/reference/failures.md).

    ``meaning`` is a clause. A failure that is read from an engine's log becomes the sentence
    ``<meaning>: <the line of the log>``.
    """

    failure_class: FailureClass
    meaning: str
    _value_: str

    def __new__(cls, value: str, failure_class: FailureClass, meaning: str) -> FailureKind:
        member = str.__new__(cls, value)
        member._value_ = value
        member.failure_class = failure_class
        member.meaning = meaning
        return member

    # read from an engine's log (node/failures.py), causes before their consequences
    GPU_FAULT = (
        "gpu_fault",
        _INFRA,
        "a GPU of the node is faulty, lost, in use, not set up or not visible",
    )
    HUB = "hub", _INFRA, "the model hub did not answer, or refused for now"
    NODE_LIMIT = "node_limit", _INFRA, "the node ran out of memory, open files or threads"
    NO_ADDRESS = "no_address", _INFRA, "it was given an address that the node does not have"
    GPU_DIRTY = "gpu_dirty", _INFRA, "another process still holds memory of the GPU"
    OOM_KV = "oom_kv", _BAD, "there is no room left for the KV cache"
    OOM_LOAD = "oom_load", _BAD, "it ran out of memory"
    BAD_FLAG = "bad_flag", _BAD, "it refused its command line"
    BAD_QUANT = "bad_quant", _BAD, "the quantization does not fit the model or the device"
    BAD_MODEL = "bad_model", _BAD, "this engine does not know this kind of model"
    NO_MODEL = "no_model", _BAD, "the model cannot be found or read"
    DISK_FULL = "disk_full", _INFRA, "a disk or quota of the node is full"
    IMAGE_PULL = "image_pull", _INFRA, "the container image could not be started"
    NO_EXECUTABLE = "no_executable", _BAD, "the engine's program is not there or cannot be executed"
    NO_COMPILER = (
        "no_compiler",
        _BAD,
        "it compiles kernels, and the node's compiler is missing or does not work",
    )
    PORT_TAKEN = "port_taken", _INFRA, "a port it was given is taken by another program"
    ILLEGAL_INSTRUCTION = (
        "illegal_instruction",
        _BAD,
        "it ran an instruction that this processor does not have (on a CPU try dtype: float32)",
    )
    DRIVER = (
        "driver",
        _INFRA,
        "the GPU's driver or libraries and the engine do not fit together",
    )
    DIST = "dist", _INFRA, "its ranks lost or never found each other"
    BAD_CONFIG = "bad_config", _BAD, "it refused this configuration"
    ENGINE_DEAD = "engine_dead", _CRASH, "it died"
    # of engines whose log has no known message
    DIED_AT_START = "died_at_start", _CRASH, "it ended before it was ready"
    DIED = "died", _CRASH, "it ended while it served"
    KILLED = (
        "killed",
        _CRASH,
        "it was killed by SIGKILL (the node ran out of memory, or someone killed it)",
    )
    NOT_ANSWERING = "not_answering", _CRASH, "it runs but does not answer"
    ENGINE_STALLED = (
        "engine_stalled",
        _CRASH,
        "a replica had open requests and sent nothing for minutes",
    )
    NEVER_READY = "never_ready", _TIMEOUT, "it was not ready within startup_timeout_s"
    SILENT = "silent", _TIMEOUT, "it was not ready, and its log stopped growing"
    WRONG_SERVER = (
        "wrong_server",
        _INFRA,
        "the server that answered is not the one that was started",
    )
    KEY_UNCHECKED = "key_unchecked", _BAD, "it answers requests that carry no key"
    # the cluster
    NO_ROOM = "no_room", _INFRA, "no node could hold it, and no suitable node came in time"
    NO_PLACE = "no_place", _INFRA, "the nodes chosen for it were gone, or could not hold it"
    WRONG_ACCELERATOR = (
        "wrong_accelerator",
        _BAD,
        "the node has another accelerator than the file's hardware",
    )
    NO_GUARD = "no_guard", _INFRA, "the process that guards the engine did not start"
    PREEMPTED = "preempted", _INFRA, "its node is being taken back"
    AGENT_LOST = "agent_lost", _INFRA, "the node, or the agent on it, was lost"
    # the load
    NO_KEY = "no_key", _BAD, "the environment variable with an endpoint's key is not set"
    NO_CLIENT = "no_client", _INFRA, "the cluster could not start a load client"
    CLIENT_LOST = "client_lost", _INFRA, "a load client was lost during the point"
    BAD_POINT = "bad_point", _BAD, "the point cannot be run as written"
    REQUESTS_REFUSED = (
        "requests_refused",
        _BAD,
        "no request succeeded: they were refused (HTTP 4xx) or redirected",
    )
    NO_REQUEST_OK = "no_request_ok", _CRASH, "no request succeeded"
    CLIENT_BOUND = "client_bound", _BOUND, "the load generator slowed the point down"
    NOT_SIMULATED = (
        "not_simulated",
        _BAD,
        "the model of `orchestrator simulate` knows too little of it",
    )
    INTERNAL = "internal", _INFRA, "this program failed: an internal error"


# Kinds of ``bad_config`` that a user mends without changing the experiment file: a key is set, an
# engine installed, a model downloaded. They are not tried again within a sweep, but by the next
# run.
FIXED_ON_THE_HOST = frozenset(
    {
        FailureKind.NO_KEY,
        FailureKind.NO_MODEL,
        FailureKind.NO_EXECUTABLE,
        FailureKind.NO_COMPILER,
        FailureKind.WRONG_ACCELERATOR,
    }
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the input. ``line`` is 1-based, None when there is no file behind it."""

    message: str
    file: str | None = None
    line: int | None = None
    hint: str | None = None

    def __str__(self) -> str:
        text = self.message
        if self.line is not None:
            text = f"{self.line}: {text}"
        if self.file is not None:
            separator = ":" if self.line is not None else ": "
            text = f"{self.file}{separator}{text}"
        return f"{text} ({self.hint})" if self.hint else text


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with an engine, in the words that are stored.

    ``sentence``: one plain sentence for a person; ``log_tail``: the last lines the engine wrote.
    """

    kind: FailureKind
    sentence: str
    log_tail: str = ""

    @property
    def failure_class(self) -> FailureClass:
        return self.kind.failure_class


class OrchestratorError(Exception):
    """Root of the exceptions that may leave a room."""


class InputError(OrchestratorError):
    """The user's input is wrong and nothing was started."""


class ProblemsError(InputError):
    """All problems of an input, found in one pass."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)  # pickle makes an exception anew from these arguments
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class EngineFailure(OrchestratorError):
    """An engine did not start, died or misbehaved."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return self.failure.sentence


class PlacementError(OrchestratorError):
    """The cluster could not give what a deployment needs, or lost it."""


class Occupied(PlacementError):
    """Others use the resources now, and the launch queues again. The text says who they are, if the
    host knows. ``nodes``: ids of the nodes in use, as far as Ray says which.
    """

    def __init__(self, text: str, nodes: Collection[str] = ()) -> None:
        self.nodes = frozenset(nodes)
        super().__init__(text)


class NoClient(PlacementError):
    """Load clients did not start on ``nodes``, or do not reach the results from there."""

    def __init__(self, text: str, nodes: Collection[str]) -> None:
        self.nodes = frozenset(nodes)
        super().__init__(text)


class ResultsError(OrchestratorError):
    """The results store is unreadable or refused a write."""


class DamagedError(ResultsError):
    """A committed file is gone, cut off or not what its manifest says."""
