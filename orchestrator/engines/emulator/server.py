"""The emulator's process: reads what to imitate, says what it imitates in vLLM's words, serves until told to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from orchestrator import __version__
from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts
from orchestrator.engines.emulator import model
from orchestrator.engines.emulator.app import App
from orchestrator.engines.emulator.profile import Faults, Profile, device_of, facts_of
from orchestrator.engines.emulator.serving import Serving, four_bytes
from orchestrator.spec.settings import EngineSettings, Hardware

API_KEY_VARIABLE = "EMULATOR_API_KEY"
_GIB = 2**30
_ORPHAN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"


@dataclass(frozen=True, slots=True)
class Options:
    """How the process was started."""

    settings: EngineSettings
    hardware: Hardware
    profile: Profile
    host: str = "127.0.0.1"
    port: int = 8000
    served_name: str = ""
    headless: bool = False  # a rank above 0 of a multi-node replica: holds its place, serves nothing
    max_concurrent_requests: int = 128


def log(text: str) -> None:
    """One line on stdout, at once."""
    print(f"INFO {time.strftime('%m-%d %H:%M:%S')} [emulator] {text}", flush=True)


def main(options: Options) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    faults = options.profile.faults
    log(f"version {__version__}; EMULATED: no model is computed here, every time is the outcome of a stated model")
    if faults.orphan:
        subprocess.Popen([sys.executable, "-c", _ORPHAN], start_new_session=True)
    if options.headless:
        return _hold_place()
    time.sleep(faults.start_delay_s)
    facts, device = facts_of(options.profile, options.settings), device_of(options.profile, options.hardware)
    replica = model.replica(options.settings, facts, device, options.profile.constants)
    failure = _scripted_failure(faults) or start_failure(options.settings, device, replica)
    if failure is not None:
        log(failure)
        log("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}")
        return 1
    if faults.start == "hang":
        return _hold_place()
    for line in start_lines(facts, device, replica):
        log(line)
    status: int = uvloop.run(_serve(options, _serving(options, facts, replica)))
    return status


def _scripted_failure(faults: Faults) -> str | None:
    if faults.start == "oom":
        return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (emulated fault start: oom)"
    return "EngineCore failed to start. (emulated fault start: die)" if faults.start == "die" else None


def start_failure(settings: EngineSettings, device: Accelerator, replica: model.Replica) -> str | None:
    """What vLLM would say when the model or one whole sequence does not fit the device; None when both do."""
    prediction, limits = replica.prediction, replica.limits
    if prediction.weight_bytes > device.memory_bytes:
        size = prediction.weight_bytes / _GIB
        return f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size:.2f} GiB."
    if limits.kv_tokens <= 0:
        return "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
    if limits.kv_tokens < limits.max_model_len:
        per_token = prediction.kv_bytes_per_token / _GIB
        return (
            f"ValueError: To serve at least one request with the model's max seq len ({limits.max_model_len}), "
            f"{limits.max_model_len * per_token:.2f} GiB KV cache is needed, which is larger than the available KV "
            f"cache memory ({limits.kv_tokens * per_token:.2f} GiB). The estimated maximum model length is "
            f"{limits.kv_tokens}."
        )
    return None


def start_lines(facts: ModelFacts, device: Accelerator, replica: model.Replica) -> list[str]:
    """What an engine reports at start; ``Emulator.reported`` reads it back."""
    limits, prediction = replica.limits, replica.prediction
    concurrency = limits.kv_tokens / limits.max_model_len
    return [
        f"imitates {facts.model} on {device.name}, max_num_seqs={limits.max_num_seqs}, "
        f"max_num_batched_tokens={limits.max_num_batched_tokens}, max_model_len={limits.max_model_len}",
        f"Model loading took {prediction.weight_bytes / _GIB:.4f} GiB memory",
        f"GPU KV cache size: {limits.kv_tokens:,} tokens, Maximum concurrency for {limits.max_model_len:,} tokens per "
        f"request: {concurrency:.2f}x",
    ]


def _serving(options: Options, facts: ModelFacts, replica: model.Replica) -> Serving:
    settings = options.settings
    return Serving(
        model=options.served_name or settings.served_model_name or settings.model,
        replica=replica,
        ranks=settings.data_parallel_size,
        faults=options.profile.faults,
        api_key=os.environ.get(API_KEY_VARIABLE) or None,
        vocab_size=facts.shape.vocab_size,
        prefix_caching=settings.enable_prefix_caching is not False,
        max_num_queued_reqs=settings.max_num_queued_reqs,
        max_concurrent_requests=options.max_concurrent_requests,
        default_output_tokens=options.profile.default_output_tokens,
        count_tokens=_Counter(settings.tokenizer or settings.model).count,
    )


class _Counter:
    """Counts tokens with the model's own tokenizer.json, read at the first text prompt; without one by length."""

    def __init__(self, model: str) -> None:
        self._path = Path(model).expanduser() / "tokenizer.json"
        self._tokenizer: object | None = None

    def count(self, text: str) -> int:
        if not self._path.is_file():
            return four_bytes(text)
        from tokenizers import Tokenizer

        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_file(str(self._path))
        assert isinstance(self._tokenizer, Tokenizer)
        return max(1, len(self._tokenizer.encode(text).ids))


def _hold_place() -> int:
    """Wait for the signal to stop."""
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # sigwait takes only signals that are held back from their default
    log("serves nothing, waits to be told to stop")
    signal.sigwait(stop)
    return 0


async def _serve(options: Options, serving: Serving) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = App(serving, loop, log)
    try:
        server = await loop.create_server(app.accept, options.host, options.port, backlog=4096)
    except OSError as error:
        log(f"OSError: cannot listen on {options.host}:{options.port}: {error.strerror or error}")
        return 1
    gc.freeze()  # what start-up left behind is never collected, so no pause for it in the middle of a step
    try:
        port = server.sockets[0].getsockname()[1]
        log(f"serving {serving.model} on http://{options.host}:{port}")
        await stop.wait()
    finally:
        server.close()
        app.close()
        for pacer in app.pacers:
            log(f"timing error: {pacer.lag.summary()}")
    return 0
