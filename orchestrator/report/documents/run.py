"""One run of an experiment as its record shows it: what ``status`` shows."""

from dataclasses import dataclass

from orchestrator.results.runs import SILENT_S, RunRecord, Runs, RunState


@dataclass(frozen=True, slots=True)
class RunDocument:
    """One run. ``age_s``: seconds since its last heartbeat."""

    experiment: str
    record: RunRecord
    age_s: float

    @property
    def state(self) -> RunState:
        """The state that the record names, unless the run's program is gone, or on another host and
        silent.
        """
        if self.record.state is RunState.ENDED:
            return RunState.ENDED
        lives = self.record.lives()
        if lives is False:
            return RunState.DEAD
        is_on_other_host = lives is None
        if is_on_other_host and self.age_s >= SILENT_S:
            return RunState.SILENT
        return self.record.state

    @property
    def is_starting(self) -> bool:
        """Whether it lives and has not joined its cluster yet."""
        return self.state in (RunState.CLAIMING, RunState.STARTING)

    @property
    def is_over(self) -> bool:
        """Whether it does nothing any more, so that another run may take its place."""
        return self.state in (RunState.ENDED, RunState.DEAD)


@dataclass(frozen=True, slots=True)
class ExperimentRuns:
    """The runs of one experiment that are on record, the oldest first.

    ``simulated``: its results are simulated; a simulation leaves no record behind.
    """

    experiment: str
    runs: tuple[RunDocument, ...]
    simulated: bool = False

    @property
    def of_now(self) -> tuple[RunDocument, ...]:
        """The runs that tell what happens now. While one starts, those that are over are left out."""
        if not any(run.is_starting for run in self.runs):
            return self.runs
        return tuple(run for run in self.runs if not run.is_over)


def experiment_runs(runs: Runs, simulated: bool = False) -> ExperimentRuns:
    """The runs of one experiment, as their records are now.

    ``simulated``: whether the results of the experiment are simulated.
    """
    ages_s = runs.file_ages_s()
    documents = []
    for record in runs.records():
        age_s = ages_s.get(f"{record.run_id}.json", 0.0)
        documents.append(RunDocument(runs.experiment, record, age_s))
    return ExperimentRuns(runs.experiment, tuple(documents), simulated)
