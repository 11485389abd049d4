"""Every example that a help prints is run as it stands, from the first of a help to its last, in a
folder with what it names.

Loads are shorter than they are written, and sweeps are of emulators. Addresses of servers, of a Ray
cluster and of an object store are those that the tests start.
"""

from __future__ import annotations

import glob
import itertools
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
import pandas  # noqa: F401  # loaded first: commands would keep it out of this process
import pytest

from scripts.ray_on_this_machine import RayOnThisMachine
from tests.chaos.s3 import KEYS, answers, started
from tests.documentation.help_examples import (
    OF_RESULTS,
    PREPARATIONS,
    example_lines,
    examples,
    measure_quickstart,
)
from tests.documentation.reader import is_served, run_until_read
from tests.documentation.test_commands import PATH, parse
from tests.harness import MEASURED_ONCE, environment, free_port, start, undisturbed_status, wait_for
from tests.in_this_process import judged_as_if_idle, run_here

pytestmark = pytest.mark.cluster  # one of a single node

# By the line of an example that is parsed and not run, the reason.
NOT_RUN = {
    "orchestrator plan experiments/quickstart.yaml --check-with-vllm .engines/vllm": (
        "needs an installed vLLM, as tests/unit/plan/test_vllm_check.py does"
    ),
}
OF_LOAD = (  # how long, and with how much, the examples of ``load`` measure
    (r"--duration \d+[ms]", "--duration 2s"),
    (r"--requests \d+", "--requests 8"),
    (r"--rate \d+", "--rate 10"),
    (r"--concurrency 8,32(,128)?", "--concurrency 2,4"),
    (r"--think-time \w+", "--think-time 100ms"),
    (r"--find-capacity", "--find-capacity --budget 6s"),
)
OPERATORS = re.compile(r" (?:\||>) ")  # of a shell
NEEDS_RAY = re.compile(r"ray |orchestrator run (?!.*--address local)|.*--address (?:auto|head)")
AGAIN = " ".join(MEASURED_ONCE)
NO_VALID_MEASUREMENT = 3
INTERRUPTED = 130
WORSE = 4
SPOILT = r"(?: \(of them [^)]*\))?"  # by other tests, which use this machine too
BUCKET = "bucket"  # of the examples


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an example has to come to: a pattern that its output has, and its exit status.

    ``file``: what it has to write.
    """

    printed: str
    status: int = 0
    file: str | None = None


# By command, in the order of its examples.
OUTCOMES: dict[str, list[Outcome]] = {
    "plan": [
        Outcome(r"14 points = 14 measurements"),
        Outcome(r"predicted capacity of chat under interactive"),
        Outcome(r" 5.1 h on 4 nodes(?s:.*)^wrote plan.json$", file="plan.json"),
        Outcome(r"shortlist: 8 of 12 deployments"),
        Outcome(r"0 measurements already there at s3://bucket/sweeps"),
        Outcome(r""),
        Outcome(r"^sglang tp=2: planned$"),
    ],
    "simulate": [
        Outcome(r"48 simulated, 0 already done, 0 failed\n(?s:.*)^page:\s.*report\.html$"),
        Outcome(r"0 simulated, 48 already done, 0 failed\n(?!(?s:.*)^page:)"),
        Outcome(r"^simulated: a model computed this in virtual time; nothing was measured$"),
    ],
    "run": [
        Outcome(rf"2 measured{SPOILT}, 0 already done, 0 failed"),
        Outcome(r"0 measured, 2 already done, 0 failed"),
        Outcome(rf"2 measured{SPOILT}, 0 already done, 0 failed"),
        Outcome(r"0 measured, 2 already done, 0 failed"),
        Outcome(
            rf"shortlist: \d of 2 deployments\b(?s:.*)[12] measured{SPOILT}, 0 already done, "
            r"0 failed(?s:.*)^page:\s+s3://bucket/sweeps/llama70b-parallelism/report\.html\?"
        ),
        Outcome(r"0 measured, 2 already done, 0 failed\n(?s:.*)succeeded"),
    ],
    "results": [
        Outcome(r"^4 points measured, 0 failed$"),
        Outcome(r"under ttft<=500ms,tpot<=50ms,attainment>=0.95$"),
        Outcome(r"^2 of 4 points: 2 measured, 0 failed$"),
        Outcome(r"^points.svg: 4 points$", file="points.svg"),
        Outcome(r"^\| deployment \| level \| per_user \| per_device \|$"),
        Outcome(r"^ deployment +level +mfu +output +output_token$"),
        Outcome(r"\A(?:[\d.]+\n){4}\Z"),
        Outcome(r"^points.svg: 4 points$", file="points.svg"),
        Outcome(r"^failed: emulator tp=2: It died\.$"),
        Outcome(r"\A\Z", file="points.csv"),
    ],
    "best": [
        Outcome(r"^best: emulator tp=\d at \d in flight.*output tokens/s per core"),
        Outcome(r"^best: emulator tp=\d at \d in flight.*output tokens/USD"),
        Outcome(r"under ttft<=2s,itl_p99<=100ms,attainment>=0.99\nbest: emulator"),
        Outcome(r"^\| deployment \| load \|"),
        Outcome(r'^  "engine": "emulator",$'),
    ],
    "compare": [
        Outcome(r"^12 figures of 4 pairs: 4 worse, 8 same$", WORSE),
        Outcome(r"^12 figures of 4 pairs: 4 worse, 8 same$", WORSE),
        Outcome(r"^4 figures of 4 pairs: 4 same$"),
        Outcome(r"^\| deployment \|", WORSE),
        Outcome(r"^page: compare.html$", WORSE, file="compare.html"),
        Outcome(r'^  "metric": "ttft_ms.p99",$', WORSE),
    ],
    "report": [
        Outcome(r"^report.html: .* MB, [\d,]+ requests$", file="report.html"),
        Outcome(r"^quickstart.html: .* MB, [\d,]+ requests$", file="quickstart.html"),
        Outcome(r"^sweeps.html: .* MB, [\d,]+ requests$", file="sweeps.html"),
    ],
    "watch": [
        Outcome(r"^watching results/ at http://127\.0\.0\.1:\d+/ \(Ctrl-C ends it\)$"),
        Outcome(r"^watching s3://bucket/sweeps at http://127\.0\.0\.1:\d+/"),
        Outcome(r"^# TYPE orchestrator_\w+ "),
    ],
    "status": [
        Outcome(r"^quickstart: ended, (?s:.*)^  4 of 4 measured, 0 failed"),
        Outcome(r'^ +"state": "ended",$'),
    ],
    "stop": [
        Outcome(r"^quickstart: asked pid \d+ of .* to stop\nquickstart: ended"),
        Outcome(r"^quickstart: asked pid \d+ of .* to stop\nquickstart: ended"),
    ],
    "doctor": [
        Outcome(r"^1 node: 0 findings that would fail a sweep"),
        Outcome(r"^1 node: 0 findings that would fail a sweep"),
        Outcome(r'^ +"hostname": '),
    ],
    "logs": [
        Outcome(r"^emulator tp=2, launch \w+: failed: It died\.\nINFO: loading weights$"),
        Outcome(r"^emulator tp=2, launch \w+: served\n(?s:.*)KV cache size"),
        Outcome(r"^emulator tp=2, launch \w+: served\n(?s:.*)KV cache size"),
    ],
    "verify": [
        Outcome(r"^\d+ files, 0 damaged$"),
        Outcome(r"^\d+ files, 0 damaged$"),
    ],
    "load": [
        Outcome(r"^requests: \d+ scheduled, \d+ ok, 0 failed$"),
        Outcome(r"\n  capacity under ttft<=500ms,attainment>=0.95\n probe +requests"),
        Outcome(r"^ 2 in flight +8/8 "),
        Outcome(r'^  "api": "chat",$'),
        Outcome(r"^requests: 8 scheduled, 8 ok, 0 failed$"),
        Outcome(r"^requests: \d+ scheduled, \d+ ok, 0 failed$"),
        Outcome(r"^requests: 3 scheduled, 3 ok, 0 failed$"),
        Outcome(r"^ 2 in flight "),
        Outcome(r"^ 4 in flight "),
        Outcome(r"^ before .*\n(?s:.*)^ after "),
    ],
    "import": [
        Outcome(r"^2 points stored; to see them: orchestrator results .*/results/imported$"),
        Outcome(
            r"^bench-failures-detailed.json: vllm bench serve, 1 point\n(?s:.*)^2 points stored"
        ),
        Outcome(r"^1 point stored; "),
        Outcome(r"^prompts of peers: mock \(vllm bench serve\)\n(?s:.*)^ tp2 "),
    ],
    "export": [
        Outcome(r"^2 files in reports: llm-d benchmark report", file="reports"),
        Outcome(r"^export/agg_quickstart.json: 2 points, InferenceX rows$", file="export"),
        Outcome(r"^\d files in export: llm-d benchmark report", file="export"),
    ],
    "emulator": [Outcome(r'"id": ?"meta-llama/Llama-3.1-8B-Instruct"')],
    "predict fit": [
        Outcome(r"^next: predictions: \{profile: .*my-h100.yaml\}", file="my-h100.yaml"),
        Outcome(r"^next: predictions: \{profile: .*my-h100.yaml\}", file="my-h100.yaml"),
        # of results of a GPU, which this profile does not describe
        Outcome(r"^warning: this profile does not predict", file="my-cpu.yaml"),
    ],
    "workload show": [
        Outcome(r"^chat: conversations, (?s:.*)^rag: random, "),
        Outcome(r"^session turn +in +out +beginning\n(?: .*\n){5}"),
        Outcome(r"^source: github.com/"),
        Outcome(r"^wrote rag\.jsonl: 500 requests$", file="rag.jsonl"),
    ],
    "init": [
        Outcome(r"^wrote experiment.yaml; next: ", file="experiment.schema.json"),
        Outcome(r"^wrote sweep.yaml; next: ", file="sweep.yaml"),
        Outcome(r"^wrote server.yaml; next: ", file="server.yaml"),
    ],
    "schema": [Outcome(r"", file="experiment.schema.json")],
}
EXAMPLES = examples()
# A machine that other tests use may have no valid measurement, and doctor may warn of it.
MAY_END_WITH_3 = ("load", "doctor")


@dataclass(frozen=True, slots=True)
class Ended:
    """An example that ran to its end."""

    status: int
    output: str


class Store:
    """A local object store with the bucket of the examples."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )

    def begin_anew(self) -> None:
        """Leaves one empty bucket."""
        request = urllib.request.Request(f"{self.endpoint}/moto-api/reset", method="POST")
        urllib.request.urlopen(request).close()
        self._client.create_bucket(Bucket=BUCKET)

    def upload(self, folder: Path) -> None:
        """Puts the files of a folder below the prefix of the examples."""
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                key = f"sweeps/{file.relative_to(folder)}"
                self._client.upload_file(str(file), BUCKET, key)

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def processes() -> Iterator[ExitStack]:
    """Ends what the tests of this module start."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def store(processes: ExitStack) -> Store:
    port = free_port()
    moto_server = str(Path(sys.executable).parent / "moto_server")
    server = started([moto_server, "-H", "127.0.0.1", "-p", str(port)])
    processes.callback(server.wait, 10)
    processes.callback(server.kill)
    wait_for(lambda: answers(port), 60, "moto_server answers")
    store = Store(port)
    processes.callback(store.close)
    return store


@pytest.fixture(scope="module")
def cluster(store: Store, processes: ExitStack) -> RayOnThisMachine:
    """One node that takes jobs, whose processes find the store and this environment."""
    patch = processes.enter_context(pytest.MonkeyPatch.context())
    patch.setenv("PATH", PATH)
    for name, value in variables(store).items():
        patch.setenv(name, value)
    return processes.enter_context(RayOnThisMachine(nodes=1, dashboard_port=free_port()))


def variables(store: Store) -> dict[str, str]:
    """What examples find in their environment."""
    return {
        **KEYS,
        "AWS_ENDPOINT_URL": store.endpoint,
        "COLUMNS": "80",
        "HF_HUB_OFFLINE": "1",
        "MY_KEY": "secret",
    }


@contextmanager
def emulator(log: Path, *argv: str, **env: str) -> Iterator[str]:
    """The address of an emulator."""
    port = free_port()
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "emulator", "--port", str(port), *argv],
            env=environment(**env),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: "serving" in log.read_text(), 60, "the emulator serves")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)


@pytest.fixture(scope="module")
def addresses(
    store: Store, processes: ExitStack, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """By an address of the examples, the one that stands for it."""
    folder = tmp_path_factory.mktemp("servers")
    plain = processes.enter_context(emulator(folder / "plain.log"))
    with_key = processes.enter_context(
        emulator(folder / "key.log", "--served-model-name", "M", EMULATOR_API_KEY="secret")
    )
    return {
        "http://127.0.0.1:8000": plain,
        "https://host": with_key,
        "127.0.0.1:9000": store.endpoint.removeprefix("http://"),
        '"vllm tp=2"': '"emulator tp=2"',
    }


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results that examples show, measured once."""
    folder = tmp_path_factory.mktemp("measured")
    with judged_as_if_idle():
        measure_quickstart(folder)
    return folder / "results"


def lines_of(command: str) -> list[str]:
    return [example.line for example in EXAMPLES if example.command == command]


@dataclass(frozen=True, slots=True)
class Place:
    """Where examples run. ``addresses``: by a text of an example, what stands for it here."""

    folder: Path
    addresses: dict[str, str]


@pytest.mark.parametrize("command", OUTCOMES)
def test_the_examples_of_a_help_do_what_it_says(
    command: str,
    request: pytest.FixtureRequest,
    store: Store,
    addresses: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables(store).items():
        monkeypatch.setenv(name, value)
    store.begin_anew()
    PREPARATIONS[command](tmp_path)
    if command in OF_RESULTS:
        measured: Path = request.getfixturevalue("measured")
        (tmp_path / "results").symlink_to(measured)
    if (tmp_path / "results").exists():
        store.upload(tmp_path / "results")
    place = Place(tmp_path, addresses)
    missing: set[str] = set()
    with ExitStack() as stack:
        if command == "stop":
            for uri in (str(tmp_path / "results"), f"s3://{BUCKET}/sweeps"):
                stack.enter_context(active_run(tmp_path, uri))
        for line, outcome in zip(lines_of(command), OUTCOMES[command], strict=True):
            if line in NOT_RUN:
                continue
            if absent := programs_missing(line):
                missing |= absent
                continue
            if NEEDS_RAY.match(line):
                done = run_on_a_cluster(line, place, request.getfixturevalue("cluster"))
            else:
                done = RUNNERS.get(command, run_in_this_process)(line, place)
            check(command, line, outcome, done, tmp_path)
    if missing:
        pytest.skip(f"NOT RUN: {', '.join(sorted(missing))} is not installed")


def programs_missing(line: str) -> set[str]:
    """The programs of a line that are neither ours nor on this machine."""
    return {name for name in ("curl", "jq") if f"{name} " in line and shutil.which(name) is None}


def check(command: str, line: str, outcome: Outcome, done: Ended, folder: Path) -> None:
    """Fails where an example did not come to what it has to come to."""
    shown = f"{line}\nstatus {done.status}\n{done.output}"
    is_spoilt = done.status == NO_VALID_MEASUREMENT and command in MAY_END_WITH_3
    assert done.status == outcome.status or is_spoilt, shown
    assert re.search(outcome.printed, done.output, re.MULTILINE), shown
    if outcome.file is not None:
        assert (folder / outcome.file).exists(), shown


def run_with_less_load(line: str, place: Place) -> Ended:
    """Runs a command that measures a server for seconds."""
    for written, shorter in OF_LOAD:
        line = re.sub(written, shorter, line)
    return run_in_this_process(line, place)


def as_here(line: str, place: Place) -> str:
    """The line with the addresses of what the tests started."""
    for written, present in place.addresses.items():
        line = line.replace(written, present)
    return line


def run_in_this_process(line: str, place: Place) -> Ended:
    """Runs a command of the program here, and what its output goes into in a shell."""
    line = as_here(line, place).replace("orchestrator run ", f"orchestrator run {AGAIN} ")
    operator = OPERATORS.search(line)
    rest = line[operator.start() :] if operator else ""
    words = shlex.split(line.removesuffix(rest))
    with chdir(place.folder), judged_as_if_idle():
        done = run_here(*itertools.chain.from_iterable(expanded(word) for word in words[1:]))
    if not rest:
        status = undisturbed_status(done.returncode, done.stderr)
        return Ended(status, done.stdout + done.stderr)
    after = in_a_shell(f"cat {rest}", place, given=done.stdout)
    assert after.status == 0, f"{line}\n{after.output}"
    return Ended(done.returncode, after.output + done.stderr)


def expanded(word: str) -> list[str]:
    """The files that a word stands for in a shell, or the word."""
    return sorted(glob.glob(word)) or [word]


def in_a_shell(line: str, place: Place, given: str = "", **env: str) -> Ended:
    """Runs a line of bash. ``given``: its input."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=place.folder,
        env=environment(PATH=PATH, **env),
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    return Ended(done.returncode, done.stdout)


def run_on_a_cluster(line: str, place: Place, cluster: RayOnThisMachine) -> Ended:
    """Runs a line in a shell, where it finds the cluster. Jobs wait until the cluster takes them."""
    line = as_here(line, place).replace("head:6379", cluster.address)
    line = line.replace("orchestrator run ", f"orchestrator run {AGAIN} ")
    address = str(cluster.dashboard) if line.startswith("ray ") else cluster.address

    def ended() -> Ended | None:
        done = in_a_shell(line, place, RAY_ADDRESS=address)
        return None if "No available agent" in done.output else done

    done: Ended = wait_for(ended, 60, "the cluster takes jobs")
    return Ended(undisturbed_status(done.status, done.output), done.output)


def run_while_it_is_watched(line: str, place: Place) -> Ended:
    """Runs ``watch`` until its page was read; of another line, the output while it runs."""
    port = str(free_port())
    is_watch = line.startswith("orchestrator ")
    command = line if is_watch else "orchestrator watch results/"
    words = shlex.split(re.sub(r"--port \d+", "", command))
    outputs: list[Ended] = []

    def is_read() -> bool:
        if is_watch:
            return is_served(f"http://127.0.0.1:{port}/")
        outputs.append(in_a_shell(line.replace("8787", port).replace("-s", "-sf"), place))
        return outputs[-1].status == 0

    with chdir(place.folder):
        done = run_until_read(is_read, *words[1:], "--port", port)
    if is_watch or done.returncode != 0:
        return Ended(done.returncode, done.stdout + done.stderr)
    return outputs[-1]


def run_until_it_serves(line: str, place: Place) -> Ended:
    """Runs an emulator on a port of its own; its output is the models that it serves."""
    argv = shlex.split(re.sub(r"--port \d+", "", line))[2:]
    with emulator(place.folder / "log", *argv) as address:
        models = urllib.request.urlopen(f"{address}/v1/models").read().decode()
    return Ended(0, models)


# By command: what runs its examples, where they are not simply run to their end.
RUNNERS: dict[str, Callable[[str, Place], Ended]] = {
    "emulator": run_until_it_serves,
    "load": run_with_less_load,
    "watch": run_while_it_is_watched,
}


@contextmanager
def active_run(folder: Path, uri: str) -> Iterator[None]:
    """A run of the quickstart that stores there and lasts for minutes."""
    file = folder / "experiments" / "quickstart.yaml"
    file.write_text(file.read_text().replace("duration: 1s", "duration: 5m"))
    log = folder / f"{len(uri)}.log"
    driver = start("run", str(file), "--results", uri, "--address", "local", log=log)
    try:
        wait_for(lambda: "measurements to do" in log.read_text(), 120, "the run begins")
        yield
        # it was stopped, and ends by itself
        assert driver.wait(60) == INTERRUPTED, log.read_text()
    finally:
        driver.kill()
        driver.wait(10)


@pytest.mark.parametrize("line", NOT_RUN)
def test_an_example_that_is_not_run_has_options_that_exist(line: str) -> None:
    assert line in [example.line for example in EXAMPLES]
    parse(shlex.split(line)[1:])


def test_every_help_with_examples_is_run() -> None:
    assert {example.command for example in EXAMPLES} == OUTCOMES.keys() == PREPARATIONS.keys()


def test_a_line_of_examples_is_read_as_a_reader_types_it() -> None:
    text = "Examples:\n  orchestrator a \\\n      --b\n  orchestrator c |\n      jq .\nNo orchestrator d"
    assert list(example_lines(text)) == ["orchestrator a --b", "orchestrator c | jq ."]


def test_a_line_that_is_to_be_repeated_is_repeated() -> None:
    text = "  orchestrator a --name before\n  (the same again with --name after)"
    assert list(example_lines(text))[1] == "orchestrator a --name after"


def test_an_example_that_comes_to_something_else_is_found(tmp_path: Path) -> None:
    outcome = Outcome("^5 points", file="page.html")
    with pytest.raises(AssertionError, match="status 3"):
        check("results", "line", outcome, Ended(3, "5 points"), tmp_path)
    with pytest.raises(AssertionError, match="4 points"):
        check("results", "line", outcome, Ended(0, "4 points"), tmp_path)
    with pytest.raises(AssertionError, match="5 points"):
        check("results", "line", outcome, Ended(0, "5 points"), tmp_path)
