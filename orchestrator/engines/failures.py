"""Why an engine failed: by phase and what it wrote, not by exit status.

Exit statuses say little: vLLM exits 0 when it dies at run time, SGLang kills itself with SIGKILL, a worker that meets
an illegal instruction shows only in its parent's log. Signatures are those of the engines' own messages.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orchestrator.errors import Failure, FailureClass

Phase = Literal["start", "run"]  # before and after it was ready
TAIL_LINES = 80
_CAUSE_CHARACTERS = 240


@dataclass(frozen=True, slots=True)
class Signature:
    """One kind of failure. ``sentence`` may use ``{cause}``, the line of the log that matched."""

    kind: str
    failure_class: FailureClass
    pattern: re.Pattern[str]
    sentence: str


def _signature(kind: str, failure_class: FailureClass, pattern: str, sentence: str) -> Signature:
    return Signature(kind, failure_class, re.compile(pattern), sentence)


_BAD, _CRASH, _INFRA = FailureClass.BAD_CONFIG, FailureClass.ENGINE_CRASH, FailureClass.INFRA
# The first that matches anywhere in the log wins, so causes stand before what they lead to.
SIGNATURES = (
    _signature(
        "gpu_dirty", _INFRA,
        r"Free memory on device .* less than desired|Some GPUs may be occupied by other processes",
        "another process still holds memory of the GPU: {cause}",
    ),
    _signature(
        "oom_kv", _BAD,
        r"No available memory for the cache blocks|To serve at least one request"
        r"|Not enough memory\. Please try to increase --mem-fraction-static"
        r"|SWA pool \(\d+ tokens\) cannot hold even one request"
        r"|Not enough memory to handle \d+ prefill tokens|NotEnoughMemory\(\d+\)"
        r"|Available memory on node .* less than desired|allocation is less than requested memory for kv"
        r"|component could not be created: KV cache"
        r"|No enough gpu memory for (?:kv cache|state cache|runtime)"
        r"|-[\d.]+ GB space is available after load the model weight|check max len infer fail"
        r"|failed to allocate buffer for kv cache",
        "there is no room left for the KV cache: {cause}",
    ),
    _signature(
        "oom_load", _BAD,
        r"CUDA out of memory|torch\.OutOfMemoryError|OutOfMemoryError:|cudaMalloc failed: out of memory"
        r"|CUDA error: out of memory|(?:Prefill|Decode) out of memory|failed due to insufficient GPU memory"
        r"|DefaultCPUAllocator: can't allocate memory"
        r"|unable to allocate \S+ buffer|failed to allocate (?:compute \w+ buffers|buffer of size)",
        "it ran out of memory: {cause}",
    ),
    _signature(
        "bad_flag", _BAD,
        r"unrecognized arguments?:|invalid choice:|error: argument |error: the following arguments are required"
        r"|No such option|Error: Invalid value for|error: unexpected argument|error: invalid (?:value|argument)"
        r"|error while handling argument",
        "it refused its command line: {cause}",
    ),
    _signature(
        "bad_quant", _BAD,
        r"Unknown quantization method|Cannot find the config file for|does not match the quantization"
        r"|not supported for the current GPU\. Minimum capability|weight quantization block_[nk]"
        r"|is not supported for quantization method|For quantized MoE models, please make sure"
        r"|mismatched quant (?:method|group size)|unsupported quant[_ ]config|QuantMethod '.*' not supported"
        r"|[Uu]nsupported quant[_ ]mode|quantization is not supported for AutoModel",
        "the quantization does not fit the model or the device: {cause}",
    ),
    _signature(
        "bad_model", _BAD,
        r"Model architectures .* are not supported|Unsupported model type|Model type .* is not supported"
        r"|[Uu]nknown model architecture|Unknown architecture for AutoModel|turbomind does not support",
        "this engine does not know this kind of model: {cause}",
    ),
    _signature(
        "no_model", _BAD,
        r"HFValidationError|RepositoryNotFound|GatedRepo|LocalEntryNotFound|DownloadError|error loading model"
        r"|Invalid repository ID or local directory|does not appear to have a file named|Repo id must"
        r"|is not a local folder and is not a valid model|Can't load the configuration of"
        r"|No such file or directory: '[^']*config\.json|Cannot find any model weights with|No local weights found in"
        r"|failed to resolve commit for|Could not find model architecture from config",
        "the model cannot be found or read: {cause}",
    ),
    _signature("disk_full", _INFRA, r"No space left on device", "a disk of the node is full: {cause}"),
    _signature(
        "image_pull", _INFRA,
        r"Unable to find image|pull access denied|manifest unknown|failed to pull|Cannot connect to the Docker daemon"
        r"|initializing source docker:|did not resolve to an alias|container-init binary not found"
        r"|FATAL: +(?:Unable to handle \w+://|While checking container|while extracting|container creation failed)",
        "the container image could not be started: {cause}",
    ),
    _signature(
        "no_executable", _BAD, r"executable file not found in \$PATH",
        "the container image does not have the engine's program: {cause}",
    ),
    _signature(
        "no_compiler", _BAD, r"InvalidCxxCompiler|No working C\+\+ compiler|Failed to find C compiler",
        "it compiles kernels and found no C++ compiler on the node: {cause}",
    ),
    _signature(
        "port_taken", _INFRA,
        r"[Aa]ddress already in use|EADDRINUSE|couldn't bind HTTP server socket|at \d+ is not available in \d+ seconds"
        r"|Connection in use: \(|port \d+ has been used",
        "a port it was given is taken by another program: {cause}",
    ),
    _signature(
        "illegal_instruction", _BAD, r"exit code:? -4\b|SIGILL|Illegal instruction",
        "it ran an instruction that this processor does not have: {cause} (on a CPU try dtype: float32)",
    ),
    _signature(
        "driver", _INFRA, r"CUDA driver version is insufficient|no kernel image is available|Found no NVIDIA driver",
        "the GPU's driver and the engine do not fit together: {cause}",
    ),
    _signature(
        "dist", _INFRA,
        r"NCCL error|ncclSystemError|Timeout.*ProcessGroup|DistStoreError|DistNetworkError|Gloo connect",
        "its ranks lost or never found each other: {cause}",
    ),
    _signature(
        "bad_config", _BAD,
        r"Value error, |ArgumentValidation|ValueError: |NotImplementedError: |NotEnoughCUDADevices"
        # Other assertions are slips of the engine itself.
        r"|AssertionError: .*(?:divisible|must be|must >=|not support|only support|invalid \w+$)"
        r"|validation errors? for \w+|[Ee]rror\b.* not supported|only supports sm\d+"
        r"|assert .*% self\.tp_world_size_ == 0|failed to create context with model",
        "it refused this configuration: {cause}",
    ),
    _signature(
        "engine_dead", _CRASH,
        r"EngineDeadError|died unexpectedly|cb_worker_dead|EngineCore encountered"
        r"|Received sigquit|SIGQUIT received|watchdog timeout .*soft=False|Subprocess \S+ \(pid=\d+\) crashed"
        r"|could finish the model loading|Initialization failed\. warmup error"
        r"|Shard \d+ (?:crashed|failed to start)|Webserver Crashed|Executor worker returned error"
        r"|init func \w+ : (?!init ok)|kill all process consecutive_failures",
        "it died: {cause}",
    ),
)  # fmt: skip
# Signatures that only mean something before an engine serves: later the same words come from a single request.
# Engines also say such words in passing, of what they then do another way.
_START_ONLY = frozenset(
    {"bad_config", "bad_flag", "bad_model", "no_model", "oom_kv", "gpu_dirty", "port_taken", "bad_quant"}
)
_NOTICE = re.compile(
    # vLLM, LightLLM; of a KV cache without room LightLLM's INFO is all that tells
    r"(\([^)]*pid=\d+[^)]*\) )?(INFO|WARNING|DEBUG)\b(?!.*GB space is available after load)"
    r"|\S+\.py:\d+: \w*Warning: "  # Python's own
    # SGLang names no level; what ends it is a traceback, without a time, or its HTTP server's ERROR
    r"|\[\d{4}-\d\d-\d\d [^]]+\] (?!(\[\d+\] \[)?(ERROR|CRITICAL)\b)"
    r"|\d{4}-\S+ +(INFO|WARN|DEBUG) "  # TGI
    r"|\d{4}-\S+ \S+ - \w+ - (INFO|WARNING|DEBUG) "  # LMDeploy
    r"|\[TM\]\[(INFO|WARNING|DEBUG)\]"  # its turbomind
    r"|(\[\S+\] )?\[TRT-LLM\] (\[RANK \d+\] )?\[[IWD]\]|\[TensorRT-LLM\]\[(INFO|WARNING)\]"
    r"|[\d.]+ [IWD] "  # llama.cpp
)
# vLLM's "(Worker_TP0 pid=71) ERROR 11-21 11:28:26 [core.py:133] ", the others' time stamps and levels.
_PREFIX = re.compile(
    r"^(\([^)]*pid=\d+\) )?((ERROR|WARNING|INFO|CRITICAL) )?(\[?\d[\d:,.T/ Z-]+( ?[DTPE]P\d+)*\]? )?(E )?"
    r"(- \w+ - ERROR - )?(\[[\w.]+:\d+\] )?"
)


_PYDANTIC = re.compile(r" \[type=\w+, input_value=.*")
_EXCEPTION = re.compile(r"(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt))(?:: (?P<message>.*))?$")
_CONSEQUENCE = re.compile(
    r"EngineDeadError|Engine core initialization failed|WorkerProc initialization failed"
    r"|could finish the model loading|Executor worker returned error"
)
_CODE = re.compile(r"raise |File \"|return |[\w.]+ = |[\w.]+\($")


def classify(phase: Phase, log: str, exit_status: int | None, expected_stop: bool = False) -> Failure | None:
    """What went wrong, or None when it was asked to stop.

    ``log``: the end of what it wrote; ``exit_status``: None when it still runs (it hangs, or serves no more).
    """
    if expected_stop:
        return None
    lines = [line for line in log.splitlines() if not line.startswith("# ")]
    tail = "\n".join(lines[-TAIL_LINES:])
    ended_by_itself = (exit_status or 0) >= 0 and root_exception(lines) is None
    for signature, eligible in _searches(phase, lines, hints=ended_by_itself):
        if matching := [line for line in eligible if signature.pattern.search(line)]:
            sentence = _introduction(phase) + signature.sentence.format(cause=_cause_of(signature, matching, lines))
            return Failure(signature.failure_class, signature.kind, sentence, tail)
    return _without_signature(phase, lines, exit_status, tail)


def _searches(phase: Phase, lines: list[str], hints: bool) -> Iterator[tuple[Signature, list[str]]]:
    """Every signature with the lines that may hold it. ``hints``: what was said in passing counts too, after all else;
    not as a refusal of the configuration, whose words are too common."""
    meant = [line for line in lines if not _in_passing(line)]
    for signature in SIGNATURES:
        if signature.kind not in _START_ONLY:
            yield signature, lines
        elif phase == "start":
            yield signature, meant
    if phase == "start" and hints:
        yield from ((each, lines) for each in SIGNATURES if each.kind in _START_ONLY - {"bad_config"})


def _in_passing(line: str) -> bool:
    return _NOTICE.match(line) is not None or _CONSEQUENCE.search(line) is not None


def cause(line: str) -> str:
    """A line of a log as part of a sentence: without time stamps and origin, and not too long."""
    text = _PYDANTIC.sub("", _clean(line))
    return text if len(text) <= _CAUSE_CHARACTERS else text[: _CAUSE_CHARACTERS - 1] + "…"


def root_exception(lines: list[str]) -> str | None:
    """The first exception of a log that is no mere consequence: ``KeyError: 'x'``; one without a message comes with
    the code that raised it: ``AssertionError (assert x is not None)``."""
    cleaned = [_clean(line) for line in lines]
    for index, text in enumerate(cleaned):
        match = _EXCEPTION.match(text)
        if match is None or _CONSEQUENCE.search(text):
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
        return f"by {signal.Signals(-status).name}" if -status in set(signal.Signals) else f"by signal {-status}"
    return f"with status {status}"


def _cause_of(signature: Signature, matching: list[str], lines: list[str]) -> str:
    """The line that says it best: the root of a death, else an exception's own line rather than the code it shows."""
    if signature.kind == "engine_dead" and (root := root_exception(lines)):
        return root
    said = [line for line in matching if _EXCEPTION.match(_clean(line)) or not _CODE.match(_clean(line))]
    return cause((said or matching)[0])


def _introduction(phase: Phase) -> str:
    return "the engine did not start: " if phase == "start" else "the engine failed while it served: "


def _without_signature(phase: Phase, lines: list[str], exit_status: int | None, tail: str) -> Failure:
    if exit_status == -signal.SIGILL:
        kind, failure_class = "illegal_instruction", _BAD
        text = "it ran an instruction that this processor does not have"
    elif exit_status == -signal.SIGKILL:
        kind, failure_class = "killed", _CRASH
        text = "it was killed by SIGKILL (the node ran out of memory, or someone killed it)"
    elif exit_status is None:
        kind, failure_class, text = "not_answering", _CRASH, "it runs but does not answer"
    else:
        kind, failure_class = ("died_at_start" if phase == "start" else "died"), _CRASH
        text = f"it ended {describe_exit(exit_status)}" + _last_words(lines)
    return Failure(failure_class, kind, _introduction(phase) + text, tail)


def _last_words(lines: list[str]) -> str:
    """The last line that looks like an error, for the sentence."""
    for line in reversed(lines):
        if re.search(r"[Ee]rror|Exception|[Ff]ailed|fatal", line):
            return f", saying: {cause(line)}"
    return ""
