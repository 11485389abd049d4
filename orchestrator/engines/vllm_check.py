"""Asks vLLM itself about a plan: runs its ``create_engine_config()`` on every command line that
would be run.

One process in the user's vLLM environment judges all deployments (vllm_judge.py), without weights
and without a GPU. Deployments that vLLM refuses become ``impossible``, in vLLM's words; a note
says how many it could not judge.
"""

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from orchestrator.base.errors import InputError
from orchestrator.engines import vllm_judge
from orchestrator.engines.command import Node
from orchestrator.engines.vllm import ENGINE as VLLM
from orchestrator.spec.document import from_home
from orchestrator.spec.settings import EngineSettings, Hardware, installed_version, is_version
from orchestrator.spec.stages import PlannedSettings

START_S = 180.0  # importing vLLM takes 10 s, the first time on a slow disk two minutes
EACH_S = 1.0  # for each command line; 0.02 to 0.1 s were measured
NOT_JUDGED = "its CPU build judges no GPU memory and no kernels"


@dataclass(frozen=True, slots=True)
class JudgedCommand:
    """A command line that vLLM is asked about; vllm_judge.py reads it as a JSON object."""

    argv: tuple[str, ...]  # of ``vllm serve``
    env: Mapping[str, str]
    models: Sequence[tuple[str, str | None]]  # names and revisions of the model and its draft
    cpu: bool  # whether it is for a CPU


class Ruling(Enum):
    """vLLM's decision on a command line; the values are the keys of vllm_judge.py's verdicts."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"  # this machine or build cannot tell


@dataclass(frozen=True, slots=True)
class CommandVerdict:
    """vLLM's verdict on one command line."""

    ruling: Ruling
    sentence: str = ""  # why vLLM refuses the command line, or cannot judge it


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """All verdicts of a vLLM environment; fewer verdicts than command lines if time ran out."""

    version: str
    device: str
    verdicts: Sequence[CommandVerdict]


@dataclass(frozen=True, slots=True)
class Opinion:
    """``refused``: name of a deployment -> why; ``note``: how many could be judged."""

    refused: Mapping[str, str]
    note: str


def opinion_of_vllm(
    environment: str | Path, deployments: Mapping[str, tuple[PlannedSettings, Hardware]]
) -> Opinion:
    """vLLM's opinion of those ``deployments`` (by any name) that use vLLM.

    ``environment`` is a virtual environment with vLLM. Raises InputError when it cannot be asked.
    """
    version = installed_version(str(environment), VLLM.name)
    of_vllm = {
        name: (settings, hardware)
        for name, (settings, hardware) in deployments.items()
        if settings.engine == VLLM.name
    }
    comparable = {
        name: (settings, hardware)
        for name, (settings, hardware) in of_vllm.items()
        if _is_same_version(settings, version)
    }
    if not comparable:
        return Opinion({}, f"vLLM {version} was not asked: no deployment runs that version")
    commands = [judged_command(settings, hardware) for settings, hardware in comparable.values()]
    report = ask(environment, commands)
    # fewer verdicts than deployments if time ran out
    verdicts = dict(zip(comparable, report.verdicts, strict=False))
    refused = {}
    for name, verdict in verdicts.items():
        if verdict.ruling is Ruling.REFUSED:
            _, hardware = comparable[name]
            not_judged = _not_judged(report, [hardware])
            refused[name] = f"vLLM {report.version} refuses it: {verdict.sentence}{not_judged}"
    note = _note(report, len(comparable), len(of_vllm))
    all_hardware = [hardware for _, hardware in comparable.values()]
    return Opinion(refused, note + _not_judged(report, all_hardware))


def _not_judged(report: JudgeReport, judged: Sequence[Hardware]) -> str:
    """What a CPU build cannot judge of deployments for GPUs, in brackets; "" if it judges all."""
    if report.device != "cpu" or all(hardware.is_cpu for hardware in judged):
        return ""
    return f" ({NOT_JUDGED})"


def _is_same_version(settings: EngineSettings, version: str | None) -> bool:
    """Whether the environment has a deployment's version; assumed if either is not known."""
    own = settings.engine_version
    if own is None and settings.executable and settings.image is None:
        own = installed_version(settings.executable, VLLM.name)
    return own is None or version is None or is_version(own, version)


def judged_command(settings: PlannedSettings, hardware: Hardware) -> JudgedCommand:
    """The command line of rank 0 as it would be run, without a container."""
    changes: dict[str, str | None] = {"image": None, "container_runtime": None}
    has_local_ranks = settings.world_size > 1 and settings.nnodes == 1
    if has_local_ranks and settings.distributed_executor_backend is None:
        # vLLM's default counts the GPUs of this machine
        changes["distributed_executor_backend"] = "mp"
    without_container = settings.model_copy(update=changes)
    command = VLLM.command(without_container, hardware, Node(), api_key="")
    models: list[tuple[str, str | None]] = [(settings.model, settings.revision)]
    if settings.speculative is not None and settings.speculative.model:
        models.append((settings.speculative.model, None))
    return JudgedCommand(command.argv[2:], command.env, models, hardware.is_cpu)


def ask(
    environment: str | Path, commands: Sequence[JudgedCommand], limit_s: float | None = None
) -> JudgeReport:
    """Ask a virtual environment's vLLM about command lines, in one process and within a time limit.

    Raises InputError when the environment has no vLLM, or when vLLM finds no device here.
    """
    python = from_home(str(environment)).absolute() / "bin" / "python"
    if not python.exists():
        raise InputError(f"{environment} is not a virtual environment: it has no bin/python")
    lines = "".join(json.dumps(asdict(command)) + "\n" for command in commands)
    if limit_s is None:
        limit_s = START_S + EACH_S * len(commands)
    output, errors = _run([str(python), "-I", vllm_judge.__file__], lines, limit_s)
    documents = [
        json.loads(line.removeprefix(vllm_judge.MARK))
        for line in output.splitlines()
        if _is_document(line)
    ]
    if not documents:
        reason = (errors.strip() or f"no answer within {limit_s:g} s").splitlines()[-1]
        raise InputError(f"the vLLM of {environment} cannot be asked: {reason}")
    header, *verdicts = documents
    if not header["device"]:
        raise InputError(
            f"the vLLM of {environment} finds no device here: name one with a CPU build, or plan "
            "on a node with GPUs"
        )
    return JudgeReport(
        header["version"], header["device"], [_verdict(document) for document in verdicts]
    )


def _is_document(line: str) -> bool:
    """Whether a line of vllm_judge.py's output is a whole document: its header or a verdict."""
    return line.startswith(vllm_judge.MARK) and line.endswith("}")


def _verdict(document: Mapping[str, str]) -> CommandVerdict:
    """The verdict in one line of vllm_judge.py."""
    for ruling in (Ruling.REFUSED, Ruling.UNKNOWN):
        if ruling.value in document:
            return CommandVerdict(ruling, document[ruling.value])
    return CommandVerdict(Ruling.ACCEPTED)


def _run(argv: list[str], input_text: str, limit_s: float) -> tuple[str, str]:
    """Standard output and error, as far as they came in time. No process is left."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(input_text, timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _note(report: JudgeReport, commands: int, deployments: int) -> str:
    """How many of all ``deployments`` vLLM accepts, refuses and cannot judge; it was asked about
    ``commands`` of them.
    """
    rulings = [verdict.ruling for verdict in report.verdicts]
    accepted = rulings.count(Ruling.ACCEPTED)
    refused = rulings.count(Ruling.REFUSED)
    note = (
        f"vLLM {report.version} accepts {accepted} and refuses {refused} of {deployments} vllm "
        "deployments"
    )
    not_judged = deployments - accepted - refused
    if not not_judged:
        return note
    reasons = [verdict.sentence for verdict in report.verdicts if verdict.ruling is Ruling.UNKNOWN]
    if len(report.verdicts) < commands:
        reasons.append("it was out of time")
    note += f"; {not_judged} could not be judged"
    return f"{note}: {reasons[0]}" if reasons else note
