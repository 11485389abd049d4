"""The JSON of ``orchestrator plan``: what an experiment would measure, for other programs."""

from collections.abc import Iterator
from dataclasses import asdict

import orjson

from orchestrator.plan.cost import PlanEstimate
from orchestrator.plan.model import Deployment
from orchestrator.report.shortlist_words import left_out_text


def plan_json(estimate: PlanEstimate) -> Iterator[bytes]:
    """Yields one JSON text in pieces: all settings of every deployment, counts and estimates.

    There is a piece per deployment, because all of a large plan at once would take twice the memory
    of planning.
    """
    plan = estimate.plan
    yield b'{\n  "name": ' + orjson.dumps(plan.name) + b',\n  "deployments": ['
    before = b"\n    "
    for deployment in plan.deployments:
        yield before + _deployment_json(estimate, deployment)
        before = b",\n    "
    totals = {**asdict(estimate.totals()), "notes": estimate.notes()}
    if plan.shortlist is None:
        totals.pop("left_out")
    else:
        totals["shortlist"] = plan.shortlist.model_dump(mode="json")
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    yield b"\n  ]," + orjson.dumps(totals, option=options).removeprefix(b"{")


def _deployment_json(estimate: PlanEstimate, deployment: Deployment) -> bytes:
    content = deployment.model_dump(mode="json")
    shortlist = estimate.plan.shortlist
    left_out = deployment.left_out
    if shortlist is None:
        content.pop("left_out")
    elif left_out is not None:
        content["left_out"]["text"] = left_out_text(left_out, shortlist)
    content["points"] = len(estimate.plan.known_levels(deployment.id))
    content["cost"] = asdict(estimate.cost(deployment)) if deployment.runs else None
    return orjson.dumps(content, option=orjson.OPT_INDENT_2).replace(b"\n", b"\n    ")
