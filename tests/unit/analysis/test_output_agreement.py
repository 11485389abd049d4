"""Answers to the fixed prompts: who is the reference, and how much of the others' is the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from orchestrator.analysis.deployments import stored_deployment
from orchestrator.analysis.output_agreement import (
    Agreement,
    AgreementNote,
    AnsweredLaunch,
    compared,
    reference,
)
from orchestrator.results.records import AnswerRow, DeploymentRow, LaunchRow
from tests.unit.results.builders import deployment_row

PROMPTS = 8
TOKENS = 8  # of each answer


def answer(
    prompt: int,
    token_ids: Sequence[int] | None,
    text: str = "",
    api: str = "/v1/completions",
    replica: int = 0,
    logprobs: tuple[float, ...] | None = None,
) -> AnswerRow:
    """The answer to a fixed prompt. ``token_ids``: None: the server did not give them."""
    ids = None if token_ids is None else tuple(token_ids)
    return AnswerRow(
        launch_id="L",
        deployment_id="d",
        prompt_index=prompt,
        replica=replica,
        api=api,
        prompt=f"p{prompt}",
        text=text or " ".join(map(str, ids or ())),
        token_ids=ids,
        logprobs=logprobs,
    )


def good_ids(prompt: int) -> range:
    return range(prompt, prompt + TOKENS)


GOOD = [answer(prompt, good_ids(prompt)) for prompt in range(PROMPTS)]
# it has one token in common with GOOD: the first of prompt 0
NOISE = [answer(prompt, [0] * TOKENS) for prompt in range(PROMPTS)]


def answered(
    label: str,
    answers: Sequence[AnswerRow] = GOOD,
    started: int = 1,
    parameters: int | None = 10,
    stored_quantization: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **row: Any,
) -> AnsweredLaunch:
    """A launch that gave ``answers``. ``row``: columns of its deployment. ``parameters``,
    ``stored_quantization``: of the checkpoint.
    """
    predicted = {"parameters": parameters, "checkpoint_quantization": stored_quantization}
    launch = LaunchRow(
        launch_id=f"{label}-{started}",
        deployment_id=label,
        experiment="x",
        status="ok",
        started_unix_ns=started,
        emulated=False,
    )
    columns = deployment_row(label, predicted_json=json.dumps(predicted)) | {
        "label": label,
        "settings_json": json.dumps(settings or {"engine": "vllm"}),
    }
    deployment = stored_deployment(DeploymentRow(**columns | row))
    return AnsweredLaunch(launch, deployment, tuple(answers))


WITHOUT_IDS = [answer(prompt, None, "some text") for prompt in range(PROMPTS)]


def agreement_of_tokens(
    share: float, reference: str, note: AgreementNote | None = None
) -> Agreement:
    """An agreement in all tokens of one launch."""
    return Agreement(share, PROMPTS * TOKENS, "tokens", reference, note)


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([answered("awq", started=0, stored_quantization="awq")], "plain"),
        (
            [
                answered("fp8", started=0, quantization="fp8"),
                answered("kv", started=0, kv_cache_dtype="fp8"),
            ],
            "plain",
        ),
        ([answered("tp2", started=0, devices=2)], "plain"),
        ([answered("set", started=0, settings={"engine": "vllm", "max_num_seqs": 8})], "plain"),
        ([answered("earlier", started=0)], "earlier"),
        ([answered("text", WITHOUT_IDS, started=0)], "plain"),
        ([answered("noise", NOISE, started=0)], "plain"),
    ],
)
def test_the_reference_is_the_plainest_unquantized_deployment_that_gives_output(
    others: list[AnsweredLaunch], chosen: str
) -> None:
    family = sorted([*others, answered("plain")], key=lambda launch: launch.launch.started_unix_ns)
    launch = reference(family)
    assert launch is not None
    assert launch.deployment.label == chosen


def test_of_equal_deployments_the_first_of_the_file_is_the_reference() -> None:
    both = [answered("second", started=1), answered("first", started=2)]
    assert compared(both, ["first", "second"])["second"].reference == "first"
    assert compared(both)["first"].reference == "second"


def test_a_superseded_deployment_is_the_reference_only_without_another() -> None:
    superseded = answered("old")
    current = answered("new", started=2, devices=2)
    awq = answered("awq", started=3, quantization="awq")
    agreements = compared([superseded, current, awq], ["new", "awq"])
    assert agreements["awq"] == agreement_of_tokens(1.0, "new")
    noise = answered("new", NOISE, started=2)
    agreements = compared([superseded, noise, awq], ["new", "awq"])
    assert agreements["awq"] == agreement_of_tokens(1.0, "old", AgreementNote.SUPERSEDED)


def test_where_all_are_quantized_the_reference_was_measured_first() -> None:
    family = [
        answered("int8", stored_quantization="int8", devices=4),
        answered("awq", started=2, stored_quantization="awq"),
    ]
    launch = reference(family)
    assert launch is not None
    assert launch.deployment.label == "int8"
    assert reference([answered("noise", NOISE)]) is None


def test_tokens_agree_up_to_the_first_difference_in_each_answer() -> None:
    differs_in_the_fifth = [answer(0, (0, 1, 2, 3, 99, 5, 6, 7)), *GOOD[1:]]
    agreements = compared(
        [
            answered("plain"),
            answered("tp2", differs_in_the_fifth, devices=2),
            answered("q", NOISE, quantization="x"),
        ]
    )
    assert agreements["plain"] == Agreement(reference="plain", note=AgreementNote.IS_REFERENCE)
    assert agreements["tp2"] == agreement_of_tokens(60 / 64, "plain")
    assert agreements["q"] == agreement_of_tokens(1 / 64, "plain")


def test_shorter_answers_lack_tokens() -> None:
    short = [answer(prompt, good_ids(prompt)[:2]) for prompt in range(PROMPTS)]
    agreements = compared([answered("plain"), answered("short", short, started=2)])
    assert agreements["short"] == agreement_of_tokens(2 / 8, "plain")


def test_answers_without_ids_are_compared_as_text() -> None:
    texts = [answer(row.prompt_index, None, row.text[:-1] + "x") for row in GOOD]
    agreements = compared([answered("plain"), answered("text", texts, started=2)])
    letters = sum(len(row.text) for row in GOOD)
    share = (letters - PROMPTS) / letters  # the last letter of each answer differs
    assert agreements["text"] == Agreement(share, letters, "characters", "plain")


@pytest.mark.parametrize(
    "other",
    [
        answered("larger", started=3, parameters=70),
        answered("unknown size", started=3, parameters=None, model="other"),
        answered("chat", [answer(0, good_ids(0), api="/v1/chat/completions")], started=3),
    ],
    ids=lambda launch: launch.deployment.label,
)
def test_another_model_or_api_has_no_reference_to_compare_with(other: AnsweredLaunch) -> None:
    agreements = compared([answered("plain"), other])
    assert agreements[other.deployment.label] == Agreement(note=AgreementNote.ALONE)


def test_answers_to_other_prompts_are_not_compared() -> None:
    others = [answer(PROMPTS + prompt, good_ids(prompt)) for prompt in range(PROMPTS)]
    agreements = compared([answered("plain"), answered("others", others, started=2)])
    assert agreements["others"].note == AgreementNote.OTHER_PROMPTS


def test_a_second_launch_of_the_reference_is_compared_with_its_first() -> None:
    agreements = compared([answered("plain"), answered("plain", started=2)])
    assert agreements["plain"] == agreement_of_tokens(1.0, "plain", AgreementNote.REFERENCE_AGAIN)


def test_all_launches_of_a_deployment_count() -> None:
    twice = [answered("twice", GOOD, started=2), answered("twice", NOISE, started=3)]
    agreement = compared([answered("plain"), *twice])["twice"]
    assert agreement.n == 2 * PROMPTS * TOKENS
    assert agreement.share == (64 + 1) / 128
