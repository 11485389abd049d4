"""Requests of traces: equal blocks are equal tokens, and a rate is reached without breaking
sessions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.load.schedule import Schedule, kind_of
from orchestrator.spec.load import Arrivals, Level
from orchestrator.workloads import trace_reader
from orchestrator.workloads.content import RandomIds
from orchestrator.workloads.kind import IdRange
from orchestrator.workloads.reuse import Reuse, reuse_of
from orchestrator.workloads.trace import TraceRequests, TraceWorkload
from tests.unit.load.test_schedule import point
from tests.unit.workloads import traces
from tests.unit.workloads.traces import trace

IDS = RandomIds(IdRange(1000, 2000))


def ids(requests: TraceRequests, session: int, turn: int = 0) -> list[int]:
    flat = requests.prompt(session, turn, "measure", ()).flat()
    assert isinstance(flat, np.ndarray)
    values: list[int] = flat.tolist()
    return values


def at_rate(workload: TraceWorkload, rate: float, scale: str) -> TraceRequests:
    level = Level(control="request_rate", value=rate)
    arrivals = Arrivals.model_validate({"process": "trace", "scale": scale})
    return workload.requests(IDS, 7).at_level(level, arrivals)


def many(tmp_path: Path, count: int = 2000) -> TraceWorkload:
    """A trace of one request/s on average, in sessions of one to three requests."""
    rng = np.random.default_rng(5)
    times = np.sort(rng.uniform(0, count, count))
    head = traces.BURSTGPT_2.partition("\n")[0]
    body = [
        f"{at!r},{number // 2},0.5,GPT-4,{rng.integers(1, 999)},9,0,x"
        for number, at in enumerate(times.tolist())
    ]
    return trace(tmp_path / "many.csv", "\n".join([head, *body]))


def test_requests_have_as_many_images_as_the_trace_counts(tmp_path: Path) -> None:
    workload = trace(tmp_path / "t.csv", traces.AZURE_2025, **traces.PICTURES)
    assert workload.sends_images()
    assert workload.token_bounds() == (105, None)
    assert workload.longer_prompts(50) == 1.0
    assert workload.longer_prompts(9000) is None, "nobody knows how many tokens images have"
    requests = at_rate(workload, 0.1, "stretch")  # the images stay when the rate is another
    prompts = [requests.prompt(session, 0, "measure", ()) for session in range(4)]
    assert [prompt.images for prompt in prompts] == [0, 3, 0, 1]
    assert [prompt.tokens for prompt in prompts] == [100, 0, 300, 0]
    assert [requests.input_tokens(session, 0) for session in range(4)] == [100, 0, 300, 0]
    assert requests.warmup_differs
    warmup = requests.prompt(1, 0, "warmup", ()).messages[0].images
    assert not set(warmup) & set(prompts[1].messages[0].images)
    again = trace(tmp_path / "t.csv", traces.AZURE_2025, **traces.PICTURES).requests(IDS, 7)
    repeated = again.prompt(1, 0, "measure", ()).messages[0].images
    assert repeated == prompts[1].messages[0].images


def test_images_of_a_trace_have_sizes_and_no_number_of_their_own(tmp_path: Path) -> None:
    pictures = traces.PICTURES["images"]
    for keys, problem in (
        ({"images": pictures}, "through the API chat"),
        ({"api": "chat", "images": pictures | {"count": 2}}, "the trace says how many images"),
    ):
        with pytest.raises(ValidationError, match=problem):
            trace(tmp_path / "t.csv", traces.AZURE_2025, **keys)


def test_equal_blocks_are_equal_tokens_up_to_a_shorter_last_one(tmp_path: Path) -> None:
    requests = trace(tmp_path / "t.jsonl", traces.MOONCAKE).requests(IDS, 7)
    first, second, third = (ids(requests, session) for session in range(3))
    assert [len(prompt) for prompt in (first, second, third)] == [1300, 600, 1200]
    assert first[:1024] == third[:1024]
    assert first[:512] == second[:512]
    assert first[512:600] != second[512:]
    assert first[1024:1200] != third[1024:]


def test_blocks_of_agents_are_those_of_their_row_with_its_subagents(tmp_path: Path) -> None:
    workload = trace(tmp_path / "t.jsonl", traces.WEKA)
    requests = workload.requests(IDS, 7)
    before, after = ids(requests, 0, 0), ids(requests, 0, 1)
    assert len(before) == 130 and len(after) == 256
    assert before[:128] == after[:128]
    assert before[128:] != after[128:130], "beyond the last whole block nothing is shared"
    assert ids(requests, 1) == before[:64], "a subagent begins as its agent does"
    assert ids(requests, 2)[:64] != before[:64]
    assert "1 session is a subagent" in workload.notes()
    hits = 128 + 256 + 48  # an engine computes the last block of a prompt in any case
    reuse = reuse_of(workload, 7, range(3))
    assert reuse.of_all == Reuse(prompt_tokens=130 + 256 + 300 + 64 + 128, cached_tokens=hits)
    apart = trace(tmp_path / "two.jsonl", traces.WEKA.replace('"local"', '"global"'))
    assert apart.identity() != workload.identity()


def test_agents_whose_pauses_are_not_recorded_are_noted_and_the_others_wait(
    tmp_path: Path,
) -> None:
    workload = trace(tmp_path / "t.jsonl", traces.WEKA_THINK_TIMES)
    (note,) = [note for note in workload.notes() if "at once" in note]
    assert note == (
        "1 request of agents follows the answer before at once: neither its 'api_time' nor their "
        "'think_time' is recorded"
    )
    kind = workload.requests(IDS, 7)
    assert [kind.pause_s(0, turn) for turn in range(4)] == [1.5, 3.0, 0.0, 0.0]
    assert not any("at once" in said for said in trace(tmp_path / "w", traces.WEKA).notes())


def test_a_second_round_has_the_lengths_of_the_first_and_other_tokens(tmp_path: Path) -> None:
    requests = trace(tmp_path / "t.jsonl", traces.MOONCAKE).requests(IDS, 7)
    assert [requests.input_tokens(session, 0) for session in range(6)] == [1300, 600, 1200] * 2
    assert ids(requests, 3)[:512] != ids(requests, 0)[:512]
    assert ids(requests, 3)[:512] == ids(requests, 4)[:512]


def test_stretching_keeps_the_gaps_in_proportion_and_reaches_the_rate(tmp_path: Path) -> None:
    workload = many(tmp_path)
    recorded = workload.recorded_rate()
    assert recorded == pytest.approx(1.0, rel=0.05)
    plain = workload.requests(IDS, 7).starts_s(None, 1000)
    stretched = at_rate(workload, 4.0, "stretch").starts_s(None, 1000)
    assert plain is not None and stretched is not None
    assert stretched == pytest.approx(plain * recorded / 4.0)
    schedule = scheduled(workload, 4.0, "stretch", duration_s=100.0)
    requests = sum(schedule.turns(session) for session in range(len(schedule.due_ns)))
    assert requests / 100.0 == pytest.approx(4.0, rel=0.15)


@pytest.mark.parametrize("scale", ["stretch", "thin"])
def test_points_may_begin_anywhere_in_a_trace_and_go_on_with_its_beginning(
    tmp_path: Path, scale: str
) -> None:
    """A trace whose first third has a tenth of its requests: ten minutes of it alone say little."""
    quiet = np.linspace(0, 3_000, 300, endpoint=False)
    busy = np.linspace(3_000, 9_000, 2_700, endpoint=False)
    times = [*quiet.tolist(), *busy.tolist()]
    head = traces.BURSTGPT_1.partition("\n")[0]
    body = [f"{at!r},x,{n + 1},1,0,y" for n, at in enumerate(times)]
    workload = trace(tmp_path / "t.csv", "\n".join([head, *body]))
    recorded = workload.recorded_rate()
    assert recorded is not None
    rate = recorded / 2
    level = Level(control="request_rate", value=rate)
    given = {"process": "trace", "scale": scale}
    anywhere = Arrivals.model_validate({**given, "begin": "anywhere"})
    counts: list[int] = []
    firsts: set[int] = set()
    for seed in range(200):
        requests = workload.requests(IDS, seed).at_level(level, anywhere)
        starts = requests.starts_s(600.0, None)
        assert starts is not None
        assert starts.min() == 0
        assert starts.max() < 600
        counts.append(len(starts))
        firsts.add(requests.source_row(0, 0))
    assert np.mean(counts) == pytest.approx(600 * rate, rel=0.1)
    assert len(firsts) > 100
    from_first = workload.requests(IDS, 3).at_level(level, Arrivals.model_validate(given))
    quiet_starts = from_first.starts_s(600.0, None)
    assert quiet_starts is not None and len(quiet_starts) < 100

    requests = workload.requests(IDS, 3).at_level(level, anywhere)
    some = requests.starts_s(None, 4_000)
    assert some is not None and len(some) == 4_000
    assert (np.diff(some) >= 0).all()
    sent = [requests.source_row(session, 0) for session in range(4_000)]
    per_round = len(set(sent))
    assert sent[per_round:] == sent[: 4_000 - per_round], "after the last session comes the first"
    assert sorted(sent[:per_round]) != sent[:per_round]
    assert ids(requests, 0) != ids(requests, per_round), "the next round has other tokens"


def scheduled(workload: TraceWorkload, rate: float, scale: str, **fields: Any) -> Schedule:
    arrivals = Arrivals.model_validate({"process": "trace", "scale": scale})
    of_trace = point("request_rate", rate, workload=workload, arrivals=arrivals, **fields)
    return Schedule(of_trace, kind_of(of_trace, IDS))


def test_thinning_leaves_out_whole_sessions_and_lower_levels_have_some_of_higher_ones(
    tmp_path: Path,
) -> None:
    workload = many(tmp_path)
    half = at_rate(workload, 0.5, "thin")
    fifth = at_rate(workload, 0.2, "thin")
    rows_of_half = {half.source_row(session, 0) for session in range(500)}
    rows_of_fifth = {fifth.source_row(session, 0) for session in range(200)}
    assert rows_of_fifth < rows_of_half
    assert {half.turns(session) for session in range(500)} == {2}
    starts = half.starts_s(1500.0, None)
    assert starts is not None
    assert 2 * len(starts) / 1500.0 == pytest.approx(0.5, rel=0.15)
    rounded = at_rate(workload, 1.015 * (workload.recorded_rate() or 0.0), "thin")
    assert rounded.mean_turns == at_rate(workload, 1.0, "recorded").mean_turns, "all are sent"
    with pytest.raises(InputError, match=r"more than the recorded.*take scale: stretch"):
        at_rate(workload, 3.0, "thin")


def test_a_rate_at_which_nothing_is_left_or_far_too_much_is_due_is_refused(tmp_path: Path) -> None:
    workload = many(tmp_path)
    with pytest.raises(InputError, match=r"no session of 1,000 would be left: take a higher rate"):
        at_rate(workload, 1e-4, "thin")
    with pytest.raises(InputError, match="sessions would be due; a point may have 5,000,000"):
        at_rate(workload, 1e12, "stretch").starts_s(3600.0, None)
    with pytest.raises(InputError, match="the last request would be due after"):
        scheduled(workload, 1e-9, "stretch", duration_s=None, requests=100)
    slow = at_rate(workload, 5e-324, "stretch").starts_s(3600.0, None)
    assert slow is not None and slow.tolist() == [0.0]


def test_a_trace_that_is_too_short_begins_again(tmp_path: Path) -> None:
    workload = trace(tmp_path / "t.csv", traces.BURSTGPT_1)
    starts = workload.requests(IDS, 7).starts_s(400.0, None)
    assert starts is not None
    assert starts.tolist() == pytest.approx([0, 40, 113, 169.5, 209.5, 282.5, 339, 379])


def test_every_number_of_clients_sends_the_same(tmp_path: Path) -> None:
    workload = many(tmp_path)
    sent = []
    for clients in (1, 3):
        requests: list[tuple[int, int, int]] = []
        for client in range(clients):
            of_trace = point(
                "request_rate",
                2.0,
                workload=workload,
                arrivals=Arrivals.model_validate({"process": "trace", "scale": "stretch"}),
            )
            schedule = Schedule(of_trace, kind_of(of_trace, IDS), client, clients)
            for session in schedule.own_sessions():
                request = schedule.first_request(session)
                if request is not None:
                    requests.append((request.index, request.session, request.due_ns))
        sent.append(sorted(requests))
    assert sent[0] == sent[1]
    assert len(sent[0]) > 5


def test_a_turn_waits_for_its_time_and_for_the_answer_before_it(tmp_path: Path) -> None:
    workload = trace(tmp_path / "t.jsonl", traces.BAILIAN)
    rate = workload.recorded_rate()
    assert rate is not None
    schedule = scheduled(workload, rate / 2, "stretch", duration_s=1000.0)
    start_ns = int(schedule.due_ns[0])
    second = 1_000_000_000
    due_ns = start_ns + round(28.5 * second)  # as recorded: only starts are stretched
    assert schedule.following_ns(0, 0, start_ns + second) == due_ns
    assert schedule.following_ns(0, 0, start_ns + 80 * second) == start_ns + 80 * second


def test_a_file_that_has_changed_is_refused_and_its_name_is_not_its_identity(
    tmp_path: Path,
) -> None:
    planned = trace(tmp_path / "t.csv", traces.AZURE_2023).resolved(str)
    copy = trace(tmp_path / "copy.csv", traces.AZURE_2023).resolved(str)
    assert planned.identity() == copy.identity()
    windowed = trace(tmp_path / "copy.csv", traces.AZURE_2023, window=["0s", "5s"]).resolved(str)
    assert windowed.identity() == copy.identity(), "all rows are within it"
    (tmp_path / "t.csv").write_text(traces.AZURE_2024)
    with pytest.raises(ProblemsError, match="has not the rows that were planned"):
        planned.requests(IDS, 7)


def test_coarse_stamps_and_what_is_left_out_are_noted(tmp_path: Path) -> None:
    grid = traces.lines(
        *(
            {"timestamp": 3000 * (n // 10), "input_length": 5, "output_length": 5, "hash_ids": [n]}
            for n in range(100)
        )
    )
    coarse = trace(tmp_path / "t.jsonl", grid)
    rate, bursts = coarse.notes(timed=True)
    assert rate == "recorded: 3.667 requests/s on average; 10.0% as many distinct times as requests"
    assert "10.0 requests have each time stamp" in bursts
    assert coarse.notes() == [], "no bursts are sent where other arrivals are drawn"
    assert len(trace(tmp_path / "t.jsonl", grid, spread="3s").notes(timed=True)) == 1
    assert trace(tmp_path / "b.csv", traces.BURSTGPT_1).notes() == [
        "1 rows are left out: without tokens (a failed request)",
        "columns that change nothing: Log Type, Model, Total tokens",
    ]
    filtered = trace(tmp_path / "b.csv", traces.BURSTGPT_1, where={"Model": "ChatGPT"})
    assert "columns that change nothing: Log Type, Total tokens" in filtered.notes()


def test_requests_with_images_that_are_sent_as_text_are_noted(tmp_path: Path) -> None:
    text = traces.BAILIAN.replace('"type": "search"', '"type": "image"')
    note = "1 request of 'type: image' sent as text of the recorded lengths"
    sent = trace(tmp_path / "t", text)
    assert [n for n in sent.notes() if "image" in n] == [note + "; 'where' can leave them out"]
    without = trace(tmp_path / "t", text, where={"type": "text"})
    assert not any("image" in n for n in without.notes())
    assert not any("image" in n for n in trace(tmp_path / "u", traces.BAILIAN).notes())


def test_a_plan_knows_the_lengths_of_its_requests(tmp_path: Path) -> None:
    workload = trace(tmp_path / "t.csv", traces.BURSTGPT_1)
    assert workload.token_bounds() == (490, 1317)
    assert workload.longer_prompts(416) == 1.0
    assert workload.longer_prompts(417) == pytest.approx(2 / 3)
    assert workload.longer_prompts(1087) == 0.0


def test_a_format_and_columns_exclude_each_other() -> None:
    columns = {"input_tokens": "a", "output_tokens": "b"}
    keys = {"name": "w", "kind": "trace", "trace": "t", "format": "azure", "columns": columns}
    with pytest.raises(ValidationError, match="'format' and 'columns' exclude each other"):
        TraceWorkload.model_validate(keys)


def test_clients_read_no_further_than_what_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_reader, "BATCH_BYTES", 128)
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for minute in range(60):
        text += f"2024-05-10 00:{minute:02}:00+00:00,{minute + 1},5\n"
    path = tmp_path / "t.csv"
    path.write_text(text)
    whole = trace(path, text, window=["10m", "20m"]).resolved(str)
    assert whole.last_row == 20
    assert whole.left_out() == 50, "of the whole file"
    # behind the last row a client meets what it could not read
    lines = text.splitlines()
    behind = ["2024-05-10 00:59:00+00:00,x,5"] * 20
    path.write_text("\n".join([*lines[:31], *behind]))
    requests = whole.requests(IDS, 7)
    assert [requests.input_tokens(session, 0) for session in range(10)] == list(range(11, 21))
    with pytest.raises(ProblemsError):
        whole.rows()
    assert trace(tmp_path / "u.csv", text).resolved(str).last_row is None
