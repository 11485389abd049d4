"""The emulator (``orchestrator/emulator``) as an engine, for sweeps without GPUs. All its rows say
``emulated``.

It has vLLM's API and imitates vLLM's log and metrics, so vLLM's patterns read them.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orchestrator
from orchestrator.base.errors import InputError
from orchestrator.catalog.models import model_facts
from orchestrator.emulator.flags import API_KEY_VARIABLE, parser, with_faults
from orchestrator.emulator.prefix import BLOCK_TOKENS
from orchestrator.emulator.profile import load_profile
from orchestrator.engines import command, vllm
from orchestrator.engines.command import Command, Node
from orchestrator.engines.engine import NOT_LAUNCHED, Engine
from orchestrator.spec.constraint import ConstraintForm, ConstraintKind
from orchestrator.spec.dialect import ANY_TOOL_CHOICE, TGI_STREAM, Dialect, openai
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.spec.stages import PinnedSettings

CONFIG = "emulator.json"
# Settings that the timing model does not cover, and what they are about.
_NOT_COVERED = {
    "speculative": "speculative decoding",
    "kv_transfer_config": "transfer of KV caches between engines",
    "cpu_offload_gb": "weights offloaded to the host",
    "attention_backend": "attention kernels",
    "scheduling_policy": "scheduling policies other than first come, first served",
    "stream_interval": "several tokens per event",
    "max_input_len": "a limit on the prompt alone",
    "guided_decoding_backend": "what constrained answers cost",
}
REFUSED = {
    field: f"the emulator's timing model does not cover {what}"
    for field, what in _NOT_COVERED.items()
}
for field in ("image", "container_runtime", "executable", "engine_version"):
    REFUSED[field] = "the emulator is part of this program"


def _problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    """Unknown flags, unreadable profiles and unknown faults."""
    flags: set[str] = set()
    for action in parser()._actions:
        flags.update(action.option_strings)
    for flag in settings.extra_args:
        if flag.startswith("-") and flag not in flags:
            yield f"extra_args: the emulator has no flag {flag}"
    faults = settings.extra_args.get("--fault", [])
    if not isinstance(faults, list):
        faults = [faults]
    try:
        with_faults(load_profile(settings.profile), [str(fault) for fault in faults])
    except InputError as error:
        yield str(error)
    except ValueError as error:
        yield f"extra_args --fault: {error}"


def _start(settings: PinnedSettings, hardware: Hardware, node: Node) -> Command:
    """One process per rank; ranks above 0 serve nothing."""
    argv = [
        *(sys.executable, "-m", "orchestrator.emulator"),
        *("--config", str(Path(node.workdir) / CONFIG)),
        *("--host", node.bind, "--port", str(node.port)),
        *("--served-model-name", command.nonce_name(settings, node)),
    ]
    if node.role:
        argv += ["--role", node.role]
    if node.rank:
        argv.append("--headless")
    imitated: EngineSettings = settings
    if node.model_path and model_facts(settings.model, settings.revision, online=False) is None:
        imitated = settings.model_copy(update={"model": node.model_path})
    config = {
        "settings": imitated.model_dump(mode="json"),
        "hardware": hardware.model_dump(mode="json"),
    }
    root = str(Path(orchestrator.__file__).resolve().parent.parent)
    return Command(tuple(argv), {"PYTHONPATH": root}, files={CONFIG: json.dumps(config)})


def _dialects(settings: EngineSettings) -> dict[str, Dialect]:
    dialects = openai(
        prompt_token_ids=True,
        continuous_usage=True,
        return_token_ids=True,
        cache_salt=True,
        adapter_field="model",
        # the emulator makes no texts that match an expression (emulator/instances.py)
        constraints={
            ConstraintKind.JSON_SCHEMA: ConstraintForm.STRUCTURED_OUTPUTS,
            ConstraintKind.CHOICE: ConstraintForm.STRUCTURED_OUTPUTS,
        },
        tool_choices=ANY_TOOL_CHOICE,
    )
    return dialects | {"tgi": replace(TGI_STREAM, adapter_field="adapter_id", constraints={})}


FIELDS = EngineSettings.model_fields.keys() - {*REFUSED, *NOT_LAUNCHED}
ENGINE = Engine(
    name="emulator",
    title="the emulator",
    emulated=True,
    reset_path="/reset_prefix_cache",
    metrics={
        column: name
        for column, name in vllm.ENGINE.metrics.items()
        if not column.startswith(("spec_", "estimated_"))
    },
    dialects=_dialects,
    handled_fields=FIELDS | {"profile"},
    unsupported=REFUSED,
    reserved=(
        *("--config", "--host", "--port", "--served-model-name"),
        *("--role", "--headless", "--help", "-h", "--lora-modules"),
    ),
    aliases={"--accelerator": "the hardware", "--set": "the fields themselves"},
    on_cpus=True,
    on_amd=True,
    several_nodes=True,
    routers=("vllm_router",),
    # the emulator imitates a GPU on any hardware
    cache_block=lambda settings, hardware: BLOCK_TOKENS,
    pins=lambda settings, hardware: vllm.batch_pins(settings, command.PINNED_BATCH),
    more_problems=_problems,
    start=_start,
    key_variable=API_KEY_VARIABLE,
    rules=vllm.ENGINE.rules,
    reported=vllm.ENGINE.reported,
    log=vllm.ENGINE.log,
)
