"""Finds out why an engine failed, from its phase and its log rather than its exit status.

Exit statuses tell little: vLLM exits with 0 when it dies while serving, SGLang kills itself with
SIGKILL, and an illegal instruction in a worker shows only in its parent's log. Signatures are the
engines' own messages.

Information and warnings are never causes, and for a death while serving only lines after readiness
count. Faults of the node or the hub come first, since others follow from them, then specific
reasons, then general refusals, then the words of processes that died of something else. Within a
group the last line counts: that one the engine did not survive.
"""

import re
import signal
import time
from collections.abc import Callable, Collection, Mapping
from itertools import takewhile
from typing import Literal

from orchestrator.engines.engine import LogWords
from orchestrator.engines.process import READY
from orchestrator.errors import Failure, FailureKind
from orchestrator.redaction import plain

Phase = Literal["start", "run"]  # before and after it was ready
TAIL_LINES = 80
LAST_WORDS_S = 3.0
_CAUSE_CHARACTERS = 240

_NOT_THERE = r"Client error '404 |404 Client Error"  # says the hub
# may follow from that
_NO_CONNECTION = r"check your (?:internet )?connection|We couldn't connect to"
# Messages that engines share: Python's, torch's, argparse's, the operating system's, container
# runtimes'. The engines' own are in their files.
COMMON: Mapping[FailureKind, str] = {
    FailureKind.GPU_FAULT: (
        r"uncorrectable ECC error|busy or unavailable|system not yet initialized|fallen off the bus|GPU is lost"
        r"|no CUDA-capable device is detected|Unable to determine the device handle"
    ),
    FailureKind.HUB: (
        rf"{_NO_CONNECTION}|Max retries exceeded with url"
        r"|429 (?:Client Error|Too Many Requests)|50\d Server Error.*for url|Temporary failure in name resolution"
        r"|(?:Timeout|ConnectionError|ConnectError|NameResolutionError)\b.*(?:huggingface|hf\.co|Hub\b)"
    ),
    FailureKind.DISK_FULL: r"No space left on device|Disk quota exceeded",
    FailureKind.NODE_LIMIT: (
        # in brackets it is torch's message about a requested size
        r"(?<!\()Cannot allocate memory|Too many open files|pthread_create.*Resource temporarily unavailable"
        r"|can't start new thread"
    ),
    FailureKind.NO_ADDRESS: r"[Cc]annot assign requested address|EADDRNOTAVAIL|AddrNotAvailable",
    FailureKind.PORT_TAKEN: r"[Aa]ddress already in use|EADDRINUSE|AddrInUse",
    FailureKind.IMAGE_PULL: (
        r"Unable to find image|pull access denied|manifest unknown|failed to pull|Cannot connect to the Docker daemon"
        r"|initializing source docker:|did not resolve to an alias|container-init binary not found"
        r"|FATAL: +(?:Unable to handle \w+://|While checking container|while extracting|container creation failed)"
    ),
    FailureKind.OOM_LOAD: (
        r"CUDA out of memory|torch\.OutOfMemoryError|OutOfMemoryError:|CUDA error: out of memory"
        r"|DefaultCPUAllocator: can't allocate memory"
    ),
    FailureKind.BAD_FLAG: (
        r"unrecognized arguments?:|invalid choice:|error: argument |error: the following arguments are required"
        r"|error: unexpected argument|error: invalid (?:value|argument)|No such option|Error: Invalid value for"
    ),
    FailureKind.NO_MODEL: (
        rf"{_NOT_THERE}|HFValidationError|RepositoryNotFound|GatedRepo|LocalEntryNotFound|Repo id must"
        r"|does not appear to have a file named|is not a local folder and is not a valid model"
        r"|Can't load the configuration of|No such file or directory: '[^']*config\.json"
    ),
    FailureKind.NO_EXECUTABLE: r"executable file not found in \$PATH",
    FailureKind.NO_COMPILER: r"InvalidCxxCompiler|No working C\+\+ compiler|Failed to find C compiler",
    FailureKind.ILLEGAL_INSTRUCTION: r"exit code:? -4\b|SIGILL|Illegal instruction",
    FailureKind.DRIVER: r"CUDA driver version is insufficient|no kernel image is available|Found no NVIDIA driver",
    FailureKind.DIST: r"NCCL error|ncclSystemError|Timeout.*ProcessGroup|DistStoreError|DistNetworkError|Gloo connect",
    FailureKind.BAD_CONFIG: (
        r"ValueError: |NotImplementedError: |validation errors? for \w+|[Ee]rror\b.* not supported"
        # other assertions are bugs of the engine
        r"|AssertionError: .*(?:divisible|must be|must >=|not support|only support|invalid \w+$)"
    ),
}
# Groups in order: failures of a later group may follow from those of an earlier one.
_OUTSIDE = frozenset(
    {FailureKind.GPU_FAULT, FailureKind.HUB, FailureKind.DISK_FULL, FailureKind.NODE_LIMIT}
)
_FOLLOWING = (FailureKind.DIST, FailureKind.BAD_CONFIG, FailureKind.ENGINE_DEAD)
_GROUPS = (
    _OUTSIDE,
    frozenset(FailureKind) - _OUTSIDE - {*_FOLLOWING},
    *(frozenset({kind}) for kind in _FOLLOWING),
)
# Only before an engine serves: later a single request may cause the same messages.
_START_ONLY = frozenset(
    {
        *(
            FailureKind.GPU_DIRTY,
            FailureKind.OOM_KV,
            FailureKind.BAD_FLAG,
            FailureKind.BAD_QUANT,
            FailureKind.HUB,
        ),
        *(
            FailureKind.BAD_MODEL,
            FailureKind.NO_MODEL,
            FailureKind.PORT_TAKEN,
            FailureKind.BAD_CONFIG,
        ),
        *(FailureKind.DRIVER, FailureKind.NO_ADDRESS),
    }
)
# Exit status -> kind, if the log has no signature; None: the engine still runs.
_WORDLESS = {
    -signal.SIGILL: FailureKind.ILLEGAL_INSTRUCTION,
    -signal.SIGKILL: FailureKind.KILLED,
    128 + signal.SIGKILL: FailureKind.KILLED,  # as a container or a shell ends with it
    None: FailureKind.NOT_ANSWERING,
}
_INTRODUCTION = {
    "start": "the engine did not start: ",
    "run": "the engine failed while it served: ",
}
_WARNING = r"\S+\.py:\d+: \w*Warning: |\[W[\d :.]* ?\w+\.cpp:\d+\]"  # Python's, torch's
# vLLM's "(Worker_TP0 pid=71) ERROR 11-21 11:28:26 [core.py:133] ", and other engines' time stamps
# and levels.
_PREFIX = re.compile(
    r"^(\([^)]*pid=\d+\) )?((ERROR|WARNING|INFO|CRITICAL) )?(\[?\d[\d:,.T/ Z-]+( ?[DTPE]P\d+)*\]? )?(E )?"
    r"(- \w+ - ERROR - )?(\[[\w.]+:\d+\] )?"
)
_PYDANTIC = re.compile(r" \[type=\w+, input_value=.*")
_EXCEPTION = re.compile(
    r"(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt))(?:: (?P<message>.*))?$"
)
_CODE = re.compile(r"raise |File \"|return |[\w.]+ = |[\w.]+\($")
_NO_REASON = re.compile(rf"$|Traceback|Process |{_EXCEPTION.pattern}")
_SIGNAL = re.compile(r"signal \d+|exit ?code:? -\d+")


def classify(words: LogWords, phase: Phase, log: str, exit_status: int | None) -> Failure:
    """What went wrong. ``log``: the end of the engine's log; ``exit_status``: None if it still runs
    (it hangs).
    """
    written = plain(log).splitlines()  # TGI writes colours to files too
    tail = "\n".join([line for line in written if not line.startswith("# ")][-TAIL_LINES:])
    if phase == "run" and READY in written:
        written = written[len(written) - written[::-1].index(READY) :]
    lines = [line for line in written if not line.startswith("# ")]
    meant = _meant(words, lines)
    if any(re.search(_NOT_THERE, line) for line in meant):
        meant = [line for line in meant if not re.search(_NO_CONNECTION, line)]
    for group in _GROUPS:
        # Engines log at any level that they die, SGLang without one.
        eligible = lines if FailureKind.ENGINE_DEAD in group else meant
        if kind := _last_said(group, words, phase, eligible):
            matching = [line for line in eligible if _pattern(kind, words).search(line)]
            killed = next(
                (at for at, line in enumerate(lines) if line in matching and _SIGNAL.search(line)),
                None,
            )
            # exceptions after a kill only follow from it
            root = (
                root_exception(lines[:killed], words.consequences)
                if kind is FailureKind.ENGINE_DEAD
                else None
            )
            return Failure(
                kind,
                f"{_INTRODUCTION[phase]}{kind.meaning}: {root or _best_of(matching, lines)}",
                tail,
            )
    if wordless := _WORDLESS.get(exit_status):
        return Failure(wordless, _INTRODUCTION[phase] + wordless.meaning, tail)
    kind = FailureKind.DIED_AT_START if phase == "start" else FailureKind.DIED
    said = root_exception(meant) or _last_words(meant)
    ended = f"it ended {describe_exit(exit_status)}{f', saying: {said}' if said else ''}"
    return Failure(kind, _INTRODUCTION[phase] + ended, tail)


class LastWords:
    """Notices when an engine logs that it is dead while its process lives on: SGLang waits for ever
    when its port is taken, and does not answer for a minute when one of its processes has died.
    """

    def __init__(self, words: LogWords, clock: Callable[[], float] = time.monotonic) -> None:
        self._words, self._clock = words, clock
        self._heard_s: float | None = None

    def spoken(self, phase: Phase, lines: list[str]) -> bool:
        """Whether it logged that at least ``LAST_WORDS_S`` ago: most engines end by then, and log
        more about it.

        ``lines``: what it wrote since the last call.
        """
        port = _last_said({FailureKind.PORT_TAKEN}, self._words, phase, _meant(self._words, lines))
        if port or _last_said({FailureKind.ENGINE_DEAD}, self._words, phase, lines):
            self._heard_s = self._clock() if self._heard_s is None else self._heard_s
        return self._heard_s is not None and self._clock() - self._heard_s >= LAST_WORDS_S


def _last_said(
    group: Collection[FailureKind], words: LogWords, phase: Phase, lines: list[str]
) -> FailureKind | None:
    """The kind of the last line that matches a kind of this group; if several match, the first in
    FailureKind.
    """
    possible = [
        kind
        for kind in FailureKind
        if kind in group and (phase == "start" or kind not in _START_ONLY)
    ]
    patterns = [(kind, _pattern(kind, words)) for kind in possible]
    return next(
        (kind for line in reversed(lines) for kind, pattern in patterns if pattern.search(line)),
        None,
    )


def _pattern(kind: FailureKind, words: LogWords) -> re.Pattern[str]:
    return re.compile(
        "|".join(filter(None, (words.failures.get(kind), COMMON.get(kind)))) or "(?!)"
    )


def _meant(words: LogWords, lines: list[str]) -> list[str]:
    """The lines that may be a cause: neither information or a warning, nor a consequence of another
    line.
    """
    passing = re.compile("|".join(filter(None, (words.passing, _WARNING))))
    return [
        line for line in lines if not passing.match(line) and not _follows(line, words.consequences)
    ]


def _follows(line: str, consequences: str) -> bool:
    return bool(consequences) and re.search(consequences, line) is not None


def cause(line: str) -> str:
    """A log line as part of a sentence: without time stamp and origin, and not too long."""
    text = _PYDANTIC.sub("", _clean(line))
    return text if len(text) <= _CAUSE_CHARACTERS else text[: _CAUSE_CHARACTERS - 1] + "…"


def root_exception(lines: list[str], consequences: str = "") -> str | None:
    """The first exception in a log that is not a consequence of another, as ``KeyError: 'x'``.

    Without a message it comes with the code that raised it: ``AssertionError (assert x is not
    None)``.
    """
    cleaned = [_clean(line) for line in lines]
    for index, text in enumerate(cleaned):
        match = _EXCEPTION.match(text)
        if match is None or _follows(text, consequences):
            continue
        if match["message"]:
            return cause(text)
        code = [line for line in cleaned[:index] if line and not set(line) <= set("^~ ")]
        return cause(f"{text} ({code[-1]})" if code else text)
    return None


def _clean(line: str) -> str:
    return _PREFIX.sub("", line.strip()).strip()


def describe_exit(status: int | None) -> str:
    """``with status 1``, ``by SIGKILL``."""
    if status is None:
        return "without a status"
    if status < 0:
        return (
            f"by {signal.Signals(-status).name}"
            if -status in set(signal.Signals)
            else f"by signal {-status}"
        )
    return f"with status {status}"


def _best_of(matching: list[str], lines: list[str]) -> str:
    """The most telling line: one that names a signal, else the exception itself rather than the
    code it shows.

    A line that ends in a colon (vLLM's "Reasons: ") comes with the lines of the same process that
    it introduces.
    """
    signals = [line for line in matching if _SIGNAL.search(line)]
    said = [
        line for line in matching if _EXCEPTION.match(_clean(line)) or not _CODE.match(_clean(line))
    ]
    best = (signals or said or matching)[0]
    if not best.rstrip().endswith(":"):
        return cause(best)
    after = lines[lines.index(best) + 1 :]
    same = takewhile(
        lambda line: _origin(line) == _origin(best) and not _NO_REASON.match(_clean(line)), after
    )
    return cause(f"{best.rstrip()} {' '.join(map(_clean, same)) or 'none is given'}")


def _origin(line: str) -> str:
    """The prefix of a log line: the same for all lines of one message."""
    found = _PREFIX.match(line)
    return found[0] if found else ""


def _last_words(lines: list[str]) -> str | None:
    """The last line that looks like an error."""
    wrong = re.compile(r"[Ee]rror|Exception|[Ff]ailed|fatal|signal \d+")
    return next((cause(line) for line in reversed(lines) if wrong.search(line)), None)
