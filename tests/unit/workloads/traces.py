"""Small traces, written by hand to the published descriptions of their columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.workloads.trace import TraceWorkload
from orchestrator.workloads.trace_rows import TraceRows

AZURE_2023 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:15:51.2224670,879,55"  # no newline at the end
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-12 00:00:00.009930+00:00,2100,5\n"
    "2024-05-12 00:00:01+00:00,1200,7\n"
    "2024-05-12 00:00:01.500000+00:00,90,1\n"
)
AZURE_2025 = (
    "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
    "2024-10-15T12:00:00.269Z,0,100,5\n"
    "2024-10-15T12:00:05.819Z,3,4000,7\n"
    "2024-10-15T12:00:06.513Z,101,900,7\n"
    "2024-10-15T12:00:07.332Z,0,300,9\n"
    "2024-10-15T12:00:07.566Z,1,150,2\n"
)
PICTURES: dict[str, Any] = {"api": "chat", "images": {"sizes": ["16x16", "32x16"], "distinct": 4}}
BURSTGPT_1 = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,ChatGPT,1087,230,1317,Conversation log\n"
    "118,GPT-4,417,276,693,API log\n"
    "119,GPT-4,30,0,30,API log\n"
)
BURSTGPT_2 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5.5,17,3.5,GPT-4,100,20,120,Conversation log\n"
    "7,18,1,ChatGPT,50,10,60,Conversation log\n"
    "29.5,17,2,GPT-4,140,30,170,Conversation log\n"
)


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


MOONCAKE = lines(
    {"timestamp": 0, "input_length": 1300, "output_length": 52, "hash_ids": [0, 7, 8]},
    {"timestamp": 3000, "input_length": 600, "output_length": 3, "hash_ids": [0, 9]},
    {"timestamp": 3000, "input_length": 1200, "output_length": 9, "hash_ids": [0, 7, 4]},
)
BAILIAN = lines(
    {
        "chat_id": 159,
        "parent_chat_id": -1,
        "timestamp": 61.5,
        "input_length": 40,
        "output_length": 12,
        "type": "text",
        "turn": 1,
        "hash_ids": [5, 6, 9],
    },
    {
        "chat_id": 160,
        "parent_chat_id": -1,
        "timestamp": 63.0,
        "input_length": 16,
        "output_length": 4,
        "type": "search",
        "turn": 1,
        "hash_ids": [5],
    },
    {
        "chat_id": 161,
        "parent_chat_id": 159,
        "timestamp": 90.0,
        "input_length": 70,
        "output_length": 8,
        "type": "text",
        "turn": 2,
        "hash_ids": [5, 6, 9, 10, 11],
    },
)
WEKA = lines(
    {
        "id": "t1",
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [
            {
                "t": 0.0,
                "type": "n",
                "model": "m",
                "in": 130,
                "out": 12,
                "hash_ids": [1, 2],
                "stop": "tool_use",
                "api_time": 4.0,
            },
            {
                "type": "subagent",
                "requests": [
                    {"t": 4.5, "type": "n", "in": 64, "out": 5, "hash_ids": [1], "think_time": 0.2}
                ],
            },
            {"t": 6.5, "type": "n", "in": 256, "out": 9, "hash_ids": [1, 2, 3, 4], "api_time": 1.0},
            {"t": 67.5, "type": "n", "in": 300, "out": 2, "hash_ids": [1, 2, 3, 4]},
        ],
    },
    {
        "id": "t2",
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [{"t": 0.0, "type": "n", "in": 128, "out": 1, "hash_ids": [1, 2]}],
    },
)


def trace(path: Path, text: str | bytes, **keys: Any) -> TraceWorkload:
    """A workload of a file with this text."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return TraceWorkload.model_validate({"name": "w", "kind": "trace", "trace": str(path), **keys})


def rows(path: Path, text: str | bytes, **keys: Any) -> TraceRows:
    return trace(path, text, **keys).rows()


# Requests that say what client and tools took before them, not all of them how long answers took.
WEKA_THINK_TIMES = lines(
    {
        "id": "t1",
        "block_size": 64,
        "requests": [
            {"t": 0.0, "type": "s", "in": 64, "out": 5, "hash_ids": [1], "think_time": 9.0},
            {
                "t": 4.0,
                "type": "s",
                "in": 70,
                "out": 5,
                "hash_ids": [1],
                "api_time": 2.0,
                "think_time": 1.5,
            },
            {"t": 9.0, "type": "s", "in": 80, "out": 5, "hash_ids": [1], "think_time": 0.1},
            {"t": 12.0, "type": "s", "in": 90, "out": 5, "hash_ids": [1]},
            {
                "t": 12.5,
                "type": "subagent",
                "requests": [
                    {
                        "t": 12.5,
                        "type": "s",
                        "in": 64,
                        "out": 5,
                        "hash_ids": [1],
                        "think_time": 0.5,
                    },
                    {
                        "t": 15.0,
                        "type": "s",
                        "in": 65,
                        "out": 5,
                        "hash_ids": [1],
                        "think_time": 0.25,
                    },
                ],
            },
        ],
    },
)
