"""The work of a deployment's tokens (``catalog/work.py``): computed when the deployment is stored,
and read again with it.
"""

import json
from functools import lru_cache

from orchestrator.base.errors import OrchestratorError
from orchestrator.catalog.accelerators import of_hardware
from orchestrator.catalog.models import model_facts
from orchestrator.catalog.work import MissingWork, StepWork, step_work
from orchestrator.results.stored_json import parsed_settings, parsed_work
from orchestrator.spec.settings import NO_HARDWARE, EngineSettings, Hardware

_MISSING = "missing"
_EMULATOR = "emulator"  # the engine that imitates a device


def work_of(settings: EngineSettings, hardware: Hardware) -> StepWork | MissingWork:
    """The work of a deployment. An emulator has the work of the engine and device that it imitates.

    Only what is at hand is read: local files, the hub's cache and the catalogue.
    """
    if settings.url or hardware.name == NO_HARDWARE:
        return MissingWork.ENDPOINT
    if settings.roles:
        return MissingWork.ROLES
    if settings.engine == _EMULATOR:
        return _emulated_work(settings, hardware)
    if hardware.is_cpu:
        return MissingWork.CPU
    device = of_hardware(hardware)
    if device is None:
        return MissingWork.DEVICE
    facts = model_facts(settings.model, settings.revision, settings.hf_overrides, online=False)
    if facts is None:
        return MissingWork.MODEL
    bandwidth_is_users = hardware.memory_bandwidth_gb_s is not None
    return step_work(facts, settings, device, bandwidth_is_users)


def _emulated_work(settings: EngineSettings, hardware: Hardware) -> StepWork | MissingWork:
    from orchestrator.emulator.profile import (  # for emulators only
        device_of,
        facts_of,
        load_profile,
    )

    try:
        profile = load_profile(settings.profile)
        device = device_of(profile, hardware)
        facts = facts_of(profile, settings)
    except OrchestratorError:
        return MissingWork.MODEL  # its profile is not at hand
    bandwidth_is_users = (
        profile.accelerator is None
        and hardware.memory_bandwidth_gb_s is not None
        and not hardware.is_cpu
    )
    return step_work(facts, settings, device, bandwidth_is_users)


def work_json(settings: EngineSettings, hardware: Hardware) -> str:
    """The work of a deployment as stored with its row."""
    work = work_of(settings, hardware)
    document = {_MISSING: work} if isinstance(work, MissingWork) else work.as_json()
    return json.dumps(document, sort_keys=True)


def work_of_row(
    stored: str | None, settings_json: str, hardware_name: str, accelerator: str
) -> StepWork | MissingWork:
    """The work of a stored deployment. ``stored``: from ``work_json``; None: an older version
    stored the row, so the work is computed from the other columns.
    """
    if stored is not None:
        document = parsed_work(stored)
        try:
            if _MISSING in document:
                return MissingWork(document[_MISSING])
            return StepWork.from_json(document)
        except (KeyError, TypeError, ValueError):
            pass  # a newer version stored other fields
    return _computed_work(settings_json, hardware_name, accelerator)


@lru_cache(maxsize=4096)  # every point of a deployment brings its row
def _computed_work(
    settings_json: str, hardware_name: str, accelerator: str
) -> StepWork | MissingWork:
    if hardware_name == NO_HARDWARE:
        return MissingWork.ENDPOINT
    try:
        settings = EngineSettings.model_validate(parsed_settings(settings_json))
        hardware = Hardware(name=hardware_name, accelerator=accelerator)
    except ValueError:  # settings of another version
        return MissingWork.MODEL
    return work_of(settings, hardware)
