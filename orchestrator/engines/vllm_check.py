"""Asks vLLM itself about a plan: runs its ``create_engine_config()`` on every command line that
would be run.

One process in the user's vLLM environment judges all deployments (vllm_judge.py), without weights
and without a GPU. Deployments that vLLM refuses become ``impossible``, in vLLM's words; a note
tells how many it could not judge.
"""

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError
from orchestrator.engines import vllm_judge
from orchestrator.engines.command import Node
from orchestrator.engines.vllm import ENGINE as VLLM
from orchestrator.spec.document import from_home
from orchestrator.spec.settings import EngineSettings, Hardware, installed_version, is_version
from orchestrator.spec.stages import PlannedSettings

START_S = 180.0  # importing vLLM takes 10 s, the first time on a slow disk two minutes
EACH_S = 1.0  # seen: 0.02 to 0.1 s
NOT_JUDGED = "its CPU build judges no GPU memory and no kernels"
Case = dict[str, Any]
Verdict = Mapping[str, str]  # {} | {"refused": sentence} | {"unknown": sentence}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a vLLM environment answers; fewer verdicts than cases if time ran out."""

    version: str
    device: str
    verdicts: Sequence[Verdict]


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
    asked = {name: one for name, one in deployments.items() if one[0].engine == VLLM.name}
    comparable = {name: one for name, one in asked.items() if _same_version(one[0], version)}
    if not comparable:
        return Opinion({}, f"vLLM {version} was not asked: no deployment runs that version")
    answer = ask(environment, [case_of(*one) for one in comparable.values()])
    verdicts = dict(zip(comparable, answer.verdicts, strict=False))
    refused = {
        name: (
            f"vLLM {answer.version} refuses it: "
            f"{verdict['refused']}{_limits(answer, [comparable[name][1]])}"
        )
        for name, verdict in verdicts.items()
        if "refused" in verdict
    }
    limits = _limits(answer, [hardware for _, hardware in comparable.values()])
    late = len(verdicts) < len(comparable)
    return Opinion(
        refused, _note(answer, verdicts, len(asked), "it was out of time" if late else "") + limits
    )


def _limits(answer: Answer, judged: Sequence[Hardware]) -> str:
    """What a CPU build cannot judge of deployments for GPUs."""
    return (
        f" ({NOT_JUDGED})"
        if answer.device == "cpu" and not all(one.is_cpu for one in judged)
        else ""
    )


def _same_version(settings: EngineSettings, version: str | None) -> bool:
    """Whether the environment has a deployment's version; assumed if either is not known."""
    own = settings.engine_version
    if own is None and settings.executable and settings.image is None:
        own = installed_version(settings.executable, VLLM.name)
    return own is None or version is None or is_version(own, version)


def case_of(settings: PlannedSettings, hardware: Hardware) -> Case:
    """The command line of rank 0 as it would be run, without a container."""
    alone: dict[str, Any] = {"image": None, "container_runtime": None}
    if (
        settings.world_size > 1
        and settings.nnodes == 1
        and settings.distributed_executor_backend is None
    ):
        # its default, which counts the GPUs of this machine
        alone["distributed_executor_backend"] = "mp"
    command = VLLM.command(settings.model_copy(update=alone), hardware, Node(), api_key="")
    draft = settings.speculative.model if settings.speculative else None
    models = [(settings.model, settings.revision), *([(draft, None)] if draft else [])]
    return {"argv": command.argv[2:], "env": command.env, "models": models, "cpu": hardware.is_cpu}


def ask(environment: str | Path, cases: Sequence[Case], limit_s: float | None = None) -> Answer:
    """Ask a virtual environment's vLLM about command lines, in one process and within a time limit.

    Raises InputError when the environment has no vLLM, or when vLLM finds no device here.
    """
    python = from_home(str(environment)).absolute() / "bin" / "python"
    if not python.exists():
        raise InputError(f"{environment} is not a virtual environment: it has no bin/python")
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    limit_s = START_S + EACH_S * len(cases) if limit_s is None else limit_s
    said, complaint = _run([str(python), "-I", vllm_judge.__file__], lines, limit_s)
    found = [
        json.loads(line.removeprefix(vllm_judge.MARK))
        for line in said.splitlines()
        if _is_verdict(line)
    ]
    if not found:
        last = (complaint.strip() or f"no answer within {limit_s:g} s").splitlines()[-1]
        raise InputError(f"the vLLM of {environment} cannot be asked: {last}")
    about, *verdicts = found
    if not about["device"]:
        raise InputError(
            f"the vLLM of {environment} finds no device here: name one with a CPU build, or plan "
            "on a node with GPUs"
        )
    return Answer(about["version"], about["device"], verdicts)


def _is_verdict(line: str) -> bool:
    return line.startswith(vllm_judge.MARK) and line.endswith("}")


def _run(argv: list[str], given: str, limit_s: float) -> tuple[str, str]:
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
        return process.communicate(given, timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _note(answer: Answer, verdicts: Mapping[str, Verdict], asked: int, otherwise: str) -> str:
    refused = sum("refused" in one for one in verdicts.values())
    unknown = [one["unknown"] for one in verdicts.values() if "unknown" in one]
    accepted = len(verdicts) - refused - len(unknown)
    text = (
        f"vLLM {answer.version} accepts {accepted} and refuses {refused} of {asked} vllm "
        "deployments"
    )
    left = asked - accepted - refused
    if left:
        why = next(iter(unknown), otherwise)
        text += f"; {left} could not be judged{f': {why}' if why else ''}"
    return text
