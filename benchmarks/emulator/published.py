"""The step model against published measurements of GPUs, of which half of the configurations
calibrated it.

    pip download --no-deps aiconfigurator-core==0.12.0 && unzip aiconfigurator_core-*.whl -d core
    python benchmarks/emulator/published.py core                # scores, about 20 s
    python benchmarks/emulator/published.py core --refit        # fits both folds first, about 3 minutes
    python benchmarks/emulator/published.py core --refit --write    # and writes what is shipped
    python benchmarks/emulator/published.py core --tables       # measured kernels beside the formula (extra `tables`)

A configuration is engine x model x TP x precision, whatever the GPU; the first byte of the SHA-256
of its name says in which half it is. Half 0 of H100 and H200 gives the constants that the emulator
ships (orchestrator/emulator/ constants.json); half 1 is scored with them, as is B200, of which
nothing is fitted. For choices, which need whole sweeps, each half is predicted by constants fitted
on the other (folds.json): no constant is scored on what it saw.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from silicon import ENGINES, Point, read

from orchestrator.base.arrays import Floats
from orchestrator.emulator import profile
from orchestrator.emulator.profile import Constants
from orchestrator.emulator.step_tables import NoRow

SHIPPED = Path(profile.__file__).with_name("constants.json")
FOLDS = Path(__file__).with_name("folds.json")
SOURCE = "aiconfigurator-core 0.12.0, systems/silicon_sample.csv (Apache-2.0)"
FIRST_FITTED, LIMITS_MS = 0, (10, 15, 20, 30)
PULL = 0.03  # of constants towards where they start, for those that the points say little of
# SGLang's constants start from vLLM's; only what its points can tell is fitted.
BOTH = (
    "step_overhead_s", "sequence_overhead_s", "layer_overhead_s", "prefill_layer_overhead_s", "request_overhead_s",
    "bandwidth_efficiency", "compute_efficiency", "low_bit_efficiency", "expert_compute_efficiency",
    "expert_bandwidth_efficiency", "expert_layer_overhead_s", "block_fp8_layer_overhead_s",
)  # fmt: skip
HOST = ("step_overhead_s", "sequence_overhead_s", "prefill_layer_overhead_s", "request_overhead_s")
FITTED: dict[str, dict[str, tuple[str, ...]]] = {
    "formula": {
        "vllm": (*BOTH, "activation_efficiency", "collective_latency_s", "collective_rank_s"),
        "sglang": BOTH,
    },
    "tables": {"vllm": HOST, "sglang": HOST},  # what is no kernel
}
# --- fitting
# ---------------------------------------------------------------------------------------------------------


def fitted(points: list[Point], names: tuple[str, ...], start: Constants) -> Constants:
    """Constants with the smallest log-ratios of TTFT and TPOT; every configuration on a system
    weighs the same.
    """
    groups = [(point.system, point.configuration) for point in points]
    weight = np.array([(10 / groups.count(group)) ** 0.5 for group in groups])
    measured, origin = (
        np.array([point.measured for point in points]),
        np.log([getattr(start, name) for name in names]),
    )
    most = np.array([0.0 if name.endswith("efficiency") else 5.0 for name in names])

    def at(position: Floats) -> Constants:
        return start.model_copy(update=dict(zip(names, np.exp(position).tolist(), strict=True)))

    def residuals(position: Floats) -> Floats:
        ratios = np.log(np.array([point.predicted(at(position)) for point in points]) / measured)
        pull = PULL * len(points) ** 0.5 * (position - origin)
        return np.concatenate([0.7 * weight * ratios[:, 0], weight * ratios[:, 1], pull])

    known: list[tuple[Floats, Floats, Floats]] = []  # positions, residuals, derivatives

    def derivatives(position: Floats) -> Floats:
        """By differences at every fourth position, in between by Broyden's update: one simulation
        instead of many.
        """
        found = residuals(position)
        if len(known) % 4 == 0:
            steps = np.diag(0.05 * np.minimum(position, -1))
            by = np.stack(
                [(residuals(position + step) - found) / step.sum() for step in steps], axis=1
            )
        else:
            before, residuals_before, by = known[-1]
            step = position - before
            by = by + np.outer(found - residuals_before - by @ step, step) / (step @ step)
        known.append((position, found, by))
        return by

    best = least_squares(
        residuals, np.minimum(origin, most - 1e-3), derivatives, bounds=(np.full(len(names), -20.0), most),
        loss="soft_l1", f_scale=0.1, max_nfev=16,
    ).x  # fmt: skip
    return start.model_copy(
        update={
            name: float(f"{value:.3g}") for name, value in zip(names, np.exp(best), strict=True)
        }
    )


def identifiable(points: list[Point], names: tuple[str, ...], start: Constants) -> tuple[str, ...]:
    """Constants that at least two configurations depend on: fitted to one, a constant absorbs its
    other errors.
    """
    kept = []
    for name in names:
        off = start.model_copy(update={name: getattr(start, name) / 2})
        shown = {one.configuration for one in points if one.costs(off) != one.costs(start)}
        kept += [name] if len(shown) > 1 or name == "request_overhead_s" else []
    return tuple(kept)


def refit(points: list[Point], kind: str) -> dict[str, dict[str, Any]]:
    """By kind of step times, engine and half: the constants, the configurations that they saw, when
    those were measured. Of the tables the first half's alone.
    """
    folds: dict[str, dict[str, Any]] = {}
    for half in (0, 1) if kind == "formula" else (FIRST_FITTED,):
        defaults = {
            name: Constants.model_fields[name].default for name in FITTED["formula"]["vllm"]
        }
        start = Constants(tables=kind == "tables", jitter=0.0, **defaults)
        for engine, names in FITTED[kind].items():
            seen = [
                one for one in points
                if one.half == half and one.engine == engine and not one.unfitted and not one.doubtful
            ]  # fmt: skip
            seen = seen if kind == "formula" else with_rows(light(seen))
            start = start.model_copy(update={"prefill_first": engine == "sglang"})
            start = fitted(seen, identifiable(seen, names, start), start)
            folds[f"{kind} {engine} {half}"] = {
                "constants": start.model_dump(include={*FITTED[kind]["vllm"], "prefill_first"}),
                "saw": sorted({one.configuration for one in seen}),
                "measured": measured(seen),
            }
    return folds


def light(points: list[Point]) -> list[Point]:
    """Three at the most of each configuration on a system, of few and short requests: the tables
    answer slowly.
    """
    groups: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for one in sorted(points, key=lambda one: (one.concurrency, one.lengths)):
        if one.concurrency <= 32 and one.lengths[1] <= 1024:
            groups[one.system, one.configuration].append(one)
    return [one for group in groups.values() for one in group[:: -(-len(group) // 3)]]


def measured(points: list[Point]) -> str:
    """From when to when, as far as the file says it."""
    months = sorted({one.month for one in points} - {""})
    return " to ".join(dict.fromkeys([months[0], months[-1]])) if months else "no date given"


Found = dict[Point, tuple[float, float]]
Known = dict[
    tuple[str, bool, int], Floats
]  # error of TTFT and TPOT, and both factors, by engine, whether on B200, and half fitted
# --- scoring
# ---------------------------------------------------------------------------------------------------------


def fold_of(point: Point) -> int:
    """The half whose constants predict a point."""
    return FIRST_FITTED if point.unfitted else 1 - point.half


def predictions(points: list[Point], folds: dict[str, dict[str, Any]], kind: str) -> Found:
    """Of each point by constants that did not see its configuration."""
    found = {}
    for point in points:
        fold = folds[f"{kind} {point.engine} {fold_of(point)}"]
        assert point.unfitted or point.configuration not in fold["saw"], (
            f"{point.configuration} was fitted on"
        )
        found[point] = point.predicted(
            Constants(tables=kind == "tables", jitter=0.0, **fold["constants"])
        )
    return found


def with_rows(points: list[Point]) -> list[Point]:
    """Those that the tables can predict; prints why not the others."""
    lacking: Counter[str] = Counter()
    kept = []
    for point in points:
        try:
            point.costs(Constants(tables=True))
            kept.append(point)
        except NoRow as why:
            lacking[f"{point.system} {point.configuration}: {why}"] += 1
    print(f"the tables have rows for {len(kept):,} of {len(points):,} points")
    for why_not, number in lacking.most_common():
        print(f"  {number:5,} {why_not}")
    return kept


def errors(points: list[Point], found: Found) -> Floats:
    """Medians of |predicted / measured - 1| of TTFT and TPOT."""
    ratios = np.array([found[point] for point in points]) / np.array(
        [point.measured for point in points]
    )
    return np.asarray(np.median(np.abs(ratios - 1), axis=0))


def factors(points: list[Point], found: Found) -> Floats:
    """Of TTFT and TPOT: the factor of the prediction within which 90 % of what was measured lies."""
    ratios = np.array([found[point] for point in points]) / np.array(
        [point.measured for point in points]
    )
    return np.asarray(np.exp(np.quantile(np.abs(np.log(ratios)), 0.9, axis=0)))


def choices(points: list[Point], found: Found, known: Known) -> list[str]:
    """Of "most tokens/s per GPU with TPOT within a limit", picked by prediction with the known
    error of its constants as margin: the limit, in how many sweeps the pick breaks it, and its loss
    against the best that holds it; last of all limits.
    """
    margin = {one: 1 + known[one.engine, one.unfitted, fold_of(one)][1] for one in points}
    sweeps: dict[object, list[Point]] = defaultdict(list)
    for one in points:
        sweeps[
            one.system, one.engine, one.model, one.precision, one.lengths, "gap" in one.source
        ].append(one)
    result, everything = [], np.empty(0)
    for limit_ms in LIMITS_MS:
        losses = []
        for sweep in (sweep for sweep in sweeps.values() if len(sweep) >= 3):
            hopeful = [one for one in sweep if found[one][1] * margin[one] <= limit_ms / 1e3]
            if hopeful:
                best = max(hopeful, key=lambda one: one.throughput(found[one]))
                real = [
                    one.throughput(one.measured)
                    for one in sweep
                    if one.measured[1] <= limit_ms / 1e3
                ]
                broken = best.measured[1] > limit_ms / 1e3
                losses.append(np.nan if broken else 1 - best.throughput(best.measured) / max(real))
        result.append(f"{limit_ms} ms: {_broken(losses)}")
        everything = np.concatenate([everything, losses])
    return [*result, f"all: {_broken(everything)} = {np.isnan(everything).mean():.1%}"]


def _broken(losses: Floats | list[float]) -> str:
    """Of picks, whose loss is NaN where they break the limit."""
    kept = np.array(losses)[~np.isnan(losses)]
    return (
        f"{len(losses) - len(kept)} of {len(losses)}, loss {np.median(kept):.0%} (mean "
        f"{kept.mean():.0%})"
    )


def table(points: list[Point], found: Found) -> Known:
    """Print errors by group; those of each engine."""
    of: dict[str, Callable[[Point], bool]] = {
        "H100, H200, half 1: scored": lambda one: not one.unfitted and one.half != FIRST_FITTED,
        "  of half 0 by the fit of half 1": lambda one: (
            not one.unfitted and one.half == FIRST_FITTED
        ),
        "B200, nothing fitted": lambda one: one.unfitted,
    }
    known: Known = {}
    print(f"{'':34} {'points':>6} {'TPOT':>7} {'TTFT':>7} {'90 % within factors of':>24}")
    for name, belongs in of.items():
        for engine in ("", *ENGINES):
            group = [one for one in points if belongs(one) and one.engine.startswith(engine)]
            if not group:
                continue
            ttft, tpot = errors(group, found)
            of_ttft, of_tpot = factors(group, found)
            print(
                f"{name + ' ' + engine:34} {len(group):6} {tpot:7.1%} {ttft:7.1%} {of_tpot:16.2f} "
                f"{of_ttft:7.2f}"
            )
            known[engine, group[0].unfitted, fold_of(group[0])] = np.array(
                [ttft, tpot, of_ttft, of_tpot]
            )
    for configuration in sorted({(one.system, one.configuration) for one in points}):
        group = [one for one in points if (one.system, one.configuration) == configuration]
        ttft, tpot = errors(group, found)
        bias = np.median(
            np.array([found[one] for one in group]) / np.array([one.measured for one in group]),
            axis=0,
        )
        print(
            f"    {' '.join(configuration):55} {len(group):4} {tpot:7.1%} {ttft:7.1%}   "
            f"x{bias[1]:.2f} x{bias[0]:.2f}"
        )
    return known


def picks(points: list[Point], found: Found, known: Known) -> None:
    """Print how often the best by prediction breaks the limit."""
    for name, unfitted in (("H100, H200", False), ("B200", True)):
        for which, population in (
            ("what plan predicts, architectures with a formula", True),
            ("all", False),
        ):
            group = [
                one
                for one in points
                if one.unfitted is unfitted and (one.facts.all_parameters_counted or not population)
            ]
            print(
                f"choices that break the limit, {name}, {which}: "
                f"{'; '.join(choices(group, found, known))}"
            )


def write(kind: str, folds: dict[str, dict[str, Any]], points: list[Point], known: Known) -> None:
    """What the emulator ships, by engine and architecture, and the folds."""
    shipped = json.loads(SHIPPED.read_text(encoding="utf-8"))
    for engine in ENGINES:
        fold = folds[f"{kind} {engine} {FIRST_FITTED}"]
        scored = measured([one for one in points if one.engine == engine and one.unfitted])
        rows = {
            "hopper": {
                "source": f"{SOURCE}, half of its configurations of H100 and H200",
                "date": fold["measured"],
            },
            "blackwell": {"inherits": "hopper", "source": f"{SOURCE}, B200", "date": scored},
        }
        for row, unfitted in zip(rows.values(), (False, True), strict=True):
            row["date"] = f"measured {row['date']}"
            error = known[engine, unfitted, FIRST_FITTED].round(3).tolist()
            row["error"] = dict(
                zip(("ttft", "tpot", "ttft_within", "tpot_within"), error, strict=True)
            )
        shipped[kind][engine]["hopper"]["constants"] |= fold["constants"]  # jitter stays: tails.py
        for architecture, row in rows.items():
            shipped[kind][engine][architecture] |= row
    SHIPPED.write_text(json.dumps(shipped, indent=1) + "\n", encoding="utf-8")
    every = json.loads(FOLDS.read_text(encoding="utf-8")) | folds
    FOLDS.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the wheel is unpacked")
    parser.add_argument("--refit", action="store_true")
    parser.add_argument(
        "--tables", action="store_true", help="tables of kernels beside the formula"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="with --refit: put the constants where they are read from",
    )
    arguments = parser.parse_args()
    points, left_out = read(arguments.folder)
    print(f"{len(points):,} points are used; of the file's others of these engines")
    for why, number in left_out.most_common():
        print(f"  {number:5,} {why}")
    kind, scored = "tables" if arguments.tables else "formula", points
    known = json.loads(FOLDS.read_text(encoding="utf-8"))
    if kind == "tables":
        scored = with_rows([one for one in points if one.unfitted or one.half != FIRST_FITTED])
        print("the formula on the same points")
        table(scored, predictions(scored, known, "formula"))
        print("tables")
    folds = refit(points, kind) if arguments.refit else known
    for engine in () if arguments.refit else ENGINES:
        shipped = profile.typical(engine, points[0].device, arguments.tables).constants
        assert shipped.items() >= folds[f"{kind} {engine} {FIRST_FITTED}"]["constants"].items(), (
            "shipped are not those of the first half"
        )
    found = predictions(scored, folds, kind)
    errors_of = table(scored, found)
    if kind == "formula":
        picks(points, found, errors_of)
    if arguments.refit and arguments.write:
        write(kind, folds, scored, errors_of)


if __name__ == "__main__":
    main()
