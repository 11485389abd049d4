"""endpoint: nothing is launched, and nothing about it can be configured."""

from __future__ import annotations

import pytest

from orchestrator.engines.command import Node
from orchestrator.engines.endpoint import ENGINE as ENDPOINT
from orchestrator.engines.endpoint import with_constraints
from orchestrator.engines.problems import problems_of
from orchestrator.spec.settings import EngineSettings, Hardware

CPU = Hardware(name="cpu")


def settings(**given: object) -> EngineSettings:
    return EngineSettings.model_validate(
        {"engine": "endpoint", "model": "m", "url": "http://h:1"} | given
    )


def test_a_url_and_a_name_are_enough() -> None:
    made = settings(served_model_name="theirs", api_key_env="THEIR_KEY")
    assert problems_of(ENDPOINT, made, CPU) == []
    assert ENDPOINT.served_name(made, Node(launch_id="x")) == "theirs"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"url": None}, "url: an endpoint needs one"),
        ({"url": "h:1"}, "url: 'h:1' starts with neither http:// nor https://"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size: an endpoint already runs"),
        ({"extra_args": {"--x": True}}, "extra_args: an endpoint already runs"),
        ({"replicas": 2}, "replicas: an endpoint is one server"),
    ],
)
def test_settings_that_no_endpoint_has_are_refused(given: dict[str, object], sentence: str) -> None:
    assert sentence in "\n".join(problems_of(ENDPOINT, settings(**given), CPU))


def test_llama_cpp_is_known_by_the_owner_of_its_model() -> None:
    for api, dialect in ENDPOINT.dialects(settings()).items():
        if api not in ("completions", "chat"):
            continue
        asked = with_constraints(dialect, "llamacpp", settings())
        assert asked.constraints == {"json_schema": "schema_field", "choice": "gbnf"}
        assert asked.free_beside_tools == {"choice"}
        assert asked.adapter_field is None
        assert "named" not in asked.tool_choices
        assert with_constraints(dialect, "nobody", settings()).adapter_field == "model"


def test_it_is_never_launched() -> None:
    assert not ENDPOINT.launches
    with pytest.raises(TypeError, match="not launched"):
        ENDPOINT.command(settings(), CPU, Node(), "")
