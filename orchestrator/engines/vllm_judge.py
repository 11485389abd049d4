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
    """Write the version and the device, then a verdict for each line of standard input."""
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    device = str(importlib.import_module("vllm.platforms").current_platform.device_type)
    version = importlib.import_module("importlib.metadata").version("vllm")
    write({"version": version, "device": device})
    if device:
        for line in sys.stdin:
            write(judge(json.loads(line), device))


def write(document: dict[str, str]) -> None:
    """Write one line for ``vllm_check.py``, marked because vLLM writes lines of its own."""
    print(MARK + json.dumps(document), flush=True)


def judge(case: dict[str, Any], device: str) -> dict[str, str]:
    """vLLM's verdict on one command line."""
    for model, revision in case["models"]:
        missing = without_config(model, revision)
        if missing is not None:
            return {"unknown": missing}
    variables = dict(os.environ)
    errors = io.StringIO()
    try:
        os.environ.update(case["env"])
        with contextlib.redirect_stderr(errors):
            build(case["argv"])
    except SystemExit:  # argparse
        message = errors.getvalue().partition("error: ")[2]
        return {"refused": plain(message or "its arguments")}
    except OSError as error:  # a file of the model that is not at hand
        return {"unknown": sentence_of(error)}
    except Exception as error:
        is_for_other_device = case["cpu"] != (device == "cpu")
        if of_environment(error) or (is_for_other_device and of_device(error)):
            return {"unknown": sentence_of(error)}
        return {"refused": sentence_of(error)}
    finally:
        os.environ.clear()
        os.environ.update(variables)
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
    messages = []
    for detail in details_of(error):
        message = str(detail["msg"]).removeprefix("Value error, ")
        messages.append(message.removeprefix("Assertion failed, "))
    if not messages:
        messages.append(str(error) or type(error).__name__)
    return plain("; ".join(messages))


def details_of(error: BaseException) -> list[dict[str, Any]]:
    """The single errors of pydantic's ValidationError; [] of any other exception."""
    return error.errors() if hasattr(error, "errors") else []


def plain(text: str) -> str:
    """One line without pydantic's details, cut between words."""
    text = " ".join(_NOISE.sub("", text).split())
    if len(text) <= LONGEST:
        return text
    whole_words = text[:LONGEST].rpartition(" ")[0]
    return f"{whole_words} …"


def of_device(error: BaseException) -> bool:
    """Whether a refusal is about this build's device: raised by its platform, or its first sentence
    names one.
    """
    causes = [detail.get("ctx", {}).get("error") for detail in details_of(error)]
    for exception in (error, *causes):
        if isinstance(exception, BaseException) and comes_from_platform(exception):
            return True
    first_sentence = sentence_of(error).partition(". ")[0]
    return _DEVICE.search(first_sentence) is not None


def comes_from_platform(error: BaseException) -> bool:
    """Whether vLLM's code for a platform is in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return any("vllm/platforms/" in frame.filename for frame in frames)


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
