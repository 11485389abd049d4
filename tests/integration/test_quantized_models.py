"""The quantized checkpoints of scripts/make_quantized_models.py are what they say: real vLLM and
transformers agree.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.integration.engine_real import HAS_AVX512, ROOT, home_of, script

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
FOUR_BITS = ("int4", "gptq4", "awq4")
SCHEMES = ("int8", "fp8", *FOUR_BITS)
AVX512_ONLY = pytest.mark.skipif(
    not HAS_AVX512, reason="vLLM's 4-bit kernels need a CPU with AVX512"
)
# Of 128 greedy tokens: at least so many are the first choice of transformers from the dequantized
# weights. INT8 and FP8 round activations too, which transformers does not.
LEAST = {"int8": 105, "fp8": 85, "int4": 115, "gptq4": 115, "awq4": 115}


@pytest.fixture(scope="module")
def agreement(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    python, folder = home_of("vllm") / "bin" / "python", tmp_path_factory.mktemp("quantized")
    script("make_quantized_models").make(folder, dequantized=True)
    program = ROOT / "tests" / "integration" / "quantized_answers.py"
    schemes = [one for one in SCHEMES if HAS_AVX512 or one not in FOUR_BITS]
    done = subprocess.run(
        [python, program, folder, *schemes], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {one.pop("scheme"): one for one in told}


@pytest.mark.parametrize(
    "scheme",
    [pytest.param(one, marks=AVX512_ONLY if one in FOUR_BITS else ()) for one in SCHEMES],
)
def test_vllm_answers_as_transformers_does_from_the_same_numbers(
    agreement: dict[str, dict[str, int]], scheme: str
) -> None:
    found = agreement[scheme]
    assert found["tokens"] == 128
    assert found["dequantized"] >= LEAST[scheme], found
    assert scheme == "int8" or found["dequantized"] > found["base"], (
        "what was lost by rounding is to be seen"
    )
