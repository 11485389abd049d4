"""Adapters and images from the command line to the rows, against the emulator."""

from __future__ import annotations

import json
from pathlib import Path

from tests.harness import orchestrator, rows
from tests.integration.test_emulator_server import serving


def test_adapters_and_images_reach_the_server_and_stand_in_the_rows(tmp_path: Path) -> None:
    adapters = {"sql": "/a", "law": "/b"}
    with serving(tmp_path, lora_modules=adapters) as server:
        models = json.loads(server.get("/v1/models")[1])["data"]
        assert [model["id"] for model in models[1:]] == ["sql", "law"]
        done = orchestrator(
            *(
                "load",
                f"http://127.0.0.1:{server.port}",
            ),  # its model is the only one without --adapter
            *("--api", "chat", "--concurrency", "4", "--requests", "40", "--input-tokens", "20"),
            *(
                "--output-tokens",
                "8",
                "--images",
                "2@56x28",
                "--adapter",
                "sql",
                "--adapter",
                "law",
            ),
            *("--adapter", "gone", "--results", str(tmp_path / "results"), "--seed", "1"),
        )
        assert done.returncode == 3, done.stdout + done.stderr
    requests = rows(tmp_path / "results", "requests")
    answered = [row for row in requests if row["status"] == "ok"]
    assert {row["adapter"] for row in answered} == {"sql", "law"}
    assert {row["images"] for row in requests} == {2}
    assert {row["input_tokens_asked"] for row in requests} == {0}
    # two pictures of two tokens, which 20 words and the template come before or after
    assert all(24 <= row["input_tokens"] <= 60 for row in answered)
    assert all(row["body_bytes"] > 400 for row in requests)
    assert {row["error_class"] for row in requests if row["adapter"] == "gone"} == {"http_4xx"}
    assert "2 adapters, 100% of answers" in done.stdout
    assert "adapter gone did not answer fixed prompts" in done.stdout
    (point,) = rows(tmp_path / "results", "points")
    assert (point["adapter_share"], point["adapters_asked"]) == (1.0, 2)
