"""In which dialects the APIs of a launch are asked."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.base.errors import Failure, FailureKind, InputError
from orchestrator.engines.dialects import dialect_of
from orchestrator.engines.endpoint import with_salt
from orchestrator.engines.registry import ENGINES
from orchestrator.load.point import Target
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings
from orchestrator.sweep.detect_dialect import TrialFailed
from orchestrator.sweep.endpoint_trial import try_endpoint, usual_dialect
from orchestrator.sweep.launch_notes import LaunchNotes


class LaunchDialects:
    """The dialects of a launch that serves. ``notes``: what was found out about the launch."""

    def __init__(self, settings: EngineSettings, notes: LaunchNotes) -> None:
        self._settings = settings
        self._notes = notes
        self._tried: dict[str, Dialect] = {}  # API of an endpoint -> the dialect of its trial

    def dialect(self, api: str) -> Dialect:
        """The dialect in which an API is asked. That of an endpoint follows from its trial or,
        without one, from who owns its model.
        """
        settings = self._settings
        if api in self._tried:
            return self._tried[api]
        if settings.url is not None:
            return usual_dialect(settings, api, self._notes.model_owner)
        dialect = dialect_of(ENGINES[settings.engine], settings, api)
        return with_salt(dialect, self._notes.model_owner, settings)

    def try_endpoint(self, targets: Sequence[Target], api: str, timeout_s: float) -> Failure | None:
        """Find out once how an endpoint's API has to be asked, and tell what it cannot do. Nothing
        has to be found out about the API of an engine.

        Returns a failure if the first API answers no request: then nothing can be measured. If
        another API answers none, or if the next request may be answered, it only tells the user,
        because the points will show what works. ``targets``: of an endpoint there is one.
        """
        settings = self._settings
        if settings.url is None or api in self._tried:
            return None
        is_first = not self._tried
        self._tried[api] = usual_dialect(settings, api, self._notes.model_owner)
        (target,) = targets
        try:
            trial = try_endpoint(settings, api, self._notes.model_owner, target, timeout_s)
        except TrialFailed as error:
            if is_first and not error.may_pass:
                return Failure(FailureKind.BAD_CONFIG, str(error))
            self._notes.announcer.event("endpoint", str(error))
            return None
        except InputError as error:  # its host name is not found, which the points will show
            self._notes.announcer.event("endpoint", str(error))
            return None
        self._tried[api] = trial.dialect
        for note in trial.notes:
            self._notes.announcer.event("endpoint", note)
        return None
