"""Problems of an experiment in the words of ``orchestrator load``, whose options became it."""

from __future__ import annotations

import re
from dataclasses import replace

from orchestrator.base.errors import Problem

# Keys of an experiment file that are options under another name.
_OTHER_NAMES = {
    "request_rate": "--rate",
    "shared_prefix_tokens": "--prefix-tokens",
    "shared_prefix_count": "--prefix-count",
    "request_timeout": "--timeout",
    "prompts": "--prompt-file",
    "slos": "--slo",
    "attainment": "attainment of --slo",
    "levels": "--rate and --concurrency",
    "search": "--find-capacity",
    "wall": "--budget",
}
# Keys that are options of the same name.
_SAME = (
    *("api", "api_key_env", "arrivals", "budget", "burstiness", "clients", "concurrency"),
    *("control", "duration", "input_tokens", "max_in_flight", "model", "output_tokens"),
    *("precision", "requests", "seed"),
    *("speed_up", "think_time", "tokenizer", "trace", "turns", "warmup"),
)
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in _SAME} | _OTHER_NAMES
_KEY = re.compile(r"'(\w+)'")
_FILE = re.compile(r"(prompts|trace) ('[^']*')")


def in_options(problem: Problem, prompts_option: str = OPTIONS["prompts"]) -> Problem:
    """The problem with the names of options in place of keys. ``prompts_option``: the option that
    named the file of prompts.
    """
    message, option = problem.message, ""
    if (start := _FILE.match(message)) is not None:  # the name of a file may be that of a key
        name = prompts_option if start[1] == "prompts" else OPTIONS[start[1]]
        option = f"{name} {start[2]}"
        message = message[start.end() :]
    hint = None if problem.hint is None else _with_options(problem.hint)
    return replace(problem, message=option + _with_options(message), hint=hint)


def _with_options(text: str) -> str:
    return _KEY.sub(lambda match: OPTIONS.get(match[1], match[0]), text)
