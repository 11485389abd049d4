"""Every arrival process of the registry keeps the contract of orchestrator/load/arrivals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.base.arrays import Floats
from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.load.arrivals import ArrivalRequest, recorded
from orchestrator.spec.load import ARRIVALS, Arrivals
from orchestrator.workloads import file_reading

EXAMPLES = {
    "constant": Arrivals(process="constant"),
    "poisson": Arrivals(process="poisson"),
    "gamma": Arrivals(process="gamma", burstiness=0.5),
    "ramp": Arrivals(process="ramp", to=40.0),
    "steps": Arrivals(process="steps", steps=[(0.5, 3.0), (2.0, 1.0), (0.0, 1.0)]),
}
PROCESSES = sorted(EXAMPLES)


def draw(
    name: str, rate: float, horizon_s: float | None, count: int | None, seed: int = 0
) -> Floats:
    return ARRIVALS[name](
        ArrivalRequest(EXAMPLES[name], rate, horizon_s, count), np.random.default_rng(seed)
    )


def dispersion(offsets: Floats, horizon_s: float, bin_s: float = 1.0) -> float:
    """Variance over mean of the arrivals per bin: 1 for Poisson, 0 for a clock."""
    counts = np.histogram(offsets, np.arange(0, horizon_s + bin_s / 2, bin_s))[0]
    return float(counts.var() / counts.mean())


def test_every_process_is_tested() -> None:
    assert {*EXAMPLES, "trace"} == set(ARRIVALS.shipped())


@pytest.mark.parametrize("name", PROCESSES)
@settings(max_examples=40, deadline=None)
@given(rate=st.floats(0.05, 500), horizon_s=st.floats(0.01, 30), seed=st.integers(0, 2**32))
def test_offsets_ascend_within_the_horizon(
    name: str, rate: float, horizon_s: float, seed: int
) -> None:
    offsets = draw(name, rate, horizon_s, None, seed)
    assert offsets.dtype == np.float64
    assert bool((np.diff(offsets) >= 0).all())
    assert not len(offsets) or (offsets[0] >= 0 and offsets[-1] < horizon_s + 1e-9)


@pytest.mark.parametrize("name", PROCESSES)
@settings(max_examples=40, deadline=None)
@given(rate=st.floats(0.05, 500), count=st.integers(1, 2000), seed=st.integers(0, 2**32))
def test_a_count_is_kept_exactly(name: str, rate: float, count: int, seed: int) -> None:
    offsets = draw(name, rate, None, count, seed)
    assert len(offsets) == count
    assert bool((np.diff(offsets) >= 0).all())


@pytest.mark.parametrize("name", PROCESSES)
def test_the_same_seed_gives_the_same_offsets_and_a_count_a_prefix(name: str) -> None:
    whole = draw(name, 30.0, 60.0, None, seed=7)
    assert np.array_equal(whole, draw(name, 30.0, 60.0, None, seed=7))
    assert np.array_equal(whole[:50], draw(name, 30.0, 60.0, 50, seed=7))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("constant", 100.0), ("poisson", 100.0), ("gamma", 100.0), ("ramp", 70.0), ("steps", 70.0)],
)
def test_the_mean_rate_is_the_one_asked_for(name: str, expected: float) -> None:
    """ramp: the mean of 100 and 40; steps: (0.5 * 3 + 2 * 1 + 0 * 1) / 5 of 100."""
    offsets = draw(name, 100.0, 1000.0, None)
    assert len(offsets) / 1000.0 == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("name", "expected"), [("constant", 0.0), ("poisson", 1.0), ("gamma", 2.0)]
)
def test_the_dispersion_index_is_what_the_process_promises(name: str, expected: float) -> None:
    found = [dispersion(draw(name, 50.0, 2000.0, None, seed), 2000.0) for seed in range(3)]
    assert np.mean(found) == pytest.approx(expected, abs=0.12)


def test_gaps_of_poisson_are_exponential() -> None:
    gaps = np.diff(draw("poisson", 20.0, None, 50_000))
    assert gaps.mean() == pytest.approx(0.05, rel=0.02)
    assert gaps.std() == pytest.approx(0.05, rel=0.02)
    assert np.mean(gaps > 0.05) == pytest.approx(np.exp(-1), abs=0.01)


def test_a_ramp_goes_from_one_rate_to_the_other() -> None:
    offsets = ARRIVALS["ramp"](
        ArrivalRequest(Arrivals(process="ramp", to=300.0), 100.0, 100.0, None),
        np.random.default_rng(1),
    )
    first, last = np.sum(offsets < 10.0), np.sum(offsets >= 90.0)
    assert first == pytest.approx(1100, rel=0.1)  # 110/s on average
    assert last == pytest.approx(2900, rel=0.1)


def test_steps_keep_their_rates_and_repeat() -> None:
    offsets = draw("steps", 200.0, 10.0, None)
    counts = np.histogram(offsets, np.arange(0, 10.5, 1.0))[0]
    assert counts[[4, 9]].tolist() == [0, 0]  # a step of factor 0
    assert counts[[3, 8]].mean() == pytest.approx(400, rel=0.15)
    assert counts[[0, 1, 2, 5, 6, 7]].mean() == pytest.approx(100, rel=0.2)


def trace(path: Path, text: str, **fields: float) -> Arrivals:
    path.write_text(text)
    return Arrivals(process="trace", trace=str(path), **fields)


def play(
    arrivals: Arrivals, horizon_s: float | None = None, count: int | None = None
) -> list[float]:
    return ARRIVALS["trace"](
        ArrivalRequest(arrivals, 1.0, horizon_s, count), np.random.default_rng(0)
    ).tolist()


def test_a_trace_starts_at_zero_and_is_sped_up(tmp_path: Path) -> None:
    arrivals = trace(tmp_path / "t.txt", "100\n102\n\n104\n", speed_up=2.0)
    assert play(arrivals, horizon_s=60.0) == [0.0, 1.0, 2.0]
    assert play(arrivals, horizon_s=1.5) == [0.0, 1.0]
    assert play(arrivals, count=1) == [0.0]


def test_a_trace_is_read_again_only_where_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read_file = list[str](), file_reading.read_file
    monkeypatch.setattr(
        file_reading, "read_file", lambda what, path: reads.append(path) or read_file(what, path)
    )
    arrivals = trace(tmp_path / "t.txt", "1\n2\n4\n")
    assert recorded(arrivals).tolist() == recorded(arrivals).tolist() == [0, 1, 3]
    assert recorded(arrivals.model_copy(update={"speed_up": 2.0})).tolist() == [0, 0.5, 1.5]
    assert len(reads) == 1
    (tmp_path / "t.txt").write_text("1\n2\n4\n8\n")
    assert recorded(arrivals).tolist() == [0, 1, 3, 7]
    assert len(reads) == 2


def test_a_trace_may_be_json_lines(tmp_path: Path) -> None:
    arrivals = trace(
        tmp_path / "t.jsonl",
        '{"timestamp": 3000, "input_length": 4}\n{"timestamp": 3500}\n',
        speed_up=1000,
    )
    assert play(arrivals, horizon_s=9.0) == [0.0, 0.5]


@pytest.mark.parametrize(
    ("text", "said"), [("1\nx\n", "line 2"), ("", "empty"), ('{"time": 1}', "line 1"), ("nan", "line 1"),
     ("5\n3\n", "line 2: 3 is before the 5 of the line above it: sort the file by time")],
)  # fmt: skip
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    arrivals = trace(tmp_path / "t.txt", text)
    with pytest.raises(InputError, match=said):
        recorded(arrivals)
    with pytest.raises(InputError, match=said):
        play(arrivals, count=1)


def test_a_trace_tells_all_its_bad_lines_at_once(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError) as found:
        recorded(trace(tmp_path / "t.txt", "1\nx\n\n3\n2\ninf\n"))
    assert [str(problem).split("line ")[1][:1] for problem in found.value.problems] == [
        "2",
        "5",
        "6",
    ]


def test_a_trace_that_is_no_text_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"1\n\xff\xfe\n")
    with pytest.raises(InputError, match="line 2: no finite time"):
        recorded(Arrivals(process="trace", trace=str(tmp_path / "t.txt")))


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [
        (Arrivals(process="poison"), "did you mean 'poisson'"),
        (Arrivals(process="ramp"), "'to'"),
        (Arrivals(process="steps"), "'steps'"),
        (Arrivals(process="trace"), "'trace'"),
    ],
)
def test_what_cannot_be_drawn_is_said_beforehand(arrivals: Arrivals, said: str) -> None:
    assert said in (arrivals.problem() or "")


def test_a_trace_that_is_not_there_is_bad_input() -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        recorded(Arrivals(process="trace", trace="/nowhere/t.txt"))


@pytest.mark.parametrize("name", PROCESSES)
def test_good_arrivals_have_no_problems(name: str) -> None:
    assert EXAMPLES[name].problem() is None
