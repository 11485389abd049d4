"""Builds vLLM's own configuration for many command lines. Runs in a vLLM environment, by its
Python, never by ours.

Reads one JSON object per line: ``argv`` (of ``vllm serve``), ``env``, ``models`` (names and
revisions of the model and its draft), ``cpu`` (whether it is for a CPU). Writes a line ``VERDICT
{"version": …, "device": …}``, then one per line read: ``{}`` if vLLM accepts it, ``{"refused":
sentence}``, or ``{"unknown": sentence}`` if this machine or build cannot tell. Reads no weights,
and uses neither network nor devices.
"""

from __future__ import annotations  # it is run by other Pythons, which may be older than ours

import contextlib
import functools
import importlib
import io
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

MARK = "VERDICT "
LONGEST = 300
# 0.33, 0.32, before
PARSERS = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
PARSER_CLASSES = ("vllm.utils.argparse_utils", "vllm.utils")
_NOISE = re.compile(
    r"\d+ validation errors? for \w+|\[type=[^\]]*\]|For further information visit \S+"
)
_DEVICE = re.compile(
    r"\b(cpu|cuda|gpus?|rocm|hip|xpu|tpu|nvidia|amd|devices?|platforms?|capability)\b",
    re.IGNORECASE,
)


def main() -> None:
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    device = str(importlib.import_module("vllm.platforms").current_platform.device_type)
    say(
        {"version": importlib.import_module("importlib.metadata").version("vllm"), "device": device}
    )
    if device:
        for line in sys.stdin:
            say(judge(json.loads(line), device))


def say(verdict: dict[str, str]) -> None:
    print(MARK + json.dumps(verdict), flush=True)


def judge(case: dict[str, Any], device: str) -> dict[str, str]:
    """vLLM's verdict on one command line."""
    for model, revision in case["models"]:
        if (missing := without_config(model, revision)) is not None:
            return {"unknown": missing}
    before, complaint = dict(os.environ), io.StringIO()
    try:
        os.environ.update(case["env"])
        with contextlib.redirect_stderr(complaint):
            build(case["argv"])
    except SystemExit:  # argparse
        return {"refused": plain(complaint.getvalue().partition("error: ")[2] or "its arguments")}
    except OSError as error:  # a file of the model that is not at hand
        return {"unknown": sentence_of(error)}
    except Exception as error:
        foreign = case["cpu"] != (device == "cpu") and of_device(error)
        return {"unknown" if foreign or of_environment(error) else "refused": sentence_of(error)}
    finally:
        os.environ.clear()
        os.environ.update(before)
    return {}


def build(argv: list[str]) -> None:
    """Build the configuration as ``vllm serve`` does at its start. Raises whatever vLLM raises."""
    parser = first(PARSERS).make_arg_parser(first(PARSER_CLASSES).FlexibleArgumentParser())
    arguments = parser.parse_args(argv)
    arguments.model = getattr(arguments, "model_tag", None) or arguments.model
    engine = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs.from_cli_args(
        arguments
    )
    context = importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    engine.create_engine_config(usage_context=context)


def first(names: tuple[str, ...]) -> Any:
    """The first of these modules that this version of vLLM has."""
    for name in names[:-1]:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    return importlib.import_module(names[-1])


@functools.cache
def without_config(model: str, revision: str | None) -> str | None:
    """Why a model cannot be judged: its config.json is neither in a folder nor in the hub's cache."""
    if (Path(model) / "config.json").is_file():
        return None
    try:
        importlib.import_module("huggingface_hub").hf_hub_download(
            model, "config.json", revision=revision
        )
    except Exception:
        return f"no config.json of {model} at hand"
    return None


def sentence_of(error: BaseException) -> str:
    """vLLM's own words, without pydantic's."""
    details = error.errors() if hasattr(error, "errors") else []
    texts = [
        str(detail["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        for detail in details
    ]
    return plain("; ".join(texts or [str(error) or type(error).__name__]))


def plain(text: str) -> str:
    """One line without pydantic's details, cut between words."""
    text = " ".join(_NOISE.sub("", text).split())
    return text if len(text) <= LONGEST else text[:LONGEST].rpartition(" ")[0] + " …"


def of_device(error: BaseException) -> bool:
    """Whether a refusal is about this build's device: raised by its platform, or its first sentence
    names one.
    """
    details = error.errors() if hasattr(error, "errors") else []
    causes = [detail.get("ctx", {}).get("error") for detail in details]
    raised = [one for one in (error, *causes) if isinstance(one, BaseException)]
    places = [frame.filename for one in raised for frame in traceback.extract_tb(one.__traceback__)]
    opening = sentence_of(error).partition(". ")[0]
    return (
        any("vllm/platforms/" in place for place in places) or _DEVICE.search(opening) is not None
    )


def of_environment(error: BaseException) -> bool:
    """Whether something is missing here that vLLM needs to judge: a module that the model imports,
    such as torchvision for images (``models/registry.py: inspect_model_cls``), or an operator that
    this build was compiled without.
    """
    sentence = sentence_of(error)
    lacks_operator = "_OpNamespace" in sentence and "has no attribute" in sentence
    return isinstance(error, ImportError) or lacks_operator or "failed to be inspected" in sentence


if __name__ == "__main__":
    main()
