"""Makes the plan of an experiment, step by step.

1. Expand: every combination of settings becomes a candidate (``candidates.py``).
2. Load: every workload gets its arrivals, limits and levels (``loads.py``, ``levels.py``).
3. Judge: each candidate becomes a deployment with a verdict (``verdict.py``, ``feasibility.py``,
   ``placement.py``).

What is wrong with the file is collected over the first two steps and raised together. Predictions
(``predictions.py``), the cost (``cost.py``) and the order (``order.py``) are added later, and only
if they are wanted.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from orchestrator.analysis.prediction import Prediction
from orchestrator.base.errors import InputError
from orchestrator.base.text import counted, hours, listed
from orchestrator.capacity.choose_level import FIRST_RATE
from orchestrator.plan.candidates import Candidate, drained, engines_of, expand
from orchestrator.plan.checks import check_candidates, checked_predictions
from orchestrator.plan.labels import Unlabelled, labels
from orchestrator.plan.levels import levels_of
from orchestrator.plan.loads import note_on_rounds, planned_loads
from orchestrator.plan.model import Deployment, Plan, PlannedLoad
from orchestrator.plan.paths import Paths
from orchestrator.plan.planned_settings import planned
from orchestrator.plan.slos import resolved_slos
from orchestrator.plan.verdict import (
    fields_maybe_ignored,
    judge,
    models_left_behind,
    models_taken_for_others,
)
from orchestrator.spec.document import read_document, read_rest
from orchestrator.spec.experiment import Experiment, ExperimentFile, SweepRules, examined
from orchestrator.spec.load import Level, Slo, load_text
from orchestrator.spec.settings import EngineSettings
from orchestrator.workloads.drawn import ConversationsWorkload
from orchestrator.workloads.fidelity import RATE_DIFFERS, fidelity_of
from orchestrator.workloads.mix import MixWorkload

# A search with limits on a part of a mix that is less than this share of requests takes long.
RARE_SHARE = 0.1
HEAD_BYTES = 200  # in which a frozen plan says what it is
MOST_PLAN_BYTES = 500_000_000  # a frozen plan of 100,000 deployments is a fifth as large


def load_plan(path: str | Path, *, cluster_nodes: int | None = None) -> Plan:
    """The plan of an experiment file; a frozen plan is returned as it is.

    Raises ProblemsError for an experiment with problems, and InputError for a frozen plan that
    cannot be read or that this version cannot run.
    """
    try:
        with open(path, "rb") as file:  # opened once, because it may be a pipe
            head = file.read(HEAD_BYTES)
            if _is_frozen(head):
                return _frozen_plan(path, file, head)
            document = read_document(path, file, head)
    except OSError:
        document = read_document(path)  # raises: it says why the file cannot be read
    return make_plan(examined(document), cluster_nodes=cluster_nodes)


def _frozen_plan(path: str | Path, file: BinaryIO, head: bytes) -> Plan:
    """The plan in an open file, of which ``head`` was read. Raises InputError as ``load_plan``."""
    try:
        return Plan.from_json(read_rest(file, MOST_PLAN_BYTES, head).decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write the frozen plan atomically. Raises InputError when it cannot be written."""
    beside = Path(f"{path}.part")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.writelines(plan.json_parts())
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _is_frozen(head: bytes) -> bool:
    """Whether a file with this head is a frozen plan. An experiment may be JSON, too."""
    return head.lstrip().startswith(b"{") and b'"plan_format"' in head


def make_plan(experiment: Experiment, *, cluster_nodes: int | None = None) -> Plan:
    """The frozen plan of an experiment. ``cluster_nodes``: number of nodes of its cluster; None if
    it is not known.

    Empties the experiment's list of combinations, which is as large as the plan. Raises
    ProblemsError with everything that is wrong with the file and with what it names: engines,
    arrivals, searches, files. A deployment that cannot work is not an error: the plan has it as
    ``impossible``, with the reasons.
    """
    paths = Paths(experiment.folder)
    engines = engines_of(experiment)
    expanded = expand(experiment, engines, paths)
    candidates = expanded.candidates
    notes = expanded.notes

    predictions = checked_predictions(experiment, paths)
    loads = planned_loads(experiment, paths)
    check_candidates(experiment, candidates, len(loads))
    levels = levels_of(experiment, candidates)
    spec = experiment.spec  # raises all problems

    settings = [candidate.settings for candidate in candidates]
    resolved = resolved_slos(list(spec.slos.values()), settings)
    notes += models_left_behind(settings)
    notes += models_taken_for_others(candidates)
    notes += fields_maybe_ignored(candidates, loads)
    notes += _notes_on_starts(spec, candidates)
    notes += resolved.notes
    notes += _notes_on_presets(experiment, loads)
    notes += _notes_on_workloads(loads)
    notes += _notes_on_drafts(loads, settings)
    notes += _notes_on_rare_parts(loads, resolved.slos)

    deployments = _judged_deployments(candidates, loads, levels, cluster_nodes)
    rules = {name: getattr(spec, name) for name in SweepRules.model_fields}
    rules["predictions"] = predictions
    return Plan(
        deployments=tuple(deployments),
        loads=tuple(loads),
        slos=tuple(resolved.slos),
        notes=tuple(notes),
        **rules,
    )


def _notes_on_starts(spec: ExperimentFile, candidates: Sequence[Candidate]) -> list[str]:
    if spec.starts == 1 or all(candidate.engine.launches for candidate in candidates):
        return []
    return [
        f"starts: {spec.starts} does not apply to endpoints: "
        "they run already and are never restarted"
    ]


def _notes_on_presets(experiment: Experiment, loads: Sequence[PlannedLoad]) -> list[str]:
    """Where the numbers of presets are from, of workloads and parts of mixes that are measured."""
    sources = experiment.preset_sources()
    notes: dict[str, None] = {}
    for load in loads:
        for workload in load.workload.with_parts():
            if workload.name in sources:
                notes[f"{workload.name!r}: its numbers are from {sources[workload.name]}"] = None
    return list(notes)


def _notes_on_workloads(loads: Sequence[PlannedLoad]) -> list[str]:
    notes: list[str] = []
    for load in loads:
        if any(math.isinf(level.value) for level in load.levels):
            notes.append(
                f"{load.workload.name!r}: of all requests at once, one that is not answered within "
                f"{hours(load.request_timeout_s)} fails (request_timeout)"
            )
        has_own_times = load.arrivals.process == "trace"
        of_workload = [*load.workload.notes(has_own_times), *_notes_on_repeats(load)]
        of_workload += _notes_on_first_turns(load)
        notes += [f"{load.workload.name!r}: {note}" for note in of_workload]
        factors = list(_factors(load))
        if factors:
            notes.append(f"{load.workload.name!r} ({load.arrivals.scale}): {'; '.join(factors)}")
    return notes


def _notes_on_repeats(load: PlannedLoad) -> Iterator[str]:
    """That a load has more requests than the file of its workload."""
    on_rounds = note_on_rounds(load)
    if on_rounds is not None:
        yield on_rounds
    prompts = load.workload.distinct_requests()
    if prompts is not None and load.requests is not None and load.requests > prompts:
        yield (
            f"its {prompts:,} prompts come again until {load.requests:,} requests are sent; a "
            "prefix cache answers them faster"
        )


def _notes_on_first_turns(load: PlannedLoad) -> Iterator[str]:
    """That ``start: anywhere`` does nothing where no load is a closed loop."""
    controls = {level.control for level in load.levels}
    if load.control is not None:
        controls.add(load.control)
    if controls != {"request_rate"}:
        return
    for workload in load.workload.with_parts():
        if isinstance(workload, ConversationsWorkload) and workload.start == "anywhere":
            yield (
                f"start: anywhere of {workload.name!r} has no effect at request rates, where all "
                "sessions begin with their first turn; a longer warmup lets them spread"
            )


def _notes_on_drafts(loads: Sequence[PlannedLoad], settings: Sequence[EngineSettings]) -> list[str]:
    """That drafts are judged by prompts which say nothing of how many are accepted."""
    if all(engine_settings.speculative is None for engine_settings in settings):
        return []
    workloads = [part for load in loads for part in load.workload.with_parts()]
    names = {workload.name for workload in workloads if workload.content_source() == "random"}
    if not names:
        return []
    return [
        f"random text says nothing of drafts, and {listed(sorted(names))} send it: give prompts or "
        "a text of yours"
    ]


def _notes_on_rare_parts(loads: Sequence[PlannedLoad], slos: Sequence[Slo]) -> list[str]:
    """How few requests a search gets of a part of a mix that has limits of its own."""
    notes: list[str] = []
    for load in loads:
        if not load.searches or not isinstance(load.workload, MixWorkload):
            continue
        limited = {group.part for slo in slos for group in slo.groups}
        for part, share in load.workload.request_shares.items():
            if part in limited and share < RARE_SHARE:
                notes.append(f"{load.workload.name!r}: {_rare_part(load, part, share)}")
    return notes


def _rare_part(load: PlannedLoad, part: str, share: float) -> str:
    if load.control == "concurrency" or load.duration_s is None:
        probe = f"a probe sees one of them in {1 / share:,.0f} requests"
    else:
        requests = FIRST_RATE * load.duration_s * share
        probe = (
            f"a probe of {hours(load.duration_s)} at {FIRST_RATE:g} requests/s has about "
            f"{counted(round(requests), 'request')} of it"
        )
    return (
        f"part {part!r} has limits and is {share:.1%} of requests: {probe}, and a verdict takes as "
        "many of this part as of a workload alone; a larger weight finds the answer sooner"
    )


def _factors(load: PlannedLoad) -> Iterator[str]:
    """How far the levels of a trace are from its recorded rate, where they are not at it."""
    for level in load.levels:
        fidelity = fidelity_of(load.workload, level, load.arrivals)
        if fidelity is None or abs(fidelity.rate_factor - 1) < RATE_DIFFERS:
            continue
        text = load_text(level.control, level.value)
        text += f" is {fidelity.rate_factor:.3g} times the recorded rate"
        if fidelity.thinned_share:
            text += f", without {fidelity.thinned_share:.1%} of the sessions"
        yield text


def _judged_deployments(
    candidates: list[Candidate],
    loads: Sequence[PlannedLoad],
    levels: Mapping[str, tuple[Level, ...]],
    cluster_nodes: int | None,
) -> list[Deployment]:
    """The deployment of each candidate. Empties ``candidates`` on the way, because the deployments
    need the memory.
    """
    titles = labels(
        [
            Unlabelled(
                candidate.id,
                candidate.settings,
                candidate.hardware.name,
                is_excluded=candidate.excluded_by is not None,
            )
            for candidate in candidates
        ]
    )
    return [
        _deployment(candidate, title, loads, levels.get(candidate.id, ()), cluster_nodes)
        for candidate, title in zip(drained(candidates), titles, strict=True)
    ]


def _deployment(
    candidate: Candidate,
    label: str,
    loads: Sequence[PlannedLoad],
    levels: tuple[Level, ...],
    cluster_nodes: int | None,
) -> Deployment:
    verdict = judge(candidate, loads, cluster_nodes)
    # as it will be read from the frozen plan: values that JSON does not have become text
    derived = json.loads(json.dumps(dict(candidate.derived), default=str))
    return Deployment(
        id=candidate.id,
        label=label,
        settings=planned(candidate.settings, candidate.engine, verdict.starts),
        hardware=candidate.hardware,
        status="planned" if verdict.status == "fits" else verdict.status,
        reasons=verdict.reasons,
        remarks=verdict.remarks,
        unserved=verdict.unserved,
        predicted=Prediction(verdict.starts),
        derived=derived,
        levels=levels,
    )
