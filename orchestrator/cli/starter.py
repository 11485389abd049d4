"""The experiment file that ``orchestrator init`` writes: five answers, and the text made of them."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

from orchestrator.analysis.slo import is_joint, parse_slo
from orchestrator.base.errors import InputError
from orchestrator.base.registry import unknown_name
from orchestrator.catalog.accelerators import accelerators, find, may_be, nearest
from orchestrator.catalog.models import model_facts
from orchestrator.emulator.profile import typical
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.address import parse_address, parse_url
from orchestrator.spec.load import PRESETS, WORKLOADS, Slo, Workload, format_duration
from orchestrator.spec.settings import MOST_DEVICES

NO_GPUS = "none"  # of an endpoint: figures per GPU are not wanted
NO_LIMITS = "none"
# A number and a name. Between them stands a space, as in ``8 x H100`` and ``8 H100``, or an x or *
# alone, as in ``8xH100``: names may begin with a digit themselves.
_GPUS = re.compile(r"(?:(\d{1,4})\s*[x*]?\s+|(\d{1,4})\s*[x*]\s*)?(\S.*)")
_MEMORY_SIZE = re.compile(r"\d+ ?GB?$", re.IGNORECASE)
_LENGTHS = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})")
_WORDS_OF_YAML = frozenset(
    {"null", "true", "false", "yes", "no", "on", "off"}
)  # no text as they are
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST_CONTEXT = 131_072  # of a model of which nothing is known
# where an engine has to be told a length, and not every request fits into the model's context
SHORT_CONTEXT = 32_768
CPU_KV_TOKENS = 16_384  # of SGLang, which would fill the node's memory


@dataclass(frozen=True, slots=True)
class Gpus:
    """The devices of one node. ``accelerator``: None where there are none of ours. ``may_be``: other
    accelerators that the answer may mean, which named no size of memory.
    """

    count: int
    accelerator: str | None
    may_be: tuple[str, ...] = ()

    @property
    def is_cpu(self) -> bool:
        return self.accelerator == "cpu"


@dataclass(frozen=True, slots=True)
class Server:
    """What serves the model. ``url``: of a server that runs, whose engine is ``endpoint``."""

    engine: str
    url: str | None = None

    def has(self, setting: str) -> bool:
        return setting in ENGINES[self.engine].supported_fields()


@dataclass(frozen=True, slots=True)
class StarterAnswers:
    """What a user answered."""

    server: Server
    model: str
    gpus: Gpus
    workload: str
    slo: Slo | None


def server_of(text: str) -> Server:
    """The engine that an answer names, or the server of a URL. Raises InputError."""
    name = text.strip()
    if "://" in name:
        return Server("endpoint", url=_checked_url(name))
    if name == "endpoint":
        raise InputError("give the URL of the server, like http://10.0.0.7:8000")
    if name not in ENGINES:
        raise InputError(unknown_name("engine", name, ENGINES))
    return Server(name)


def _checked_url(url: str) -> str:
    """The same URL. Raises InputError where it is none of a server."""
    try:
        parse_url(parse_address(url).base)
    except ValueError as error:
        raise InputError(str(error)) from None
    return url


def gpus_of(text: str, engine: str) -> Gpus:
    """The devices that an answer names: ``8 x H100-80GB``, ``L4-24GB``, ``cpu``, and ``none`` for a
    server that runs. Raises InputError.
    """
    match = _GPUS.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text!r} is no number of GPUs: write it like 8 x H100-80GB")
    count = int(match[1] or match[2] or 1)
    name = match[3].strip()
    if name.lower() == NO_GPUS and engine == "endpoint":
        return Gpus(0, None)
    entry = find(name)
    if entry is None:
        similar = nearest(name)
        known = similar or accelerators()
        raise InputError(f"unknown accelerator {name!r}; known: {', '.join(known)}, cpu")
    if not 1 <= count <= MOST_DEVICES:
        raise InputError(f"a node has 1 to {MOST_DEVICES:,} GPUs, not {count}")
    is_cpu = entry.name.lower() == "cpu"
    if is_cpu and engine in ("endpoint", "emulator"):
        raise InputError("give the GPUs that the server has, or that the emulator imitates")
    if is_cpu and not ENGINES[engine].on_cpus:
        raise InputError(f"{engine} is not started on CPUs")
    if is_cpu:
        return Gpus(count, "cpu")
    return Gpus(count, entry.name, _other_meanings(name, entry.name))


def _other_meanings(answer: str, accelerator: str) -> tuple[str, ...]:
    """The accelerators beside the one that an answer is taken for that it may mean."""
    if _MEMORY_SIZE.search(answer):
        return ()
    return tuple(name for name in accelerators() if name != accelerator and may_be(name, answer))


def workload_of(text: str) -> str:
    """An answer for the workload, as it is: a preset, or ``512/128`` tokens. Raises InputError."""
    answer = text.strip()
    lengths = _LENGTHS.fullmatch(answer)
    if lengths is not None:
        if 0 in (int(lengths[1]), int(lengths[2])):
            raise InputError("a prompt and an answer have at least one token")
        return answer
    if answer not in PRESETS.names():
        raise InputError(
            unknown_name("workload", answer, PRESETS) + "; or tokens in and out, like 512/128"
        )
    return answer


def slo_of(text: str) -> Slo | None:
    """The limits of an answer; None for ``none``. Raises InputError or ProblemsError."""
    if text.strip().lower() == NO_LIMITS:
        return None
    slo = parse_slo(text)
    if slo.parts is not None:
        raise InputError("limits of parts are for mixes: add both to the file that is written")
    return slo


def experiment_name(stem: str) -> str:
    """A name for results, of the name of a file."""
    name = _NOT_IN_NAMES.sub("-", stem).strip("-._")[:100]
    return name or "experiment"


def experiment_text(answers: StarterAnswers, file: Path, schema: str) -> str:
    """The whole file that is written to ``file``. ``schema``: where its JSON schema is."""
    parts = [
        f"# yaml-language-server: $schema={schema}",
        *_head(answers, file),
        "",
        *_hardware(answers),
        *_deployments(answers),
        "",
        *_workloads(answers),
        "",
        *_load(),
        "",
        *_slos(answers),
        "",
        "# repeats: 3                       # measurements of each point",
        "# budget: {gpu_hours: 20}          # nothing starts that would exceed it",
    ]
    return "\n".join(parts) + "\n"


def _quoted(text: str) -> str:
    """Text that is a value of YAML whatever it contains."""
    is_plain = re.fullmatch(r"[A-Za-z][\w./@-]*|\.{1,2}/[\w./@-]*|/[\w./@-]+", text)
    if is_plain and text.lower() not in _WORDS_OF_YAML:
        return text
    return "'" + text.replace("'", "''") + "'"


def _head(answers: StarterAnswers, file: Path) -> list[str]:
    """What to do with the file, and its first keys."""
    path = shlex.quote(str(file))
    lines = ["# What next:", f"#   orchestrator plan {path}"]
    if can_be_simulated(answers):
        lines.append(
            f"#   orchestrator simulate {path} --results simulated/    # no GPU, no engine"
        )
    lines.append(f"#   orchestrator run {path} --results results/")
    reason = why_not_simulated(answers)
    if reason is not None:
        lines.append(f"# {reason}")
    return [
        *lines,
        "version: 1",
        f"name: {_quoted(experiment_name(file.stem))}",
        f"model: {_quoted(answers.model)}",
    ]


def can_be_simulated(answers: StarterAnswers) -> bool:
    """Whether the step model was compared with the engine on these devices."""
    if answers.server.engine == "emulator":
        return True
    device = find(answers.gpus.accelerator or "")
    if answers.server.url is not None or answers.gpus.is_cpu or device is None:
        return False
    return typical(answers.server.engine, device).error is not None


def why_not_simulated(answers: StarterAnswers) -> str | None:
    """What a user of GPUs that cannot be simulated does in place of it; None: they can be, or the
    file is one of a server that runs, or of CPUs.
    """
    gpus = answers.gpus
    if can_be_simulated(answers) or answers.server.url is not None or gpus.is_cpu:
        return None
    return (
        f"{answers.server.engine} on {gpus.accelerator} cannot be simulated yet: measure with run, "
        "or fit a profile (predict fit)"
    )


def _hardware(answers: StarterAnswers) -> list[str]:
    gpus = answers.gpus
    if gpus.accelerator is None or gpus.is_cpu or answers.server.engine == "emulator":
        return []
    per_node = "" if answers.server.url else f", gpus_per_node: {gpus.count}"
    return [
        "hardware:",
        f"  gpus: {{accelerator: {gpus.accelerator}{per_node}}}",
        "  # add usd_per_gpu_hour: 2.99 for costs, and labels of the nodes to use",
        "",
    ]


def _deployments(answers: StarterAnswers) -> list[str]:
    if answers.server.url is not None:
        return _endpoint(answers, answers.server.url)
    if answers.server.engine == "emulator":
        return _emulator(answers)
    lines = ["deployments:", f"  engine: {answers.server.engine}"]
    if answers.gpus.is_cpu:
        lines.append("  hardware: cpu                    # devices are cores")
    else:
        lines.append("  hardware: gpus")
    lines += _lengths(answers)
    if answers.gpus.is_cpu or answers.gpus.count == 1:
        return [*lines, *_possible_axis(answers)]
    if not answers.server.has("tensor_parallel_size"):
        return [*lines, f"  replicas: {answers.gpus.count}                      # one on each GPU"]
    sizes = [size for size in (1, 2, 4, 8) if answers.gpus.count % size == 0]
    return [
        *lines,
        "  vary:                            # each combination of values is a deployment",
        f"    - grid: {{tensor_parallel_size: {sizes}}}",
        "    # - grid: {max_num_seqs: [128, 512]}",
        f"  derive: {{replicas: {answers.gpus.count} // tensor_parallel_size}}    # fill the node",
    ]


def _possible_axis(answers: StarterAnswers) -> list[str]:
    """What a deployment on one device may vary, as a comment."""
    if not answers.server.has("max_num_seqs"):
        return []
    return [
        "  # vary:                          # each combination of values is a deployment",
        "  #   - grid: {max_num_seqs: [64, 256]}",
    ]


def _endpoint(answers: StarterAnswers, url: str) -> list[str]:
    lines = [
        "deployments:",
        "  engine: endpoint                 # a server that runs; nothing is launched",
        f"  url: {_quoted(url)}",
        "  # api_key_env: MY_KEY            # the variable that holds its key",
    ]
    if answers.gpus.accelerator is not None:
        lines += [
            f"  endpoint_gpus: {answers.gpus.count}                 # for figures per GPU",
            "  hardware: gpus",
        ]
    return lines


def _emulator(answers: StarterAnswers) -> list[str]:
    sizes = [size for size in (1, 2, 4, 8) if size <= answers.gpus.count]
    return [
        "deployments:",
        "  engine: emulator                 # imitates the timing of an engine; nothing is measured",
        "  hardware: cpu                    # where the emulator runs",
        f"  profile: {answers.gpus.accelerator}/{answers.model}",
        "  vary:                            # each combination of values is a deployment",
        "    - grid: {max_num_seqs: [16, 64]}",
        f"    # - grid: {{tensor_parallel_size: {sizes}}}    # takes as many cores here",
    ]


def _lengths(answers: StarterAnswers) -> list[str]:
    """Settings of lengths and memory that an engine needs, or that save memory."""
    lines: list[str] = []
    length = _context(answers)
    if length is not None and answers.server.has("max_model_len"):
        lines.append(f"  max_model_len: {length}              # tokens of prompt and answer")
    if answers.gpus.is_cpu and answers.server.engine == "sglang":
        lines.append(f"  kv_cache_tokens: {CPU_KV_TOKENS}           # it would fill the memory")
    if answers.gpus.is_cpu and answers.server.engine == "tgi" and length is not None:
        # the memory of its warm-up grows with this, so it is no longer than it has to be
        longest_prompt = length // 2
        if _workload(answers.workload).longer_prompts(longest_prompt):
            longest_prompt = length - 1
        lines.append(f"  max_input_len: {longest_prompt}")
    return lines


def _context(answers: StarterAnswers) -> int | None:
    """The length of context to serve: one that all requests fit into or, where the model has none
    and the engine has to be told one, SHORT_CONTEXT. None: the model's own.
    """
    facts = model_facts(answers.model, online=False)
    most = LONGEST_CONTEXT
    if facts is not None and facts.max_model_len is not None:
        most = facts.max_model_len
    longest = _workload(answers.workload).token_bounds().most
    needed = None
    if longest is not None:
        needed = 1 << (longest - 1).bit_length()  # the next power of two
    if needed is not None and needed <= most:
        return needed
    engine = answers.server.engine
    has_to_be_told = engine == "llama_cpp" or (engine == "tgi" and answers.gpus.is_cpu)
    return min(SHORT_CONTEXT, most) if has_to_be_told else None


def _workload(answer: str) -> Workload:
    lengths = _LENGTHS.fullmatch(answer)
    if lengths is None:
        return WORKLOADS[PRESETS[answer].keys["kind"]].model_validate(
            {"name": answer, **PRESETS[answer].keys}
        )
    content = {"input_tokens": int(lengths[1]), "output_tokens": int(lengths[2])}
    return WORKLOADS["random"].model_validate({"name": "requests", **content})


def _workloads(answers: StarterAnswers) -> list[str]:
    lengths = _LENGTHS.fullmatch(answers.workload)
    if lengths is not None:
        keys = f"name: requests, input_tokens: {lengths[1]}, output_tokens: {lengths[2]}"
        remark = []
    else:
        keys = f"name: {answers.workload}, preset: {answers.workload}"
        remark = [f"  # {line}" for line in _source(answers.workload)]
    return [
        "workloads:                         # orchestrator workload show FILE",
        *remark,
        f"  - {{{keys}{_api_of(answers.server)}}}",
    ]


def _api_of(server: Server) -> str:
    """The key ``api`` of a workload, where the server's URL is that of one API alone."""
    if server.url is None:
        return ""
    api = parse_address(server.url).api
    if api is None:
        return ""
    return f", api: {'native' if api == 'sglang' else api}"


def _source(preset: str) -> list[str]:
    """Where the numbers of a preset are from, in lines that fit."""
    return textwrap.wrap(PRESETS[preset].source, 90, break_on_hyphens=False)


def _load() -> list[str]:
    return [
        "load:",
        "  levels: auto                     # from idle to saturation, doubling the request rate",
        "  # search: capacity               # in place of levels: the highest rate that holds the slos",
    ]


def _slos(answers: StarterAnswers) -> list[str]:
    if answers.slo is None:
        return [
            "# slos: {interactive: {ttft: 500ms, tpot: 50ms}}    # limits; they can be added later"
        ]
    limits = [f"{limit.name}: {format_duration(limit.seconds)}" for limit in answers.slo.limits]
    if is_joint(answers.slo):
        limits.append(f"attainment: {answers.slo.attainment:g}")
    if answers.slo.agreement is not None:
        limits.append(f"agreement: {answers.slo.agreement:g}")
    return [
        "slos:                              # they can be changed later: nothing is measured again",
        f"  limits: {{{', '.join(limits)}}}",
    ]
