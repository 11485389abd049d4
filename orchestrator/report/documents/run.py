"""One run of an experiment, known from its record alone: what ``status`` shows."""

from dataclasses import dataclass

from orchestrator.results.runs import SILENT_S, RunRecord, Runs


@dataclass(frozen=True, slots=True)
class RunDocument:
    """``age_s``: seconds since its last heartbeat."""

    experiment: str
    record: RunRecord
    age_s: float

    @property
    def state(self) -> str:
        """As the record says (``running``, ``stopping``, ``ended``), or ``dead``: its process is
        gone; ``silent``: there was no sign of life for long.
        """
        if self.record.state == "ended":
            return "ended"
        lives = self.record.lives()
        if lives is None:  # it runs on another host
            return "silent" if self.age_s >= SILENT_S else self.record.state
        return self.record.state if lives else "dead"


@dataclass(frozen=True, slots=True)
class ExperimentRuns:
    """The runs of one experiment that are on record, the oldest first. ``simulated``: its results
    are; a simulation leaves no record behind.
    """

    experiment: str
    runs: tuple[RunDocument, ...]
    simulated: bool = False


def experiment_runs(runs: Runs, simulated: bool = False) -> ExperimentRuns:
    """The runs of one experiment, as their records say now. ``simulated``: whether its results
    are.
    """
    ages_s = runs.file_ages_s()
    documents = []
    for record, _ in runs.all():
        age_s = ages_s.get(f"{record.run_id}.json", 0.0)
        documents.append(RunDocument(runs.experiment, record, age_s))
    return ExperimentRuns(runs.experiment, tuple(documents), simulated)
