"""The argument lists of vLLM's published recipes become settings that vLLM's adapter accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.engines.command import iter_flags
from orchestrator.engines.problems import notes_of, problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative
from tests.contract.recorded import FOLDER

VLLM = ENGINES["vllm"]
DOCUMENT = json.loads((FOLDER / "vllm" / "recipes.json").read_text(encoding="utf-8"))
LISTS: list[tuple[str, list[str]]] = DOCUMENT["lists"]
B200 = Hardware(name="b200", accelerator="B200", gpus_per_node=8)
# flag -> field, for those whose value is the field's own
FIELDS = {
    flag.name: (field, flag.kind)
    for field, flag in iter_flags(VLLM.flags)
    if flag.value_from is None and field not in ("trust_remote_code",)
} | {
    "--data-parallel-size": ("data_parallel_size", "value"),
    "-tp": ("tensor_parallel_size", "value"),
    "-pp": ("pipeline_parallel_size", "value"),
    "-dp": ("data_parallel_size", "value"),
    "--trust-remote-code": ("trust_remote_code", "switch"),
}
# Recipes for images of their own, which have an attention backend and a quantization more.
FORKS = {
    "deepseek-ai/DeepSeek-V4-Flash": "B12X_MLA_SPARSE",
    "Qwen/Qwen3.8-27B": "ascend",
}
# Flags that the recipe misspells.
MISSPELLED = {"--tool-call-parser-plugin": "--tool-parser-plugin"}


def settings_of(words: list[str]) -> dict[str, Any]:
    """The settings that mean a list of arguments, as somebody who translates a recipe writes them."""
    settings: dict[str, Any] = {"engine": "vllm", "model": "m"}
    extra: dict[str, Any] = {}
    at = 0
    while at < len(words):
        name, equals, inline = words[at].partition("=")
        at += 1
        values = [inline] if equals else []
        while not equals and at < len(words) and not is_flag(words[at]):
            values.append(words[at])
            at += 1
        field, kind = FIELDS.get(name.replace("_", "-"), (None, None))
        negated = FIELDS.get("--" + name.removeprefix("--no-"), (None, None))
        if name == "--speculative-config":
            settings["speculative"] = speculation(json.loads(values[0]))
        elif name == "--served-model-name":
            settings["served_model_name"] = values[0]
        elif name == "--max-model-len" and values == ["auto"]:
            extra[name] = "auto"
        elif field is not None and kind in ("switch", "bare"):
            settings[field] = True
        elif negated[1] == "switch" and name.startswith("--no-"):
            settings[str(negated[0])] = False
        elif field is not None:
            settings[field] = number(values[0]) if kind == "value" else json.loads(values[0])
        elif len(values) > 1:
            extra[name] = values
        else:
            extra[name] = values[0] if values else True
    return settings | {"extra_args": extra}


def is_flag(word: str) -> bool:
    return word.startswith("--") or (word.startswith("-") and word[1:2].isalpha())


def number(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


def speculation(given: dict[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in given.items() if key in Speculative.model_fields}
    further = {key: value for key, value in given.items() if key not in Speculative.model_fields}
    return own | ({"extra_args": further} if further else {})


@pytest.mark.parametrize(("recipe", "words"), LISTS, ids=[recipe for recipe, _ in LISTS])
def test_a_recipe_of_vllm_can_be_written_as_settings(recipe: str, words: list[str]) -> None:
    own_image = {"image": "acme/fork:latest"} if FORKS.get(recipe) in words else {}
    made = EngineSettings.model_validate(settings_of(words) | own_image)
    problems = problems_of(VLLM, made, B200)
    expected = [
        f"extra_args: vLLM 0.33.0 has no flag {flag}; did you mean '{MISSPELLED[flag]}'?"
        for flag in words
        if flag in MISSPELLED
    ]
    assert problems == expected
    assert bool(notes_of(VLLM, made)) is bool(own_image)


def test_the_recipes_speculate_in_every_way_that_is_known_of_them() -> None:
    methods = {
        json.loads(word).get("method")
        for _, words in LISTS
        for word in words
        if '"num_speculative_tokens"' in word
    }
    assert {"dflash", "dspark", "eagle3", "mtp", "qwen3_next_mtp", None} <= methods
    assert len(LISTS) > 250
