"""Puts problems of an experiment into the words of the options of ``orchestrator load``."""

from __future__ import annotations

import re
from dataclasses import replace

from orchestrator.base.errors import Problem

# By key of an experiment file: the option that has another name.
OTHER_NAMES = {
    "request_rate": "--rate",
    "shared_prefix_tokens": "--shared-prefix",
    "shared_prefix_count": "the count of --shared-prefix",
    "burstiness": "the shape of --arrivals gamma",
    "control": "--rate or --concurrency beside --find-capacity",
    "first_level": "--rate or --concurrency beside --find-capacity",
    "adapters": "--adapter",
    "slos": "--slo",
    "attainment": "attainment of --slo",
    "levels": "--rate and --concurrency",
    "search": "--find-capacity",
    "wall": "--budget",
}
# Keys whose options have the same name.
_SAME = (
    *("api", "api_key_env", "arrivals", "budget", "clients", "concurrency", "duration", "images"),
    *("input_tokens", "max_in_flight", "model", "output_tokens", "precision", "prompts"),
    *(
        "request_timeout",
        "requests",
        "seed",
        "speed_up",
        "spread",
        "think_time",
        "tokenizer",
        "trace",
    ),
    *("turns", "warmup"),
    *("choice", "json_schema", "regex"),
)
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in _SAME} | OTHER_NAMES
# A key in quotes. Columns of a file, and keys within an object (``'turns' in it``), are no options,
# whatever their names.
_KEY = re.compile(r"(?<!column )(?<!columns )'(\w+)'(?! in it )")
# the beginning of a problem with a file, and the place in the file that may follow
_FILE = re.compile(r"(prompts|trace) ('[^']*')")
_PLACE = re.compile(r",? (line|row|entry) \d")


def in_options(problem: Problem, prompts_option: str = OPTIONS["prompts"]) -> Problem:
    """The problem, with the names of options in place of keys.

    ``prompts_option``: the option that named the file of prompts.
    """
    hint = None if problem.hint is None else _with_options(problem.hint)
    begins_with_file = _FILE.match(problem.message)
    if begins_with_file is None:
        return replace(problem, message=_with_options(problem.message), hint=hint)
    key, quoted_name = begins_with_file.groups()
    option = prompts_option if key == "prompts" else OPTIONS[key]
    reason = problem.message[begins_with_file.end() :]
    if not _PLACE.match(reason):  # what is wrong at a place quotes the file, not keys
        reason = _with_options(reason)
    # the file's name stays as it is, even if a key has the same name
    return replace(problem, message=f"{option} {quoted_name}{reason}", hint=hint)


def _with_options(text: str) -> str:
    return _KEY.sub(lambda match: OPTIONS.get(match[1], match[0]), text)
