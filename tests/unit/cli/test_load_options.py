"""The options of ``orchestrator load``, as the experiment that they mean."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.base.errors import Problem, ProblemsError, ResultsError
from orchestrator.cli.load import api_of_preset, load, plan_of_options
from orchestrator.cli.load_options import (
    LoadOptions,
    ParsedLoad,
    dialects_of,
    parse_load,
    target_of,
    warm_up_requests,
)
from orchestrator.cli.option_words import in_options
from orchestrator.load.point import LoadPoint, Target
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.results.store import Store
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.experiment import Levels, Load
from orchestrator.spec.load import MOST_TOKENS, PRESETS, Lengths, Uniform, Workload
from orchestrator.sweep import endpoint
from orchestrator.sweep.attempt import Attempt
from orchestrator.sweep.detect_dialect import EndpointDialect, constraining, salted_first
from orchestrator.sweep.endpoint import EndpointRun
from orchestrator.workloads.drawn import RandomWorkload
from orchestrator.workloads.file import FileWorkload
from orchestrator.workloads.hub import HubDataset
from orchestrator.workloads.kind import stream
from orchestrator.workloads.random_values import draw
from orchestrator.workloads.trace import TraceWorkload
from tests.harness import MODEL
from tests.unit.workloads import traces

URL = "https://host"
LENGTHS = ("--input-tokens", "8", "--output-tokens", "4")


def parsed(*args: str) -> LoadOptions:
    """What click makes of these arguments."""
    params = load.make_context("load", [URL, *args]).params
    names = {field.name for field in fields(LoadOptions)}
    return LoadOptions(**{name: value for name, value in params.items() if name in names})


def asked(*args: str) -> tuple[ParsedLoad, list[str]]:
    """What the options ask for, and what is wrong with them."""
    problems: list[Problem] = []
    loop = () if {"--rate", "--trace"} & {*args} else ("--rate", "1", "--requests", "9")
    load = parse_load(URL, parsed(*loop, *args), problems)
    return load, [problem.message for problem in problems]


def workload_of(*args: str) -> Workload:
    """The workload of options with which nothing is wrong."""
    load, problems = asked(*args)
    assert problems == []
    assert load.workload is not None
    return load.workload


def content(*args: str) -> dict[str, Any]:
    """The keys of the workload, but for those that all have."""
    keys = workload_of(*args).model_dump(exclude_unset=True, exclude={"name", "api"})
    for name in ("input_tokens", "output_tokens"):
        keys[name] = keys[name].get("fixed", keys[name])
    return keys


def load_of(asked_for: ParsedLoad) -> Load:
    assert asked_for.load is not None
    return asked_for.load


def test_lengths_may_be_fixed_uniform_or_spread() -> None:
    workload = workload_of("--input-tokens", "100:300", "--output-tokens", "200+-50")
    assert isinstance(workload, RandomWorkload)
    assert workload.input_tokens == Lengths(uniform=Uniform(min=100, max=300))
    lengths = draw(workload.output_tokens, (50_000,), stream(1))
    assert lengths.mean() == pytest.approx(200, rel=0.01)
    assert lengths.std() == pytest.approx(50, rel=0.03)
    assert content(*LENGTHS)["input_tokens"] == 8
    other_sign = workload_of("--input-tokens", "200±50", "--output-tokens", "1")
    assert isinstance(other_sign, RandomWorkload)
    assert other_sign.input_tokens == workload.output_tokens


@given(
    st.one_of(st.text(), st.from_regex(r"[0-9]{0,12}(:|\\+-|±|\\+|-)?[0-9]{0,12}", fullmatch=True))
)
@example("3000000000")
@example("300:100")
@example("0+-5")
@example("10%")
def test_any_text_is_a_length_or_a_problem_of_its_option(
    text: str,
) -> None:
    load, problems = asked(f"--input-tokens={text}", "--output-tokens", "1")
    if isinstance(load.workload, RandomWorkload):
        low, high = load.workload.input_tokens.bounds
        assert 1 <= low <= (high or MOST_TOKENS) <= MOST_TOKENS
        assert problems == []
    else:
        assert len(problems) == 1
        assert problems[0].startswith(f"--input-tokens {text!r}: give 200, 100:300 (uniform) or")


def test_prefixes_and_turns_are_the_kinds_of_an_experiment_file() -> None:
    shared = content(*LENGTHS, "--shared-prefix", "30x4")
    assert shared == {
        "kind": "random", "input_tokens": 8, "output_tokens": 4, "shared_prefix_tokens": 30, "shared_prefix_count": 4
    }  # fmt: skip
    spoken = content(*LENGTHS, "--turns", "3", "--think-time", "500ms")
    assert spoken == {
        "kind": "conversations",
        "input_tokens": 8,
        "output_tokens": 4,
        "turns": 3,
        "think_time": 0.5,
    }


def test_an_infinite_rate_is_a_rate() -> None:
    made, problems = asked(*LENGTHS, "--rate", "4,inf,4", "--requests", "9", "--max-in-flight", "3")
    assert problems == []
    assert load_of(made).levels == Levels(request_rate=[4, math.inf])
    assert load_of(made).max_in_flight == 3
    assert [point.level.value for point in planned(made).points] == [4, math.inf]
    assert asked(*LENGTHS, "--rate", "inf", "--duration", "5s")[1][0].startswith(
        "--rate inf sends all"
    )
    assert asked(*LENGTHS, "--rate", "1e999", "--requests", "2")[1][0].startswith(
        "--rate '1e999': give a number"
    )


def planned(asked_for: ParsedLoad) -> Plan:
    return make_plan(asked_for.experiment("m"))


TRACE = "".join(
    f'{{"timestamp": {at}, "input_length": 30, "output_length": 5}}\n'
    for at in (1000, 2000, 2500, 5000)
)


def test_a_trace_says_when_what_and_how_many(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(TRACE)
    made, problems = asked("--trace", str(file), "--speed-up", "1000")
    assert problems == []
    (load,) = planned(made).loads
    assert (load.levels[0].value, load.requests, load.arrivals.process) == (
        pytest.approx(3 / 4),
        4,
        "trace",
    )
    assert (load.workload.kind, load.workload.token_bounds()) == ("file", (35, 35))
    drawn, problems = asked("--trace", str(file), *LENGTHS, "--duration", "9s")
    assert problems == []
    assert isinstance(drawn.workload, RandomWorkload)
    assert load_of(drawn).requests is None
    assert asked("--trace", str(file), "--requests", "5")[1] == ["--requests 5: the trace has 4"]
    assert "--speed-up is for --trace" in asked(*LENGTHS, "--rate", "1", "--speed-up", "2")[1]


@pytest.mark.parametrize(
    ("part", "rate", "requests"),
    [
        (("--requests", "3"), 2 / 1.5, 3),
        (("--requests", "1"), math.inf, 1),
        (("--duration", "2s"), 2 / 1.5, None),
        (("--duration", "500ms"), 1 / 0.5, None),
    ],
)
def test_part_of_a_trace_is_the_level_of_that_part(
    part: tuple[str, str], rate: float, requests: int | None, tmp_path: Path
) -> None:
    (tmp_path / "trace.jsonl").write_text(TRACE)
    made, problems = asked("--trace", str(tmp_path / "trace.jsonl"), "--speed-up", "1000", *part)
    assert problems == []
    (load,) = planned(made).loads
    assert (load.levels[0].value, load.requests) == (pytest.approx(rate), requests)


def test_a_warm_up_does_not_wait_for_the_times_of_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points: list[LoadPoint] = []

    def measured(point: LoadPoint, *_: Any, **__: Any) -> Attempt:
        points.append(point)
        return Attempt()

    monkeypatch.setattr(endpoint, "measure_here", measured)
    (tmp_path / "trace.jsonl").write_text(TRACE)
    for loop in (
        ("--trace", str(tmp_path / "trace.jsonl"), "--speed-up", "1000"),
        (*LENGTHS, "--rate", "3", "--requests", "9"),
    ):
        plan = planned(asked(*loop)[0])
        detected = EndpointDialect(Dialect("openai_completions", "/v1/completions"), None)
        EndpointRun(plan, plan.points[0], Target(URL, "m"), detected).warm_up(2, 1)
    assert [(point.level.control, point.level.value, point.requests) for point in points] == [
        ("concurrency", 2, 2), ("request_rate", 3, 2)
    ]  # fmt: skip


def test_a_trace_needs_prompts_that_are_all_sent(
    tmp_path: Path,
) -> None:
    (tmp_path / "times.txt").write_text("1\n2\n3\n")
    talks = [[{"from": "human", "value": "Hi"}], [{"from": "gpt", "value": "nobody asked"}], []]
    (tmp_path / "talks.json").write_text(json.dumps([{"conversations": talk} for talk in talks]))
    args = (
        "--trace",
        str(tmp_path / "times.txt"),
        "--prompts",
        str(tmp_path / "talks.json"),
        "--output-tokens",
    )
    with pytest.raises(
        ProblemsError, match="'load': 2 entries of its prompts are not requests and are skipped"
    ):
        planned(asked(*args, "4")[0])


def test_everything_wrong_in_a_trace_is_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(
        TRACE + '{"timestamp": 4000, "input_length": 9}\n{"timestamp": 6000, "input_length": 0}\n'
    )
    made, problems = asked("--trace", str(file), "--output-tokens", "4")
    assert problems == []
    with pytest.raises(ProblemsError) as error:
        planned(made)
    messages = "\n".join(problem.message for problem in error.value.problems)
    assert "line 5: 4000 is before the 5000" in messages
    assert "line 6: input_length is 0" in messages


@pytest.mark.parametrize("text", ["1\n2\n", "1.5"])
def test_times_alone_are_no_prompts(text: str, tmp_path: Path) -> None:
    (tmp_path / "times.txt").write_text(text)
    made, problems = asked("--trace", str(tmp_path / "times.txt"), "--output-tokens", "4")
    assert made.workload is None
    assert problems == [
        (
            "say what is sent, by one of --input-tokens (random prompts), --prompts, --workload, "
            "--preset, --dataset and --trace (a trace of times alone has no prompts)"
        )
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--output-tokens", "4", "--shared-prefix", "2"), "--shared-prefix is for --input-tokens"),
        ((*LENGTHS, "--think-time", "2s"), "--think-time is for --turns"),
        (
            ("--output-tokens", "4", "--prompts", "x", "--turns", "2"),
            "--turns is for --input-tokens",
        ),
        (("--output-tokens", "4"), "say what is sent, by one of --input-tokens"),
        (("--input-tokens", "4"), "give --output-tokens"),
        ((*LENGTHS, "--rate", "1", "--concurrency", "1"), "give one of --rate"),
        ((*LENGTHS, "--trace", "x", "--arrivals", "constant"), "--arrivals is for --rate"),
        (
            (*LENGTHS, "--rate", "1", "--arrivals", "poisson:2"),
            "--arrivals poisson:2: only gamma has a shape",
        ),
    ],
)
def test_options_that_would_change_nothing_are_refused(args: tuple[str, ...], message: str) -> None:
    assert any(problem.startswith(message) for problem in asked(*args)[1])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("--rate", "1", "--request-timeout", "1e300s"),
            "--request-timeout: '1e300s' is longer than 1e+09 s",
        ),
        (
            ("--rate", "1", "--request-timeout", "1e999s"),
            "--request-timeout: '1e999s' is longer than 1e+09 s",
        ),
        (
            ("--concurrency", "1", "--duration", "1e300s"),
            "--duration: '1e300s' is longer than 1e+09 s",
        ),
    ],
)
def test_times_beyond_reason_are_problems_of_their_option(
    args: tuple[str, ...], message: str
) -> None:
    problems: list[Problem] = []
    parse_load(URL, parsed(*LENGTHS, *args), problems)
    assert any(problem.message.startswith(message) for problem in problems)


@pytest.mark.parametrize(
    "args",
    [
        ("--shared-prefix", "3000000000"),
        ("--shared-prefix", "1x3000000000"),
        ("--turns", "1001"),
        ("--rate", "1", "--requests", "100000000000"),
        ("--rate", "1", "--max-in-flight", "100001"),
    ],
)
def test_sizes_beyond_reason_are_refused_by_the_plan(args: tuple[str, ...]) -> None:
    with pytest.raises(ProblemsError, match="at most"):
        planned(asked(*LENGTHS, *args)[0])


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--duration", "0s", "--duration must be above 0, not 0.0"),
        ("--request-timeout", "0s", "--request-timeout must be above 0, not 0.0"),
        ("--turns", "1001", "--turns must be at most 1000, not 1001"),
        (
            "--arrivals",
            "gamma:1e-6",
            "the shape of --arrivals gamma must be at least 0.001, not 1e-06",
        ),
    ],
)
def test_what_a_record_refuses_is_a_problem_of_its_option(
    option: str, text: str, message: str
) -> None:
    asked_for, _ = asked(*LENGTHS, "--rate", "1", option, text)
    problems: list[Problem] = []
    assert plan_of_options(asked_for, "m", problems, "--prompts") is None
    assert message in [problem.message for problem in problems]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("\udcff", "--model must be text without halves of characters, not '\\udcff'"),
        ("a\x1b[31mb", "--model: text holds control characters or halves of characters"),
        ("hf_" + "a1B2" * 9, "--model looks like a secret"),
    ],
)
def test_a_name_of_a_model_that_cannot_be_shown_is_refused(name: str, message: str) -> None:
    asked_for, _ = asked(*LENGTHS, "--rate", "1", "--requests", "2")
    problems: list[Problem] = []
    assert plan_of_options(asked_for, name, problems, "--prompts") is None
    assert [problem.message for problem in problems] == [message]


def test_problems_of_records_and_files_are_reported_together(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.jsonl")
    asked_for, _ = asked(
        *("--rate", "1", "--requests", "100000000000"),
        *("--prompts", missing, "--output-tokens", "4"),
    )
    problems: list[Problem] = []
    assert plan_of_options(asked_for, "m", problems, "--prompts") is None
    messages = "\n".join(problem.message for problem in problems)
    assert "--requests must be at most" in messages
    assert f"--prompts {missing!r} cannot be read" in messages


@pytest.mark.parametrize("factor", ["inf", "1e-300", "-1"])
def test_a_factor_is_a_number_that_a_schedule_could_have(factor: str) -> None:
    with pytest.raises(click.BadParameter):
        parsed("--speed-up", factor)


def test_a_factor_that_is_no_number_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="'nan': give a number from 1e-09 to 1e"):
        asked(*LENGTHS, "--duration", "5s", "--trace", "times.txt", "--speed-up", "nan")


@pytest.mark.parametrize("shape", ["nan", "inf", "x", ""])
def test_a_shape_of_arrivals_that_is_no_number_is_refused(shape: str) -> None:
    _, problems = asked(*LENGTHS, "--arrivals", f"gamma:{shape}")
    assert problems == [f"--arrivals gamma:{shape}: give the shape as a number, like gamma:0.5"]


def test_arrivals_may_have_a_shape() -> None:
    made, problems = asked(*LENGTHS, "--arrivals", "gamma:0.5")
    assert problems == []
    arrivals = load_of(made).arrivals
    assert (arrivals.process, arrivals.burstiness) == ("gamma", 0.5)


@pytest.mark.parametrize("text", ["0", "x8", "500x0", "500:8", "5.5"])
def test_a_shared_prefix_that_is_none_is_refused(text: str) -> None:
    _, problems = asked(*LENGTHS, "--shared-prefix", text)
    assert problems == [
        f"--shared-prefix {text!r}: give its tokens, like 500, or 500x8 for 8 different prefixes"
    ]


def test_a_warm_up_is_a_time_or_requests() -> None:
    timed, problems = asked(*LENGTHS, "--warmup", "10s")
    assert problems == []
    assert load_of(timed).warmup_s == 10
    counted, problems = asked(*LENGTHS, "--warmup", "100req")
    assert problems == []
    assert load_of(counted).warmup_s is None
    assert [warm_up_requests(text) for text in (None, "10s", "100req", " 7 req")] == [0, 0, 100, 7]
    assert asked(*LENGTHS, "--warmup", "10")[1] == [
        "--warmup '10': give a time, like 10s, or requests, like 100req"
    ]
    assert "at most" in asked(*LENGTHS, "--warmup", "9999999999req")[1][0]


@pytest.mark.parametrize(
    "text", ["[1", "[1]", '{"a": NaN}', '{"a": "\\ud800"}', '{"a": %s}' % ("[" * 300 + "]" * 300)]
)
def test_an_extra_body_that_cannot_be_sent_is_a_problem(text: str) -> None:
    problems: list[Problem] = []
    dialects_of(parsed("--extra-body", text), problems)
    assert [problem.message.startswith("--extra-body") for problem in problems] == [True]


def test_no_problem_shows_what_may_be_secret() -> None:
    headers = ["--header", "Authorization Bearer hidden-1", "--header", "X hidden-2: ${NOT_SET}"]
    problems: list[Problem] = []
    target_of("http://me:hidden-3@host", parsed("--insecure", *headers), problems)
    assert len(problems) == 4
    assert "hidden" not in " ".join(problem.message for problem in problems)


def test_endpoint_sets_the_path_of_dialects_and_insecure_the_trust_of_targets() -> None:
    problems: list[Problem] = []
    options = parsed(*LENGTHS, "--endpoint", "/v2/complete?version=1", "--insecure")
    assert {dialect.path for dialect in dialects_of(options, problems)} == {
        "/v2/complete?version=1"
    }
    assert not target_of(URL, options, problems).verify_tls
    assert target_of(URL, parsed(*LENGTHS), problems).verify_tls
    assert problems == []
    target_of("http://host", parsed(*LENGTHS, "--endpoint", "v2", "--insecure"), problems)
    assert ["--endpoint 'v2'" in problems[0].message, "is for https" in problems[1].message] == [
        True,
        True,
    ]


@given(st.floats(1e-6, 1e9))
def test_times_are_not_rounded(seconds: float) -> None:
    """The shortest that is taken is 1 µs."""
    made, _ = asked(*LENGTHS, "--warmup", f"{seconds!r}s")
    assert load_of(made).warmup_s == seconds


SEARCH = ("--find-capacity", *LENGTHS, "--duration", "60s")


def search(*args: str, results: Path = Path("nowhere")) -> tuple[ParsedLoad, list[str]]:
    problems: list[Problem] = []
    made = parse_load(URL, parsed(*SEARCH, *args, "--results", str(results)), problems)
    return made, [problem.message for problem in problems]


def test_a_search_has_no_levels_and_the_name_of_its_options() -> None:
    made, problems = search("--slo", "ttft<=500ms", "--concurrency", "8")
    assert problems == []
    assert load_of(made) == Load(
        search="capacity",
        control="concurrency",
        first_level=8.0,
        duration_s=60.0,
        request_timeout_s=600.0,
        precision=0.15,
    )
    again, _ = search("--slo", "ttft<=500ms", "--concurrency", "8")
    assert again.name == made.name
    assert load_of(again) == load_of(made)
    from_elsewhere, _ = search("--slo", "ttft<=500ms", "--concurrency", "64")
    assert from_elsewhere.name == made.name, "it goes on, wherever it began"
    others = [
        search("--slo", "ttft<=400ms"),
        search("--slo", "ttft<=500ms", "--seed", "7"),
        search("--slo", "ttft<=500ms", "--seed", "0"),
    ]
    assert len({made.name, *(other.name for other, _ in others)}) == 4


@pytest.mark.parametrize(
    "sent",
    [
        ("--model", "b"),
        ("--endpoint", "/v2"),
        ("--header", "a: b"),
        ("--extra-body", '{"top_p": 0.5}'),
    ]
    + [("--natural-lengths",), ("--api", "chat")],
)
def test_a_search_that_sends_something_else_has_another_name(
    sent: tuple[str, ...],
) -> None:
    (made, _), (other, problems) = (search("--slo", "ttft<=500ms", *more) for more in ((), sent))
    assert problems == []
    assert other.name != made.name
    assert search("--slo", "ttft<=500ms", *sent)[0].name == other.name


def test_a_search_goes_on_with_the_seed_of_its_stored_probes(
    tmp_path: Path,
) -> None:
    """Two searches that send the same requests at the same instants find the same, by chance or
    not.
    """
    first, second = (
        search("--slo", "ttft<=500ms", results=tmp_path / folder)[0] for folder in "ab"
    )
    assert first.name == second.name
    assert first.seed != second.seed
    plan = planned(first)
    Store.open(str(tmp_path / "a"), first.name).write_plan(plan.to_json())
    again, _ = search("--slo", "ttft<=500ms", "--budget", "2h", results=tmp_path / "a")
    assert (again.name, again.seed) == (first.name, first.seed)


def test_a_search_whose_stored_seed_is_unknown_does_not_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With another seed the stored probes would count no more. Where options are wrong the storage
    is not asked.
    """
    monkeypatch.setattr(
        Store, "plan", Mock(side_effect=ResultsError("the storage does not answer"))
    )
    with pytest.raises(ResultsError, match="does not answer"):
        search("--slo", "ttft<=500ms")
    _, problems = search()
    assert "needs limits" in problems[0]


def test_a_search_that_keeps_nothing_draws_its_seed_like_any_load() -> None:
    """The same prompts again would find a server's prefix cache full of them."""
    seeds = {parse_load(URL, parsed(*SEARCH, "--slo", "ttft<=1s"), []).seed for _ in range(3)}
    assert len(seeds) == 3


def test_a_search_needs_limits_and_looks_for_the_level_itself() -> None:
    _, problems = search("--max-errors", "5", "--warmup", "9req")
    assert problems[0] == "--find-capacity: give --warmup as a time, like 10s"
    assert problems[1].endswith("leave out --max-errors")
    assert "needs limits" in problems[2]
    limits = ("--slo", "ttft<=1s")
    both = search(*limits, "--rate", "4", "--concurrency", "4")[1]
    assert both == ["--find-capacity searches --rate or --concurrency: give one of them"]
    several = search(*limits, "--rate", "4,8")[1]
    assert several == ["--find-capacity begins at one level and finds the others: give --rate 8"]
    closed = search(*limits, "--concurrency", "4", "--arrivals", "constant")[1]
    assert closed == ["--arrivals is for --rate"]


def test_a_search_takes_ten_minutes_unless_a_budget_is_given() -> None:
    made, _ = search("--slo", "ttft<=1s")
    longer, _ = search("--slo", "ttft<=1s", "--budget", "2h")
    assert (planned(made).budget.wall, planned(longer).budget.wall) == (600, 7200)


def test_a_search_begins_at_the_level_that_is_given() -> None:
    made, problems = search("--slo", "ttft<=1s", "--rate", "20")
    assert problems == []
    plan = planned(made)
    first = plan.strategy(plan.loads[0], plan.deployments[0].id).ask()
    assert first is not None
    assert first.control == "request_rate"
    assert first.value == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize(
    ("owner", "api", "extra", "salted"),
    [
        ("vllm", "completions", "{}", True),
        ("sglang", "chat", "{}", True),
        ("sglang", "sglang", "{}", False),  # its own API has none
        ("tgi", "completions", "{}", False),
        ("/models/tiny", "completions", "{}", False),  # as TGI says it
        ("openai", "chat", "{}", False),
        ("vllm", "chat", '{"cache_salt": "mine"}', False),
        ("vllm", "chat", '{"cache_salt": null}', False),
    ],
)
def test_only_servers_that_are_known_to_take_a_cache_salt_get_one(
    owner: str, api: str, extra: str, salted: bool
) -> None:
    candidates = dialects_of(parsed("--api", api, "--extra-body", extra), [])
    settings = planned(asked(*LENGTHS, "--rate", "3", "--requests", "9")[0]).deployments[0].settings
    tried = salted_first(candidates, owner, settings)
    assert tried[-len(candidates) :] == candidates, "where the server refuses it all the same"
    salted_ones = tried[: -len(candidates)]
    assert [dialect.cache_salt for dialect in salted_ones] == [True] * len(candidates) * salted


def test_answers_may_be_as_long_as_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "x", "completion": "y"}\n')
    prompts = ("--prompts", str(file), "--output-tokens", "file")
    made, problems = asked(*prompts)
    assert problems == [
        "--output-tokens file counts the file's answers: give the model's --tokenizer"
    ]
    planned(made)  # says nothing more
    assert asked(*prompts, "--input-tokens", "5")[1][0] == ("--output-tokens file is for --prompts")
    if not MODEL.exists():
        pytest.skip("NOT RUN: there is no tokenizer here (make model)")
    made, problems = asked(*prompts, "--tokenizer", str(MODEL))
    assert problems == []
    assert planned(made).loads[0].workload.counts_answers  # type: ignore[attr-defined]


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", AZURE.replace("374", "x"), "row 1: ContextTokens is 'x'"),
        ("a.csv", "timestamp\n1\n2\n", "is a table (CSV), which is not read"),
        ("a.zip", "PK\x03\x04", "is a zip archive, which is not read"),
        ("a.jsonl", '{"timestamp": 1, "input_length": 0, "output_length": 1}', "line 1: input_l"),
    ],
)
def test_a_wrong_file_of_times_and_prompts_is_one_problem_of_trace(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    made, problems = asked("--trace", str(tmp_path / name))
    assert problems == []
    planning_problems: list[Problem] = []
    assert plan_of_options(made, "m", planning_problems, "--trace") is None
    (problem,) = planning_problems
    assert problem.message.startswith(f"--trace '{tmp_path / name}'")
    assert message in problem.message


def test_a_log_with_columns_of_its_own_is_one_problem_with_its_remedy(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("at,prompt,answer\n0,800,120\n1.4,95,260\n")
    made, problems = asked("--trace", str(file))
    assert not made.can_be_planned
    (problem,) = problems
    assert "has the columns at, prompt, answer, not those of a published trace" in problem
    assert "give --workload FILE:NAME --arrivals trace (docs/guides/trace.md)" in problem


def test_times_alone_may_be_a_file_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("0\n0.5\n")
    made, problems = asked(*LENGTHS, "--trace", str(tmp_path / "t.csv"))
    assert problems == []
    assert planned(made).loads[0].requests == 2


@pytest.mark.parametrize(
    ("process", "message"),
    [
        ("trace", "--arrivals trace: give the file of times as --trace FILE"),
        ("poison", "--arrivals poison: there is no such process; did you mean 'poisson'?"),
        ("ramp", "--arrivals ramp is only for experiment files (`plan`, `run`)"),
        ("steps", "--arrivals steps is only for experiment files (`plan`, `run`)"),
    ],
)
def test_arrivals_without_an_option_for_their_settings_are_refused_once(
    process: str, message: str
) -> None:
    made, problems = asked(*LENGTHS, "--rate", "1", "--requests", "9", "--arrivals", process)
    assert problems == [message]
    planned(made)


def test_turns_of_sessions_at_recorded_times_are_all_sent(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("0\n0.5\n2\n")
    made, problems = asked(*LENGTHS, "--trace", str(tmp_path / "t.txt"), "--turns", "4")
    assert problems == []
    (load_rules,) = planned(made).loads
    assert (load_rules.requests, load_rules.levels[0].value) == (12, 4.0)


def test_more_requests_than_a_trace_has_sessions_and_turns_for_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("0\n0.5\n2\n")
    options = (*LENGTHS, "--trace", str(tmp_path / "t.txt"), "--turns", "4", "--requests")
    assert asked(*options, "12")[1] == []
    assert asked(*options, "13")[1] == ["--requests 13: the trace has 12"]


BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,40,18,58,x\n6,ChatGPT,10,23,33,x\n9,GPT-4,41,0,41,x\n9,GPT-4,41,27,68,x\n"
)


@pytest.mark.parametrize(
    ("options", "rate", "requests", "duration_s"),
    [
        ((), 0.5, 3, None),
        (("--speed-up", "10"), 5.0, 3, None),
        (("--requests", "2"), 0.5, 2, None),
        (("--duration", "60s"), 0.5, None, 60.0),
    ],
)
def test_a_published_trace_of_lengths_is_sent_at_its_times(
    options: tuple[str, ...],
    rate: float,
    requests: int | None,
    duration_s: float | None,
    tmp_path: Path,
) -> None:
    (tmp_path / "t.csv").write_text(BURST)
    made, problems = asked("--trace", str(tmp_path / "t.csv"), *options)
    assert problems == []
    [load] = planned(made).loads
    assert load.workload.kind == "trace"
    assert load.levels[0].value == pytest.approx(rate)
    assert (load.requests, load.duration_s) == (requests, duration_s)
    assert load.workload.notes() == [
        "1 rows are left out: without tokens (a failed request)",
        "columns that change nothing: Log Type, Model, Total tokens",
    ]


def test_a_trace_of_lengths_says_how_long_answers_are(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(BURST)
    _, problems = asked("--trace", str(tmp_path / "t.csv"), "--output-tokens", "5")
    assert problems == ["--output-tokens: the trace says how long answers are; leave it out"]
    (tmp_path / "p.txt").write_text("to be\n")
    for what in ("--input-tokens", "5"), ("--prompts", str(tmp_path / "p.txt")):
        options = (*what, "--output-tokens", "5")
        _, problems = asked("--trace", str(tmp_path / "t.csv"), *options)
        assert len(problems) == 1
        assert problems[0].endswith(f"says how long prompts are: leave out {what[0]}")


def test_a_trace_of_one_instant_has_no_rate(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join(BURST.splitlines()[:2]))
    _, problems = asked("--trace", str(tmp_path / "t.csv"))
    assert len(problems) == 1
    assert "has no different times: give a --rate or a --concurrency" in problems[0]


@pytest.mark.parametrize(
    ("text", "rate", "requests", "sessions"),
    [
        (traces.AZURE_2023, 0.44035, 3, 3),
        (traces.BURSTGPT_2, 1.0, 3, 2),
        (traces.MOONCAKE, 0.66667, 3, 3),
        (traces.BAILIAN, 1.0, 3, 2),
    ],
)
def test_every_published_trace_is_sent_at_its_times_with_its_sessions(
    text: str, rate: float, requests: int, sessions: int, tmp_path: Path
) -> None:
    (tmp_path / "t").write_text(text)
    for arrivals in ((), ("--arrivals", "trace")):
        made, problems = asked("--trace", str(tmp_path / "t"), *arrivals)
        assert problems == []
        [load] = planned(made).loads
        assert load.workload.kind == "trace"
        assert load.workload.mean_turns() == requests / sessions
        assert load.levels[0].value == pytest.approx(rate, rel=1e-4)
        assert (load.requests, load.arrivals.process) == (requests, "trace")


def test_a_trace_begins_again_where_more_requests_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(traces.MOONCAKE)
    made, problems = asked("--trace", str(tmp_path / "t"), "--requests", "7")
    assert problems == []
    plan = planned(made)
    assert plan.loads[0].requests == 7
    (note,) = [note for note in plan.notes if "begins again" in note]
    assert "7 requests are more than the 3 of the trace" in note


def test_a_trace_is_stretched_to_a_rate_and_may_have_other_arrivals(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(traces.MOONCAKE)
    for options, process in (((), "trace"), (("--arrivals", "poisson"), "poisson")):
        made, problems = asked("--trace", str(tmp_path / "t"), "--rate", "2,4", *options)
        assert problems == []
        [load] = planned(made).loads
        assert [level.value for level in load.levels] == [2, 4]
        assert (load.requests, load.arrivals.process) == (3, process)
    assert load.workload.kind == "trace"
    limits = ("--slo", "ttft<=500ms", "--duration", "9s")
    made, problems = asked("--trace", str(tmp_path / "t"), "--find-capacity", *limits)
    assert problems == []
    arrivals = load_of(made).arrivals
    assert (arrivals.process, arrivals.scale) == ("trace", "stretch")


def test_sessions_without_a_start_need_a_rate_or_a_number_in_flight(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(traces.WEKA)
    _, [problem] = asked("--trace", str(tmp_path / "t"))
    assert "has no different times: give a --rate or a --concurrency" in problem
    made, problems = asked("--trace", str(tmp_path / "t"), "--rate", "2")
    assert problems == []
    [load] = planned(made).loads
    assert (load.workload.kind, load.arrivals.process, load.requests) == ("trace", "poisson", 5)
    made, problems = asked("--trace", str(tmp_path / "t"), "--concurrency", "2")
    assert problems == []
    assert planned(made).loads[0].levels[0].control == "concurrency"
    _, problems = asked("--trace", str(tmp_path / "t"), "--rate", "2", "--arrivals", "trace")
    assert problems == [f"--arrivals trace: {str(tmp_path / 't')!r} has no recorded times"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rate", "2", "--speed-up", "2"), "--speed-up is for --trace at its recorded times"),
        (("--find-capacity", "--speed-up", "2"), "leave out --speed-up"),
        (("--concurrency", "2", "--arrivals", "trace"), "--arrivals is for --rate"),
        (("--dataset", "a/b"), "says how long prompts are: leave out --dataset"),
        (("--rate", "2", "--concurrency", "2"), "give one of --rate (open loop)"),
    ],
)
def test_what_does_not_go_with_a_published_trace_is_a_problem(
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "t").write_text(traces.MOONCAKE)
    _, problems = asked("--trace", str(tmp_path / "t"), *options)
    assert any(message in problem for problem in problems)


def test_requests_of_one_time_stamp_are_spread_where_asked(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(BURST)
    rate = ("--trace", str(tmp_path / "t.csv"), "--spread", "2s")
    for options in (rate, (*rate, "--rate", "4", "--arrivals", "trace")):
        made, problems = asked(*options)
        assert problems == []
        [load] = planned(made).loads
        assert isinstance(load.workload, TraceWorkload)
        assert load.workload.spread == 2.0


def test_a_spread_is_for_published_traces_of_lengths_alone(tmp_path: Path) -> None:
    (tmp_path / "times.txt").write_text("0\n0.5\n2\n")
    options = (*LENGTHS, "--trace", str(tmp_path / "times.txt"), "--spread", "1s")
    assert asked(*options)[1] == ["--spread is for published traces of lengths: leave it out"]
    _, [problem] = asked(*LENGTHS, "--rate", "1", "--spread", "1s", "--requests", "9")
    assert problem == "--spread is for --trace"


WORKLOADS_FILE = """
workloads:
  - {name: talk, kind: conversations, turns: 2, input_tokens: 20, output_tokens: 7, api: chat}
  - {name: times, kind: trace, trace: t.csv}
"""


@pytest.fixture
def workloads_file(tmp_path: Path) -> str:
    (tmp_path / "x.yaml").write_text(WORKLOADS_FILE)
    (tmp_path / "t.csv").write_text(BURST)
    return str(tmp_path / "x.yaml")


def test_a_workload_of_a_file_is_sent(workloads_file: str) -> None:
    made, problems = asked("--workload", f"{workloads_file}:talk", "--api", "chat")
    assert problems == []
    [load] = planned(made).loads
    assert (load.workload.kind, load.workload.api) == ("conversations", "chat")
    assert load.workload.mean_turns() == 2


def test_a_trace_of_a_file_is_stretched_to_the_rate(workloads_file: str) -> None:
    place = f"{workloads_file}:times"
    made, problems = asked("--workload", place, "--arrivals", "trace")
    assert problems == []
    [load] = planned(made).loads
    assert (load.arrivals.process, load.arrivals.scale) == ("trace", "stretch")
    made, problems = asked("--workload", place)
    assert problems == []
    assert planned(made).loads[0].arrivals.process == "poisson"


def test_a_trace_of_a_file_is_sent_at_its_recorded_times_where_no_rate_is_given(
    workloads_file: str,
) -> None:
    problems: list[Problem] = []
    options = parsed("--workload", f"{workloads_file}:times", "--arrivals", "trace")
    made = parse_load(URL, options, problems)
    assert problems == []
    [load] = planned(made).loads
    recorded_rate = load.workload.recorded_rate()
    assert recorded_rate is not None
    assert load.levels[0].value == pytest.approx(recorded_rate)
    assert load.arrivals.process == "trace"
    assert load.requests == load.workload.most_requests()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("tlk", "--workload: unknown workload 'tlk'; did you mean 'talk'? Known: talk, times"),
        ("talk", "--arrivals trace: 'talk' has no recorded times"),
    ],
)
def test_a_workload_of_a_file_without_times_is_one_problem(
    workloads_file: str, place: str, message: str
) -> None:
    problems: list[Problem] = []
    options = parsed("--workload", f"{workloads_file}:{place}", "--arrivals", "trace")
    parse_load(URL, options, problems)
    assert [problem.message for problem in problems] == [message]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (":tlk", (), "--workload: unknown workload 'tlk'; did you mean 'talk'? Known: talk, times"),
        ("", (), "has several workloads: give FILE:NAME, one of talk, times"),
        (":talk", ("--turns", "3"), "--workload says what is sent: leave out --turns"),
        (":talk", ("--arrivals", "trace"), "--arrivals trace: 'talk' has no recorded times"),
    ],
)
def test_what_a_workload_of_a_file_cannot_be_is_a_problem(
    workloads_file: str, name: str, options: tuple[str, ...], message: str
) -> None:
    _, problems = asked("--workload", f"{workloads_file}{name}", *options)
    assert any(message in problem for problem in problems)


@pytest.mark.parametrize("name", PRESETS.names())
def test_a_preset_is_a_whole_workload(name: str) -> None:
    made, problems = asked("--preset", name)
    assert problems == []
    [load] = planned(made).loads
    expected = Workload.model_validate({"name": "load", "preset": name, "api": "completions"})
    assert load.workload == expected


def test_a_preset_has_its_own_api_unless_another_is_given() -> None:
    with load.make_context("load", [URL, "--preset", "chat"]):
        assert api_of_preset("chat", "completions") == "chat"
    with load.make_context("load", [URL, "--preset", "chat", "--api", "completions"]):
        assert api_of_preset("chat", "completions") == "completions"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--preset", "chat", "--turns", "3"), "--preset says what is sent: leave out --turns"),
        (("--preset", "chat", "--workload", "x.yaml"), "leave out --workload"),
        (("--preset", "chat", "--dataset", "a/b"), "leave out --dataset"),
        (("--dataset", "nothing"), "--dataset 'nothing': give its name on the hub, like"),
        (("--dataset", "a/b", *LENGTHS), "--dataset has the prompts: leave out --input-tokens"),
    ],
)
def test_what_names_a_workload_leaves_no_more_to_say(
    options: tuple[str, ...], message: str
) -> None:
    assert any(message in problem for problem in asked(*options)[1])


@pytest.mark.parametrize(
    ("text", "revision", "split"),
    [("me/one", "main", "train"), ("me/one@v2", "v2", "train"), ("me/one@v2:test", "v2", "test")],
)
def test_a_dataset_of_the_hub_is_a_file_of_prompts(text: str, revision: str, split: str) -> None:
    made, problems = asked("--dataset", text, "--output-tokens", "9")
    assert problems == []
    assert isinstance(made.workload, FileWorkload)
    assert made.workload.dataset == HubDataset(id="me/one", revision=revision, split=split)
    assert made.workload.output_tokens is not None
    assert made.workload.output_tokens.fixed == 9


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--regex", "a", "--choice", "b"), "--regex and --choice: an answer has one constraint"),
        (("--choice", ""), "--choice: the text is empty"),
        (("--regex", "("), "--regex: is no regular expression"),
    ],
)
def test_a_constraint_that_cannot_be_is_refused_by_its_option(
    options: Sequence[str], problem: str
) -> None:
    _, problems = asked(*LENGTHS, *options)
    assert len(problems) == 1
    assert problems[0].startswith(problem)


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        ("8x8", "write their number and size like 1@1120x700"),
        ("101@8x8", "a request has 1 to 100 images"),
        ("1@8x8x8", "'8x8x8' is no size; write width and height like 1120x700"),
        ("1@8192x8192", "the images of a point have 4,294,967,296 pixels, at most 2,000,000,000"),
        ("1@" + ",".join(["8x8"] * 65), "65 sizes need as many different images, not 64"),
    ],
)
def test_images_that_cannot_be_are_refused_with_the_reason(images: str, reason: str) -> None:
    assert asked(*LENGTHS, "--images", images)[1] == [f"--images {images}: {reason}"]


def test_images_need_the_api_of_chats_by_the_name_of_its_option() -> None:
    load, _ = asked(*LENGTHS, "--images", "1@8x8")
    with pytest.raises(ProblemsError) as raised:
        load.refused.raise_any()
    assert [in_options(each).hint for each in raised.value.problems] == ["set --api to chat"]


@pytest.mark.parametrize(
    ("owner", "api", "forms"),
    [
        ("vllm", "completions", {"structured_outputs"}),
        ("sglang", "chat", {"response_format", "regex_field"}),
        ("transformers", "chat", set()),
        ("somebody", "chat", {"response_format"}),  # OpenAI's own field, of JSON schemas alone
        ("somebody", "tgi", {"grammar"}),
    ],
)
def test_servers_are_asked_for_constraints_as_their_engines_take_them(
    owner: str, api: str, forms: set[str]
) -> None:
    settings = planned(asked(*LENGTHS, "--rate", "3", "--requests", "9")[0]).deployments[0].settings
    for dialect in constraining(dialects_of(parsed("--api", api), []), owner, settings):
        assert {str(form) for form in dialect.constraints.values()} == forms
