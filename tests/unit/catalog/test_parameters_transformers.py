"""Parameter counts against the models' own code: transformers builds each on torch's meta device,
without memory.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.unit.catalog.test_parameters import PUBLISHED, facts

PYTHON = Path(__file__).resolve().parents[3] / ".engines" / "vllm" / "bin" / "python"
COUNT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from transformers import AutoModelForCausalLM, CONFIG_MAPPING
for line in sys.stdin:
    name, config = json.loads(line)
    config.pop("quantization_config", None)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config.pop("model_type")](**config))
    parts = [part for _, part in model.named_parameters()]
    # DeepSeek's routing bias is a buffer in the code and a tensor like any other in the checkpoint.
    parts += [part for key, part in model.named_buffers() if key.endswith("e_score_correction_bias")]
    print("COUNT " + json.dumps([name, sum(part.numel() for part in parts)]), flush=True)
"""

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason=f"no environment with torch in {PYTHON.parent.parent}: make engines",
    ),
]


def test_the_models_own_code_has_as_many_parameters() -> None:
    lines = [json.dumps([name, config]) for name, (config, _) in PUBLISHED.items()]
    done = subprocess.run(
        [str(PYTHON), "-c", COUNT],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=580,
    )
    counted = dict(
        json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("COUNT ")
    )
    assert set(counted) == set(PUBLISHED), done.stderr[-3000:]
    ours = {name: facts(name).parameters.total for name in PUBLISHED}
    assert {
        name: (ours[name], count) for name, count in counted.items() if ours[name] != count
    } == {}
