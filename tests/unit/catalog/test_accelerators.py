"""The table of accelerators, and the user's figures over it."""

from __future__ import annotations

import re

import pytest

from orchestrator.catalog.accelerators import accelerators, find, may_be, nearest, of_hardware
from orchestrator.spec.settings import Hardware


@pytest.mark.parametrize("name", accelerators())
def test_every_figure_has_a_source_and_a_plausible_size(name: str) -> None:
    accelerator = find(name)
    assert accelerator is not None
    assert accelerator.source.startswith("https://")
    gigabytes = int(re.findall(r"(\d+)GB$", name)[0])
    assert gigabytes * 0.9 <= accelerator.memory_bytes / 2**30 * 1.0737 <= gigabytes * 1.08
    assert 0.2e12 < accelerator.bandwidth_bytes_s < 10e12
    assert accelerator.flops["float32"] < accelerator.flops["float16"]
    assert ("bfloat16" in accelerator.flops) == (
        accelerator.capability is None or accelerator.capability >= (8, 0)
    )
    assert ("fp8" in accelerator.flops) == (
        accelerator.capability is None or accelerator.capability >= (8, 9)
    )
    assert ("fp4" in accelerator.flops) == (
        accelerator.capability is not None and accelerator.capability >= (10, 0)
    ) or accelerator.capability is None
    assert accelerator.usd_per_hour is None or 0.1 < accelerator.usd_per_hour < 20


@pytest.mark.parametrize(
    ("name", "bandwidth", "bfloat16"),
    [
        ("H100", 3.35e12, 989.4e12),
        ("H200-141GB", 4.8e12, 989.4e12),
        ("A100-80GB", 2.039e12, 312e12),
    ],
)
def test_the_figures_of_the_data_sheets(name: str, bandwidth: float, bfloat16: float) -> None:
    accelerator = find(name)
    assert accelerator is not None
    assert accelerator.bandwidth_bytes_s == pytest.approx(bandwidth)
    assert accelerator.flops["bfloat16"] == pytest.approx(bfloat16)


@pytest.mark.parametrize("name", ["h100_80gb", "NVIDIA H100 80GB", "H100-SXM5-80GB", "nvidia-h100"])
def test_names_are_found_however_they_are_written(name: str) -> None:
    accelerator = find(name)
    assert accelerator is not None
    assert accelerator.name == "H100-80GB"


def test_unknown_names_are_not_guessed_but_have_neighbours() -> None:
    assert find("H100-81GB") is None
    assert nearest("H100-81GB")[0] == "H100-80GB"
    assert of_hardware(Hardware(name="x", accelerator="TPU-v9")) is None


def test_the_users_figures_win() -> None:
    accelerator = of_hardware(
        Hardware(
            name="x",
            accelerator="H100-80GB",
            memory_gb=94,
            memory_bandwidth_gb_s=3900,
            usd_per_gpu_hour=1.5,
        )
    )
    assert accelerator is not None
    assert (accelerator.memory_bytes, accelerator.bandwidth_bytes_s, accelerator.usd_per_hour) == (
        94 * 10**9,
        3.9e12,
        1.5,
    )


def test_a_type_without_units_runs_on_wider_ones() -> None:
    hopper, ampere, turing = find("H100-80GB"), find("A100-80GB"), find("T4-16GB")
    assert hopper is not None
    assert ampere is not None
    assert turing is not None
    assert hopper.flops_for("fp4") == hopper.flops["fp8"]
    assert ampere.flops_for("fp8") == ampere.flops["bfloat16"]
    assert turing.flops_for("bfloat16") == turing.flops["float16"]


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("A100", {"A100-80GB", "A100-40GB", "A100-PCIe-80GB"}),
        ("A100-80G", {"A100-80GB", "A100-40GB", "A100-PCIe-80GB"}),  # Ray's way to write a size
        ("H100", {"H100-80GB", "H100-PCIe-80GB", "H100-NVL-94GB"}),
        ("L4", {"L4-24GB"}),
        ("RTX-PRO-6000", {"RTX-PRO-6000-96GB"}),
        ("AMD-Instinct-MI300X-OAM", {"MI300X-192GB"}),
        ("NVIDIA-H200-NVL", {"H200-141GB"}),  # a driver's name, that somebody gave as a label
        ("NVIDIA-A100-PCIE-40GB", {"A100-40GB"}),
        ("somebody's", set(accelerators())),
        ("", set(accelerators())),
    ],
)
def test_rays_label_leaves_the_memory_size_open(label: str, names: set[str]) -> None:
    assert {name for name in accelerators() if may_be(name, label)} == names
    assert may_be("my-card", label), "nobody knows it"
