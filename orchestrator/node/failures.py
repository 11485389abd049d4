"""Finds out why an engine failed: from its phase and its log, since exit statuses say little.

vLLM exits with status 0 when it dies while serving, SGLang kills itself with SIGKILL, and an
illegal instruction in a worker shows only in its parent's log. So lines of the log are compared
with signatures: messages that engines are known to log (signatures.py, and each engine's file).

Information and warnings are never causes. For a death while serving, only lines after readiness
count. Signatures are looked for in the order of ``Weight``: first faults of the node or the hub,
from which other failures follow, then specific reasons, then general refusals, and last the
messages of processes that died because another one had died. Within a weight the last line counts,
because the engine did not survive what it reports there.
"""

import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from orchestrator.base.errors import Failure, FailureKind
from orchestrator.base.redaction import strip_control
from orchestrator.engines.log_words import LogWords
from orchestrator.node.log_lines import LogLine, read
from orchestrator.node.process import READY
from orchestrator.node.signatures import (
    COMMON,
    HUB_ANSWERED,
    HUB_UNREACHABLE,
    Signature,
    Weight,
    of_engine,
)

TAIL_LINES = 80
LAST_WORDS_S = 3.0
_CAUSE_CHARACTERS = 240
_REASON_LINES = 24  # that are read below a header; they may be the output of a compiler


class EnginePhase(Enum):
    """Whether an engine had served when it failed."""

    START = "start"  # it was not ready yet
    SERVING = "run"


# Exit status -> kind of failure, for a log without a signature. None: the engine still runs.
_KIND_BY_STATUS = {
    -signal.SIGILL: FailureKind.ILLEGAL_INSTRUCTION,
    -signal.SIGKILL: FailureKind.KILLED,
    128 + signal.SIGKILL: FailureKind.KILLED,  # as a container or a shell ends with it
    None: FailureKind.NOT_ANSWERING,
}
_INTRODUCTION = {
    EnginePhase.START: "the engine did not start: ",
    EnginePhase.SERVING: "the engine failed while it served: ",
}
# "ValueError: text", "triton.runtime.errors.OutOfResources: text", "what():  text" of C++
_EXCEPTION = re.compile(
    r"(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)|(?:[a-z_]\w*\.)+[A-Z]\w+|what\(\))"
    r"(?:: +(?P<message>.*)|:?)$"
)
_CHAINED = re.compile(
    r"The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:"
)
_TRACEBACK = re.compile(r".*Traceback \(most recent call last\)")
# The program goes on after the traceback below such a line.
_IGNORED = re.compile(r"Exception ignored in")
_FOLLOWS_ANYWHERE = re.compile(
    r"CancelledError|KeyboardInterrupt|SystemExit|See (?:root cause|stack trace) |BrokenPipeError"
)
_CODE = re.compile(r"raise |File \"|return |[\w.]+ = |[\w.]+\($")
_NO_REASON = re.compile(rf"$|Traceback|Process |{_EXCEPTION.pattern}")
_SIGNAL = re.compile(r"signal \d+|exit ?code:? -\d+")
_ERROR = re.compile(r"[Ee]rror|Exception|[Ff]ailed|[Ff]atal|signal \d+|what\(\)")
# What pydantic writes: "1 validation error for X", then a field, then its message and in brackets
# the value. A message about the whole has no field.
_VALIDATION = re.compile(r"\d+ validation errors? for \S.*$")
_PYDANTIC = re.compile(r" \[type=\w+, input_value=.*")
_PYDANTIC_MORE = re.compile(r"For further information visit ")
_OF_A_VALIDATOR = re.compile(r"^(?:Value error|Assertion failed), ")


def classify(words: LogWords, phase: EnginePhase, log: str, exit_status: int | None) -> Failure:
    """What went wrong. ``log``: the end of the engine's log. ``exit_status``: None if the engine
    still runs, but hangs.
    """
    all_lines = strip_control(log).splitlines()  # TGI writes colours to files too
    tail = "\n".join(_without_comments(all_lines)[-TAIL_LINES:])
    if phase is EnginePhase.SERVING:
        all_lines = _since_ready(all_lines)
    lines = [read(line) for line in _without_comments(all_lines)]
    causes = _causes(words, lines)
    for weight in Weight:
        # Engines log their death at any level, SGLang without a level.
        eligible = lines if weight is Weight.DEATH else causes
        possible = _signatures(words, phase, {weight})
        kind = _last_kind(possible, eligible)
        if kind is not None:
            of_kind = [signature for signature in possible if signature.kind is kind]
            reason = _reason(of_kind, eligible, lines)
            if kind is FailureKind.ENGINE_DEAD:
                reason = _before_the_death(of_kind, lines, words) or reason
            return Failure(kind, f"{_INTRODUCTION[phase]}{kind.meaning}: {reason}", tail)
    kind_by_status = _KIND_BY_STATUS.get(exit_status)
    if kind_by_status is not None:
        return Failure(kind_by_status, _INTRODUCTION[phase] + kind_by_status.meaning, tail)
    kind = FailureKind.DIED_AT_START if phase is EnginePhase.START else FailureKind.DIED
    ended = f"it ended {describe_exit(exit_status)}"
    last_words = _root_exception(causes, words) or _last_words(causes)
    if last_words:
        ended += f", saying: {last_words}"
    return Failure(kind, _INTRODUCTION[phase] + ended, tail)


def _without_comments(lines: Sequence[str]) -> list[str]:
    """The lines that the engine wrote, without the comments of its owner."""
    return [line for line in lines if not line.startswith("# ")]


def _since_ready(lines: list[str]) -> list[str]:
    """The lines below the last one that says that the engine is ready; all without such a line."""
    for index in reversed(range(len(lines))):
        if lines[index] == READY:
            return lines[index + 1 :]
    return lines


class LastWords:
    """Notices when an engine logs that it is dead while its process lives on. SGLang waits forever
    when its port is taken, and hangs for a minute when one of its processes has died.
    """

    def __init__(self, words: LogWords, clock: Callable[[], float] = time.monotonic) -> None:
        self._words = words
        self._clock = clock
        self._spoken_s: float | None = None  # when it was first noticed

    def spoken(self, phase: EnginePhase, lines: list[str]) -> bool:
        """Whether the engine logged at least ``LAST_WORDS_S`` ago that it is dead. Most engines
        have ended by then, and have logged more about the cause.

        ``lines``: what it has written since the last call.
        """
        new = [read(line) for line in lines]
        signatures = _signatures(self._words, phase, Weight)
        of_port = [
            signature for signature in signatures if signature.kind is FailureKind.PORT_TAKEN
        ]
        of_death = [
            signature for signature in signatures if signature.kind is FailureKind.ENGINE_DEAD
        ]
        kind_of_death = _last_kind(of_port, _causes(self._words, new)) or _last_kind(of_death, new)
        if kind_of_death is not None and self._spoken_s is None:
            self._spoken_s = self._clock()
        return self._spoken_s is not None and self._clock() - self._spoken_s >= LAST_WORDS_S


def _signatures(words: LogWords, phase: EnginePhase, weights: Iterable[Weight]) -> list[Signature]:
    """The signatures of these weights that count in this phase: the engine's own and common ones."""
    own = [of_engine(kind, pattern) for kind, pattern in words.failures.items()]
    wanted = set(weights)
    return [
        signature
        for signature in (*own, *COMMON)
        if signature.weight in wanted
        and (phase is EnginePhase.START or signature.counts_while_serving)
    ]


def _last_kind(signatures: Sequence[Signature], lines: Sequence[LogLine]) -> FailureKind | None:
    """The kind of the last line that has a signature. If that line has several, the first kind in
    FailureKind is taken. If it has only signatures of headers, a line near it with another
    signature is taken instead.
    """
    order = list(FailureKind)
    for index in reversed(range(len(lines))):
        matching = [signature for signature in signatures if signature.is_in(lines[index].raw)]
        if not matching:
            continue
        if all(signature.is_header for signature in matching):
            near = lines[max(0, index - _REASON_LINES) : index + _REASON_LINES]
            of_reasons = [signature for signature in signatures if not signature.is_header]
            kind = _last_kind(of_reasons, near)
            if kind is not None:
                return kind
        return min((signature.kind for signature in matching), key=order.index)
    return None


def _causes(words: LogWords, lines: Sequence[LogLine]) -> list[LogLine]:
    """The lines that may be a cause: without information, warnings and the tracebacks that these
    show, and without lines that the engine writes only because of another one.
    """
    causes: list[LogLine] = []
    in_passing = False  # within a traceback that a warning shows
    for before, line in pairwise([read(""), *lines]):
        if _TRACEBACK.match(line.text):
            in_passing = in_passing or _shows_a_traceback(words, before)
        elif _IGNORED.match(line.text):
            in_passing = True
        if in_passing:
            in_passing = _EXCEPTION.match(line.text) is None
        elif not _is_passing(words, line) and not _follows(words, line.raw):
            causes.append(line)
    if any(HUB_ANSWERED.search(line.raw) for line in causes):
        causes = [line for line in causes if not re.search(HUB_UNREACHABLE, line.raw)]
    return causes


def _is_passing(words: LogWords, line: LogLine) -> bool:
    """Whether a line says, by its level or its form, that it is no error."""
    if words.causes_at_any_level and re.search(words.causes_at_any_level, line.raw):
        return False
    return line.is_passing or bool(words.passing and re.match(words.passing, line.raw))


def _shows_a_traceback(words: LogWords, before: LogLine) -> bool:
    """Whether the line in front of a traceback is a warning that shows it ("left out x:")."""
    shows = words.warns_with_tracebacks or _ends_open(before.text)
    return shows and before.is_passing and _is_passing(words, before)


def _ends_open(text: str) -> bool:
    """Whether a line introduces those below it."""
    return text.rstrip().endswith(":")


def _follows(words: LogWords, text: str) -> bool:
    """Whether a line is one that the engine writes only as a consequence of another one."""
    return bool(words.consequences) and re.search(words.consequences, text) is not None


def cause(text: str) -> str:
    """A log line as part of a sentence: without time stamp and origin, and not too long."""
    text = _OF_A_VALIDATOR.sub("", _PYDANTIC.sub("", read(text).text))
    return _short(text)


def _short(text: str) -> str:
    return text if len(text) <= _CAUSE_CHARACTERS else text[: _CAUSE_CHARACTERS - 1] + "…"


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception in a log."""

    index: int  # of its line
    message: str


def _root_exception(lines: Sequence[LogLine], words: LogWords) -> str | None:
    """The first exception that follows from no other; of a chain the last that has a message.

    An exception without a message comes with the code that raised it: ``AssertionError (assert x is
    not None)``.
    """
    for chain in _chains(lines):
        roots = [raised for raised in chain if not _is_consequence(words, lines[raised.index])]
        with_message = [raised for raised in roots if raised.message]
        if with_message:
            return _quoted(lines, with_message[-1].index)
        if roots:
            index = roots[-1].index
            code = _code_above(lines, index)
            text = lines[index].text
            return cause(f"{text} ({code})" if code else text)
    return None


def _is_consequence(words: LogWords, line: LogLine) -> bool:
    """Whether an exception follows from another one, wherever that is."""
    return _follows(words, line.raw) or _FOLLOWS_ANYWHERE.search(line.text) is not None


def _code_above(lines: Sequence[LogLine], index: int) -> str:
    """The last line above an exception that shows code, rather than the marks that underline code;
    "" without one.
    """
    for line in reversed(lines[:index]):
        if line.text and not set(line.text) <= set("^~ "):
            return line.text
    return ""


def _chains(lines: Sequence[LogLine]) -> list[list[_Raised]]:
    """The exceptions in a log, by chain: Python says which exception led to which. Processes write
    at the same time, so each process has its own chains.
    """
    chains: list[list[_Raised]] = []
    open_chains: dict[str, list[_Raised]] = {}  # origin -> its last chain
    goes_on: set[str] = set()  # origins whose last line says that their chain goes on
    for index, line in enumerate(lines):
        match = _EXCEPTION.match(line.text)
        if _CHAINED.match(line.text):
            goes_on.add(line.origin)
        elif match:
            if line.origin not in goes_on or line.origin not in open_chains:
                open_chains[line.origin] = []
                chains.append(open_chains[line.origin])
            open_chains[line.origin].append(_Raised(index, match["message"] or ""))
            goes_on.discard(line.origin)
    return chains


def describe_exit(status: int | None) -> str:
    """``with status 1``, ``by SIGKILL``."""
    if status is None:
        return "without a status"
    if status >= 0:
        return f"with status {status}"
    if -status in set(signal.Signals):
        return f"by {signal.Signals(-status).name}"
    return f"by signal {-status}"


def _before_the_death(
    of_death: Sequence[Signature], lines: Sequence[LogLine], words: LogWords
) -> str | None:
    """The exception that ended an engine. Exceptions after a kill only follow from the kill."""
    for index, line in enumerate(lines):
        if _SIGNAL.search(line.raw) and any(signature.is_in(line.raw) for signature in of_death):
            return _root_exception(lines[:index], words)
    return _root_exception(lines, words)


def _reason(
    signatures: Sequence[Signature], eligible: Sequence[LogLine], lines: Sequence[LogLine]
) -> str:
    """The line that says most: one that names a signal, else an exception rather than the code that
    a traceback shows. A header counts only if no other line matches.
    """
    of_headers = [signature for signature in signatures if signature.is_header]
    of_reasons = [signature for signature in signatures if not signature.is_header]
    reasons = _having(of_reasons, eligible)
    headers = _having(of_headers, eligible)
    validations = [line for line in headers if _VALIDATION.search(line.text)]
    if validations:
        return _quoted(lines, _index_of(validations[0], lines))
    matching = reasons or headers
    signals = [line for line in matching if _SIGNAL.search(line.raw)]
    no_code = [
        line for line in matching if _EXCEPTION.match(line.text) or not _CODE.match(line.text)
    ]
    best = _index_of((signals or no_code or matching)[0], lines)
    return _quoted(lines, _last_of_its_chain(best, matching, lines))


def _having(signatures: Sequence[Signature], lines: Iterable[LogLine]) -> list[LogLine]:
    """The lines that have one of these signatures."""
    return [line for line in lines if any(signature.is_in(line.raw) for signature in signatures)]


def _index_of(line: LogLine, lines: Sequence[LogLine]) -> int:
    return next(index for index, other in enumerate(lines) if other is line)


def _last_of_its_chain(best: int, matching: Sequence[LogLine], lines: Sequence[LogLine]) -> int:
    """The line of the last exception in the same chain that has a message and matches as well: the
    gated repository rather than the status 401 of one request.
    """
    for chain in _chains(lines):
        if best in [raised.index for raised in chain]:
            same = [
                raised.index
                for raised in chain
                if raised.message and any(lines[raised.index] is line for line in matching)
            ]
            return max(same, default=best)
    return best


def _quoted(lines: Sequence[LogLine], index: int) -> str:
    """The message that begins in this line. A line that introduces others (vLLM's "Reasons: ", "1
    validation error for VllmConfig") is followed or replaced by the lines of the same process below
    it.
    """
    line = lines[index]
    below = _below(lines, index)
    validation = _VALIDATION.search(line.text)
    if validation:
        before = line.text[: validation.start()]  # "error: argument --x: ", or the exception's name
        where = "" if _EXCEPTION.match(line.text) else before
        return _short(where + (_validation_reason(below) or validation[0]))
    if _ends_open(line.text):
        reason = _compiler_error(below) or " ".join(below) or "none is given"
        return cause(f"{line.text.rstrip()} {reason}")
    if _OF_A_VALIDATOR.match(line.text) and not _PYDANTIC.search(line.text):
        return cause(" ".join([line.text, *_up_to_the_value(below)]))
    return cause(line.text)


def _below(lines: Sequence[LogLine], index: int) -> list[str]:
    """The lines of the same message. Lines of other processes may stand between them."""
    below = []
    origin = lines[index].origin
    for line in lines[index + 1 : index + 1 + _REASON_LINES]:
        if line.origin and origin and line.origin != origin:
            continue
        if line.origin != origin or _NO_REASON.match(line.text):
            break
        below.append(line.text)
    return below


def _validation_reason(below: Sequence[str]) -> str:
    """The first two errors of a validation, as ``field: message``."""
    reasons: list[str] = []
    field = ""
    message: list[str] = []
    for text in below:
        if _PYDANTIC_MORE.match(text):
            continue
        is_first = not message
        message.append(text)
        if not _PYDANTIC.search(text):
            if is_first and not field and _is_field(text):
                field = text
                message = []
            continue
        whole = _OF_A_VALIDATOR.sub("", _PYDANTIC.sub("", " ".join(message)))
        reasons.append(f"{field}: {whole}" if field else whole)
        field = ""
        message = []
    if not reasons and message:
        return _OF_A_VALIDATOR.sub("", " ".join(message))
    return "; ".join(reasons[:2])


def _is_field(text: str) -> bool:
    """Whether a line names a field, as ``kv_cache.dtype`` or ``function-wrap[validate()].0``."""
    return re.fullmatch(r"[\w.\[\]()`'|,=-]+", text) is not None


def _up_to_the_value(below: Sequence[str]) -> list[str]:
    """The lines of a validator's message up to the one with the value in brackets."""
    for count, text in enumerate(below, 1):
        if _PYDANTIC.search(text):
            return list(below[:count])
    return []


def _compiler_error(below: Sequence[str]) -> str:
    """The line of a compiler's output that says what is wrong."""
    for text in below:
        if re.search(r"\b(?:error|fatal)\b ?:|not found\b", text):
            return text
    return ""


def _last_words(lines: Sequence[LogLine]) -> str | None:
    """The last line that looks like an error."""
    for line in reversed(lines):
        if _ERROR.search(line.raw):
            return cause(line.text)
    return None
