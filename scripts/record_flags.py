"""Records the command line of an engine by asking its own parser.

    python scripts/record_flags.py vllm .engines/vllm

prints what ``orchestrator/engines/recorded/`` keeps: every flag with its kind, its other spellings
and its choices, and the fields of requests where the server ignores others. ``--packages DIR`` puts another release's Python in front of the environment's: an
unpacked wheel is enough, since no parser needs kernels. Only the standard library is used.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# Runs in the engine's environment: `describe` turns a parser of argparse into flags.
DESCRIBE = """
import argparse, contextlib, importlib, json
from importlib.metadata import version

KINDS = {None: "value", 0: "bare", "?": "optional", "*": "list", "+": "list"}


def ignores_case(convert, choice):
    with contextlib.suppress(Exception):
        return convert is not None and convert(choice.upper()) == choice
    return False


def describe(parser):
    spellings = {}
    for option, action in parser._option_string_actions.items():
        spellings.setdefault(id(action), (action, []))[1].append(option)
    flags = {}
    for action, options in spellings.values():
        name = max(action.option_strings, key=lambda option: option.startswith("--"))
        flag = {"kind": KINDS.get(action.nargs, "list")}
        if len(options) > 1:
            flag["also"] = sorted(set(options) - {name})
        if action.choices:
            # many come from sets, whose order differs from run to run
            flag["choices"] = sorted(str(choice) for choice in action.choices)
            texts = [choice for choice in action.choices if isinstance(choice, str)]
            if texts and all(ignores_case(action.type, choice) for choice in texts):
                flag["any_case"] = True
        flags[name] = flag
    return flags


def fields_of(request, *read_before):
    # those of its model, and those that its validators read before they look for others
    return sorted({*request.model_fields, *read_before})


def say(version, source, flags, **more):
    print("RECORD " + json.dumps({"version": version, "source": source, **more, "flags": flags}))
"""
READERS = {
    "vllm": """
from typing import get_args
names = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
for name in names:
    with contextlib.suppress(ModuleNotFoundError):
        module = importlib.import_module(name)
        break
from vllm.utils.argparse_utils import FlexibleArgumentParser
flags = describe(module.make_arg_parser(FlexibleArgumentParser()))
flags["-O"] = {"kind": "value"}  # -O3; the parser rewrites it before it looks


def is_open(flag, choices, any_case=False):
    # its parser takes any word; the program holds it against a list that plugins may extend
    flags[flag] |= {"choices": list(choices), "open": True} | ({"any_case": True} if any_case else {})


from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
is_open("--quantization", QUANTIZATION_METHODS)
from vllm.model_executor.model_loader import LoadFormats
is_open("--load-format", get_args(LoadFormats), any_case=True)
from vllm.v1.attention.backends.registry import AttentionBackendEnum
is_open("--attention-backend", ("auto", *AttentionBackendEnum.__members__), any_case=True)
from vllm.config.cache import CacheDType
if "choices" not in flags["--kv-cache-dtype"]:
    is_open("--kv-cache-dtype", get_args(CacheDType))
from dataclasses import fields
from vllm.config.speculative import SpeculativeConfig
filled = ("target_model_config", "target_parallel_config", "draft_model_config", "draft_parallel_config")
flags["--speculative-config"]["keys"] = [one.name for one in fields(SpeculativeConfig) if one.name not in filled]
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
request_fields = {"completions": fields_of(CompletionRequest), "chat": fields_of(ChatCompletionRequest)}
say(version("vllm").partition("+")[0], module.__name__ + ": make_arg_parser, and the lists of its open words",
    flags, abbreviations=True, underscores=True, dots=True, request_fields=request_fields)
""",
    "sglang": """
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import _RESERVED_ALIASES
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
flags = describe(parser)
names = [name for name in SpeculativeAlgorithm.__members__ if name != "NONE"]
flags["--speculative-algorithm"] |= {
    "choices": sorted({*names, *_RESERVED_ALIASES}), "open": True, "any_case": True}
flags["--model-type"] = {"kind": "value"}  # of `sglang serve` itself
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from sglang.srt.sampling.sampling_params import SamplingParams
request_fields = {
    "completions": fields_of(CompletionRequest), "chat": fields_of(ChatCompletionRequest, "reasoning"),
    "native": sorted(SamplingParams.__struct_fields__)}
# it makes SamplingParams of all that stands in `sampling_params`
say(version("sglang"), "sglang.srt.server_args: ServerArgs.add_cli_args", flags, abbreviations=True,
    request_fields=request_fields, refusing_apis=["native"])
""",
    "transformers": """
from transformers.cli.transformers import app
flags = {}
for parameter in app.commands["serve"].params:
    options = [*parameter.opts, *parameter.secondary_opts]
    if not options[0].startswith("-"):
        continue
    name = max(options, key=lambda option: option.startswith("--"))
    flag = {"kind": "bare" if parameter.is_flag else "value" if parameter.nargs == 1 else "list"}
    if len(options) > 1:
        flag["also"] = sorted(set(options) - {name})
    if getattr(parameter.type, "choices", None):
        flag["choices"] = [str(choice) for choice in parameter.type.choices]
        if not parameter.type.case_sensitive:
            flag["any_case"] = True
    flags[name] = flag
flags.setdefault("--help", {"kind": "bare"})
say(version("transformers"), "transformers.cli.transformers: the options of `serve`", flags)
""",
    "vllm_router": """
from vllm_router.router_args import RouterArgs
parser = argparse.ArgumentParser()
RouterArgs.add_cli_args(parser)
say(version("vllm-router"), "vllm_router.router_args: RouterArgs.add_cli_args", describe(parser), abbreviations=True)
""",
    "sglang_router": """
from sglang_router.router_args import RouterArgs
parser = argparse.ArgumentParser()
RouterArgs.add_cli_args(parser)
say(version("sglang-router"), "sglang_router.router_args: RouterArgs.add_cli_args", describe(parser), abbreviations=True)
""",
}
MARK = "RECORD "
LIMIT_S = 300


class NotRead(Exception):
    """The environment's parser could not be asked; the message is the last line that it wrote."""


def read(engine: str, environment: Path, packages: Path | None = None) -> dict[str, Any]:
    """The command line of the engine in a virtual environment.

    ``packages`` holds Python packages that hide those of the environment. Raises NotRead.
    """
    env = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    env |= {"HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    if packages is not None:
        env["PYTHONPATH"] = str(packages.absolute())
    # -P: neither the working folder nor a script's folder is where packages are looked for
    argv = [str(environment / "bin" / "python"), "-P", "-c", DESCRIBE + READERS[engine]]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env=env, timeout=LIMIT_S
    )
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return {"engine": engine, **json.loads(line.removeprefix(MARK))}
    raise NotRead((done.stderr.strip().splitlines() or ["it wrote nothing"])[-1])


def text_of(record: dict[str, Any]) -> str:
    """A record as it is kept: a line for every flag, so that a diff shows what a release changed."""
    head = {name: value for name, value in record.items() if name != "flags"}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    flags = [
        f"  {json.dumps(name)}: {json.dumps(flag)}"
        for name, flag in sorted(record["flags"].items())
    ]
    return "{" + "\n ".join(lines) + '\n "flags": {\n' + ",\n".join(flags) + "\n}}\n"


def _engine(name: str) -> str:
    """An engine whose parser can be asked. Raises ArgumentTypeError with what to do for another."""
    if name not in READERS:
        raise argparse.ArgumentTypeError(
            f"READERS in scripts/record_flags.py has no code that asks the parser of {name!r}: add "
            f"it there, or write orchestrator/engines/recorded/{name}.json by hand "
            "(tests/contract/engines/README.md)"
        )
    return name


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", type=_engine, help=", ".join(sorted(READERS)))
    parser.add_argument("environment", type=Path, help="a virtual environment with the engine")
    parser.add_argument("--packages", type=Path, help="folder of packages of another release")
    arguments = parser.parse_args()
    try:
        record = read(arguments.engine, arguments.environment.absolute(), arguments.packages)
    except NotRead as error:
        print(f"the parser of {arguments.engine} cannot be asked: {error}", file=sys.stderr)
        return 1
    print(text_of(record), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
