"""Constraints and tools that an engine has no field for are refused with what would work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.registry import ENGINES
from orchestrator.plan.request_options import notes_on_fields, options_mismatch
from orchestrator.spec.load import Workload
from orchestrator.spec.settings import EngineSettings

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}


def _given(**keys: Any) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if value is not None}


def mismatch(engine: str, settings: dict[str, Any] | None = None, **workload: Any) -> str | None:
    asked = Workload.model_validate(
        _given(name="w", **{"input_tokens": 9, "output_tokens": 9, **workload})
    )
    own = EngineSettings.model_validate({"engine": engine, "model": "m", **(settings or {})})
    finding = options_mismatch(asked, ENGINES[engine], own, ENGINES[engine].dialects(own))
    if finding is None:
        return None
    assert finding.status == "impossible"
    return finding.sentence


@pytest.mark.parametrize(
    ("engine", "workload", "remedy"),
    [
        ("transformers", {"constrain": {"regex": "a"}}, "measure it with another engine"),
        ("lightllm", {"constrain": {"choice": ["a"]}}, "measure it with another engine"),
        ("tensorrt_llm", {"constrain": {"regex": "a"}}, "set guided_decoding_backend"),
        ("tgi", {"constrain": {"json_schema": {}}}, "use the API tgi"),
        ("lmdeploy", {"constrain": {"json_schema": {}}}, "use the API chat"),
        ("llama_cpp", {"constrain": {"regex": "a"}}, "use json_schema or choice"),
        ("emulator", {"constrain": {"regex": "a"}}, "use json_schema or choice"),
    ],
)
def test_a_constraint_without_a_field_names_what_would_work(
    engine: str, workload: dict[str, Any], remedy: str
) -> None:
    sentence = mismatch(engine, **workload)
    assert sentence is not None
    assert "has no field for it here" in sentence
    assert sentence.endswith(remedy)


def test_constraints_and_tools_that_an_engine_has_are_fine() -> None:
    assert mismatch("vllm", constrain={"regex": "a"}) is None
    assert mismatch("sglang", api="chat", tools=[TOOL]) is None
    backend = {"guided_decoding_backend": "xgrammar"}
    assert mismatch("tensorrt_llm", backend, constrain={"regex": "a"}) is None
    assert mismatch("vllm") is None


@pytest.mark.parametrize("tool_choice", [None, "auto", "required", {"name": "get_weather"}])
def test_vllm_calls_tools_only_with_a_parser(tool_choice: object) -> None:
    sentence = mismatch("vllm", api="chat", tools=[TOOL], tool_choice=tool_choice)
    assert sentence is not None
    assert "vLLM as it is set here takes only none: see `tools`" in sentence


def test_vllm_reads_tools_that_it_must_not_call_and_calls_them_with_a_parser() -> None:
    assert mismatch("vllm", api="chat", tools=[TOOL], tool_choice="none") is None
    parser = {"extra_args": {"--enable-auto-tool-choice": True, "--tool-call-parser": "hermes"}}
    assert mismatch("vllm", parser, api="chat", tools=[TOOL]) is None


def test_a_model_whose_format_has_tools_needs_no_parser_of_vllm() -> None:
    model = {"model": "openai/gpt-oss-120b"}
    assert mismatch("vllm", model, api="chat", tools=[TOOL], tool_choice="required") is None


def test_llama_cpp_takes_tools_by_its_templates_and_no_choice_beside_them() -> None:
    assert mismatch("llama_cpp", api="chat", tools=[TOOL]) is None
    assert (
        mismatch("llama_cpp", {"extra_args": {"--jinja": True}}, api="chat", tools=[TOOL]) is None
    )
    no_templates = {"extra_args": {"--no-jinja": True}}
    sentence = mismatch("llama_cpp", no_templates, api="chat", tools=[TOOL])
    assert sentence is not None and sentence.endswith("the API 'chat' of llama.cpp takes none")
    both = {"api": "chat", "tools": [TOOL], "constrain": {"choice": ["a", "b"]}}
    sentence = mismatch("llama_cpp", **both)
    assert sentence is not None
    assert "sends tools and constrains answers by a choice, and llama.cpp refuses both" in sentence
    assert mismatch("llama_cpp", **both, tool_choice="none") is None
    assert mismatch("sglang", **both) is None


def test_an_engine_without_tools_says_so() -> None:
    sentence = mismatch("lightllm", api="chat", tools=[TOOL])
    assert sentence is not None and sentence.endswith("takes none")


def test_prompts_of_token_ids_go_only_to_apis_that_take_them(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": [5, 6]}\n')
    ids = {"kind": "file", "prompts": str(file), "input_tokens": None}
    assert mismatch("vllm", **ids) is None
    sentence = mismatch("tgi", **ids)
    assert sentence is not None and sentence.endswith("takes texts alone")


def test_an_api_that_is_missing_is_another_problem() -> None:
    assert mismatch("vllm", api="tgi", constrain={"regex": "a"}) is None


@pytest.mark.parametrize(
    ("engine", "request_fields", "reason"),
    [
        ("transformers", {"top_k": 5, "min_p": 0.1}, "asks for min_p, top_k, which the API"),
        ("transformers", {"top_k": 5}, "transformers serve refuses: leave it out"),
        ("transformers", {"temperature": 0.7}, "transformers serve takes and does not apply"),
        ("transformers", {"stop": ["."], "temperature": 0}, "asks for stop, which"),
        ("tensorrt_llm", {"top_n_sigma": 1.0}, "TensorRT-LLM refuses: leave it out"),
        (
            "tensorrt_llm",
            {"chat_template_kwargs": {}, "documents": []},
            "asks for chat_template_kwargs, documents, which the API 'completions' of "
            "TensorRT-LLM refuses: use the API chat",
        ),
        (
            "tensorrt_llm",
            {"chat_template_kwargs": {}, "top_n_sigma": 1.0},
            "TensorRT-LLM refuses: use the API chat; workload 'w' asks for top_n_sigma, which the "
            "API 'completions' of TensorRT-LLM refuses: leave it out",
        ),
        (
            "transformers",
            {"chat_template_kwargs": {"enable_thinking": False}},
            "transformers serve refuses: use the API chat",
        ),
        ("transformers", {"metadata": {"job": "7"}}, "transformers serve refuses: leave it out"),
    ],
)
def test_a_field_that_an_engine_refuses_or_does_not_apply_is_named(
    engine: str, request_fields: dict[str, Any], reason: str
) -> None:
    sentence = mismatch(engine, request=request_fields)
    assert sentence is not None
    assert reason in sentence


def test_fields_that_an_engine_has_or_ignores_are_fine() -> None:
    sampled = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "repetition_penalty": 1.1, "seed": 3}
    assert mismatch("tensorrt_llm", request=sampled) is None
    assert mismatch("vllm", request=sampled) is None
    template = {"chat_template_kwargs": {"enable_thinking": False}}
    for engine in ("tensorrt_llm", "transformers"):
        assert mismatch(engine, api="chat", request=template) is None
    greedy = {"temperature": 0.0, "top_p": None}
    assert mismatch("transformers", request=greedy) is None


def test_sampling_of_a_line_is_refused_as_that_of_the_workload(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    prompts = {"kind": "file", "prompts": str(file), "input_tokens": None}
    file.write_text('{"prompt": "a", "temperature": 0}\n{"prompt": "b", "top_k": 5}\n')
    sentence = mismatch("transformers", **prompts)
    assert sentence is not None and "asks for top_k, which" in sentence
    assert mismatch("tensorrt_llm", **prompts) is None
    file.write_text('{"prompt": "a", "temperature": 0}\n{"prompt": "b"}\n')
    assert mismatch("transformers", **prompts) is None


def test_recorded_tools_are_refused_by_line_where_the_engine_has_no_place_for_them(
    tmp_path: Path,
) -> None:
    asked = {"role": "user", "content": "x"}
    call = {"id": "c", **TOOL, "function": {"name": "get_weather", "arguments": "{}"}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    returned = {"role": "tool", "content": "rain"}
    lines = [{"messages": [asked, called, returned]}, {"messages": [asked], "tools": [TOOL]}]
    file = tmp_path / "agent.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    keys = {"kind": "file", "api": "chat", "prompts": str(file), "input_tokens": None}
    assert mismatch("sglang", **keys) is None
    sentence = mismatch("lightllm", **keys)
    assert sentence is not None
    assert f"sends tools (prompts {str(file)!r}, line 1), and the API 'chat' of" in sentence
    sentence = mismatch("vllm", **keys)
    assert sentence is not None
    assert f"has the tool_choice auto (prompts {str(file)!r}, line 2), and vLLM" in sentence
    assert mismatch("vllm", **keys, tool_choice="none") is None
    file.write_text(json.dumps(lines[0]))
    assert mismatch("vllm", **keys) is None, "it reads calls and results without a parser"


@pytest.mark.parametrize(
    ("engine", "version", "said"),
    [
        ("tgi", "3.3.7", "'chat' of TGI 3.3.7 ignores: leave it out"),
        ("transformers", "5.24", "transformers serve takes and does not apply: leave it out"),
        ("lightllm", "1.2.0", "'chat' of LightLLM takes none"),
        ("sglang", "0.5.23", None),
    ],
)
def test_tools_that_are_not_to_be_called_together_are_refused_where_that_is_ignored(
    engine: str, version: str, said: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "agent.jsonl"
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
    file.write_text(json.dumps(asked | {"parallel_tool_calls": False}))
    keys = {"kind": "file", "api": "chat", "prompts": str(file), "input_tokens": None}
    sentence = mismatch(engine, {"engine_version": version}, **keys)
    assert sentence is None if said is None else said in (sentence or "")


MISSPELLED = {"temprature": 0.7}


def doubts(
    engine: str, request: dict[str, Any], api: str = "completions", **settings: Any
) -> list[str]:
    asked = Workload.model_validate(
        {"name": "w", "api": api, "input_tokens": 9, "output_tokens": 9, "request": request}
    )
    own = EngineSettings.model_validate({"engine": engine, "model": "m", **settings})
    return notes_on_fields(asked, ENGINES[engine], own)


@pytest.mark.parametrize(
    ("engine", "version", "recorded"),
    [
        ("vllm", "0.33.0", "0.33.0"),
        ("vllm", "0.33", "0.33.0"),
        ("vllm", "v0.33.0+cu129", "0.33.0"),
        ("vllm", "0.32.0", "0.32.0"),
        ("sglang", "0.5.23", "0.5.23"),
    ],
)
def test_a_field_that_the_stated_release_would_ignore_is_refused_with_the_nearest(
    engine: str, version: str, recorded: str
) -> None:
    sentence = mismatch(engine, {"engine_version": version}, request=MISSPELLED | {"top_p": 0.9})
    assert sentence == (
        f"workload 'w' asks for temprature, which the API 'completions' of {ENGINES[engine].title} "
        f"{recorded} ignores: did you mean 'temperature'?"
    )
    assert doubts(engine, MISSPELLED, engine_version=version) == []


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("vllm", "0.33.1.dev512+gabc"),
        ("vllm", "0.33.0.dev5"),
        ("vllm", "0.33.1rc1"),
        ("vllm", "0.33.0rc1"),
        ("vllm", "0.33.1"),
        ("vllm", "0.33.0+acme"),
        ("vllm", "0"),
        ("sglang", "0.5"),
        ("sglang", "0.5.23.post1"),
    ],
)
def test_a_field_that_a_build_beside_the_recorded_release_may_know_is_only_noted(
    engine: str, version: str
) -> None:
    assert mismatch(engine, {"engine_version": version}, request=MISSPELLED) is None
    (sentence,) = doubts(engine, MISSPELLED, engine_version=version)
    assert "ignores, as may the release that runs: did you" in sentence


@pytest.mark.parametrize(
    ("engine", "version", "variable"),
    [("vllm", "0.33.0", "VLLM_PLUGINS"), ("sglang", "0.5.23", "SGLANG_PLUGINS")],
)
def test_a_field_that_a_plugin_may_read_is_only_noted(
    engine: str, version: str, variable: str
) -> None:
    settings = {"engine_version": version, "env": {variable: "ours"}}
    assert mismatch(engine, settings, request=MISSPELLED) is None
    (sentence,) = doubts(engine, MISSPELLED, **settings)
    assert f"ignores, unless a plugin of {variable} reads it: did you mean" in sentence


def test_no_field_is_suggested_that_a_workload_may_not_give() -> None:
    sentence = mismatch("vllm", {"engine_version": "0.33.0"}, request={"strea": True})
    assert sentence is not None and "'stream'" not in sentence
    sentence = mismatch("vllm", {"engine_version": "0.33.0"}, request={"tool": []}, api="chat")
    assert sentence is not None and sentence.endswith(
        "leave it out, or measure it with another engine"
    )


@pytest.mark.parametrize(
    ("engine", "field_name"),
    [
        ("vllm", "chat_template_kwargs"),
        ("vllm", "mm_processor_kwargs"),
        ("sglang", "chat_template_kwargs"),
    ],
)
def test_a_field_of_another_api_names_that_api(engine: str, field_name: str) -> None:
    release = {"engine_version": {"vllm": "0.33.0", "sglang": "0.5.23"}[engine]}
    sentence = mismatch(engine, release, request={field_name: {"a": 1}})
    assert sentence is not None and sentence.endswith("ignores: use the API chat")
    sentence = mismatch("vllm", {"engine_version": "0.33.0"}, request={"suffix": "."}, api="chat")
    assert sentence is not None and sentence.endswith("ignores: use the API completions")


def test_fields_are_known_by_release_and_api() -> None:
    versions = {"return_weight_versions": True}
    assert mismatch("vllm", {"engine_version": "0.33"}, request=versions) is None
    sentence = mismatch("vllm", {"engine_version": "0.32"}, request=versions)
    assert sentence is not None and "of vLLM 0.32.0 ignores" in sentence
    template = {"chat_template_kwargs": {"enable_thinking": False}}
    stated = {"engine_version": "0.5.23"}
    assert mismatch("sglang", stated, api="chat", request=template) is None
    sentence = mismatch("sglang", stated, request=template)
    assert sentence is not None and "asks for chat_template_kwargs, which" in sentence


def test_a_field_for_which_an_api_refuses_requests_is_named_with_the_nearest() -> None:
    stated = {"engine_version": "0.5.23"}
    fields = {"temperature": 0.7, "top_k": 5, "seed": 3, "user": "u"}
    sentence = mismatch("sglang", stated, api="native", request=fields)
    named = "workload 'w' asks for {}, which the API 'native' of SGLang 0.5.23 refuses: {}"
    apis = "use the API completions or chat"
    assert sentence == "; ".join(named.format(name, apis) for name in ("seed", "user"))
    assert doubts("sglang", fields, api="native", **stated) == []
    (sentence,) = doubts("sglang", MISSPELLED, api="native")
    assert sentence.endswith("refuses, as may the release that runs: did you mean 'temperature'?")


@pytest.mark.parametrize("release", [{}, {"engine_version": "0.34"}, {"image": "acme/fork:latest"}])
def test_a_field_that_another_release_may_know_is_only_noted(release: dict[str, Any]) -> None:
    assert mismatch("vllm", release, request=MISSPELLED) is None
    (sentence,) = doubts("vllm", MISSPELLED, **release)
    assert sentence == (
        "workload 'w' asks for temprature, which the API 'completions' of vLLM 0.33.0 ignores, as "
        "may the release that runs: did you mean 'temperature'?"
    )
    assert doubts("vllm", {"top_p": 0.9, "min_p": None}, **release) == []


def test_nothing_is_said_of_fields_where_the_engine_or_its_fields_are_not_known() -> None:
    url = {"url": "http://127.0.0.1:1"}
    assert mismatch("endpoint", url, request=MISSPELLED) is None
    assert doubts("endpoint", MISSPELLED, **url) == []
    assert mismatch("emulator", request=MISSPELLED) is None
    assert doubts("emulator", MISSPELLED) == []


ABOUT_A_REQUEST = {"metadata": {"job": "7"}, "store": False, "service_tier": "auto"}


@pytest.mark.parametrize(
    ("engine", "release"),
    [
        ("vllm", "0.33.0"),
        ("sglang", "0.5.23"),
        ("tgi", "3.3.7"),
        ("lmdeploy", "0.18.0"),
        ("lightllm", "1.2.0"),
        ("llama_cpp", "0c1e570"),
    ],
)
def test_an_ignored_field_that_changes_no_answer_is_noted_and_not_refused(
    engine: str, release: str
) -> None:
    settings = {"engine_version": release}
    assert mismatch(engine, settings, request=ABOUT_A_REQUEST, api="chat") is None
    (sentence,) = doubts(engine, ABOUT_A_REQUEST, api="chat", **settings)
    assert sentence == (
        "workload 'w' sends metadata, service_tier, store, which the API 'chat' of "
        f"{ENGINES[engine].title} {release} ignores: no answer changes by it"
    )
    (sentence,) = doubts(engine, ABOUT_A_REQUEST, api="chat")
    assert sentence.endswith("as may the release that runs: no answer changes by it")


def test_fields_that_change_no_answer_are_refused_where_the_server_refuses_the_request() -> None:
    assert mismatch("transformers", request=ABOUT_A_REQUEST, api="chat") is None
    assert doubts("transformers", ABOUT_A_REQUEST | {"user": "u"}, api="chat") == [
        "workload 'w' sends metadata, service_tier, store, user, which the API 'chat' of "
        "transformers serve ignores: no answer changes by it"
    ]
    # completions refuse what OpenAI's legacy API does not have
    sentence = mismatch("transformers", request=ABOUT_A_REQUEST)
    assert sentence is not None and "transformers serve refuses" in sentence
    for api in ("completions", "chat"):
        sentence = mismatch("tensorrt_llm", request=ABOUT_A_REQUEST, api=api)
        assert sentence is not None and "metadata, service_tier, store, which" in sentence


@pytest.mark.parametrize(
    ("engine", "version", "api", "field_name", "remedy"),
    [
        ("llama_cpp", "0c1e570", "chat", "repetition_penalty", "did you mean"),
        ("tgi", "3.3.7", "completions", "top_k", "use the API tgi"),
        ("lmdeploy", "0.18.0", "chat", "presence_penalty", "did you mean 'repetition_penalty'?"),
        ("lightllm", "1.2.0", "chat", "min_p", "leave it out"),
        ("lightllm", "1.2.0", "tgi", "seed", "use the API completions or chat"),
    ],
)
def test_fields_that_other_engines_ignore_are_named(
    engine: str, version: str, api: str, field_name: str, remedy: str
) -> None:
    sentence = mismatch(engine, {"engine_version": version}, request={field_name: 1.1}, api=api)
    assert sentence is not None
    assert f"asks for {field_name}, which the API {api!r} of" in sentence
    assert f"ignores: {remedy}" in sentence
