"""The answers that an experiment file is made of: what is understood, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.cli.starter import (
    Gpus,
    StarterAnswers,
    experiment_name,
    experiment_text,
    gpus_of,
    server_of,
    slo_of,
    workload_of,
)
from orchestrator.spec.document import parse_document


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("8 x H100-80GB", Gpus(8, "H100-80GB")),
        ("8xH100-80GB", Gpus(8, "H100-80GB")),
        ("8 H100-80GB", Gpus(8, "H100-80GB")),
        ("l4-24gb", Gpus(1, "L4-24GB")),
        ("cpu", Gpus(1, "cpu")),
        ("4 x A100", Gpus(4, "A100-80GB", ("A100-40GB", "A100-PCIe-80GB"))),
        ("2 x L40S", Gpus(2, "L40S-48GB")),
    ],
)
def test_gpus_are_a_number_and_a_name_of_the_catalogue(text: str, gpus: Gpus) -> None:
    assert gpus_of(text, "vllm") == gpus


@pytest.mark.parametrize(
    ("text", "engine", "reason"),
    [
        ("8 x H999", "vllm", "unknown accelerator"),
        ("0 x H100-80GB", "vllm", "not 0"),
        ("none", "vllm", "unknown accelerator"),
        ("cpu", "lmdeploy", "not started on CPUs"),
        ("cpu", "emulator", "imitates"),
        ("", "vllm", "no number of GPUs"),
    ],
)
def test_gpus_that_cannot_be_are_refused(text: str, engine: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        gpus_of(text, engine)


@pytest.mark.parametrize("text", ["0/5", "chatt", "512", "512/"])
def test_workloads_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        workload_of(text)


def test_an_endpoint_needs_its_url() -> None:
    with pytest.raises(InputError, match="URL"):
        server_of("endpoint")


@pytest.mark.parametrize("url", ["ftp://host", "http://[::1", "http://", "http://host:0"])
def test_a_url_of_no_server_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        server_of(url)


def test_limits_of_parts_are_refused_because_no_mix_is_written() -> None:
    with pytest.raises(InputError, match="limits of parts are for mixes"):
        slo_of("chat:ttft<=500ms")


def test_names_of_results_are_made_of_names_of_files() -> None:
    assert experiment_name("my sweep (2)") == "my-sweep-2"
    assert experiment_name("...") == "experiment"


@pytest.mark.parametrize("name", ["sweep", "null", "True", "no", "1e5", "0x10", "a:b", "it's"])
def test_a_name_stays_text_whatever_yaml_would_read(name: str) -> None:
    answers = StarterAnswers(server_of("vllm"), name, Gpus(1, "cpu"), "512/128", None)
    text = experiment_text(answers, Path(f"{name}.yaml"), "schema.json")
    content = parse_document(text, "sweep.yaml").value
    assert content["model"] == name
    assert content["name"] == experiment_name(name)
