"""A server that already runs somewhere: it is never launched, stopped or reset.

Requests use what most servers understand: text prompts, ``ignore_eos``, and usage at the end of a
stream. The one exception is a cache_salt, without which repeated prompts would be answered from the
prefix cache.
"""

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.base.errors import InputError
from orchestrator.engines import vllm
from orchestrator.engines.command import Node
from orchestrator.engines.engine import Engine
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.address import parse_address, parse_url
from orchestrator.spec.constraint import ConstraintForm, ConstraintKind, all_kinds
from orchestrator.spec.dialect import (
    ANY_TOOL_CHOICE,
    SGLANG_GENERATE,
    TGI_STREAM,
    Dialect,
    openai,
)
from orchestrator.spec.settings import EngineSettings, Hardware


def _problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    if settings.url is None:
        yield "url: an endpoint needs one, like http://host:8000"
    elif not settings.url.startswith(("http://", "https://")):
        yield f"url: {settings.url!r} starts with neither http:// nor https://"
    else:
        try:
            parse_url(parse_address(settings.url).base)
        except (InputError, ValueError) as error:
            yield f"url: {error}"
    if settings.replicas != 1:
        yield "replicas: an endpoint is one server; list several deployments instead"


def _served_name(settings: EngineSettings, node: Node) -> str:
    return settings.served_model_name or settings.model


# ``owned_by`` of a model in /v1/models -> the engine, where that is not the engine's name
_OWNERS = {"llamacpp": "llama_cpp"}


def _engine_of(owner: str) -> str:
    """The name of the engine whose servers call themselves ``owner``; ``owner`` itself where it is
    no engine.
    """
    return _OWNERS.get(owner, owner)


def with_salt(dialect: Dialect, owner: str, settings: EngineSettings) -> Dialect:
    """A copy for requests with a cache_salt, if ``owner`` is an engine that takes one in this API.

    ``owner``: ``owned_by`` of the model in the server's /v1/models. A salt of the user's own stays.
    """
    engine = _engine_of(owner)
    if engine not in ENGINES or "cache_salt" in dialect.extra_body:
        return dialect
    for own_dialect in ENGINES[engine].dialects(settings).values():
        if own_dialect.wire == dialect.wire and own_dialect.cache_salt:
            # SGLang names adapters in a field of their own
            return replace(dialect, cache_salt=True, adapter_field=own_dialect.adapter_field)
    return dialect


def with_constraints(dialect: Dialect, owner: str, settings: EngineSettings) -> Dialect:
    """A copy that constrains answers, and takes tools, as ``owner`` does in this API, if that is an
    engine; otherwise as OpenAI's API does. Which choices of tools its flags allow is not known; those
    that llama.cpp takes, none of its flags adds to. Nor are the numbers known by which llama.cpp's
    requests name adapters, so there is no field for these.
    """
    engine = _engine_of(owner)
    own_dialects = OPENAI_OPTIONS
    if engine in ENGINES and ENGINES[engine].launches:
        own_dialects = ENGINES[engine].dialects(settings)
    for own_dialect in own_dialects.values():
        if own_dialect.wire != dialect.wire:
            continue
        constraining = replace(
            dialect,
            constraints=own_dialect.constraints,
            tool_choices=ANY_TOOL_CHOICE if own_dialect.tool_choices else frozenset(),
            free_beside_tools=own_dialect.free_beside_tools,
        )
        if engine != "llama_cpp":
            return constraining
        return replace(constraining, tool_choices=own_dialect.tool_choices, adapter_field=None)
    return dialect


# What OpenAI's API has; a server may ignore it, which the answers show.
OPENAI_OPTIONS = openai(
    constraints={ConstraintKind.JSON_SCHEMA: ConstraintForm.RESPONSE_FORMAT},
    tool_choices=ANY_TOOL_CHOICE,
)


def _dialects(settings: EngineSettings) -> dict[str, Dialect]:
    """The dialects of the APIs that the server may have; if the URL has the path of one API, that
    one alone.
    """
    # Adapters are models of an OpenAI server, as vLLM and TGI have them. A trial shows what it is,
    # which may take fewer constraints (sweep/endpoint_trial.py).
    anything = openai(
        adapter_field="model",
        constraints=all_kinds(ConstraintForm.STRUCTURED_OUTPUTS),
        tool_choices=ANY_TOOL_CHOICE,
    )
    dialects = anything | {
        "tgi": replace(TGI_STREAM, adapter_field="adapter_id"),
        "native": replace(SGLANG_GENERATE, adapter_field="lora_path"),
    }
    api = _api_in(settings.url or "")
    return dialects if api is None else {api: dialects[api]}


def _api_in(url: str) -> str | None:
    """The API whose path a URL has; None without such a path."""
    try:
        api = parse_address(url).api
    except ValueError:  # reported by _problems
        return None
    return "native" if api == "sglang" else api


ENGINE = Engine(
    name="endpoint",
    title="an endpoint",
    launches=False,
    ready_path="/v1/models",
    ready_fallbacks=(),
    version_at={
        "/version": "version",
        "/server_info": "version",
        "/info": "version",
        "/props": "build_info",
    },
    metrics=vllm.ENGINE.metrics,  # where it has them
    dialects=_dialects,
    served_name=_served_name,
    handled_fields=(
        *("engine", "engine_version", "url", "endpoint_gpus", "api_key_env", "replicas"),
        *("model", "revision", "tokenizer", "served_model_name"),
    ),
    on_cpus=True,
    on_amd=True,
    more_problems=_problems,
)
