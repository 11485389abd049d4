"""What launches answered to fixed prompts before they were measured: is it output at all, and how
much of it equals the answers of the model's reference deployment?

This does not evaluate quality: it tells a fast engine from one that computes something else. Only
answers of one model to the same prompt through the same API are compared (docs/metrics.md).
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from orchestrator.analysis.deployments import StoredDeployment, stored_deployment
from orchestrator.base.text import grouped
from orchestrator.results.records import AnswerRow, DeploymentRow, LaunchRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store

FEW = 4  # fewer answers or tokens than this may be alike by chance
# one piece again and again; more often where a first token comes before it, since words may end in
# "...."
_REPEATED = re.compile(r"(.+?)\1{3,}|.{1,32}?(.+?)\2{5,}", re.DOTALL)

Answers = Sequence[AnswerRow]


@dataclass(frozen=True, slots=True)
class Agreement:
    """``share`` of ``n`` tokens that equal the reference's, up to the first difference in each
    answer.

    Characters are compared where either side has no token ids (``unit``). ``note``: why there is no
    share, or a remark.
    """

    share: float | None = None
    n: int = 0
    unit: str | None = None
    reference: str | None = None  # label of the deployment
    note: str | None = None


IS_REFERENCE = "it is the reference"
ALONE = "nothing else of its model was asked the same"
SUPERSEDED = "the reference is superseded"
UNKNOWN = Agreement(note="no answers of it are stored")
MADE_UP = Agreement(note="an emulator's answers are made up")


# below it, hardly any token equals the reference's: answers of another model do as well
NEAR_CHANCE = 0.1


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A deployment that is not shown to agree with its model's reference as far as ``limit``."""

    agreement: Agreement
    limit: float


def disagreement(agreement: Agreement, limit: float) -> Disagreement | None:
    """None if the agreement is at least ``limit``. The reference, and the only deployment of its
    model, agree with themselves.
    """
    if agreement.share is None:
        agrees = agreement.note in (IS_REFERENCE, ALONE)
    else:
        agrees = agreement.share >= limit
    return None if agrees else Disagreement(agreement, limit)


@dataclass(frozen=True, slots=True)
class Answered:
    """One launch and what it answered."""

    launch: LaunchRow
    deployment: StoredDeployment
    answers: Answers

    @property
    def family(self) -> tuple[str, str]:
        """Answers are compared within a family: one model, in any checkpoint, asked through one
        API.
        """
        return self.deployment.one_model, self.answers[0].api


def called(deployments: Sequence[StoredDeployment]) -> str:
    """One model in a few words: its unquantized checkpoint, and how many other checkpoints there
    are.
    """
    names = {deployment.model for deployment in deployments}
    unquantized = {deployment.model for deployment in deployments if not deployment.is_quantized}
    first = min(unquantized or names)
    others = len(names) - 1
    return first + (f" and {others} more checkpoint{'s' * (others > 1)} of it" if others else "")


def broken(answers: Answers) -> list[str]:
    """Why the answers are no output: a sentence per broken replica, empty where all is well or
    answers are too few.
    """
    of_each = grouped((one.replica, one) for one in answers)
    found = [
        f"replica {replica}: {why}"
        for replica, some in sorted(of_each.items())
        if (why := _noise(some))
    ]
    if found and len(of_each) > 1:
        return found
    why = _noise(answers)  # of all together: each replica may have few
    return [why] if why else []


def _noise(answers: Answers) -> str | None:
    nan = [[math.isnan(value) for value in one.logprobs or ()] for one in answers]
    some = sum(map(any, nan))
    # one alone may be a null that the API gave
    if some >= FEW or any(len(one) > 1 and all(one) for one in nan):
        return f"in {some} of {len(answers)} answers to fixed prompts a log-probability is NaN"
    if len(answers) < FEW:
        return None
    if not any(one.text or one.token_ids for one in answers):
        return f"all {len(answers)} answers to fixed prompts are empty"
    # that one may still be right
    for first, which in ((0, "tokens"), (1, "tokens after the first")):
        ids = [token for one in answers for token in (one.token_ids or ())[first:]]
        if len(set(ids)) == 1 and len(ids) >= FEW * len(answers):
            return f"all {len(ids)} {which} of {len(answers)} answers to different prompts are the same (id {ids[0]})"
    units = {_repeated(one.text) for one in answers}
    if not any(one.token_ids for one in answers) and len(units) == 1 and None not in units:
        return f"all {len(answers)} answers to different prompts repeat {units.pop()!r}"
    return None


def _repeated(text: str) -> str | None:
    """The piece that a text repeats, perhaps after a first token; None where it does not only
    repeat.
    """
    found = _REPEATED.fullmatch(text)
    return (found[1] or found[2]) if found else None


def agreements(
    store: Store,
    described: Callable[[StoredDeployment], StoredDeployment] = lambda deployment: deployment,
    planned: Iterable[str] = (),
) -> dict[str, Agreement]:
    """By deployment id, for deployments whose answers are stored.

    ``described``: turns a deployment into the one that is shown; ``planned``: deployment ids in the order
    of the file.
    """
    manifests = [
        one
        for one in store.manifests("launch")
        if any(part.table == "answers" for part in one.files)
    ]
    if not manifests:
        return {}
    answered = rows_of(store.read_manifests("answers", manifests, leave_out=True), AnswerRow)
    answers = grouped((row.launch_id, row) for row in answered)
    rows = rows_of(store.read_manifests("deployments", manifests, leave_out=True), DeploymentRow)
    deployments = {row.deployment_id: described(stored_deployment(row)) for row in rows}
    launches = rows_of(store.read_manifests("launches", manifests, leave_out=True), LaunchRow)
    found = (
        Answered(one, deployments[one.deployment_id], answers[one.launch_id])
        for one in launches
        if one.deployment_id in deployments and one.launch_id in answers
    )
    return compared(found, list(planned))


def compared(answered: Iterable[Answered], planned: Sequence[str] = ()) -> dict[str, Agreement]:
    """The agreement of every deployment with the reference of its family."""

    def order(one: Answered) -> tuple[int, int, str]:
        place = (
            planned.index(one.deployment.deployment_id)
            if one.deployment.deployment_id in planned
            else len(planned)
        )
        return place, one.launch.started_unix_ns, one.launch.launch_id

    found: dict[str, Agreement] = {}
    for some in grouped((one.family, one) for one in sorted(answered, key=order)).values():
        first = reference(some, planned)
        superseded = (
            bool(planned) and first is not None and first.deployment.deployment_id not in planned
        )
        for deployment_id in dict.fromkeys(one.deployment.deployment_id for one in some):
            mine = [one for one in some if one.deployment.deployment_id == deployment_id]
            agreement = Agreement(note=ALONE) if len(some) == 1 else _agreement(mine, first)
            if superseded and agreement.share is not None:
                agreement = replace(agreement, note=SUPERSEDED)
            # it may have two APIs
            if deployment_id not in found or agreement.n > found[deployment_id].n:
                found[deployment_id] = agreement
    return found


def reference(family: Sequence[Answered], planned: Sequence[str] = ()) -> Answered | None:
    """The launch that the others are compared with; None where no launch gave output.

    It is the first launch of the unquantized deployment with the plainest settings. A superseded
    deployment is taken only where the plan asks for no unquantized one; where all are quantized,
    the first launch of all. ``family``: in the order of the file, then of time.
    """
    good = [one for one in family if not broken(one.answers)]
    unquantized = [one for one in good if not one.deployment.is_quantized]
    asked = [one for one in unquantized if one.deployment.deployment_id in planned]
    return min(asked or unquantized, key=_plainness, default=good[0] if good else None)


def _plainness(one: Answered) -> tuple[bool, bool, int, int]:
    """Lower is plainer: token ids are told, the KV cache has the model's type, few devices, few
    settings.
    """
    deployment = one.deployment
    return (
        not all(answer.token_ids for answer in one.answers),
        deployment.kv_cache_dtype not in (None, "auto"),
        deployment.devices,
        len(deployment.settings),
    )


def _agreement(mine: Sequence[Answered], first: Answered | None) -> Agreement:
    if first is None:
        return Agreement(note="no deployment of this model gave output to compare with")
    label = first.deployment.label
    others = [one for one in mine if one is not first]
    if not others:
        return Agreement(reference=label, note=IS_REFERENCE)
    theirs = {one.prompt: one for one in first.answers}
    pairs = [
        (one, theirs[one.prompt]) for each in others for one in each.answers if one.prompt in theirs
    ]
    if not pairs:
        return Agreement(reference=label, note="the reference was asked other prompts")
    as_ids = all(one.token_ids and other.token_ids for one, other in pairs)
    equal = total = 0
    for one, other in pairs:
        a, b = (one.token_ids or (), other.token_ids or ()) if as_ids else (one.text, other.text)
        equal += sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(a, b, strict=False)))
        total += max(len(a), len(b))
    if not total:
        return Agreement(reference=label, note="its answers and the reference's are empty")
    again = "another start of the reference itself" if len(others) < len(mine) else None
    return Agreement(equal / total, total, "tokens" if as_ids else "characters", label, again)
