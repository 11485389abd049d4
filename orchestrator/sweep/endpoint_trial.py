"""Tries an endpoint that an experiment file names, as ``load`` tries the endpoint that it is given.

``run`` does so before the first point, so that an endpoint is asked in a dialect that it
understands. ``doctor`` does so to tell what would make a run fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from orchestrator.base.errors import InputError
from orchestrator.engines.command import Node
from orchestrator.engines.dialects import dialect_of
from orchestrator.engines.endpoint import with_constraints, with_salt
from orchestrator.engines.registry import ENGINES
from orchestrator.load.point import Target
from orchestrator.plan.model import Deployment, Plan
from orchestrator.spec.address import parse_address
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings
from orchestrator.sweep.detect_dialect import (
    KEY_REFUSED,
    EndpointDialect,
    ModelListing,
    TrialFailed,
    constraining,
    detect_dialect,
    dialects,
    list_models,
    salted_first,
)
from orchestrator.sweep.examine import Finding

# seconds for each trial request of ``doctor``; some endpoints load their model at the first one
DOCTOR_LIMIT_S = 10.0
_API_OF_LOAD = {"native": "sglang"}  # name of an API in a file -> its name as an option of `load`


def endpoint_target(settings: EngineSettings, api_key: str | None) -> Target:
    """The server that an endpoint's ``url`` names, whichever path of its API the URL ends with."""
    base_url = parse_address(str(settings.url)).base
    name = ENGINES[settings.engine].served_name(settings, Node())
    return Target(base_url, name, 0, api_key)


def usual_dialect(settings: EngineSettings, api: str, owner: str) -> Dialect:
    """The dialect in which an endpoint is asked, unless a trial request shows that it understands
    only a plainer one. ``owner``: who the endpoint says owns the model.
    """
    dialect = dialect_of(ENGINES[settings.engine], settings, api)
    path = parse_address(str(settings.url)).paths(dialect.path)[0]
    with_fields = with_constraints(replace(dialect, path=path), owner, settings)
    return with_salt(with_fields, owner, settings)


def try_endpoint(
    settings: EngineSettings, api: str, owner: str, target: Target, timeout_s: float
) -> EndpointDialect:
    """The first dialect in which an endpoint answers. They are tried from the engine's own to the
    plainest. ``owner``: who the endpoint says owns the model. Raises TrialFailed.
    """
    full_dialect = dialect_of(ENGINES[settings.engine], settings, api)
    candidates = [full_dialect]
    for dialect in dialects(_API_OF_LOAD.get(api, api)):
        # only the engine's own dialect may ask for token ids
        uses_token_ids = dialect.return_token_ids or dialect.prompt_token_ids
        if not uses_token_ids and dialect != full_dialect:
            candidates.append(dialect)
    candidates = salted_first(constraining(candidates, owner, settings), owner, settings)
    return detect_dialect(
        target,
        candidates,
        tokenizer=None,
        timeout_s=timeout_s,
        address=parse_address(str(settings.url)),
        key_name=settings.api_key_env,
        from_file=True,
    )


def endpoint_findings(plan: Plan) -> Iterator[Finding]:
    """What would make a run of this plan's endpoints fail. Each endpoint is asked for its models,
    and for two tokens through every API that its workloads use, which takes seconds.
    """
    for deployment in plan.runnable():
        if ENGINES[deployment.settings.engine].launches:
            continue
        loads = [load for load in plan.loads if load.workload.name not in deployment.unserved]
        apis = dict.fromkeys(load.workload.api for load in loads)  # each once, in order
        yield from _findings_of(deployment, apis)


def _findings_of(deployment: Deployment, apis: Iterable[str]) -> Iterator[Finding]:
    """What would make a run of one endpoint fail. ``apis``: those that its workloads use."""
    settings = deployment.settings
    variable = settings.api_key_env
    api_key = os.environ.get(variable) if variable else None
    if variable and not api_key:
        what = f"the variable {variable} (api_key_env) is not set here"
        yield _failure(deployment, what, "set it")
        return
    target = endpoint_target(settings, api_key)
    try:
        listing = list_models(target, parse_address(str(settings.url)), DOCTOR_LIMIT_S)
    except InputError as error:
        yield _failure(deployment, str(error), "start it, or mend its url")
        return
    owner = (listing.owners or {}).get(target.model, "")
    for api in apis:
        try:
            try_endpoint(settings, api, owner, target, DOCTOR_LIMIT_S)
        except TrialFailed as error:
            yield _failed_trial(deployment, error, listing, target.model)
        except InputError as error:
            yield _failure(deployment, str(error), "mend its url")


def _failure(deployment: Deployment, what: str, remedy: str) -> Finding:
    return Finding(
        level="fail",
        check="endpoint",
        where=deployment.label,
        what=what,
        why=f"{deployment.label} fails",
        do=remedy,
    )


def _failed_trial(
    deployment: Deployment, error: TrialFailed, listing: ModelListing, model: str
) -> Finding:
    """The finding for a trial request that failed: a warning if the next one may be answered."""
    is_unlisted = listing.owners is not None and model not in listing.owners
    what = str(error)
    if is_unlisted:
        what = f"{what}; it lists {listing.names}, not {model!r}"
    if error.may_pass:
        return Finding(
            level="warning",
            check="endpoint",
            where=deployment.label,
            what=what,
            why=f"{deployment.label} may fail",
            do="ask again later",
        )
    return _failure(deployment, what, _remedy(error, is_unlisted))


def _remedy(error: TrialFailed, is_unlisted: bool) -> str:
    """What the user can do about a trial request that failed."""
    if error.status in KEY_REFUSED:
        return "give the right key (api_key_env names its variable)"
    if is_unlisted:
        return "name a model that it lists (served_model_name)"
    return "mend its url, or try `orchestrator load` there"
