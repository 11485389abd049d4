"""Hundreds of files that are wrong somewhere: each is planned (0) or refused (2) with a sentence,
never a traceback.
"""

from __future__ import annotations

import copy
import gc
import io
import json
import random
import signal
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.cli.main import main
from orchestrator.plan.make import make_plan
from orchestrator.spec.experiment import parse_experiment

FILES, PARTS = 400, 4
SECRET = "hf_" + "a" * 30
EXPERIMENTS = sorted((Path(__file__).parents[3] / "experiments").glob("*.yaml"))
NASTY: list[Any] = [
    *(
        None,
        True,
        False,
        "",
        " ",
        "~",
        "no",
        [],
        {},
        [[]],
        {"": None},
        [None],
        "nan",
        ".inf",
        "-.inf",
    ),
    *(0, -1, 1, 3, 2**31, 2**63, 10**18, 10**40, -(10**18), 0.5, 1e-300, 1e300, 1e308, -0.0),
    *("1e999", "1e308h", "9" * 500 + "s", "-5s", "5", "0s", "1ns", "inf", "300 days", "1e9s"),
    *(
        "~root",
        "~/x",
        "/dev/null",
        "/etc",
        "/proc/self/mem",
        ".",
        "..",
        "../..",
        "${HOME}",
        "${NOT_SET_AT_ALL}",
        "x\\y",
    ),
    *(
        "\x1b[31mred",
        "a\x00b",
        "\ud800",
        "\u202e",
        "\x9b",
        "\r\n",
        "a\nb",
        "\t",
        "é" * 50,
        "\U0001f600",
        "x" * 5000,
    ),
    *(
        "$(touch PWNED)",
        "; rm -rf /",
        "`id`",
        "<b>",
        "[red]x[/]",
        "{0.__class__}",
        "%s%n",
        "'",
        '"',
        "\\",
        "# x",
        "&a",
    ),
    *(
        "__import__('os')",
        "1/0",
        "9**9**9",
        "a" * 900,
        "(" * 300,
        "tensor_parallel_size.__class__",
        "x := 1",
        "lambda: 0",
    ),
    *(
        SECRET,
        "https://u:p@h/x",
        "http://h:99999",
        "http://[::1",
        "ftp://h",
        "http://",
        "host:1",
        "://",
    ),
    *(
        list(range(300)),
        ["a"] * 300,
        [[1, 2], [3]],
        [{"a": 1}],
        {"a": {"b": {"c": [1]}}},
        {"fixed": 1},
        {"x" * 300: 1},
    ),
    *(
        {"uniform": {"min": 5, "max": 1}},
        {"lognormal": {"mean": 1e300, "sigma": 1e300}},
        {"steps": [[0, "0s"]]},
    ),
    *(
        {"process": "steps", "steps": [[1e300, "1ns"]]},
        {"process": "trace", "trace": "/dev/zero"},
        {"process": "gamma"},
    ),
    *(
        {"num_hidden_layers": "x"},
        {"num_hidden_layers": -5},
        {"hidden_size": 10**18},
        {"vocab_size": None},
    ),
    *(
        {"num_attention_heads": 0},
        {"quantization_config": {"bits": "x"}},
        {"text_config": 3},
        {"architectures": [1]},
    ),
]
KEYS = [
    "hf_overrides",
    "speculative",
    "extra_args",
    "env",
    "kv_transfer_config",
    "derive",
    "exclude",
    "vary",
    "grid",
    "zip",
]
KEYS += [
    "cases",
    "nnodes",
    "replicas",
    "quantization",
    "arrivals",
    "requests",
    "warmup",
    "search",
    "labels",
    "lora_modules",
]
KEYS += [
    "engine",
    "engine_version",
    "image",
    "executable",
    "url",
    "profile",
    "tokenizer",
    "max_model_len",
    "kind",
    "turns",
]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys and indexes that lead to each value below this one."""
    values_inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        values_inside = value.items()
    elif isinstance(value, list):
        values_inside = enumerate(value)
    for key, inner in values_inside:
        yield (*at, key)
        yield from places(inner, (*at, key))


def holder(content: Any, at: tuple[Any, ...]) -> Any:
    for key in at[:-1]:
        content = content[key]
    return content


def in_tree(content: Any, chance: random.Random) -> Any:
    """One or a few values replaced, taken away, given another name, or added."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        found = list(places(content))
        if not found:
            return content
        at = chance.choice(found)
        around, key = holder(content, at), at[-1]
        way = chance.randrange(6)
        if way <= 2:
            around[key] = copy.deepcopy(chance.choice(NASTY))
        elif way == 3:
            del around[key]
        elif isinstance(around, list):
            around.insert(key, copy.deepcopy(chance.choice(NASTY)))
        elif way == 4:
            around[
                chance.choice([*KEYS, str(key)[:-1], str(key) + "s", str(chance.choice(NASTY))])
            ] = around.pop(key)
        else:
            around[chance.choice(KEYS)] = copy.deepcopy(chance.choice(NASTY))
    return content


def in_text(text: str, chance: random.Random) -> bytes:
    """Letters, lines or bytes damaged."""
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(chance.choice((1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((0, 1, 5, 80)))
        put = [
            b"",
            b"\x00",
            b"\xff\xfe",
            b"\t",
            b"  ",
            b": ",
            b"- ",
            b"&a ",
            b"*a ",
            b"<<: *a\n",
            b"!!python/name:os ",
            b"{",
            b"]",
        ]
        data[at:end] = chance.choice(
            [
                *put,
                b"\x1b[2J",
                b"1e999",
                b"'",
                b'"',
                b"|\n",
                b"%",
                b"---\n",
                bytes(data[at:end] * 3),
            ]
        )
    return bytes(data)


def small(content: dict[str, Any]) -> dict[str, Any]:
    """The same experiment with at most two values on each axis: a thousand of them are planned
    within seconds.
    """
    blocks = content["deployments"]
    for block in blocks if isinstance(blocks, list) else [blocks]:
        for part in block.get("vary", ()):
            for kind in {"grid", "zip"} & part.keys():
                part[kind] = {name: values[:2] for name, values in part[kind].items()}
    return content


def bad_file(seed: int, sources: list[str]) -> bytes:
    """Number ``seed`` of the bad files."""
    chance = random.Random(seed)
    text = chance.choice(sources)
    if chance.random() < 0.3:
        return in_text(text, chance)
    content = in_tree(yaml.safe_load(text), chance)
    as_json = text.startswith("{") or chance.random() < 0.5  # a frozen plan is JSON
    written = (
        json.dumps(content)
        if as_json
        else yaml.dump(content, Dumper=yaml.SafeDumper, sort_keys=False)
    )
    return written.encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def sources() -> list[str]:
    """The experiments of this repository, made small, and one of them as a frozen plan."""
    contents = [small(yaml.safe_load(one.read_text())) for one in EXPERIMENTS]
    emulated = next(one for one in EXPERIMENTS if one.stem == "quickstart-emulated")
    plan = make_plan(
        parse_experiment(yaml.safe_dump(small(yaml.safe_load(emulated.read_text()))), str(emulated))
    )
    return [*(yaml.safe_dump(one, sort_keys=False) for one in contents), plan.to_json()]


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def orchestrator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Exit status, stdout and stderr of a command in this process."""

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["orchestrator", *args])
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
        out.flush()
        return int(ended.value.code or 0), out.buffer.getvalue().decode(), err.getvalue()

    before, limits = signal.getsignal(signal.SIGTERM), gc.get_threshold()
    yield run
    signal.signal(signal.SIGTERM, before)
    gc.set_threshold(*limits)


def check(status: int, out: str, said: str) -> None:
    """Planned, or refused with a sentence that is bounded, that no terminal obeys and that shows no
    secret.
    """
    assert status in (0, 2, 3), said
    planned = status in (0, 3) and json.loads(out)  # 3: nothing in it can run
    assert planned or said.count("error: ") >= 1
    assert "Traceback" not in said
    assert len(said) < 100_000
    assert not [
        char for char in said if unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t"
    ]
    assert SECRET not in said + out


@pytest.mark.parametrize("part", range(PARTS))
def test_a_bad_file_is_planned_or_refused_with_a_sentence(
    part: int,
    sources: list[str],
    orchestrator: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    file, statuses = tmp_path / "bad.yaml", []
    for seed in range(part, FILES, PARTS):
        file.write_bytes(bad_file(seed, sources))
        try:
            status, out, said = orchestrator("plan", str(file), "--format", "json")
            check(status, out, said)
        except Exception as error:
            raise AssertionError(f"bad_file({seed}, sources): {error!r}") from error
        statuses.append(status)
    assert min(statuses.count(0), statuses.count(2)) >= 2  # the generator makes both
    assert [one.name for one in tmp_path.iterdir()] == ["bad.yaml"]  # nothing in them was executed


@given(st.binary(max_size=200))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_refused_with_a_sentence(
    orchestrator: Command, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "any.yaml").write_bytes(data)
    check(*orchestrator("plan", str(tmp_path / "any.yaml"), "--format", "json"))
