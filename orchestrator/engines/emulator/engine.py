"""The engine class: which settings the emulator imitates, how its process is started, what it reports."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import ClassVar

import orchestrator
from orchestrator.catalog.models import model_facts
from orchestrator.engines.base import Command, Metric, Node
from orchestrator.engines.emulator.flags import parser, with_faults
from orchestrator.engines.emulator.profile import Profile, load_profile
from orchestrator.engines.emulator.server import API_KEY_VARIABLE
from orchestrator.errors import InputError
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings, Hardware, Scalar

# What the timing model has no term for: refused, never dropped silently.
_REFUSED = {
    "speculative": "speculative decoding",
    "enable_lora": "LoRA",
    "lora_modules": "LoRA",
    "max_loras": "LoRA",
    "max_lora_rank": "LoRA",
    "kv_transfer_config": "transfer of KV caches between engines",
    "cpu_offload_gb": "weights offloaded to the host",
    "attention_backend": "attention kernels",
    "scheduling_policy": "scheduling policies other than first come, first served",
    "stream_interval": "several tokens per event",
    "max_input_len": "a limit on the prompt alone",
    "image": "container images: it is part of this program",
    "container_runtime": "container images: it is part of this program",
    "executable": "another executable: it is part of this program",
    "engine_version": "engine versions: it is part of this program",
    "url": "a URL: use engine: endpoint for a server that already runs",
}
_METRICS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "preemptions_total": "vllm:num_preemptions_total",
    "prefix_hit_tokens_total": "vllm:prefix_cache_hits_total",
    "prefix_query_tokens_total": "vllm:prefix_cache_queries_total",
    "queue_time_s_sum": "vllm:request_queue_time_seconds_sum",
    "queue_time_count": "vllm:request_queue_time_seconds_count",
    "ttft_s_sum": "vllm:time_to_first_token_seconds_sum",
    "ttft_count": "vllm:time_to_first_token_seconds_count",
    "prompt_tokens_total": "vllm:prompt_tokens_total",
    "generation_tokens_total": "vllm:generation_tokens_total",
}
_REPORTED = {
    "weight_gib": re.compile(r"Model loading took ([\d.]+) GiB"),
    "kv_cache_tokens": re.compile(r"GPU KV cache size: ([\d,]+) tokens"),
    "max_model_len": re.compile(r"Maximum concurrency for ([\d,]+) tokens"),
    "max_concurrency": re.compile(r"tokens per request: ([\d.]+)x"),
}
_CONFIG = "emulator.json"


class Emulator:
    """``engine: emulator``: the whole path of a sweep without a GPU; every row made with it says ``emulated``."""

    name: ClassVar[str] = "emulator"
    launches: ClassVar[bool] = True
    emulated: ClassVar[bool] = True
    ready_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    metrics: ClassVar[tuple[Metric, ...]] = tuple(Metric(column, name) for column, name in _METRICS.items())
    reset_path: ClassVar[str | None] = "/reset_prefix_cache"

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        """Fields without a place in the timing model, a profile that cannot be read, unknown flags and faults."""
        given = settings.given()
        found = [
            f"the emulator's model knows nothing of {what} ({field})"
            for field, what in _REFUSED.items()
            if field in given
        ]
        if settings.world_size % settings.nnodes:
            found.append(f"{settings.world_size} ranks cannot be spread evenly over {settings.nnodes} nodes")
        try:
            profile = load_profile(settings.profile)
        except InputError as error:
            return [*found, str(error)]
        return found + _flag_problems(settings.extra_args, profile)

    def pinned(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        """Nothing: its model is told the hardware and chooses as vLLM would on it."""
        return {}

    def command(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> Command:
        """One process per rank; ranks above 0 serve nothing."""
        argv = [sys.executable, "-m", "orchestrator.engines.emulator", "--config", str(Path(node.workdir) / _CONFIG)]
        argv += ["--host", node.bind, "--port", str(node.port), "--served-model-name", self.served_name(settings, node)]
        argv += ["--headless"] if node.rank else []
        argv += _flags(settings.extra_args)
        known = model_facts(settings.model, settings.revision, online=False) is not None
        local = settings if known or not node.model_path else settings.model_copy(update={"model": node.model_path})
        config = {"settings": local.model_dump(mode="json"), "hardware": hardware.model_dump(mode="json")}
        root = str(Path(orchestrator.__file__).resolve().parent.parent)
        secrets = {API_KEY_VARIABLE: api_key} if api_key else {}
        return Command(tuple(argv), settings.env | {"PYTHONPATH": root}, secrets, {_CONFIG: json.dumps(config)})

    def dialects(self, settings: EngineSettings) -> dict[str, Dialect]:
        """OpenAI completions and chat as vLLM has them, TGI's native stream."""
        return {
            "completions": Dialect(
                "openai_completions", "/v1/completions", prompt_token_ids=True, continuous_usage=True,
                return_token_ids=True,
            ),
            "chat": Dialect("openai_chat", "/v1/chat/completions", continuous_usage=True, return_token_ids=True),
            "tgi": Dialect(
                "tgi", "/generate_stream", length_control="none", min_tokens_field=None, include_usage=False,
                done_marker=False, model_field=False,
            ),
        }  # fmt: skip

    def served_name(self, settings: EngineSettings, node: Node) -> str:
        """The user's name, else one that only this launch has."""
        return settings.served_model_name or (
            f"{settings.model}@{node.launch_id}" if node.launch_id else settings.model
        )

    def version_command(self, settings: EngineSettings) -> tuple[str, ...] | None:
        """The program's own version is the emulator's; /version says it with ``+emulator``."""
        return (sys.executable, "-c", "import orchestrator; print(orchestrator.__version__ + '+emulator')")

    def reported(self, log: str) -> dict[str, float | int | str]:
        """Weights, KV capacity and concurrency from the lines written at start."""
        found = {
            name: match.group(1).replace(",", "")
            for name, pattern in _REPORTED.items()
            if (match := pattern.search(log))
        }
        result: dict[str, float | int | str] = {
            name: int(found[name]) for name in ("kv_cache_tokens", "max_model_len") if name in found
        }
        if "weight_gib" in found:
            result["weight_bytes"] = int(float(found["weight_gib"]) * 2**30)
        if "max_concurrency" in found:
            result["max_concurrency"] = float(found["max_concurrency"])
        return result


def _flags(extra_args: dict[str, Scalar | list[str]]) -> list[str]:
    """``{"--flag": value}`` as argv; True is a bare flag, a list repeats it, None and False leave it out."""
    argv: list[str] = []
    for flag, value in extra_args.items():
        values = value if isinstance(value, list) else [value]
        for one in values:
            if one is True:
                argv.append(flag)
            elif one is not None and one is not False:
                argv += [flag, str(one)]
    return argv


def _flag_problems(extra_args: dict[str, Scalar | list[str]], profile: Profile) -> list[str]:
    known = {flag for action in parser()._actions for flag in action.option_strings}
    own = {"--config", "--host", "--port", "--served-model-name", "--headless", "--help", "-h"}
    problems = [f"extra_args: {flag} is set by this program" for flag in extra_args if flag in own]
    problems += [f"extra_args: the emulator has no flag {flag}" for flag in extra_args if flag not in known]
    faults = extra_args.get("--fault", [])
    try:
        with_faults(profile, [str(fault) for fault in (faults if isinstance(faults, list) else [faults])])
    except ValueError as error:
        problems.append(f"extra_args --fault: {error}")
    return problems
