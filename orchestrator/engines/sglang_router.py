"""SGLang's router (the package ``sglang-router``, 0.3.2), in front of prefill and decode replicas
or of equal ones.

It takes its replicas' key as an argument only, and asks its clients for the same key.
"""

from dataclasses import replace

from orchestrator.base.errors import FailureKind
from orchestrator.engines import command
from orchestrator.engines.command import Command, Node
from orchestrator.engines.engine import Engine
from orchestrator.engines.log_words import LogWords
from orchestrator.engines.sglang import CONSTRAINTS
from orchestrator.spec.dialect import ANY_TOOL_CHOICE, SGLANG_GENERATE, openai
from orchestrator.spec.settings import Hardware
from orchestrator.spec.stages import PinnedSettings

# Which fields of requests it passes on (its src/protocols). /v1/completions: text prompts, and
# fields that it does not know, too. Chats and stream_options: only fields that it knows.
DIALECTS = {
    "completions": openai(
        return_token_ids=True,
        cache_salt=True,
        adapter_field="lora_path",
        constraints=CONSTRAINTS,
    )["completions"],
    "chat": openai(
        adapter_field="lora_path", constraints=CONSTRAINTS, tool_choices=ANY_TOOL_CHOICE
    )["chat"],
    "native": replace(SGLANG_GENERATE, adapter_field="lora_path"),
}


def arguments(node: Node, disaggregation: str, bootstrap: bool = False) -> list[str]:
    """Where the router listens and what it routes to. vLLM's router, which descends from this one,
    takes the same arguments.

    ``disaggregation``: the flag for prefill and decode replicas; ``bootstrap``: also name the ports
    of prefill replicas at which decode replicas ask for KV caches.
    """
    argv = ["--host", node.bind, "--port", str(node.port)]
    if node.extra_ports:  # the router's default, 29000, may be taken
        argv += ["--prometheus-port", str(node.extra_ports[0])]
    argv += ["--disable-retries"]  # a failed request is a row; retried, it would be a slow one
    has_roles = any(worker.role for worker in node.workers)
    if not has_roles:
        return [*argv, "--worker-urls", *(worker.url for worker in node.workers)]
    argv.append(disaggregation)
    for worker in node.workers:
        argv += [f"--{worker.role}", worker.url]
        if bootstrap and worker.role == "prefill":
            argv.append(str(worker.port))
    return argv


def _start(settings: PinnedSettings, hardware: Hardware, node: Node) -> Command:
    argv = [
        *command.with_key(settings, "sglang_router.cli", "main", "--api-key"),
        "launch",
        *("--prometheus-host", node.bind),
        *arguments(node, "--pd-disaggregation", bootstrap=True),
    ]
    return Command(tuple(argv), {"CUDA_VISIBLE_DEVICES": ""})


ROUTER = Engine(
    name="sglang_router",
    title="SGLang's router",
    version="0.3",
    ready_path="/readiness",  # /health answers before it knows a replica
    ready_fallbacks=("/get_model_info", "/v1/models"),  # a replica answers these
    version_at={},
    metrics_path=None,
    dialects=lambda settings: DIALECTS,
    handled_fields=("served_model_name",),
    reserved=(
        *("--host", "--port", "--prometheus-host", "--prometheus-port"),
        *("--disable-retries", "--api-key", "--worker-urls", "--pd-disaggregation"),
        *("--prefill", "--decode", "--service-discovery", "--mini-lb"),
    ),
    on_cpus=True,
    on_amd=True,
    start=_start,
    key_variable=command.KEY_VARIABLE,
    log=LogWords(failures={FailureKind.BAD_CONFIG: r": error: "}),
)
