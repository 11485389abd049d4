"""A mix from the experiment file to the rows, the figures and the page, against the emulator."""

from __future__ import annotations

import json
from pathlib import Path

from tests.harness import orchestrator, rows
from tests.integration.test_emulator_server import serving
from tests.unit.cli.commands import invoke

WORKLOADS = """\
version: 1
name: mixed
model: m
deployments: {engine: emulator}
load: {levels: {concurrency: [1]}}
workloads:
  - {name: chat, kind: conversations, turns: 2, input_tokens: 20, output_tokens: 4}
  - {name: rag, shared_prefix_tokens: 32, input_tokens: 200, output_tokens: 12}
  - {name: log, kind: trace, trace: log.csv, unit: s, columns: {time: at, input_tokens: prompt, output_tokens: answer}}
  - {name: office, kind: mix, parts: [{workload: chat}, {workload: rag}, {workload: log}]}
"""
LOG = "at,prompt,answer\n0,30,6\n1,31,6\n"
SLO = "chat:ttft<=60s,rag:e2e<=1us,rag:attainment>=0.5,attainment>=0.9"


def test_a_mix_is_sent_judged_and_shown_by_part(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(WORKLOADS)
    (tmp_path / "log.csv").write_text(LOG)
    results = tmp_path / "results"
    with serving(tmp_path) as server:
        model = json.loads(server.get("/v1/models")[1])["data"][0]["id"]
        command = (
            *("load", f"http://127.0.0.1:{server.port}", "--model", model),
            *("--workload", f"{file}:office", "--concurrency", "4", "--requests", "60"),
            *("--slo", SLO, "--results", str(results), "--seed", "3", "--format", "json"),
        )
        of_one = orchestrator(*command, "--clients", "1", "--name", "one")
        of_three = orchestrator(*command, "--clients", "3", "--name", "three")
    assert of_one.returncode == of_three.returncode == 0, of_one.stderr + of_three.stderr

    sent = {
        name: {
            (row["request_index"], row["part"], row["session"], row["input_tokens_asked"])
            for row in rows(results / name, "requests")
            if row["turn"] == 0
        }
        for name in ("one", "three")
    }
    assert sent["one"] == sent["three"], "the same for any number of clients"
    assert {(part, tokens) for _, part, _, tokens in sent["one"]} == {
        ("chat", 20),
        ("rag", 232),
        ("log", 30),
        ("log", 31),
    }
    of_log = [tokens for _, part, _, tokens in sorted(sent["one"]) if part == "log"]
    assert of_log == ([30, 31] * len(of_log))[: len(of_log)], "a trace keeps its order"

    document = json.loads(of_one.stdout)
    chat, log, rag = document["parts"]
    by_part = [part["requests"]["ok"] for part in (chat, log, rag)]
    assert sum(by_part) == document["requests"]["ok"] == 60
    assert chat["output_tokens"]["max"] == 4 and rag["output_tokens"]["min"] == 12
    assert [part["slo"]["met"] for part in (chat, rag)] == [True, False]
    assert document["slo"]["met"] is False, "it holds only where it holds for every part"

    shown = orchestrator("results", str(results))
    assert "by part" in shown.stdout and "rag:attainment" in shown.stdout
    points = json.loads(orchestrator("results", str(results), "--format", "json").stdout)
    assert [[part["part"] for part in point["parts"]] for point in points] == [
        ["chat", "log", "rag"]
    ] * 2
    assert (
        orchestrator("report", str(results), "--output", str(tmp_path / "page.html")).returncode
        == 0
    )
    assert "Parts of mixes" in (tmp_path / "page.html").read_text()


PRICED = """\
version: 1
name: priced
model: meta-llama/Llama-3.1-8B-Instruct
hardware: {h100: {accelerator: H100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 2.99}}
deployments: {engine: vllm, hardware: h100, max_model_len: 4096}
load: {levels: {concurrency: [2]}, requests: 40}
workloads:
  - {name: short, input_tokens: 20, output_tokens: 4}
  - {name: long, input_tokens: 200, output_tokens: 12}
"""
MIX = "  - {name: office, kind: mix, parts: [{workload: short}, {workload: long}]}\n"
NO_PARTS_OF_PRICES = "Joules and USD are those of the whole mix"


def test_the_page_says_that_prices_of_a_mix_have_no_parts(tmp_path: Path) -> None:
    for name, workloads, says_so in (("mixed", MIX, True), ("plain", "", False)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(PRICED + workloads)
        done = invoke("simulate", str(file), "--results", str(tmp_path / name))
        assert done.status == 0, done.stderr
        page = (tmp_path / name / "priced" / "report.html").read_text()
        assert "USD per million output tokens" in page
        assert (NO_PARTS_OF_PRICES in page) == says_so
