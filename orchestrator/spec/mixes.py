"""Mixes: which workloads of a file are parts of others, and what keeps them from being parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from orchestrator.base.text import listed
from orchestrator.spec.document import Place, Problems
from orchestrator.spec.load import Workload

# names of parts stand in limits such as chat:ttft<=500ms
_PART_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def with_parts(workloads: Sequence[Workload], problems: Problems) -> list[Workload] | None:
    """The workloads of a file, each mix with the workloads that its parts name. Reports parts that
    do not exist or cannot be mixed; None if there are any.
    """
    by_name = {workload.name: workload for workload in workloads}
    with_contents: list[Workload] = []
    are_fine = True
    for index, workload in enumerate(workloads):
        if not workload.part_names():
            with_contents.append(workload)
        elif _can_be_mixed(workload, by_name, ("workloads", index), problems):
            with_contents.append(workload.with_contents(by_name))
        else:
            are_fine = False
    return with_contents if are_fine else None


def measured(workloads: Sequence[Workload]) -> list[Workload]:
    """The workloads that are measured: those that are no part of another one."""
    parts = {name for workload in workloads for name in workload.part_names()}
    return [workload for workload in workloads if workload.name not in parts]


def _can_be_mixed(
    mix: Workload, by_name: Mapping[str, Workload], place: Place, problems: Problems
) -> bool:
    """Whether all parts can be in one mix. Reports each that cannot, and APIs that differ."""
    is_fine = True
    names = mix.part_names()
    for number, name in enumerate(names):
        of_part: Place = (*place, "parts", number, "workload")
        part = by_name.get(name)
        if part is None:
            problems.unknown(of_part, "workload", name, by_name)
            is_fine = False
        elif part.reason_against_mixing is not None:
            text = f"{name!r} cannot be a part of a mix: {part.reason_against_mixing}"
            problems.add(of_part, text, "measure it as a workload of its own")
            is_fine = False
        elif name in names[:number]:
            problems.add(of_part, f"{name!r} is a part twice", "add its weights together")
            is_fine = False
        elif _PART_NAME.fullmatch(name) is None:
            text = f"{name!r} is no name for a part: limits are written as NAME:ttft<=500ms"
            problems.add(of_part, text, "name the workload with letters, digits, '_', '.' and '-'")
            is_fine = False
    return is_fine and _have_one_api(mix, by_name, place, problems)


def _have_one_api(
    mix: Workload, by_name: Mapping[str, Workload], place: Place, problems: Problems
) -> bool:
    """Whether all parts are sent through one API, which is that of the mix. Reports it if not."""
    names = mix.part_names()
    names_by_api: dict[str, list[str]] = {}
    for name in names:
        names_by_api.setdefault(by_name[name].api, []).append(name)
    if len(names_by_api) > 1:
        texts = [f"{api} ({', '.join(parts)})" for api, parts in names_by_api.items()]
        message = f"the parts of a mix have one API, and here they have {listed(texts)}"
        problems.add((*place, "parts"), message, "give these workloads the same 'api'")
        return False
    api = by_name[names[0]].api
    if "api" in mix.model_fields_set and mix.api != api:
        message = f"the API of {mix.name!r} is {mix.api!r}, and that of its parts {api!r}"
        problems.add((*place, "api"), message, "leave 'api' out of the mix")
        return False
    return True
