"""A server that already runs somewhere: nothing is launched, stopped or reset."""

from __future__ import annotations

from typing import ClassVar

from orchestrator.engines.base import Command, Metric, Node
from orchestrator.engines.vllm import Vllm
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings, Hardware

KNOWN = frozenset(
    {
        *("engine", "engine_version", "url", "api_key_env", "model", "revision", "tokenizer", "served_model_name"),
        "replicas",
    }
)


class Endpoint:
    """Speaks the OpenAI API in the widest understood form: text prompts, ``ignore_eos``, usage at the end."""

    name: ClassVar[str] = "endpoint"
    launches: ClassVar[bool] = False
    emulated: ClassVar[bool] = False
    ready_path: ClassVar[str] = "/v1/models"
    metrics_path: ClassVar[str | None] = "/metrics"  # where it has one; vLLM's names are then understood
    reset_path: ClassVar[str | None] = None
    metrics: ClassVar[tuple[Metric, ...]] = Vllm.metrics

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        found = [
            f"{field}: an endpoint already runs; its configuration cannot be set here"
            for field in settings.given()
            if field not in KNOWN
        ]
        if settings.url is None:
            found.append("url: an endpoint needs one, like http://host:8000")
        elif not settings.url.startswith(("http://", "https://")):
            found.append(f"url: {settings.url!r} starts with neither http:// nor https://")
        if settings.replicas != 1:
            found.append("replicas: an endpoint is one server; list several deployments instead")
        return found

    def pinned(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        return {}

    def command(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> Command:
        raise TypeError("an endpoint is not launched")

    def dialects(self, settings: EngineSettings) -> dict[str, Dialect]:
        return {
            "completions": Dialect("openai_completions", "/v1/completions"),
            "chat": Dialect("openai_chat", "/v1/chat/completions"),
            "tgi": Dialect(
                "tgi",
                "/generate_stream",
                length_control="none",
                include_usage=False,
                done_marker=False,
                model_field=False,
            ),
        }

    def served_name(self, settings: EngineSettings, node: Node) -> str:
        return settings.served_model_name or settings.model

    def version_command(self, settings: EngineSettings) -> tuple[str, ...] | None:
        return None

    def reported(self, log: str) -> dict[str, float | int | str]:
        return {}
