"""Answers to the fixed prompts: who is the reference, and how much of the others' is the same."""

from __future__ import annotations

import json
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


def answer(
    at: int,
    ids: tuple[int, ...] | None,
    text: str = "",
    api: str = "/v1/completions",
    **fields: Any,
) -> AnswerRow:
    row = {
        "launch_id": "L",
        "deployment_id": "d",
        "prompt_index": at,
        "replica": 0,
        "api": api,
        "prompt": f"p{at}",
    }
    return AnswerRow(
        **row | {"text": text or " ".join(map(str, ids or ())), "token_ids": ids} | fields
    )


EIGHT = tuple(answer(at, tuple(range(at, at + 8))) for at in range(8))
NOISE = tuple(answer(at, (0,) * 8) for at in range(8))


def answered(
    name: str, answers: Any = EIGHT, at: int = 1, parameters: int | None = 10, **row: Any
) -> AnsweredLaunch:
    """A launch ``at`` some time. Its deployment: ``row``, and ``settings`` or the checkpoint's
    ``stored`` method.
    """
    predicted = {"parameters": parameters, "checkpoint_quantization": row.pop("stored", None)}
    row["settings_json"] = json.dumps(row.pop("settings", {"engine": "vllm"}))
    launch = LaunchRow(
        launch_id=f"{name}-{at}",
        deployment_id=name,
        experiment="x",
        status="ok",
        started_unix_ns=at,
        emulated=False,
    )
    described = DeploymentRow(
        **{**deployment_row(name, predicted_json=json.dumps(predicted)), "label": name, **row}
    )
    return AnsweredLaunch(launch, stored_deployment(described), answers)


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([answered("awq", at=0, stored="awq")], "plain"),
        (
            [answered("fp8", at=0, quantization="fp8"), answered("kv", at=0, kv_cache_dtype="fp8")],
            "plain",
        ),
        ([answered("tp2", at=0, devices=2)], "plain"),
        ([answered("set", at=0, settings={"engine": "vllm", "max_num_seqs": 8})], "plain"),
        ([answered("earlier", at=0)], "earlier"),
        ([answered("text", [answer(at, None, "some text") for at in range(8)], at=0)], "plain"),
        ([answered("noise", NOISE, at=0)], "plain"),
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
    both = [answered("second", at=1), answered("first", at=2)]
    assert compared(both, ["first", "second"])["second"].reference == "first"
    assert compared(both)["first"].reference == "second"


def test_a_superseded_deployment_is_the_reference_only_without_another() -> None:
    old, new, awq = (
        answered("old"),
        answered("new", at=2, devices=2),
        answered("awq", at=3, quantization="awq"),
    )
    assert compared([old, new, awq], ["new", "awq"])["awq"] == Agreement(1.0, 64, "tokens", "new")
    noise = answered("new", NOISE, at=2)
    assert compared([old, noise, awq], ["new", "awq"])["awq"] == Agreement(
        1.0, 64, "tokens", "old", AgreementNote.SUPERSEDED
    )


def test_where_all_are_quantized_the_reference_was_measured_first() -> None:
    family = [answered("int8", stored="int8", devices=4), answered("awq", at=2, stored="awq")]
    launch = reference(family)
    assert launch is not None
    assert launch.deployment.label == "int8"
    assert reference([answered("noise", NOISE)]) is None


def test_tokens_agree_up_to_the_first_difference_in_each_answer() -> None:
    late = (answer(0, (0, 1, 2, 3, 99, 5, 6, 7)), *EIGHT[1:])
    agreements = compared(
        [
            answered("plain"),
            answered("tp2", late, devices=2),
            answered("q", NOISE, quantization="x"),
        ]
    )
    assert agreements["plain"] == Agreement(reference="plain", note=AgreementNote.IS_REFERENCE)
    assert agreements["tp2"] == Agreement(60 / 64, 64, "tokens", "plain")
    assert agreements["q"] == Agreement(1 / 64, 64, "tokens", "plain"), (
        "the first answer begins with id 0"
    )


def test_shorter_answers_lack_tokens_and_answers_without_ids_are_compared_as_text() -> None:
    short = tuple(answer(at, tuple(range(at, at + 2))) for at in range(8))
    texts = tuple(answer(at, None, row.text[:-1] + "x") for at, row in enumerate(EIGHT))
    agreements = compared(
        [answered("plain"), answered("short", short, at=2), answered("text", texts, at=3)]
    )
    assert (agreements["short"].share, agreements["short"].n) == (0.25, 64)
    letters = sum(len(row.text) for row in EIGHT)
    assert agreements["text"] == Agreement((letters - 8) / letters, letters, "characters", "plain")


def test_only_answers_of_one_model_to_the_same_prompts_are_compared() -> None:
    other = [answer(at, tuple(range(8)), api="/v1/chat/completions") for at in range(8)]
    elsewhere = [answer(at + 8, tuple(range(8))) for at in range(8)]
    agreements = compared(
        [
            *(answered("plain", at=at) for at in (1, 2)),
            answered("larger", at=3, parameters=70),
            answered("chat", other, at=4),
            answered("other prompts", elsewhere, at=5),
            *(answered("twice", answers, at=at) for at, answers in ((6, EIGHT), (7, NOISE))),
            *(answered(name, at=9, parameters=None, model=name) for name in ("a", "b")),
        ]
    )
    assert agreements["plain"] == Agreement(
        1.0, 64, "tokens", "plain", AgreementNote.REFERENCE_AGAIN
    )
    assert {agreements[name] for name in ("larger", "chat", "a", "b")} == {
        Agreement(note=AgreementNote.ALONE)
    }
    assert agreements["other prompts"].note == AgreementNote.OTHER_PROMPTS
    assert (agreements["twice"].share, agreements["twice"].n) == (65 / 128, 128)
