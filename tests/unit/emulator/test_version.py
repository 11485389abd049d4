"""Servers that are emulators are told by their version, also those of other releases."""

from __future__ import annotations

import pytest

from orchestrator.emulator.version import VERSION, is_emulator


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (VERSION, True),
        ("0.0.1+emulator", True),
        ("0.33.0", False),
        ("0.32.0+cpu", False),
        (None, False),
    ],
)
def test_only_an_emulator_reports_such_a_version(version: str | None, expected: bool) -> None:
    assert is_emulator(version) is expected
