"""Calibration: constants that made the measurements are found again from their Parquet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.base.errors import InputError
from orchestrator.catalog.models import facts_from_config, known_configs
from orchestrator.emulator.batch import Batch
from orchestrator.emulator.model import replica
from orchestrator.emulator.profile import Constants, Profile, device_of, resolved
from orchestrator.predict.fit import (
    FITTED,
    FitSample,
    calibrate,
    errors_of,
    figures,
    fit,
    read_samples,
    tail_error,
    with_jitter,
)
from orchestrator.predict.simulate import RequestTimes, Trace, run, run_closed
from orchestrator.results.store import Manifest, Store
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.unit.emulator.builders import facts
from tests.unit.results.builders import deployment_row, point_row, table

TRUE = Constants(
    compute_efficiency=0.4,
    bandwidth_efficiency=0.9,
    step_overhead_s=2e-3,
    sequence_overhead_s=2e-5,
    request_overhead_s=4e-3,
    jitter=0.0,
)
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
LEVELS = (
    ("request_rate", 2.0),
    ("request_rate", 16.0),
    ("concurrency", 1.0),
    ("concurrency", 32.0),
)


def schedule(rate: float, requests: int = 60) -> Trace:
    rng = np.random.default_rng(3)
    return Trace(
        np.cumsum(rng.exponential(1 / rate, requests)),
        rng.integers(50, 2000, requests),
        rng.integers(20, 200, requests),
    )


def rows(measurement: str, load: Trace, outcome: RequestTimes) -> list[dict[str, object]]:
    times = np.stack([load.arrival_s, outcome.first_token_s, outcome.last_token_s]) * 1e9 + 5e9
    return [
        {
            "measurement_id": measurement, "attempt_id": "a0", "request_index": index, "client": 0, "replica": 0,
            "phase": "warmup" if index < 10 else "measure", "scheduled_ns": int(sent), "sent_ns": int(sent),
            "first_token_ns": int(first), "last_token_ns": int(last), "done_ns": int(last),
            "input_tokens_asked": int(load.prompt_tokens[index]), "input_tokens": int(load.prompt_tokens[index]),
            "output_tokens_asked": int(load.output_tokens[index]), "output_tokens": int(load.output_tokens[index]),
            "chunks": 1, "coalesced_chunks": 0, "status": "ok" if index != 11 else "error",
        }
        for index, (sent, first, last) in enumerate(times.T)
    ]  # fmt: skip


def measured(
    folder: Path,
    tensor_parallel: tuple[int, ...] = (1, 2),
    accelerator: str = "H100-80GB",
    engine: str = "vllm",
    emulated: bool = False,
    simulated: bool = False,
    levels: tuple[tuple[str, float], ...] = LEVELS,
) -> str:
    """A results root as a sweep leaves it, measured on an engine that behaves exactly as TRUE says."""
    store = Store.open(str(folder), "exp")
    for tensor in tensor_parallel:
        settings = EngineSettings(
            engine=engine, model=LLAMA, tensor_parallel_size=tensor, max_num_seqs=64
        )
        hardware = Hardware(name="h", accelerator=accelerator)
        model = replica(
            settings, facts(max_position_embeddings=131072), device_of(Profile(), hardware), TRUE
        )
        row = deployment_row(
            f"d{tensor}",
            settings_json=settings.model_dump_json(),
            model=LLAMA,
            accelerator=accelerator,
        )
        for control, level in levels:
            load = schedule(level)
            if control == "concurrency":
                load, outcome = run_closed(
                    model, load.prompt_tokens, load.output_tokens, int(level)
                )
            else:
                outcome = run(model, load)
            measurement = f"m{tensor}-{control}-{level:g}"
            point = point_row(
                measurement, "a0", deployment_id=f"d{tensor}", control=control, level=level
            )
            point["emulated"] = emulated
            point["simulated"] = simulated
            tables = {
                "requests": rows(measurement, load, outcome),
                "points": [point],
                "deployments": [row],
            }
            parts = tuple(
                store.write_part(
                    name,
                    table(name, content),
                    measurement_id=measurement,
                    attempt_id="a0",
                    writer="w",
                )
                for name, content in tables.items()
            )
            store.commit(
                Manifest(
                    kind="point",
                    measurement_id=measurement,
                    attempt_id="a0",
                    status="ok",
                    created_unix_ns=1,
                    files=parts,
                )
            )
    return str(folder)


def test_a_fit_reproduces_measurements_also_of_held_out_samples(tmp_path: Path) -> None:
    found = fit(measured(tmp_path))
    assert len(found.by_sample) == 8
    assert max(found.error.values()) < 0.05
    assert found.held_out_error is not None
    assert max(found.held_out_error.values()) < 0.06
    assert found.profile.constants.jitter == 0
    assert found.profile.constants.compute_efficiency == pytest.approx(
        TRUE.compute_efficiency, rel=0.1
    )
    assert set(found.by_field) == {"level", "tensor_parallel_size"}
    assert set(found.by_field["tensor_parallel_size"]) == {"1", "2"}
    # Two levels of parallelism of one model do not tell all that a step waits for apart.
    device = device_of(Profile(), Hardware(name="h", accelerator="H100-80GB"))
    typical, right = (resolved(one, "vllm", device) for one in (Constants(), TRUE))
    undetermined = found.calibration.undetermined
    assert undetermined
    assert {name: getattr(found.profile.constants, name) for name in undetermined} == {
        name: getattr(typical, name) for name in undetermined
    }
    spreads = found.calibration.spread
    determined = {name: spread for name, spread in spreads.items() if spread < 0.25}
    assert {"compute_efficiency", "bandwidth_efficiency"} <= set(determined) < set(spreads)
    for name, spread in determined.items():
        assert (
            abs(np.log(getattr(found.profile.constants, name) / getattr(right, name))) < 3 * spread
        ), name


def test_a_fit_finds_all_constants_that_measurements_show() -> None:
    right = Constants(
        compute_efficiency=0.5, low_bit_efficiency=0.4, expert_compute_efficiency=0.1, bandwidth_efficiency=0.6,
        expert_bandwidth_efficiency=0.5, step_overhead_s=2e-3, sequence_overhead_s=8e-5, collective_latency_s=5e-5,
        network_latency_s=2e-4, request_overhead_s=8e-3, jitter=0.0,
    )  # fmt: skip
    device = device_of(Profile(), Hardware(name="h", accelerator="H100-80GB"))
    small, dense, experts = "meta-llama/Llama-3.2-1B-Instruct", LLAMA, "Qwen/Qwen3-30B-A3B"
    deployments: tuple[dict[str, Any], ...] = (
        {"model": small}, {"model": dense}, {"model": dense, "quantization": "fp8"}, {"model": experts},
        {"model": dense, "tensor_parallel_size": 2}, {"model": dense, "tensor_parallel_size": 2, "nnodes": 2},
    )  # fmt: skip
    samples = []
    for deployment in deployments:
        settings = EngineSettings(engine="vllm", max_num_seqs=64, **deployment)
        model = facts_from_config(settings.model, known_configs()[settings.model])
        assert model
        for in_flight, requests in ((1, 6), (6, 24), (48, 48)):
            rng = np.random.default_rng(in_flight)
            prompts, outputs = rng.integers(50, 4000, requests), rng.integers(20, 60, requests)
            load, outcome = run_closed(
                replica(settings, model, device, right), prompts, outputs, in_flight
            )
            everything = np.ones(requests, np.bool_)
            samples.append(
                FitSample(
                    "one",
                    settings,
                    model,
                    device,
                    load,
                    everything,
                    float(in_flight),
                    in_flight,
                    outcome,
                )
            )
    calibration = calibrate(samples, resolved(Constants(), "vllm", device))
    assert set(calibration.spread) == set(FITTED)
    assert calibration.undetermined == ()
    assert calibration.constants.jitter == 0
    assert max(calibration.spread.values()) < 0.15
    for name in FITTED:
        assert getattr(calibration.constants, name) == pytest.approx(
            getattr(right, name), rel=0.1
        ), name


def sample(data_parallel: int, jitter: float = 0.0) -> FitSample:
    """Ten conversations a rank in closed loop, half of each prompt in the prefix cache, on an
    engine as TRUE says.
    """
    settings = EngineSettings(
        engine="vllm", model=LLAMA, data_parallel_size=data_parallel, max_num_seqs=64
    )
    device = device_of(Profile(), Hardware(name="h", accelerator="H100-80GB"))
    model = replica(settings, facts(), device, TRUE.model_copy(update={"jitter": jitter}))
    load = schedule(1.0, requests=300)
    cached = load.prompt_tokens // 2
    trace, outcome = run_closed(
        model, load.prompt_tokens, load.output_tokens, 20, data_parallel, cached
    )
    everything = np.ones(300, np.bool_)
    return FitSample("one", settings, facts(), device, trace, everything, 20.0, 20, outcome)


@pytest.mark.parametrize("data_parallel", [1, 4])
def test_a_closed_loop_is_fitted_with_its_ranks_and_its_cached_tokens(data_parallel: int) -> None:
    assert max(errors_of(sample(data_parallel), TRUE).values()) < 1e-6


def test_a_fit_finds_how_much_steps_vary() -> None:
    for jitter in (0.0, 0.5):
        assert with_jitter([sample(1, jitter)], TRUE).jitter == jitter
    assert tail_error(sample(1, 0.5), TRUE) > 0.05  # without it the tail is too short


def test_a_fit_finds_the_jitter_of_a_server_in_open_loop() -> None:
    closed, everything = sample(1), np.ones(400, np.bool_)
    model = replica(
        closed.settings, closed.facts, closed.device, TRUE.model_copy(update={"jitter": 0.2})
    )
    load = Trace(schedule(1.0, requests=400).arrival_s, np.full(400, 500), np.full(400, 200))
    for seed in (1, 2):
        batch = Batch(model, seed)
        answered = [batch.submit(arrival_s, 500, 200) for arrival_s in load.arrival_s.tolist()]
        while not batch.idle:
            batch.advance(max_steps=1)  # as the server does
        first_s, last_s = np.array([(one.first_token_s, one.last_token_s) for one in answered]).T
        outcome = RequestTimes(load.arrival_s, first_s, last_s, np.zeros(400, np.int64))
        measured = replace(
            closed, schedule=load, times=outcome, concurrency=None, measure=everything
        )
        assert with_jitter([measured], TRUE).jitter == 0.2


def test_answers_of_an_emulator_are_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="4 points were answered by an emulator"):
        fit(measured(tmp_path, (1,), emulated=True))


def test_what_was_simulated_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no answered requests of any committed point"):
        fit(
            measured(tmp_path, (1,), emulated=True, simulated=True, levels=LEVELS[:1]),
            with_emulated=True,
        )


def test_answers_of_an_emulator_are_fitted_where_that_is_wanted(tmp_path: Path) -> None:
    results = measured(tmp_path, (1,), engine="emulator", emulated=True)
    fitted = fit(results, with_emulated=True)
    assert fitted.error["tpot_p50"] < 0.02 < fitted.error_before["tpot_p50"]
    assert fitted.profile.fitted is not None
    assert fitted.profile.fitted["engine"] == "emulator"


def test_without_calibration_the_error_is_larger(tmp_path: Path) -> None:
    samples = read_samples(measured(tmp_path, (1,), levels=LEVELS[2:4]), Profile()).samples
    before = [errors_of(sample, Constants()) for sample in samples]
    assert np.median([one["tpot_p50"] for one in before]) > 0.1


def test_samples_have_answered_requests_and_compare_measured_ones(tmp_path: Path) -> None:
    samples = read_samples(measured(tmp_path, (1,)), Profile()).samples
    assert [sample.concurrency for sample in samples].count(None) == 2
    for sample in samples:
        assert len(sample.schedule.arrival_s) == 59  # one of 60 failed
        assert sample.measure.sum() == 49  # ten were warm-up
        assert (figures(sample.schedule, sample.times, sample.measure) > 1e-4).all()
        assert sample.schedule.arrival_s[0] == 0


def test_different_devices_are_not_fitted_together(tmp_path: Path) -> None:
    measured(tmp_path, (1,), levels=LEVELS[:1])
    measured(tmp_path, (2,), accelerator="A100-80GB", levels=LEVELS[:1])
    with pytest.raises(InputError, match="fit each on its own"):
        fit(str(tmp_path))


def test_different_engines_are_not_fitted_together_but_one_can_be_chosen(tmp_path: Path) -> None:
    measured(tmp_path, (1,), levels=LEVELS[:1])
    measured(tmp_path, (2,), engine="sglang", levels=LEVELS[:1])
    with pytest.raises(InputError, match="ran with sglang, vllm"):
        fit(str(tmp_path))
    assert len(fit(str(tmp_path), engine="sglang").by_sample) == 1
    with pytest.raises(InputError, match="of tgi"):
        fit(str(tmp_path), engine="tgi")


def test_nothing_to_fit_is_an_input_error(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    store.commit(
        Manifest(
            kind="point",
            measurement_id="m",
            attempt_id="a",
            status="ok",
            created_unix_ns=1,
            files=(),
        )
    )
    with pytest.raises(InputError, match="nothing to fit"):
        fit(str(tmp_path))
