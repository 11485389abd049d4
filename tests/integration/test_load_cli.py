"""``orchestrator load``: one line, any endpoint, one document."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import OrchestratorError
from orchestrator.cli import load as load_command
from orchestrator.results.records import Figures
from orchestrator.sweep import endpoint
from orchestrator.sweep.attempt import Attempt
from orchestrator.sweep.endpoint import measure_here
from tests.harness import AGAINST_THE_CLOCK, rows, wait_for
from tests.in_this_process import Completed, judged_as_if_idle, run_here
from tests.integration.load_server import (
    DONE,
    END,
    EVENT_S,
    HEAD,
    Behaviour,
    Request,
    answer_openai,
    chunk,
    event,
    serving,
    usage,
)
from tests.integration.test_load_hostile import plain

pytestmark = AGAINST_THE_CLOCK

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
QUICK = ("--input-tokens", "8", "--output-tokens", "4")
LATENCIES = ("ttft_ms", "e2e_ms", "ttft_from_sent_ms", "e2e_from_sent_ms", "itl_ms", "tpot_ms")


def load(*args: str, **env: str) -> Completed:
    """Runs ``load``, which judges its points as if nothing else had kept this machine busy."""
    with judged_as_if_idle():
        return run_here("load", *args, **env)


def refused(*args: str) -> str:
    """What ``load`` says of bad input, which ends it before anything is measured."""
    done = load(*args)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    return done.stderr


MAIN = "from orchestrator.cli.main import main; main()"


def started(*args: str, before: str = "") -> subprocess.Popen[str]:
    """``load`` in a process of its own, which can be interrupted. ``before``: a program that the
    process runs first.
    """
    program = ["-c", f"{before}\n{MAIN}"] if before else ["-m", "orchestrator"]
    return subprocess.Popen(
        [sys.executable, *program, "load", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def refusing(status: str, when: Any, body: bytes = b"no") -> Behaviour:
    """Answers with this status where ``when(request)`` says so, else well."""

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        if when(request):
            writer.write(plain(status, body))
        else:
            await answer_openai(request, reader, writer)

    return behave


async def answer_chat(request: Request, reader: Reader, writer: Writer) -> None:
    """A good answer of a server that counts 300 tokens in every prompt."""
    tokens = request.json["max_tokens"]
    delta = event({"choices": [{"index": 0, "delta": {"content": " a"}, "finish_reason": None}]})
    for part in (HEAD, *[chunk(delta)] * tokens, chunk(usage(300, tokens)), chunk(DONE), END):
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(EVENT_S)


def test_json_is_one_document_with_the_promised_keys() -> None:
    with serving(answer_openai) as server:
        done = load(
            url(server.port),
            "--model",
            "m1",
            "--rate",
            "50",
            "--duration",
            "1s",
            *QUICK,
            "--format",
            "json",
        )
        first = json.loads(server.requests[1].body)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    for name in LATENCIES:
        assert set(document[name]) == {"mean", "std", "min", "max", "p50", "p90", "p95", "p99"}
    assert document["requests"]["scheduled"] == document["requests"]["ok"] > 20
    assert document["validity"] == "valid"
    assert document["output_token_throughput"] == pytest.approx(
        4 * document["request_throughput"], rel=0.1
    )
    assert (document["control"], document["level"], document["arrivals"], document["model"]) == (
        "request_rate",
        50.0,
        "poisson",
        "m1",
    )
    assert all(1000 <= token < 31_000 for token in first["prompt"])
    assert first["ignore_eos"] is True


def test_a_list_of_levels_is_one_table_one_experiment_and_a_list_in_json(tmp_path: Path) -> None:
    args = (
        "--concurrency",
        "1,2",
        "--requests",
        "6",
        *QUICK,
        "--slo",
        "ttft<=10s",
        "--results",
        str(tmp_path),
    )
    with serving(answer_openai) as server:
        shown = load(url(server.port), *args)
        done = load(url(server.port), *args, "--format", "json")
    assert shown.returncode == done.returncode == 0, done.stderr
    assert [line.split("  ")[0].strip() for line in shown.stdout.splitlines()].count(
        "2 in flight"
    ) == 1
    assert "limits: ttft<=10s,attainment>=0.95" in shown.stdout
    assert max(map(len, shown.stdout.partition("\n\n")[0].splitlines())) <= 120
    documents = json.loads(done.stdout)
    assert [(document["level"], document["requests"]["ok"]) for document in documents] == [
        (1, 6),
        (2, 6),
    ]
    assert all(document["slo"]["attainment"]["estimate"] == 1 for document in documents)
    assert len(list(tmp_path.iterdir())) == 2, "each command is an experiment of its own"
    ranked = stored("best", str(tmp_path), "--per", "deployment", "--format", "json")
    comparisons = json.loads(ranked)["comparisons"]
    (ranking,) = [comparison["ranking"] for comparison in comparisons]
    assert len(ranking) == 2, "runs that asked the same at the same levels are ranked together"


def stored(*argv: str) -> str:
    """What a command shows of stored runs."""
    done = run_here(*argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_named_runs_of_a_folder_share_one_table_and_one_ranking(tmp_path: Path) -> None:
    folder = str(tmp_path)
    args = ("--concurrency", "1", "--requests", "6", *QUICK, "--results", folder)
    limits = ("--slo", "ttft<=10s")
    with serving(answer_openai) as server:
        for name in ("before", "after"):
            assert load(url(server.port), *args, *limits, "--name", name).returncode == 0
        longer = ("--input-tokens", "16")  # the last one counts
        load(url(server.port), *args, *longer, *limits, "--name", "longer")
        refused_run = load(url(server.port), *args, *limits, *longer, "--name", "before")
        repeated = load(url(server.port), *args, *limits, "--name", "before")
    assert refused_run.returncode == 2 and "give another --name" in refused_run.stderr
    assert "before is stored with the same options: this adds repeat 2" in repeated.stderr

    table = stored("results", folder)
    names = (" before ", " after ", " longer ")
    rows = [line.split()[0] for line in table.splitlines() if line.startswith(names)]
    assert rows == ["before", "after", "longer"], "in the order of time"
    assert table.count("load runs: ") == 1
    assert "longer was asked otherwise than before: input tokens" in table

    documents = json.loads(stored("results", folder, "--format", "json"))
    repeats = {document["label"]: document["merged"]["of"] for document in documents}
    assert repeats == {"before": 2, "after": 1, "longer": 1}
    program = f"import orchestrator; print({{*orchestrator.metrics({folder!r}).label}})"
    # in a process of its own: where a command has run, pyarrow knows no pandas
    frame = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert all(name in frame.stdout for name in ("before", "after", "longer"))

    ranked = run_here("best", folder, "--format", "json")
    rankings = [comparison["ranking"] for comparison in json.loads(ranked.stdout)["comparisons"]]
    labels = [{candidate["deployment"] for candidate in ranking} for ranking in rankings]
    assert labels == [{"before", "after"}, {"longer"}]
    assert "longer: not ranked with after, before, which asked otherwise (input tokens)" in (
        ranked.stderr
    )


def test_csv_of_load_is_that_of_results(tmp_path: Path) -> None:
    args = ("--concurrency", "1,2", "--requests", "6", *QUICK, "--format", "csv")
    with serving(answer_openai) as server:
        kept = load(url(server.port), *args, "--results", str(tmp_path))
        alone = load(url(server.port), *args)
    assert kept.stdout == stored("results", str(tmp_path), "--format", "csv")
    assert kept.stdout.splitlines()[0] == alone.stdout.splitlines()[0]
    rows = list(csv.DictReader(io.StringIO(alone.stdout)))
    assert [(row["level"], row["requests.ok"]) for row in rows] == [("1.0", "6"), ("2.0", "6")]


def test_the_seed_is_drawn_printed_and_repeats_the_requests() -> None:
    args = ("--concurrency", "1", "--requests", "3", *QUICK)
    with serving(answer_openai) as server:
        first = json.loads(load(url(server.port), *args, "--format", "json").stdout)
        other = load(url(server.port), *args)
        load(url(server.port), *args, "--seed", str(first["seed"]))
        prompts = [tuple(request.json["prompt"]) for request in server.requests if request.body]
    sent = [prompts[at + 1 : at + 4] for at in (0, 4, 8)]  # each command sends a probe first
    assert sent[0] == sent[2] != sent[1]
    assert not set(sent[0]) & set(sent[1])
    assert f"seed: {first['seed']} " not in other.stdout
    assert "--seed " in other.stdout


def test_headers_are_sent_with_their_secrets_from_the_environment_and_never_shown(
    tmp_path: Path,
) -> None:
    args = (
        "--concurrency",
        "1",
        "--requests",
        "2",
        *QUICK,
        "--results",
        str(tmp_path),
        "--format",
        "json",
    )
    headers = ("--header", "X-Team: blue", "--header", "X-Key: k-${MY_SECRET}")
    with serving(answer_openai) as server:
        done = load(url(server.port), *args, *headers, MY_SECRET="very-hidden")
        heads = [request.head for request in server.requests]
    assert done.returncode == 0, done.stderr
    assert all(
        b"X-Team: blue\r\n" in head and b"X-Key: k-very-hidden\r\n" in head for head in heads
    )
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"very-hidden" not in stored + (done.stdout + done.stderr).encode()


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("no colon here", "is not a header name"),
        ("bad", "give NAME: VALUE"),
        ("X-Key: ${NOT_SET}", "'NOT_SET' is not set"),
        ("Connection: x", "is set by the client itself"),
    ],
)
def test_a_header_that_cannot_be_sent_is_status_2(header: str, words: str) -> None:
    assert words in refused(
        "http://127.0.0.1:9", "--rate", "1", "--requests", "1", *QUICK, "--header", header
    )


def test_warm_up_requests_are_sent_before_and_are_other_ones() -> None:
    args = (
        "--concurrency",
        "2",
        "--requests",
        "4",
        "--warmup",
        "3req",
        *QUICK,
        "--format",
        "json",
    )
    with serving(answer_openai) as server:
        done = load(url(server.port), *args)
        prompts = [tuple(request.json["prompt"]) for request in server.requests if request.body]
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["requests_all_phases"]["scheduled"] == 4
    assert len(prompts) == len(set(prompts)) == 1 + 3 + 4  # the probe, the warm-up, the measurement


def test_natural_lengths_ask_for_no_more_than_a_limit() -> None:
    args = (
        "--concurrency",
        "1",
        "--requests",
        "2",
        "--natural-lengths",
        "--extra-body",
        '{"temperature": null}',
    )
    with serving(answer_openai) as server:
        done = load(url(server.port), *args, *QUICK)
        bodies = [request.json for request in server.requests if request.body]
    assert done.returncode == 0, done.stderr
    assert all("max_tokens" in body for body in bodies)
    assert not any({"ignore_eos", "min_tokens", "temperature"} & body.keys() for body in bodies)


def test_a_path_of_its_own_lengths_prefixes_and_turns_reach_the_server() -> None:
    args = [
        "--endpoint",
        "/v2/complete?version=1",
        "--input-tokens",
        "5:9",
        "--output-tokens",
        "3",
        "--turns",
        "2",
    ]
    args += [
        "--shared-prefix",
        "20x2",
        "--concurrency",
        "1",
        "--requests",
        "20",
        "--seed",
        "1",
    ]
    with serving(answer_openai) as server:
        done = load(url(server.port), *args, "--format", "json")
        sent = [request for request in server.requests if request.body][1:]
    assert done.returncode == 0, done.stderr
    assert {request.head.split(b" ")[1] for request in sent} == {b"/v2/complete?version=1"}
    assert json.loads(done.stdout)["path"] == "/v2/complete?version=1"
    prompts = [request.json["prompt"] for request in sent]
    assert len({tuple(prompt[:20]) for prompt in prompts}) == 2
    lengths = {len(prompt) - 20 for prompt in prompts[::2]}
    assert lengths <= {5, 6, 7, 8, 9} and len(lengths) > 2
    pairs = list(zip(prompts[::2], prompts[1::2], strict=True))
    assert all(
        second[: len(first)] == first and len(second) >= len(first) + 3 + 5
        for first, second in pairs
    )


def test_what_the_endpoint_cannot_do_stands_in_the_table_of_one_level_and_of_several() -> None:
    """Chat without a tokenizer: the server counts twice as many tokens as were meant."""

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        await (answer_chat if request.body else answer_openai)(request, reader, writer)

    args = ("--api", "chat", "--requests", "6", "--input-tokens", "100", "--output-tokens", "4")
    with serving(behave) as server:
        one_level = load(url(server.port), *args, "--concurrency", "1")
        several = load(url(server.port), *args, "--concurrency", "1,2")
    assert one_level.returncode == several.returncode == 0, one_level.stderr
    for done in (one_level, several):
        assert "they were sent as text" in done.stdout
    assert several.stdout.count("they were sent as text") == 2


def test_rate_inf_sends_all_requests_at_once(tmp_path: Path) -> None:
    waiting, together = [], asyncio.Event()

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        """Answers none of the twelve before all of them are there."""
        if request.body and request.json["max_tokens"] == 4:  # the probe asks for fewer
            waiting.append(request)
            if len(waiting) == 12:
                together.set()
            await together.wait()
        await answer_openai(request, reader, writer)

    with serving(behave) as server:
        args = ("--requests", "12", "--request-timeout", "20s", *QUICK, "--results", str(tmp_path))
        done = load(url(server.port), "--rate", "inf", *args, "--format", "json")
        shown = load(url(server.port), "--rate", "50,inf", *args)
        refused = load(url(server.port), "--rate", "inf", "--duration", "1s", *QUICK)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["requests"]["ok"] == 12
    assert (document["control"], document["level"], document["arrivals"]) == (
        "request_rate",
        "inf",
        "at_once",
    )
    assert document["ttft_ms"]["max"] >= document["ttft_from_sent_ms"]["max"], (
        "due at the beginning, all of them"
    )
    assert "all requests were due at once" in done.stdout
    assert "inf req/s" in shown.stdout
    assert sorted({row["level"] for row in rows(tmp_path, "points")}) == [50, math.inf]
    infinite = {row["attempt_id"] for row in rows(tmp_path, "points") if row["level"] == math.inf}
    due = {
        row["scheduled_ns"] for row in rows(tmp_path, "requests") if row["attempt_id"] in infinite
    }
    assert due == {0}
    stored = [
        json.loads(run_here(command, str(tmp_path), "--format", "json", *more).stdout)
        for command, more in (
            ("results", []),
            ("best", ["--slo", "ttft<=60s", "--per", "deployment"]),
        )
    ]
    assert sorted(str(document["level"]) for document in stored[0]) == ["50.0", "inf", "inf"]
    # as tools for batches measure it: all tokens, over the time until the last answer has come
    throughputs = [
        sum(row["output_tokens"] for row in answered)
        / max(row["done_ns"] for row in answered)
        * 1e9
        for attempt_id in infinite
        for answered in [
            [row for row in rows(tmp_path, "requests") if row["attempt_id"] == attempt_id]
        ]
    ]
    shown_throughputs = [
        document["output_token_throughput"] for document in stored[0] if document["level"] == "inf"
    ]
    assert sorted(shown_throughputs) == pytest.approx(sorted(throughputs), rel=1e-6)
    assert any(
        comparison["ranking"][0]["level"] == "inf" for comparison in stored[1]["comparisons"]
    )
    assert refused.returncode == 2
    assert "say how many with --requests" in refused.stderr


def test_the_table_says_window_lengths_counts_and_what_failed_requests_were_told() -> None:
    behave = refusing(
        "400 Bad Request", lambda request: request.number > 8, b"max_tokens is \x1b[2J too large"
    )
    with serving(behave) as server:
        done = run_here("load", url(server.port), "--concurrency", "1", "--requests", "10", *QUICK)
    assert done.returncode == 3, done.stderr
    for words in (
        "window: from 0.0 s",
        "tokens a request: 8 in, 4 out (counted by: ",
        "prefix cache at the start: unknown",
        "on average",
        "95 % interval",
        "(n=",
    ):
        assert words in done.stdout
    assert re.search(r"http_4xx: \d, mostly: HTTP 400", done.stdout)
    assert "max_tokens is  too large" in done.stdout
    assert "\x1b" not in done.stdout
    assert "of requests failed: throughput and latencies are those of the others" in done.stdout


def test_the_only_model_is_taken_and_a_pasted_v1_does_not_matter() -> None:
    with serving(answer_openai) as server:
        done = load(url(server.port) + "/v1", "--concurrency", "2", "--requests", "6", *QUICK)
        posts = [request for request in server.requests if request.body]
    assert done.returncode == 0, done.stderr
    assert "m1 at" in done.stdout
    assert "6 scheduled, 6 ok, 0 failed" in done.stdout
    assert all(request.head.startswith(b"POST /v1/completions ") for request in posts)
    assert {request.json["model"] for request in posts} == {"m1"}


def test_every_problem_is_said_at_once_and_nothing_is_sent() -> None:
    with serving(answer_openai) as server:
        done = load(
            url(server.port), "--duration", "5", "--arrivals", "poison", "--rate", "1", *QUICK,
            "--extra-body", "[1", "--api-key-env", "NOT_SET", "--tokenizer", "/nowhere", "--requests", "3",
        )  # fmt: skip
        assert server.requests == []
    assert done.returncode == 2
    assert done.stdout == ""
    for words in (
        "--duration",
        "--requests or --duration",
        "'poisson'",
        "--extra-body",
        "NOT_SET",
        "/nowhere",
        "6 problems",
    ):
        assert words in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "one of --rate"),
        (("--rate", "1", "--prompts", "/nowhere"), "by one of --input-tokens"),
        (("--rate", "1", "--output-tokens", "3000000000"), "--output-tokens"),
        (("--concurrency", "1", "--max-in-flight", "2"), "--max-in-flight is for --rate"),
        (("--rate", "1", "--insecure"), "--insecure is for https"),
        (("--rate", "nan"), "--rate 'nan'"),
        (("--rate", "1,x"), "--rate '1,x'"),
        (("--rate", "-1"), "--rate '-1'"),
        (("--concurrency", "1.5"), "whole numbers"),
        (("--concurrency", "1000000000"), "at most 100,000"),
        (("--rate", "1", "--arrivals", "gamma:nan"), "--arrivals"),
        (("--rate", "1", "--slo", "ttft<=5"), "with its unit"),
        (("--rate", "1", "--warmup", f"1{'0' * 400}s"), "--warmup"),
    ],
)
def test_bad_input_is_status_2(args: tuple[str, ...], words: str) -> None:
    with serving(answer_openai) as server:
        assert words in refused(url(server.port), "--requests", "2", *QUICK, *args)


def test_more_requests_than_memory_holds_are_refused_before_anything_is_sent() -> None:
    message = refused("http://127.0.0.1:9", "--rate", "1e9", "--duration", "10s", *QUICK)
    assert "1e+09 requests/s for 10 s are 1e+10 requests; a point may have 5,000,000" in message


def test_prompts_of_a_file_are_sent_in_its_order_with_their_own_lengths(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Is it?", "output_tokens": 3}\n{"prompt": "Why?\\nBecause."}\n')
    args = (
        "--prompts",
        str(file),
        "--output-tokens",
        "5",
        "--concurrency",
        "1",
        "--requests",
        "3",
    )
    with serving(answer_openai) as server:
        done = load(url(server.port), *args, "--format", "json")
        sent = [request.json for request in server.requests if request.body][-3:]
    assert done.returncode == 0, done.stderr
    assert [(body["prompt"], body["max_tokens"]) for body in sent] == [
        ("Is it?", 3), ("Why?\nBecause.", 5), ("Is it?", 3)
    ]  # fmt: skip
    document = json.loads(done.stdout)
    assert (document["prompt_file"], document["cache_state"]) == (str(file), "unknown")
    assert document["validity"] == "valid"
    assert any("3 requests of 2 prompts" in note for note in document["notes"])
    assert "3 requests of 2 prompts" in done.stderr


def test_a_trace_is_sent_at_its_times_in_its_lengths(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    lines = [(1000, 30, 3), (1400, 600, 2), (1400, 601, 4), (2000, 5, 1)]
    text = '{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": [7%s]}\n'
    file.write_text("".join(text % (*line, ", 8" * (line[1] // 512)) for line in lines))
    with serving(answer_openai) as server:
        args = ("--trace", str(file), "--results", str(tmp_path / "out"))
        done = load(url(server.port), *args)
        sent = [request.json for request in server.requests if request.body][1:]
    assert done.returncode == 0, done.stderr
    assert "4 requests of the trace, due within 1.0 s" in done.stdout
    assert "3 requests/s, trace" in done.stdout
    assert sorted((len(body["prompt"]), body["max_tokens"]) for body in sent) == sorted(
        line[1:] for line in lines
    )
    first, second = sorted((body["prompt"] for body in sent if len(body["prompt"]) > 512), key=len)
    assert first[:512] == second[:512]
    request_rows = rows(tmp_path / "out", "requests")
    assert sorted(row["scheduled_ns"] for row in request_rows) == [
        0,
        400_000_000,
        400_000_000,
        1_000_000_000,
    ]
    assert {row["scheduled_ns"]: row["input_tokens_asked"] for row in request_rows}[
        1_000_000_000
    ] == 5


def test_conversations_of_a_file_are_sent_as_messages_and_bad_lines_stop_everything(
    tmp_path: Path,
) -> None:
    file = tmp_path / "share.json"
    talk = [
        {"from": "system", "value": "Be kind"},
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Ho"},
    ]
    file.write_text(json.dumps([{"conversations": talk}]))

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        await (answer_chat if request.body else answer_openai)(request, reader, writer)

    args = (
        "--api",
        "chat",
        "--prompts",
        str(file),
        "--output-tokens",
        "2",
        "--rate",
        "9",
        "--requests",
        "1",
    )
    with serving(behave) as server:
        done = load(url(server.port), *args)
        sent = server.requests[-1].json
        file.write_text(
            json.dumps([{"conversations": talk}, {"conversations": [{"from": "x"}]}, {"text": 1}])
        )
        refused = load(url(server.port), *args)
    assert done.returncode == 0, done.stderr
    assert sent["messages"] == [
        {"role": "system", "content": "Be kind"},
        {"role": "user", "content": "Hi"},
    ]
    assert refused.returncode == 2
    assert all(f"{str(file)!r}, entry {at}: " in refused.stderr for at in (2, 3))


@pytest.mark.parametrize(
    "loop", [("--rate", "40"), ("--concurrency", "4")], ids=lambda loop: loop[0]
)
def test_too_many_errors_end_it_and_keep_what_was_measured(
    loop: tuple[str, str], tmp_path: Path
) -> None:
    args = (
        *loop,
        "--warmup",
        "0s",
        "--duration",
        "60s",
        "--max-errors",
        "5",
        "--results",
        str(tmp_path),
        *QUICK,
        "--format",
        "json",
    )
    with serving(
        refusing("500 No", lambda request: request.number > 30 and request.number % 2)
    ) as server:
        began = time.monotonic()
        done = run_here("load", url(server.port), *args)
    assert done.returncode == 3, done.stderr
    assert time.monotonic() - began < 40
    document = json.loads(done.stdout)
    assert 5 <= document["requests"]["failed"] <= 5 + 4, (
        "it stops at the count; what was open may fail, too"
    )
    assert document["requests"]["ok"] > 20
    assert document["errors"].keys() == {"http_5xx"}
    assert document["validity"] == "interrupted"
    (stored,), sent = rows(tmp_path, "points"), rows(tmp_path, "requests")
    failed = sum(row["status"] != "ok" for row in sent)  # of all, those before the window too
    reason = f"{failed} requests failed: the rest was not sent (--max-errors 5)"
    assert "run again" not in done.stderr
    assert stored["validity_reasons"][0] == document["validity_reasons"][0] == reason
    assert stored["requests_scheduled"] == len(sent)


def test_too_many_errors_keep_later_levels_from_being_measured() -> None:
    args = ("--concurrency", "1,2,3", "--requests", "4", "--max-errors", "2", *QUICK)
    with serving(refusing("500 No", lambda request: request.number > 2)) as server:
        done = run_here("load", url(server.port), *args)
    assert done.returncode == 3, done.stderr
    assert "2 more levels are not measured (--max-errors)" in done.stderr
    assert "1 in flight" in done.stdout


def test_an_endpoint_that_is_not_there_is_bad_input() -> None:
    done = load("http://127.0.0.1:9", "--rate", "1", "--requests", "2", *QUICK)
    assert done.returncode == 2
    assert "no server answers" in done.stderr


@pytest.mark.parametrize("model", [(), ("--model", "m1")])
def test_a_server_that_is_elsewhere_is_bad_input_with_its_place(model: tuple[str, ...]) -> None:
    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        writer.write(
            b"HTTP/1.1 308 Moved\r\nLocation: https://elsewhere.example/\r\nContent-Length: "
            b"0\r\n\r\n"
        )

    with serving(behave) as server:
        message = refused(url(server.port), "--rate", "1", "--requests", "2", *QUICK, *model)
    assert "it is at https://elsewhere.example/ (give that URL)" in message


def test_a_model_that_a_server_names_with_control_characters_is_bad_input() -> None:
    models = b'{"data":[{"id":"a\\u001b[31mb"}]}'

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(models), models))

    with serving(behave) as server:
        message = refused(url(server.port), "--rate", "1", "--requests", "2", *QUICK)
    assert "control character" in message and "\x1b" not in message


@pytest.mark.parametrize(("timeout", "status"), [("1s", 2), ("600s", 0)])
def test_a_server_that_loads_its_model_at_the_first_request_has_the_time_of_one(
    timeout: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_command, "SLOW_S", 0.5)

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        await asyncio.sleep(2.5 if request.number == 1 else 0)
        await answer_openai(request, reader, writer)

    with serving(behave) as server:
        args = ("--concurrency", "1", "--requests", "2", "--request-timeout", timeout, *QUICK)
        done = load(url(server.port), *args)
    assert done.returncode == status, done.stderr
    assert "it may be loading its model" in done.stderr
    assert ("failed a trial request: timeout: still open 1 s after" in done.stderr) == (status == 2)


def test_an_engine_that_dies_within_the_trial_request_has_not_refused_it() -> None:
    events = (
        b'data: {"choices":[{"index":0,"text":"a"}]}\n\ndata: {"error":{"message":"engine '
        b'died","code":500}}\n\n'
    )

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
        writer.write(
            head % (len(events), events)
            if request.body
            else b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"
        )

    with serving(behave) as server:
        message = refused(
            url(server.port), "--model", "m", "--rate", "1", "--requests", "2", *QUICK
        )
    assert "failed a trial request: stream_error: 500 engine died" in message


def test_failed_requests_are_status_3_and_counted() -> None:
    with serving(refusing("500 No", lambda request: request.number == 5)) as server:
        done = run_here(
            "load",
            url(server.port),
            "--concurrency",
            "1",
            "--requests",
            "8",
            *QUICK,
            "--format",
            "json",
        )
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert document["requests"] == {"scheduled": 8, "ok": 7, "failed": 1}
    assert document["errors"] == {"http_5xx": 1}


def test_a_key_reaches_the_server_and_nothing_else(tmp_path: Path) -> None:
    secret = "sk-very-secret-value"
    with serving(refusing("401 No", lambda r: f"Bearer {secret}".encode() not in r.head)) as server:
        args = (
            url(server.port),
            "--concurrency",
            "1",
            "--requests",
            "3",
            *QUICK,
            "--results",
            str(tmp_path),
        )
        done = load(*args, "--api-key-env", "MY_KEY", "--format", "json", MY_KEY=secret)
        refused = load(*args)
    with serving(
        refusing("418 No", lambda r: bool(r.body), f"\x1b[31mYou sent {secret}".encode())
    ) as server:
        header = ("--header", "X-Key: ${MY_KEY}")
        echoed = load(
            url(server.port), "--rate", "9", "--requests", "3", *QUICK, *header, MY_KEY=secret
        )
    assert done.returncode == 0, done.stderr
    assert refused.returncode == 2
    assert "--api-key-env" in refused.stderr
    assert secret not in done.stdout + done.stderr + echoed.stderr
    assert "failed a trial request" in echoed.stderr and "You sent ***" in echoed.stderr
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert secret.encode() not in stored
    assert b"MY_KEY" in stored


def test_an_endpoint_that_knows_only_plain_fields_is_asked_plainly() -> None:
    """The server behaves like transformers serve: it refuses unknown fields and token ids, and has a
    generation_config.
    """
    plain_fields = {
        "model",
        "prompt",
        "max_tokens",
        "temperature",
        "stream",
        "stream_options",
        "generation_config",
    }

    def unknown(request: Request) -> bool:
        return bool(request.body) and (
            not set(request.json) <= plain_fields or not isinstance(request.json["prompt"], str)
        )

    with serving(refusing("422 No", unknown, b'{"detail":"Unexpected fields"}')) as server:
        done = load(
            url(server.port), "--concurrency", "1", "--requests", "3", *QUICK, "--format", "json"
        )
        last = server.requests[-1].json
    assert done.returncode == 0, done.stderr
    assert "takes no token ids" in done.stderr
    assert json.loads(last["generation_config"])["min_new_tokens"] == 4


# as vLLM's first engine did, and a crash over it
@pytest.mark.parametrize("refuses", ["", "400 No", "500 Unexpected"])
def test_each_level_has_its_own_cache_salt_where_the_server_takes_one(
    refuses: str,
) -> None:
    models = b'{"data":[{"id":"m1","object":"model","owned_by":"vllm"}]}'

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        if request.body and refuses and "cache_salt" in request.json:
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\nno" % refuses.encode())
        elif request.body:
            await answer_openai(request, reader, writer)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(models), models))

    with serving(behave) as server:
        done = load(
            url(server.port), "--concurrency", "1,2", "--requests", "2", *QUICK, "--format", "json"
        )
        prompts = [request.json for request in server.requests if request.body]
        first, again, second, last = [body.get("cache_salt") for body in prompts[-4:]]
    assert done.returncode == 0, done.stderr
    assert first == again and second == last
    assert (first is None) == (second is None) == bool(refuses)
    assert refuses or first != second
    assert [document["cache_state"] for document in json.loads(done.stdout)] == [
        "unknown" if refuses else "salted"
    ] * 2


@pytest.mark.parametrize(
    "words", ["Token id 30000 is out of vocabulary", "Prompt contains invalid tokens"]
)
def test_ids_are_looked_for_further_down_where_the_vocabulary_is_small(words: str) -> None:
    def too_high(request: Request) -> bool:
        return bool(request.body) and max(request.json["prompt"]) >= 2048

    body = json.dumps({"error": {"message": words, "code": 400}}).encode()
    with serving(refusing("400 No", too_high, body)) as server:
        done = load(url(server.port), "--concurrency", "1", "--requests", "3", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "takes no token ids" not in done.stderr


def test_smaller_ids_are_tried_where_vllm_refuses_ids_in_a_stream() -> None:
    recorded = (
        Path(__file__).parents[1] / "contract/streams/vllm-completions-refused_ids.http"
    ).read_bytes()

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        if request.body and max(request.json["prompt"]) >= 2048:
            writer.write(recorded)
        else:
            await answer_openai(request, reader, writer)

    with serving(behave) as server:
        done = load(url(server.port), "--concurrency", "1", "--requests", "3", *QUICK)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--concurrency", "3", "--requests", "40"),
        ("--concurrency", "3", "--duration", "0.5s", "--warmup", "0.2s"),
        ("--concurrency", "3", "--duration", "0.5s", "--clients", "2"),
        ("--rate", "50", "--duration", "0.5s", "--warmup", "0.2s"),
    ],
)
def test_stored_figures_are_the_printed_ones_to_the_last_digit(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Counted or timed, by several clients or one, drained or not: one window, one computation."""
    with serving(answer_openai) as server:
        done = load(
            url(server.port), *options, *QUICK, "--results", str(tmp_path), "--format", "json"
        )
    document = json.loads(done.stdout)
    (shown,) = json.loads(stored("results", str(tmp_path), "--format", "json"))
    assert shown["status"] == "ok"
    names = [field.name for field in fields(Figures)]
    assert [shown[name] for name in names] == [document[name] for name in names]
    plan = json.loads((tmp_path / shown["experiment"] / "plan.json").read_text())
    assert plan["name"] == shown["experiment"]


def test_an_unusable_place_for_results_is_found_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with serving(answer_openai) as server:
        args = (
            "--rate",
            "5",
            "--duration",
            "600s",
            *QUICK,
            "--results",
            str(tmp_path / "file" / "below"),
        )
        began = time.monotonic()
        done = load(url(server.port), *args)
    assert done.returncode in (1, 2)
    assert time.monotonic() - began < 30
    assert str(tmp_path) in done.stderr


CPU_TIME = "import time; print(time.process_time())"


def test_it_starts_with_little_cpu_time_and_heavy_libraries_stay_out() -> None:
    """The CPU time is compared with that of importing the libraries that every command needs, because
    machines differ. The first request shall leave within 2 s on a usual one.
    """
    with serving(answer_openai) as server:
        program = (
            "import sys, time; from orchestrator.cli.main import cli; import "
            "orchestrator.sweep.endpoint as endpoint; "
            "measured = endpoint.measure_here; loaded = []; "
            "endpoint.measure_here = lambda *a: [measured(*a), loaded.extend(sys.modules)][0]; "
            f"cli.main(['load', '{url(server.port)}', '--concurrency', '1', '--requests', '2', "
            "'--input-tokens', '8', '--output-tokens', '4'], standalone_mode=False); "
            "print(sorted({'ray', 'pandas', 'transformers', 'scipy', 'torch', 'aiohttp'} & "
            f"set(loaded))); {CPU_TIME}"
        )
        *_, heavy, cpu_s = printed_by(program)
    assert heavy == "[]"
    (cpu_s_of_imports,) = printed_by(
        f"import numpy, pyarrow, pyarrow.compute, pydantic; {CPU_TIME}"
    )
    assert float(cpu_s) < 16 * float(cpu_s_of_imports)  # 10 to 12 were measured


def printed_by(program: str) -> list[str]:
    """The lines that a Python program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


async def _never_ends(request: Request, reader: Reader, writer: Writer) -> None:
    """Every sixteenth request is still open when the user has enough."""
    if request.body and request.number % 16 == 15:
        await asyncio.sleep(60)
    await answer_openai(request, reader, writer)


@pytest.mark.parametrize(
    ("number", "clients", "loop"),
    [
        (signal.SIGINT, "1", ("--rate", "20")),
        (signal.SIGTERM, "2", ("--concurrency", "4")),
    ],
)
def test_an_interrupted_run_gives_the_figures_until_then_and_stores_them(
    number: signal.Signals, clients: str, loop: tuple[str, str], tmp_path: Path
) -> None:
    with serving(_never_ends) as server:
        argv = [
            url(server.port),
            "--model",
            "m1",
            *loop,
            "--duration",
            "60s",
            *QUICK,
            "--clients",
            clients,
        ]
        argv += ["--format", "json", "--results", str(tmp_path)]
        with started(*argv) as process:
            wait_for(lambda: len(server.requests) > 20, 60.0, "requests")
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err.count("interrupted") == 1
    document = json.loads(out)
    assert re.search(
        r"interrupted after .*; left out: \d+ requests? in flight then",
        document["validity_reasons"][0],
    )
    assert 0 < document["duration_s"] < 20
    assert document["requests"]["ok"] > 5
    # the server has nothing to do with what was left
    assert (document["requests"]["failed"], document["errors"]) == (0, {})
    assert document["requests_all_phases"]["scheduled"] < 400  # not those that were never due
    assert (
        document["output_token_throughput"]
        > 4 * document["requests"]["ok"] / document["duration_s"] / 2
    )
    (stored,) = rows(tmp_path, "points")
    assert stored["window_end_ns"] == pytest.approx(document["duration_s"] * 1e9, abs=2)
    assert stored["requests_scheduled"] == len(rows(tmp_path, "requests"))


def test_a_run_that_is_interrupted_in_its_warm_up_has_nothing_to_show_and_says_so(
    tmp_path: Path,
) -> None:
    with serving(answer_openai) as server:
        argv = [
            url(server.port),
            "--model",
            "m1",
            "--rate",
            "20",
            "--warmup",
            "60s",
            "--duration",
            "60s",
            *QUICK,
        ]
        with started(*argv) as process:
            wait_for(lambda: len(server.requests) > 8, 60.0, "requests")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert out.count("interrupted after") == 1
    assert "note: interrupted: run again" in out
    assert "0 scheduled, 0 ok, 0 failed" in out


def test_a_signal_while_requests_are_written_ends_the_run(tmp_path: Path) -> None:
    before = (
        "import time\nfrom orchestrator.cluster.client_host import ClientHost\n"
        "ClientHost.prepare = lambda *_: (print('writes', flush=True), time.sleep(60))\n"
    )
    with serving(answer_openai) as server:
        argv = [url(server.port), "--model", "m1", "--rate", "20", "--duration", "60s", *QUICK]
        with started(*argv, "--results", str(tmp_path), before=before) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "writes\n"
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "interrupted after 0.0 s of 60 s" in out
    assert "0 scheduled, 0 ok, 0 failed" in out
    (stored,) = rows(tmp_path, "points")
    assert (stored["validity"], stored["requests_scheduled"]) == ("interrupted", 0)


def test_a_million_requests_are_no_longer_to_stop_than_ten() -> None:
    with serving(answer_openai) as server:
        argv = [
            url(server.port),
            "--model",
            "m1",
            "--concurrency",
            "2",
            "--requests",
            "1000000",
            *QUICK,
        ]
        with started(*argv, "--format", "json") as process:
            wait_for(lambda: len(server.requests) > 40, 60.0, "requests")
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert time.monotonic() - began < 8
    document = json.loads(out)
    assert (document["requests"]["failed"], document["errors"]) == (0, {})


def test_a_warm_up_by_requests_is_interrupted_at_once() -> None:
    async def slow(request: Request, reader: Reader, writer: Writer) -> None:
        await asyncio.sleep(0.1)
        await answer_openai(request, reader, writer)

    with serving(slow) as server:
        argv = [url(server.port), "--model", "m1", "--concurrency", "1", "--requests", "4", *QUICK]
        with started(*argv, "--warmup", "1000req") as process:
            wait_for(lambda: len(server.requests) > 8, 60.0, "requests")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, ""), err
    assert "interrupted before level 1 of 1" in err


STORING = """
import os, signal, time
from orchestrator.sweep.endpoint import EndpointRun
commit = EndpointRun.commit
def interrupted(*args):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.5)
    commit(*args)
EndpointRun.commit = interrupted
"""
LEVELS = ("--model", "m1", "--concurrency", "1,2,3", "--requests", "4", *QUICK)


def test_what_interrupts_a_list_of_levels_leaves_the_table_of_those_before(tmp_path: Path) -> None:
    options = (*LEVELS, "--results", str(tmp_path), "--format", "json")
    with (
        serving(answer_openai) as server,
        started(url(server.port), *options, before=STORING) as process,
    ):
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted before level 2 of 3" in err
    assert [document["level"] for document in json.loads(out)] == [1]
    assert len(rows(tmp_path, "points")) == 1


def test_a_level_that_fails_leaves_the_table_of_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def second_fails(*args: Any) -> Attempt:
        calls.append(args)
        if len(calls) == 2:
            raise OrchestratorError("no client is left")
        return measure_here(*args)

    monkeypatch.setattr(endpoint, "measure_here", second_fails)
    with serving(answer_openai) as server:
        done = load(url(server.port), *LEVELS, "--results", str(tmp_path), "--format", "json")
    assert done.returncode == 1, done.stderr
    assert "no client is left" in done.stderr
    assert [document["level"] for document in json.loads(done.stdout)] == [1]
    assert len(rows(tmp_path, "points")) == 1


def test_a_run_that_is_interrupted_before_it_begins_ends_at_once() -> None:
    async def silent(request: Request, reader: Reader, writer: Writer) -> None:
        await asyncio.sleep(60)

    with serving(silent) as server:
        argv = [url(server.port), "--model", "m1", "--rate", "20", "--duration", "60s", *QUICK]
        with started(*argv) as process:
            wait_for(lambda: server.requests, 60.0, "the first question")
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
