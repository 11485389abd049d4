"""Compares a deployment's answers to fixed prompts with those of its model's reference deployment.

The prompts are sent before anything is measured. The comparison does not evaluate quality: it tells
a fast engine from one that computes something else. Only answers of one model to the same prompt
through the same API are compared (docs/explained/certainty.md).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import takewhile
from typing import NamedTuple

from orchestrator.analysis.broken_output import broken_output
from orchestrator.analysis.deployments import StoredDeployment, stored_deployment
from orchestrator.base.grouping import values_by_key
from orchestrator.results.records import AnswerRow, DeploymentRow, LaunchRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store

# below this share, answers agree with the reference no better than another model's would
NEAR_CHANCE = 0.1


class AgreementNote(Enum):
    """Why there is no share, or a remark on it."""

    # no share
    IS_REFERENCE = auto()
    ALONE = auto()  # no other launch of its model answered through the same API
    NOT_STORED = auto()  # its answers are not stored
    MADE_UP = auto()  # an emulator made its answers up
    NO_REFERENCE = auto()  # no deployment of its model gave output
    OTHER_PROMPTS = auto()  # the reference was asked other prompts
    EMPTY = auto()  # its answers and the reference's are empty
    # remarks
    SUPERSEDED = auto()  # the plan no longer asks for the reference
    REFERENCE_AGAIN = auto()  # another start of the reference itself


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a deployment's answers equal the reference's.

    ``share``: of ``n`` tokens, those that equal the reference's up to the first difference in each
    answer. ``unit``: ``tokens``, or ``characters`` where either side has no token ids.
    ``reference``: the label of the reference deployment.
    """

    share: float | None = None
    n: int = 0
    unit: str | None = None
    reference: str | None = None
    note: AgreementNote | None = None


UNKNOWN = Agreement(note=AgreementNote.NOT_STORED)
MADE_UP = Agreement(note=AgreementNote.MADE_UP)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """An agreement with the reference that is not shown to reach the share ``limit``."""

    agreement: Agreement
    limit: float


def disagreement(agreement: Agreement, limit: float) -> Disagreement | None:
    """Judges an agreement by the share ``limit``; None if it is at least that.

    The reference counts as agreeing, and so does a deployment that there is nothing to compare
    with.
    """
    if agreement.share is None:
        agrees = agreement.note in (AgreementNote.IS_REFERENCE, AgreementNote.ALONE)
    else:
        agrees = agreement.share >= limit
    return None if agrees else Disagreement(agreement, limit)


@dataclass(frozen=True, slots=True)
class AnswerFamily:
    """Answers are compared only within a family: one model, in any checkpoint, through one API."""

    model: str
    api: str


@dataclass(frozen=True, slots=True)
class AnsweredLaunch:
    """One launch and its answers to the fixed prompts."""

    launch: LaunchRow
    deployment: StoredDeployment
    answers: Sequence[AnswerRow]

    @property
    def family(self) -> AnswerFamily:
        return AnswerFamily(self.deployment.model_key, self.answers[0].api)


def _as_stored(deployment: StoredDeployment) -> StoredDeployment:
    return deployment


def agreements(
    store: Store,
    described: Callable[[StoredDeployment], StoredDeployment] = _as_stored,
    planned: Iterable[str] = (),
) -> dict[str, Agreement]:
    """The agreement of every deployment whose answers are stored, by deployment id.

    ``described``: turns a stored deployment into the one that is shown. ``planned``: ids of the
    deployments that the plan asks for, in the order of the file.
    """
    manifests = [
        manifest
        for manifest in store.manifests("launch")
        if any(part.table == "answers" for part in manifest.files)
    ]
    if not manifests:
        return {}
    answer_rows = rows_of(store.read_manifests("answers", manifests, skip_damaged=True), AnswerRow)
    answers = values_by_key((row.launch_id, row) for row in answer_rows)
    rows = rows_of(store.read_manifests("deployments", manifests, skip_damaged=True), DeploymentRow)
    deployments = {row.deployment_id: described(stored_deployment(row)) for row in rows}
    launches = rows_of(store.read_manifests("launches", manifests, skip_damaged=True), LaunchRow)
    answered = [
        AnsweredLaunch(launch, deployments[launch.deployment_id], answers[launch.launch_id])
        for launch in launches
        if launch.deployment_id in deployments and launch.launch_id in answers
    ]
    return compared(answered, list(planned))


def compared(
    answered: Iterable[AnsweredLaunch], planned: Sequence[str] = ()
) -> dict[str, Agreement]:
    """The agreement of every deployment with the reference of its family."""

    def order(launch: AnsweredLaunch) -> tuple[int, int, str]:
        deployment_id = launch.deployment.deployment_id
        is_planned = deployment_id in planned
        place = planned.index(deployment_id) if is_planned else len(planned)
        return place, launch.launch.started_unix_ns, launch.launch.launch_id

    in_order = sorted(answered, key=order)
    agreement_of: dict[str, Agreement] = {}
    for launches in values_by_key((launch.family, launch) for launch in in_order).values():
        for deployment_id, agreement in _of_family(launches, planned).items():
            other = agreement_of.get(deployment_id)  # it may have answered through two APIs
            if other is None or agreement.n > other.n:
                agreement_of[deployment_id] = agreement
    return agreement_of


def _of_family(launches: Sequence[AnsweredLaunch], planned: Sequence[str]) -> dict[str, Agreement]:
    """The agreement of every deployment of one family with the reference, by deployment id."""
    by_deployment = values_by_key((launch.deployment.deployment_id, launch) for launch in launches)
    if len(launches) == 1:
        return dict.fromkeys(by_deployment, Agreement(note=AgreementNote.ALONE))
    first = reference(launches, planned)
    if first is None:
        return dict.fromkeys(by_deployment, Agreement(note=AgreementNote.NO_REFERENCE))
    is_superseded = bool(planned) and first.deployment.deployment_id not in planned
    agreement_of: dict[str, Agreement] = {}
    for deployment_id, of_deployment in by_deployment.items():
        agreement = _agreement(of_deployment, first)
        if is_superseded and agreement.share is not None:
            agreement = replace(agreement, note=AgreementNote.SUPERSEDED)
        agreement_of[deployment_id] = agreement
    return agreement_of


def reference(
    family: Sequence[AnsweredLaunch], planned: Sequence[str] = ()
) -> AnsweredLaunch | None:
    """The launch that the others are compared with; None where no launch gave output.

    It is the first launch of the unquantized deployment with the plainest settings. A deployment
    that the plan no longer asks for is taken only where the plan asks for no unquantized one. Where
    all are quantized, it is the first launch of all. ``family``: in the order of the file, then of
    time.
    """
    with_output = [launch for launch in family if not broken_output(launch.answers)]
    unquantized = [launch for launch in with_output if not launch.deployment.is_quantized]
    current = [launch for launch in unquantized if launch.deployment.deployment_id in planned]
    candidates = current or unquantized
    if candidates:
        return min(candidates, key=_complexity)
    return with_output[0] if with_output else None


class _Complexity(NamedTuple):
    """How far a deployment is from a plain one: the smaller, the plainer, by the first field in
    which two deployments differ.
    """

    lacks_token_ids: bool
    has_other_kv_type: bool  # than the model's
    devices: int
    settings: int


def _complexity(launch: AnsweredLaunch) -> _Complexity:
    deployment = launch.deployment
    return _Complexity(
        lacks_token_ids=not all(answer.token_ids for answer in launch.answers),
        has_other_kv_type=deployment.kv_cache_dtype not in (None, "auto"),
        devices=deployment.devices,
        settings=len(deployment.settings),
    )


def _agreement(of_deployment: Sequence[AnsweredLaunch], first: AnsweredLaunch) -> Agreement:
    """The agreement of the launches of one deployment with the reference, ``first``."""
    label = first.deployment.label
    others = [launch for launch in of_deployment if launch is not first]
    if not others:
        return Agreement(reference=label, note=AgreementNote.IS_REFERENCE)
    by_prompt = {answer.prompt: answer for answer in first.answers}
    pairs = [
        (answer, by_prompt[answer.prompt])
        for launch in others
        for answer in launch.answers
        if answer.prompt in by_prompt
    ]
    if not pairs:
        return Agreement(reference=label, note=AgreementNote.OTHER_PROMPTS)
    as_ids = all(answer.token_ids and other.token_ids for answer, other in pairs)
    equal = 0
    total = 0
    for answer, other in pairs:
        if as_ids:
            own, expected = answer.token_ids or (), other.token_ids or ()
            equal += _equal_at_start(own, expected)
            total += max(len(own), len(expected))
        else:
            equal += _equal_at_start(answer.text, other.text)
            total += max(len(answer.text), len(other.text))
    if not total:
        return Agreement(reference=label, note=AgreementNote.EMPTY)
    is_reference = len(others) < len(of_deployment)
    return Agreement(
        share=equal / total,
        n=total,
        unit="tokens" if as_ids else "characters",
        reference=label,
        note=AgreementNote.REFERENCE_AGAIN if is_reference else None,
    )


def _equal_at_start(first: Sequence[object], second: Sequence[object]) -> int:
    """How many items are equal up to the first difference."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
