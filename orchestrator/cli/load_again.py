"""The options of a stored ``load --find-capacity``, as far as its plan tells them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import product
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from orchestrator.plan.model import Plan
    from orchestrator.spec.load import Lengths


def search_options(plan: Plan) -> tuple[str, ...] | None:
    """The options with which ``load`` asks for this search of a drawn workload again; None: the
    plan does not tell them.

    The plan holds what the options meant and a digest of those that were given. So options are put
    together and returned only if they have this digest.
    """
    for words in _candidates(plan):
        if _digest_of(plan, words) == plan.load_options:
            return words
    return None


def _candidates(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Options that may have asked for this search."""
    from orchestrator.workloads.drawn import RandomWorkload

    workload = plan.loads[0].workload
    if not isinstance(workload, RandomWorkload) or not plan.slos:
        return
    input_tokens = _length(workload.input_tokens)
    output_tokens = _length(workload.output_tokens)
    if input_tokens is None or output_tokens is None:
        return
    lengths = ("--input-tokens", input_tokens, "--output-tokens", output_tokens)
    certain = (*_search_words(plan), *lengths, *_endpoint_words(plan))
    uncertain = _uncertain_options(plan)
    for choice in product((False, True), repeat=len(uncertain)):
        chosen: list[str] = []
        for is_chosen, option in zip(choice, uncertain, strict=True):
            if is_chosen:
                chosen += option
        yield (*certain, *chosen)


def _search_words(plan: Plan) -> list[str]:
    from orchestrator.analysis.slo import format_slo
    from orchestrator.cli.load_options import SEARCH_PRECISION

    (load,) = plan.loads
    words = ["--find-capacity", "--slo", format_slo(plan.slos[0])]
    if load.control == "concurrency":
        words += ["--concurrency", f"{load.first_level or 1:g}"]
    elif load.first_level is not None:
        words += ["--rate", f"{load.first_level:g}"]
    if load.precision not in (None, SEARCH_PRECISION):
        words += ["--precision", f"{load.precision:g}"]
    if load.max_in_flight is not None:
        words += ["--max-in-flight", str(load.max_in_flight)]
    return words


def _endpoint_words(plan: Plan) -> list[str]:
    from orchestrator.spec.load import format_duration

    (load,) = plan.loads
    settings = plan.deployments[0].settings
    words = ["--request-timeout", format_duration(load.request_timeout_s)]
    if settings.api_key_env is not None:
        words += ["--api-key-env", settings.api_key_env]
    if settings.tokenizer is not None:
        words += ["--tokenizer", settings.tokenizer]
    if load.workload.api == "chat":
        words += ["--api", "chat"]
    return words


def _uncertain_options(plan: Plan) -> list[tuple[str, str]]:
    """Options of which the plan has a value whether or not they were given."""
    from orchestrator.spec.load import format_duration

    (load,) = plan.loads
    model = plan.deployments[0].settings.model
    options = [("--model", model), ("--seed", str(plan.seed))]
    if load.duration_s is not None:
        options.append(("--duration", format_duration(load.duration_s)))
    if load.warmup_s is not None:
        options.append(("--warmup", format_duration(load.warmup_s)))
    return options


def _length(lengths: Lengths | None) -> str | None:
    """``512`` or ``100:300``; None for other distributions."""
    if lengths is None:
        return None
    if lengths.uniform is not None:
        return f"{lengths.uniform.min}:{lengths.uniform.max}"
    return None if lengths.fixed is None else str(lengths.fixed)


def _digest_of(plan: Plan, words: Sequence[str]) -> str | None:
    """The digest of these options; None where ``load`` would refuse them."""
    from orchestrator.base.errors import Problem
    from orchestrator.cli.load import load
    from orchestrator.cli.load_options import LoadOptions, options_digest, parse_load

    url = plan.deployments[0].settings.url or ""
    try:
        params = load.make_context("load", [url, *words]).params
    except click.ClickException:
        return None
    names = {field.name for field in fields(LoadOptions)}
    given = {name: value for name, value in params.items() if name in names}
    options = LoadOptions(**given)
    problems: list[Problem] = []
    parsed = parse_load(url, options, problems)
    return None if problems or parsed.refused.has_any else options_digest(parsed, options)
