"""Checks that need a whole experiment: its candidates together with its workloads and its load.

Each check adds to the experiment's problems, so that a user sees all of them at once.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from orchestrator.base.errors import InputError
from orchestrator.base.extras import how_to_install
from orchestrator.base.text import counted
from orchestrator.catalog.accelerators import find
from orchestrator.catalog.accelerators import nearest as similar_accelerators
from orchestrator.engines.dialects import dialects_of
from orchestrator.plan.candidates import Candidate
from orchestrator.plan.paths import Paths
from orchestrator.spec.document import nearest
from orchestrator.spec.experiment import Experiment, Load, Predictions
from orchestrator.spec.load import Slo
from orchestrator.spec.mixes import measured
from orchestrator.spec.settings import Hardware

MOST_MEASUREMENTS = 1_000_000


def check_candidates(experiment: Experiment, candidates: Sequence[Candidate], loads: int) -> None:
    """Reports what candidates and workloads cannot do together. ``loads``: how many are planned.

    Raises ProblemsError for a plan with more than MOST_MEASUREMENTS measurements.
    """
    _check_size(experiment, candidates, loads)
    _check_apis(experiment, candidates)
    _check_parts(experiment)
    _check_accelerators(experiment)
    _check_prices(experiment, candidates)
    _check_recorded_answers(experiment, candidates)


def checked_predictions(experiment: Experiment, paths: Paths) -> Predictions:
    """The file's ``predictions`` with the path of the profile resolved. Reports a profile that
    cannot be read, and tables that are not installed.
    """
    predictions: Predictions = experiment.parts.get("predictions", Predictions())
    if predictions.tables and find_spec("aiconfigurator_core") is None:
        experiment.problems.add(
            ("predictions", "tables"),
            "the tables are not installed",
            how_to_install("tables"),
        )
    if predictions.profile is None:
        return predictions
    from orchestrator.emulator.profile import load_profile  # few experiments need it

    try:
        profile = paths.profile(predictions.profile)
        predictions = predictions.model_copy(update={"profile": profile})
        load_profile(profile)
    except (ValueError, InputError) as error:
        experiment.problems.add(
            ("predictions", "profile"), str(error), "orchestrator predict fit writes one"
        )
    return predictions


def _check_size(experiment: Experiment, candidates: Sequence[Candidate], loads: int) -> None:
    """Raises ProblemsError for too many measurements, before the other checks, which would take as
    long as planning so many does.
    """
    load: Load | None = experiment.parts.get("load")
    deployments = sum(candidate.excluded_by is None for candidate in candidates)
    levels = 0
    if load is not None and load.levels is not None:
        levels = loads * len(load.levels.written)
    repeats = experiment.parts.get("repeats", 1)
    measurements = deployments * levels * repeats
    if measurements <= MOST_MEASUREMENTS:
        return
    factors = (
        counted(deployments, "deployment"),
        counted(levels, "level"),
        counted(repeats, "repeat"),
    )
    message = (
        f"{' x '.join(factors)} are {measurements:,} measurements; "
        f"at most {MOST_MEASUREMENTS:,} are allowed"
    )
    experiment.problems.add(("load",), message, "make several experiments of it")
    experiment.problems.raise_any()


def _check_apis(experiment: Experiment, candidates: Sequence[Candidate]) -> None:
    """Reports workloads that need an API which no deployment has."""
    workloads = experiment.parts.get("workloads", ())
    needed = {workload.api for workload in workloads if not workload.part_names()}
    served: set[str] = set()
    for candidate in candidates:
        if needed <= served:
            return
        served.update(dialects_of(candidate.engine, candidate.settings))
    for index, workload in enumerate(workloads):
        if workload.part_names():
            continue  # its parts are in the list, too
        if served and workload.api not in served:
            message = f"no deployment has the API {workload.api!r}"
            hint = nearest(workload.api, served)
            experiment.problems.add(("workloads", index, "api"), message, hint)


def _check_parts(experiment: Experiment) -> None:
    """Reports limits on parts of a mix that some workload does not have."""
    workloads = measured(experiment.parts.get("workloads", ()))
    slos: Mapping[str, Slo] = experiment.parts.get("slos", {})
    for key, slo in slos.items():
        for part in slo.parts or ():
            for workload in workloads:
                names = workload.part_names()
                if part in names:
                    continue
                place = ("slos", key, "parts", part)
                message = f"{workload.name!r} has no part {part!r}"
                hint = nearest(part, names) if names else "measure it in an experiment of its own"
                experiment.problems.add(place, message, hint)


def _check_accelerators(experiment: Experiment) -> None:
    """Reports accelerators of unknown memory, on which it could not be judged what fits: the
    catalogue lacks them, and the file does not say how much they have.
    """
    hardware: Mapping[str, Hardware] = experiment.parts.get("hardware", {})
    for key, written in hardware.items():
        if written.memory_gb is not None or find(written.accelerator) is not None:
            continue
        hint = "give memory_gb for one that the catalogue lacks"
        names = similar_accelerators(written.accelerator)
        if names:
            hint = f"did you mean {' or '.join(map(repr, names))}? Else {hint}"
        message = f"unknown accelerator {written.accelerator!r}"
        experiment.problems.add(("hardware", key, "accelerator"), message, hint)


def _check_prices(experiment: Experiment, candidates: Sequence[Candidate]) -> None:
    """Reports hardware without a price in searches for the lowest cost."""
    load: Load | None = experiment.parts.get("load")
    if load is None or load.objective != "usd":
        return
    all_hardware = [candidate.hardware for candidate in candidates]
    unpriced = sorted({hardware.name for hardware in all_hardware if not hardware.usd_per_gpu_hour})
    if unpriced:
        experiment.problems.add(
            ("load", "objective"),
            f"'objective: usd' needs the price of all hardware, and {', '.join(unpriced)} has none",
            "give usd_per_gpu_hour, or objective: gpu",
        )


def _check_recorded_answers(experiment: Experiment, candidates: Sequence[Candidate]) -> None:
    """Reports workloads whose answers are to be as long as the recorded ones, if a deployment has
    no tokenizer to count the recorded ones with.
    """
    counting = [
        index
        for index, workload in enumerate(experiment.parts.get("workloads", ()))
        if getattr(workload, "counts_answers", False)
    ]
    if not counting:
        return
    models = {
        candidate.settings.model
        for candidate in candidates
        if candidate.excluded_by is None and not _may_have_tokenizer(candidate)
    }
    if not models:
        return
    message = (
        "recorded answers are counted with the model's tokenizer, and there is none of "
        f"{', '.join(sorted(models))} here"
    )
    for index in counting:
        place = ("workloads", index, "output_tokens")
        experiment.problems.add(
            place, message, "give 'tokenizer': a folder with tokenizer.json, or that file"
        )


def _may_have_tokenizer(candidate: Candidate) -> bool:
    """Whether clients may find the tokenizer of a deployment: it is given, this machine has it, or
    the engine brings the model's files to its nodes.
    """
    from orchestrator.workloads.content import local_tokenizer  # few workloads need it

    settings = candidate.settings
    if settings.tokenizer is not None or local_tokenizer(settings.model) is not None:
        return True
    is_gguf = settings.model.endswith(".gguf") or ":" in settings.model
    return candidate.engine.launches and not is_gguf
