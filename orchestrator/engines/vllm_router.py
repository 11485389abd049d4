"""vLLM's router (the package ``vllm-router``, 0.1.17), in front of prefill and decode replicas or
of equal ones.

It takes its replicas' key from ``OPENAI_API_KEY`` and asks its clients for none.
"""

from orchestrator.base.errors import FailureKind
from orchestrator.engines import command
from orchestrator.engines.command import Command, Node
from orchestrator.engines.engine import Engine
from orchestrator.engines.log_words import LogWords
from orchestrator.engines.sglang_router import arguments
from orchestrator.spec.constraint import ConstraintForm, all_kinds
from orchestrator.spec.dialect import ANY_TOOL_CHOICE, SGLANG_GENERATE, openai
from orchestrator.spec.settings import Hardware
from orchestrator.spec.stages import PinnedSettings


def _start(settings: PinnedSettings, hardware: Hardware, node: Node) -> Command:
    argv = (command.program(settings, "vllm-router"), *arguments(node, "--vllm-pd-disaggregation"))
    return Command(argv, {"CUDA_VISIBLE_DEVICES": ""})


ROUTER = Engine(
    name="vllm_router",
    title="vLLM's router",
    version="0.1",
    version_at={},
    metrics_path=None,
    guarded=False,
    # The router drops fields of stream_options that it does not know.
    dialects=lambda settings: (
        openai(
            prompt_token_ids=True,
            return_token_ids=True,
            cache_salt=True,
            constraints=all_kinds(ConstraintForm.STRUCTURED_OUTPUTS),
            tool_choices=ANY_TOOL_CHOICE,
        )
        | {"native": SGLANG_GENERATE}
    ),
    handled_fields=("served_model_name",),
    reserved=(
        *("--host", "--port", "--prometheus-port", "--disable-retries", "--api-key"),
        *("--worker-urls", "--vllm-pd-disaggregation", "--prefill", "--decode"),
        "--service-discovery",
    ),
    on_cpus=True,
    on_amd=True,
    start=_start,
    key_variable="OPENAI_API_KEY",
    log=LogWords(failures={FailureKind.BAD_CONFIG: r"vllm-router: error: "}),
)
