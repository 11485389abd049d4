"""``results`` and ``best`` as a user runs them, on a store with what a sweep leaves: ok, failed,
doubtful, repeated.
"""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import duckdb
import pytest
from click.testing import CliRunner

from orchestrator.cli.main import cli
from orchestrator.results.store import FilePart, Manifest, Store
from tests.unit.results.builders import (
    commit_launch,
    commit_measurement,
    deployment_row,
    events,
    failed_request,
    request,
    table,
)

ROOT = Path(__file__).resolve().parents[2]
SLO = "ttft<=500ms,tpot<=50ms,attainment>=0.9"
SENTENCE = "The engine ran out of memory while it loaded the weights [2 GPUs]."


def is_refused(index: int) -> bool:
    """One in 20 requests is."""
    return index % 20 == 19


def rows(level: float) -> list[dict[str, Any]]:
    """Ten seconds of requests at ``level`` a second, with 4 tokens each, 20 ms apart."""
    requests: list[dict[str, Any]] = []
    for index in range(round(level * 10)):
        due_ms = index * 1000 / level
        if is_refused(index):
            row = failed_request(index, due_ms, "http_429")
        else:
            row = request(index, due_ms, first_ms=due_ms + 80, last_ms=due_ms + 140, tokens=4)
        requests.append(row)
    return requests


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Points at 10/s (two repeats) and 20/s (not valid) of d0, at 5/s and 10/s (failed) of d1."""
    folder = tmp_path_factory.mktemp("results")
    store = Store.open(str(folder), "quickstart")
    for name, devices in (("d0", 1), ("d1", 2)):
        label = f"vllm tensor_parallel_size={devices} quantization=fp8_per_tensor"
        commit_launch(store, f"L{name}", deployment_row(name, label=label, devices=devices))
    gaps = events({index: [20] * 3 for index in range(100) if not is_refused(index)})
    for repeat in (0, 1):
        commit_measurement(
            store,
            f"m{repeat}",
            rows(10),
            token_events=gaps,
            repeat=repeat,
            point_id="p0",
            level=10.0,
            deployment_id="d0",
        )
    commit_measurement(
        store,
        "m2",
        rows(20),
        point_id="p1",
        level=20.0,
        deployment_id="d0",
        validity="client_bound",
        validity_reasons=["p99 of sent - scheduled was 40 ms"],
    )
    commit_measurement(
        store, "m3", rows(5), point_id="p2", level=5.0, deployment_id="d1", emulated=True
    )
    commit_measurement(
        store,
        "m4",
        point_id="p3",
        level=10.0,
        deployment_id="d1",
        status="failed",
        reason=SENTENCE,
        failure_class="bad_config",
    )
    return str(folder)


def run(*argv: str, status: int = 0) -> str:
    """What a command prints that ends with this exit status."""
    result = CliRunner().invoke(cli, argv, standalone_mode=False, catch_exceptions=False)
    assert result.return_value == status
    return result.stdout


def comparisons(*argv: str) -> list[dict[str, Any]]:
    """What ``best`` has in JSON."""
    document = json.loads(run("best", *argv, "--format", "json"))
    return list(document["comparisons"])


def test_json_has_one_object_per_point_failed_ones_too(uri: str) -> None:
    points = json.loads(run("results", uri, "--slo", SLO, "--format", "json"))
    assert [(point["level"], point["status"], point["validity"]) for point in points] == [
        (10, "ok", "valid"),
        (20, "ok", "client_bound"),
        (5, "ok", "valid"),
        (10, "failed", "valid"),
    ]
    first, failed = points[0], points[3]
    assert first["requests"] == {"scheduled": 200, "ok": 190, "failed": 10}
    assert first["errors"] == {"http_429": 10}
    assert first["ttft_ms"]["p99"] == pytest.approx(80)
    assert first["tpot_ms"]["mean"] == pytest.approx(20)
    assert first["itl_ms"]["p50"] == pytest.approx(20)
    assert first["slo"]["attainment"]["estimate"] == 0.95
    assert [repeat["repeat"] for repeat in first["repeats"]] == [0, 1]
    assert first["repeats"][0]["requests"]["scheduled"] == 100
    assert (failed["reason"], failed["failure_class"], failed["ttft_ms"]) == (
        SENTENCE,
        "bad_config",
        None,
    )
    assert points[2]["settings"] == {"engine": "vllm", "model": "m"}


def test_without_limits_no_verdict_is_given(uri: str) -> None:
    points = json.loads(run("results", uri, "--format", "json"))
    assert all("slo" not in point for point in points)


def test_csv_has_a_line_per_point_and_per_repeat_where_there_are_several(uri: str) -> None:
    lines = list(csv.DictReader(io.StringIO(run("results", uri, "--slo", SLO, "--format", "csv"))))
    assert [(line["row"], line["level"], line["repeat"]) for line in lines] == [
        ("point", "10.0", ""),
        ("repeat", "10.0", "0"),
        ("repeat", "10.0", "1"),
        ("point", "20.0", "0"),
        ("point", "5.0", "0"),
        ("point", "10.0", "0"),
    ]
    assert float(lines[1]["ttft_ms.p50"]) == pytest.approx(80)
    assert lines[1]["label"] == "vllm tensor_parallel_size=1 quantization=fp8_per_tensor"
    assert lines[-1]["reason"] == SENTENCE


def test_what_a_server_said_neither_steers_a_terminal_nor_is_a_formula(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    commit_measurement(
        store,
        "m0",
        status="failed",
        reason="=cmd|'/c calc'!A1 \x1b[2J\x1b]0;PWNED\x07 \u202e",
        point_id="p0",
    )
    shown = run("results", str(tmp_path))
    assert "\\x1b[2J\\x1b]0;PWNED\\x07 \\u202e" in shown
    assert not set(shown) & {"\x1b", "\x07", "\u202e"}
    (line,) = csv.DictReader(io.StringIO(run("results", str(tmp_path), "--format", "csv")))
    assert line["reason"].startswith("'=cmd")
    assert "\x1b" not in line["reason"]


def test_the_table_fits_120_columns_and_lists_failures_and_doubts_below(uri: str) -> None:
    text = run("results", uri, "--slo", SLO)
    assert max(map(len, text.splitlines())) <= 120
    for cell in ("client_bound", "TTFT ms", "✓", "80.0*"):
        assert cell in text
    assert f"chat of exp: m on h100 under {SLO}" in text
    assert (
        "failed: vllm tensor_parallel_size=2 quantization=fp8_per_tensor, chat, at 10 req/s\n"
        f"  {SENTENCE}"
    ) in text
    assert "p99 of sent - scheduled was 40 ms" in text
    assert "3 points measured, 1 failed" in text


def test_best_names_the_winner_and_why_the_others_are_not_it(uri: str) -> None:
    text = run("best", uri, "--slo", SLO)
    assert (
        "best: vllm tensor_parallel_size=1 quantization=fp8_per_tensor at 10 req/s"
        " (not the limit): 38.0 output tokens/s per GPU (95 %: 37.5-38.5)"
    ) in text
    assert "left out: 1 level client_bound: " in text
    assert "left out: 1 level failed (" in text
    assert "one start, spread unknown" in text
    assert "to decide: starts: 2" in text
    measured, emulated = comparisons(uri, "--slo", SLO, "--per", "usd")
    assert measured["unit"] == "output tokens/USD"
    best = measured["ranking"][0]
    assert best["level"] == 10
    low, high = best["interval"]
    assert low < best["value"] < high
    # what was emulated is never in one ranking with what was measured
    assert measured["emulated"] is False
    assert emulated["emulated"] is True


def test_a_price_given_afterwards_counts(uri: str) -> None:
    options = (uri, "--slo", SLO, "--per", "usd")
    before = comparisons(*options)[0]["ranking"]
    after = comparisons(*options, "--price", "h100=7.2")[0]["ranking"]  # twice the stored price
    for deployment in after:
        assert deployment["usd_per_hour"] == 7.2 * deployment["devices"]
    assert after[0]["value"] == pytest.approx(before[0]["value"] / 2)


def test_best_says_so_when_nothing_holds_the_limits(uri: str) -> None:
    text = run("best", uri, "--slo", "ttft<=1ms")
    assert "no deployment holds ttft<=1ms,attainment>=0.95" in text
    assert "ttft p95 there: 80 ms, limit 1ms" in text
    assert comparisons(uri, "--slo", "ttft<=1ms")[0]["ranking"] == []


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (
            ["best", "{uri}", "--slo", "ttft<=500,colour<=1s"],
            2,
            ["with its unit", "unknown limit 'colour'", "2 problems"],
        ),
        (["best", "{uri}"], 2, ["--slo"]),
        (["best", "{uri}", "--slo", "interactive"], 2, ["unknown limit of the file 'interactive'"]),
        (
            ["best", "{uri}", "--slo", "ttft<=1s", "--price", "h100"],
            2,
            ["--price 'h100'", "h100=2.10"],
        ),
        (
            ["best", "{uri}", "--slo", "ttft<=1s", "--price", "H100=2"],
            2,
            ["'H100'; did you mean 'h100'?"],
        ),
        (
            ["best", "{uri}", "--slo", "ttft<=1s", "--experiment", "other"],
            2,
            ["no experiment 'other'", "quickstart"],
        ),
        (["results", "{uri}/nothing"], 2, ["no results at"]),
        (["logs", "{uri}", "nobody"], 2, ["no launch", "'nobody'"]),
        (["logs", "{uri}"], 0, ["no launch failed", "DEPLOYMENT"]),
        (["verify", "{uri}/nothing"], 2, ["no results at"]),
        (["results", "s3://key:hunter2@bucket/p"], 2, ["holds credentials"]),
    ],
)
def test_bad_input_and_nothing_to_print_have_an_exit_status_and_a_sentence(
    uri: str, argv: list[str], status: int, words: list[str]
) -> None:
    command = [sys.executable, "-m", "orchestrator", *(word.format(uri=uri) for word in argv)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert all(word in done.stderr for word in words)
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("command", ["results", "best"])
def test_help_shows_examples(command: str) -> None:
    assert f"orchestrator {command} results/" in run(command, "--help")


def documented_query(title: str) -> str:
    pages = [ROOT / "docs" / "guides" / "sql.md", ROOT / "docs" / "reference" / "data-format.md"]
    text = "\n".join(page.read_text() for page in pages)
    found = re.search(rf"{re.escape(title)}.*?```sql\n(.*?)```", text, re.DOTALL)
    assert found, f"{pages} have no SQL below {title!r}"
    return found[1]


def test_duckdb_reads_what_counts_with_the_documented_query(uri: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"SET file_search_path = '{uri}/quickstart'")
        connection.execute(documented_query("### DuckDB"))
        counted = connection.sql(
            "SELECT measurement_id, count(*) FROM requests GROUP BY 1 ORDER BY 1"
        ).fetchall()
        assert counted == [("m0", 100), ("m1", 100), ("m2", 200), ("m3", 50)]
        ttft = connection.execute(documented_query("### p99 of TTFT")).fetchall()
        assert {(measurement, round(p99, 3)) for measurement, p99 in ttft} == {
            (f"m{n}", 80.0) for n in range(4)
        }
        gaps = connection.sql(
            "SELECT sum(len(gaps_us)), list_max(flatten(list(gaps_us))) FROM token_events"
        ).fetchall()
        # two repeats with 95 answers of 4 tokens
        assert gaps == [(2 * 95 * 3, 20_000)]


def test_duckdb_counts_tokens_by_their_times_as_results_does(uri: str) -> None:
    expected: list[float] = []
    for point in json.loads(run("results", uri, "--format", "json")):
        expected += [
            repeat["output_token_throughput"]
            for repeat in point["repeats"]
            if repeat["throughput_basis"] == "chunk_times"
        ]
    with duckdb.connect() as connection:
        connection.execute(f"SET file_search_path = '{uri}/quickstart'")
        connection.execute(documented_query("### DuckDB"))
        counted = connection.execute(documented_query("### Output tokens/s per")).fetchall()
    assert len(expected) == 2
    assert sorted(throughput for _, throughput in counted) == pytest.approx(sorted(expected))


def test_duckdb_reads_what_was_computed_with_the_documented_query(uri: str) -> None:
    points = json.loads(run("results", uri, "--format", "json"))
    expected: list[tuple[Any, ...]] = []
    for point in points:
        for repeat in point["repeats"]:
            ttft_ms = repeat["ttft_ms"]
            p99_ms = None if ttft_ms is None else ttft_ms["p99"]
            throughput = repeat["output_token_throughput"]
            expected.append((point["workload"], point["level"], throughput, p99_ms))
    with duckdb.connect() as connection:
        connection.execute(f"SET file_search_path = '{uri}/quickstart'")
        computed = connection.execute(documented_query("## What is computed")).fetchall()
    # as texts, since None cannot be sorted among numbers; the first column is the deployment
    assert sorted(str(row[1:]) for row in computed) == sorted(map(str, expected))


def commit_launch_row(store: Store, launch_id: str, **columns: Any) -> None:
    """Commits a launch with these columns, and its deployment with what was predicted of it."""
    launch = {
        "launch_id": launch_id,
        "experiment": "exp",
        "deployment_id": "d0",
        "started_unix_ns": 1,
        "argv_json": '["--never-shown"]',
        "emulated": False,
        "simulated": False,
    }
    predicted = {"weight_bytes": 990 << 20, "kv_cache_tokens": 105_000, "max_concurrency": 2.0}
    deployment = deployment_row(
        "d0",
        label="vllm version=0.31",
        engine_version="0.31",
        predicted_json=json.dumps(predicted),
    )
    ids = {"measurement_id": launch_id, "attempt_id": launch_id}
    files: list[FilePart] = []
    for name, row in (("deployments", deployment), ("launches", launch | columns)):
        files.append(store.write_part(name, table(name, [row]), writer="driver", **ids))
    manifest = Manifest(
        kind="launch",
        status="ok",
        created_unix_ns=1,
        files=tuple(files),
        launch_id=launch_id,
        **ids,
    )
    store.commit(manifest)


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A launch that served, and one that failed."""
    folder = tmp_path_factory.mktemp("launches")
    store = Store.open(str(folder), "exp")
    reported = {"weight_bytes": 1000 << 20, "kv_cache_tokens": 100_000}
    commit_launch_row(
        store,
        "L0",
        status="ok",
        ready_s=12.5,
        engine_version="0.32.0",
        engine_reported_json=json.dumps(reported),
    )
    commit_launch_row(
        store,
        "L1",
        status="failed",
        reason=SENTENCE,
        failure_class="bad_config",
        log_uri="exp/logs/L1/rank0.log",
    )
    return str(folder)


def test_launches_show_what_was_predicted_beside_what_was_reported(launches: str) -> None:
    text = run("results", launches, "--launches")
    for words in (
        "990.0 MiB",
        "1000.0 MiB",
        "-1.0 %",
        "105,000",
        "100,000",
        "+5.0 %",
        "12.5",
        "(asked 0.31)",
    ):
        assert words in text
    assert f"failed: vllm version=0.31: {SENTENCE} (bad_config)" in text
    assert "launches: 1 served, 1 failed" in text
    assert "never-shown" not in text
    assert max(map(len, text.partition("failed:")[0].splitlines())) <= 120


def test_logs_prints_the_stored_log_of_failed_launches_and_of_a_deployment(launches: str) -> None:
    log = "".join(f"line {number}\n" for number in range(60)) + "\x1b[2Jlast\n"
    Store.open(launches, "exp").write_log("L1/rank0.log", log.encode())
    text = run("logs", launches)
    assert SENTENCE in text
    # the last 50 lines
    assert "line 11\n" in text
    assert "line 10\n" not in text
    assert "\\x1b[2Jlast" in text
    assert "served" not in text
    both = run("logs", launches, "version=0.31", "--lines", "0")
    assert "served" in both
    assert "line 0\n" in both


def test_verify_says_which_file_is_damaged_and_answers_go_on_without_it(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    file = commit_measurement(store, "m0", rows(10), point_id="p0").files[1]
    commit_measurement(store, "m1", rows(5), point_id="p1", level=5.0)
    assert ", 0 damaged" in run("verify", str(tmp_path))
    (tmp_path / "exp" / file.path).write_bytes(b"PAR1")
    problem = f"exp/{file.path}: 4 bytes; its manifest says {file.bytes}"
    assert problem in run("verify", str(tmp_path), status=3)
    points = json.loads(run("results", str(tmp_path), "--format", "json", status=3))
    assert [point["level"] for point in points] == [5]


def test_launches_are_json_and_csv_too(launches: str) -> None:
    first, second = json.loads(run("results", launches, "--launches", "--format", "json"))
    assert first["figures"]["kv_cache_tokens"]["difference_percent"] == pytest.approx(5)
    assert (second["status"], second["failure_class"]) == ("failed", "bad_config")
    lines = list(
        csv.DictReader(io.StringIO(run("results", launches, "--launches", "--format", "csv")))
    )
    assert lines[0]["figures.weight_bytes.predicted"] == str(990 << 20)
    assert [line["status"] for line in lines] == ["ok", "failed"]


def test_limits_are_refused_for_launches(launches: str) -> None:
    with pytest.raises(click.UsageError, match="--slo is about points"):
        run("results", launches, "--launches", "--slo", SLO)
