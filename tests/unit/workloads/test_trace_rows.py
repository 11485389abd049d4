"""Which rows of a trace are sent, in which sessions, and what is counted as left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import ProblemsError
from tests.unit.workloads import traces
from tests.unit.workloads.traces import lines, rows


def test_failed_requests_are_left_out_and_counted(tmp_path: Path) -> None:
    read = rows(tmp_path / "t.csv", traces.BURSTGPT_1)
    assert read.rows.tolist() == [1, 2, 3]
    assert read.left_out == (("without tokens (a failed request)", 1),)
    assert read.total == 4


def test_a_window_begins_at_the_first_row_of_the_file(tmp_path: Path) -> None:
    read = rows(tmp_path / "t.csv", traces.BURSTGPT_1, window=["30s", "113s"])
    assert read.rows.tolist() == [2]
    assert read.left_out == (("outside the window", 3),)


def test_rows_before_the_first_of_the_file_are_counted_as_such(tmp_path: Path) -> None:
    text = "at,in,out\n5,1,1\n9,2,1\n1,3,1\n6,4,1\n"
    columns = {"time": "at", "input_tokens": "in", "output_tokens": "out"}
    read = rows(tmp_path / "t", text, columns=columns, unit="s", window=["0s", "3s"])
    assert read.inputs.tolist() == [1, 4]
    assert read.left_out == (
        ("before the first row of the file, from which the window counts", 1),
        ("outside the window", 1),
    )


def test_rows_are_filtered_by_values_and_by_lengths(tmp_path: Path) -> None:
    read = rows(tmp_path / "t.csv", traces.BURSTGPT_1, where={"Model": ["ChatGPT"]})
    assert read.rows.tolist() == [1, 2]
    read = rows(tmp_path / "t.csv", traces.BURSTGPT_1, keep={"input_tokens": [400, 500]})
    assert read.rows.tolist() == [1, 3]
    assert dict(read.left_out)["of other lengths"] == 1
    read = rows(tmp_path / "t.csv", traces.BURSTGPT_1, keep={"total_tokens": [1, 600]})
    assert read.rows.tolist() == [1]


def test_nothing_to_send_is_a_problem_with_its_reasons(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="has no row to send: 4 not of the wanted values"):
        rows(tmp_path / "t.csv", traces.BURSTGPT_1, where={"Model": "Llama"})


def test_images_need_sizes_or_rows_without_them(tmp_path: Path) -> None:
    remedies = (
        r"images \(3 from row 1 on\).*give the workload images: .* or where: \{NumImages: 0\}"
    )
    with pytest.raises(ProblemsError, match=remedies):
        rows(tmp_path / "t.csv", traces.AZURE_2025)
    without = rows(tmp_path / "t.csv", traces.AZURE_2025, where={"NumImages": 0})
    assert without.inputs.tolist() == [100, 300]
    assert without.left_out == (("not of the wanted values", 3),)
    read = rows(tmp_path / "t.csv", traces.AZURE_2025, **traces.PICTURES)
    assert read.images is not None
    assert read.images.tolist() == [0, 3, 0, 1]
    assert read.inputs.tolist() == [100, 4000, 300, 150]
    assert read.left_out == (("with more than 100 images", 1),)
    fewer = traces.AZURE_2025.replace("Z,3,", "Z,2,")
    assert rows(tmp_path / "t.csv", fewer, **traces.PICTURES).digest != read.digest
    with pytest.raises(ProblemsError, match="does not count images: leave 'images' out"):
        rows(tmp_path / "t.csv", traces.AZURE_2024, **traces.PICTURES)


def test_sessions_keep_their_order_and_pauses_begin_when_answers_end(tmp_path: Path) -> None:
    read = rows(tmp_path / "t.csv", traces.BURSTGPT_2)
    assert read.first_request.tolist() == [0, 2, 3]
    assert read.rows.tolist() == [1, 3, 2]
    assert read.starts_ns is not None and read.pauses_s is not None
    assert read.starts_ns.tolist() == [0, 1_500_000_000]
    assert read.pauses_s.tolist() == [0.0, 20.5, 0.0]
    cut = rows(tmp_path / "t.csv", traces.BURSTGPT_2, longest_pause="10s")
    assert cut.pauses_s is not None
    assert cut.pauses_s.tolist() == [0.0, 10.0, 0.0]
    assert cut.cut_pauses == 1


def test_sessions_stay_together_where_nobody_recorded_how_long_answers_took(
    tmp_path: Path,
) -> None:
    text = (
        "Timestamp,Session ID,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5.5,17,GPT-4,100,20,120,Conversation log\n"
        "7,18,ChatGPT,50,10,60,Conversation log\n"
        "29.5,17,GPT-4,140,30,170,Conversation log\n"
    )
    read = rows(tmp_path / "t.csv", text)
    assert read.format.name == "burstgpt"
    assert read.rows.tolist() == [1, 3, 2]
    assert read.first_request.tolist() == [0, 2, 3]
    assert read.pauses_s is None
    assert read.offsets_ns is not None
    assert read.offsets_ns.tolist() == [0, 24_000_000_000, 0]
    assert "Session ID" not in read.unused


def test_a_chat_is_its_own_and_its_descendants(tmp_path: Path) -> None:
    read = rows(tmp_path / "t.jsonl", traces.BAILIAN)
    assert read.first_request.tolist() == [0, 2, 3]
    assert read.rows.tolist() == [1, 3, 2]
    assert read.offsets_ns is not None
    assert read.offsets_ns.tolist() == [0, 28_500_000_000, 0]


def test_without_the_ends_of_answers_the_longest_pause_cuts_times_between_requests(
    tmp_path: Path,
) -> None:
    text = "at,in,out,user\n0,1,1,a\n50,2,1,b\n60,3,1,a\n64,4,1,a\n"
    columns = {"time": "at", "input_tokens": "in", "output_tokens": "out", "session": "user"}
    read = rows(tmp_path / "t.csv", text, columns=columns, unit="s", longest_pause="10s")
    assert read.offsets_ns is not None and read.starts_ns is not None
    assert read.offsets_ns.tolist() == [0, 10_000_000_000, 14_000_000_000, 0]
    assert read.starts_ns.tolist() == [0, 50_000_000_000]
    assert read.cut_pauses == 1
    del columns["time"]
    with pytest.raises(ProblemsError, match="has no times, so it has no pauses"):
        rows(tmp_path / "t.csv", text, columns=columns, longest_pause="10s")
    with pytest.raises(ProblemsError, match="has no sessions, so it has no pauses: leave 'longest"):
        rows(tmp_path / "t.jsonl", traces.MOONCAKE, longest_pause="10s")


@pytest.mark.parametrize(
    ("parents", "sessions"),
    [([-1, 1, 2, 3], 1), ([-1, -1, 1, 2], 2), ([9, 1, 2, 9], 2), ([2, 1, 1, 3], 1)],
)
def test_chats_are_found_over_any_number_of_parents(
    tmp_path: Path, parents: list[int], sessions: int
) -> None:
    chats = [
        {
            "chat_id": number,
            "parent_chat_id": parent,
            "timestamp": float(number),
            "input_length": 16,
            "output_length": 1,
            "hash_ids": [number],
        }
        for number, parent in enumerate(parents, start=1)
    ]
    assert rows(tmp_path / "t.jsonl", lines(*chats)).sessions == sessions


def test_an_agent_has_its_subagents_beside_it_and_waits_only_between_answers(
    tmp_path: Path,
) -> None:
    read = rows(tmp_path / "t.jsonl", traces.WEKA)
    assert read.starts_ns is None, "its sessions say no start"
    assert read.first_request.tolist() == [0, 3, 4, 5]
    assert read.inputs.tolist() == [130, 256, 300, 64, 128]
    assert read.subagents == 1
    assert read.pauses_s is not None
    assert read.pauses_s.tolist() == [0.0, 2.5, 60.0, 0.0, 0.0]
    assert read.local_blocks
    assert read.block_tokens == 64
    with pytest.raises(ProblemsError, match="no start of its sessions"):
        rows(tmp_path / "t.jsonl", traces.WEKA, window=["0s", "9s"])


def test_what_an_agents_request_may_leave_out_is_absent_and_other_scopes_are_refused(
    tmp_path: Path,
) -> None:
    bare = {"t": 0.0, "type": "s", "in": 300, "out": 3}
    later = {**bare, "t": 9.0, "api_time": None, "hash_ids": None}
    session = {"id": "a", "block_size": 64, "requests": [bare, later]}
    read = rows(tmp_path / "t.jsonl", lines(session))
    assert read.pauses_s is not None and read.blocks is not None
    assert (read.pauses_s.tolist(), read.blocks.tolist()) == ([0.0, 0.0], [])
    with pytest.raises(ProblemsError, match="hash_id_scope is 'weird'; give local or global"):
        rows(tmp_path / "t.jsonl", lines({**session, "hash_id_scope": "weird"}))


def test_what_tools_took_is_a_pause_where_either_time_is_recorded(tmp_path: Path) -> None:
    read = rows(tmp_path / "t.jsonl", traces.WEKA_THINK_TIMES)
    assert read.pauses_s is not None
    # its own think time; the end of the answer before, which goes before it; neither; first of all
    assert read.pauses_s.tolist() == [0.0, 1.5, 3.0, 0.0, 0.0, 0.25]
    assert read.unknown_pauses == 1
    cut = rows(tmp_path / "t.jsonl", traces.WEKA_THINK_TIMES, longest_pause="2s")
    assert cut.pauses_s is not None
    assert (cut.pauses_s.tolist(), cut.cut_pauses) == ([0.0, 1.5, 2.0, 0.0, 0.0, 0.25], 1)
    wrong = traces.WEKA_THINK_TIMES.replace('"think_time": 1.5', '"think_time": -1.5')
    with pytest.raises(ProblemsError, match=r"row 1, request 2: think_time is -1\.5; give a"):
        rows(tmp_path / "w.jsonl", wrong)


def test_keys_of_agents_requests_that_change_nothing_are_named(tmp_path: Path) -> None:
    assert rows(tmp_path / "all.jsonl", traces.WEKA).unused == ("model", "stop")
    of_one_model = rows(tmp_path / "one.jsonl", traces.WEKA, where={"model": "m"})
    assert of_one_model.unused == ("stop",)


def test_the_requests_of_one_stamp_are_spread_evenly(tmp_path: Path) -> None:
    read = rows(tmp_path / "t.jsonl", traces.MOONCAKE, spread="3s")
    assert read.starts_ns is not None
    assert read.starts_ns.tolist() == [0, 3_000_000_000, 4_500_000_000]
    assert read.distinct_times == 2


def test_rows_out_of_order_are_sent_in_the_order_of_their_times(tmp_path: Path) -> None:
    head, first, second, *others = traces.BURSTGPT_1.splitlines(keepends=True)
    read = rows(tmp_path / "t.csv", "".join([head, second, first, *others]))
    assert read.rows.tolist() == [2, 1, 3]


def test_keys_that_only_later_lines_have_are_named(tmp_path: Path) -> None:
    row = {"at": 1, "in": 5, "out": 2}
    text = lines(row, {**row, "temperature": 0.5}, {**row, "tools": []})
    columns = {"time": "at", "input_tokens": "in", "output_tokens": "out"}
    read = rows(tmp_path / "t.jsonl", text, columns=columns, unit="s")
    assert read.unused == ("temperature", "tools")
    first_only = {"id": "t0", "block_size": 64, "hash_id_scope": "local", "requests": []}
    sessions = lines(first_only) + traces.WEKA + lines({**first_only, "tier": "paid"})
    assert "tier" in rows(tmp_path / "w.jsonl", sessions).unused
