"""The emulator's process: reads what it imitates, logs the lines that vLLM would log, and serves
until a signal stops it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from orchestrator import __version__
from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts
from orchestrator.emulator import model
from orchestrator.emulator.api import Serving, four_bytes
from orchestrator.emulator.app import App
from orchestrator.emulator.flags import Options
from orchestrator.emulator.profile import device_of, facts_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_GIB = 2**30
_SCRIPTED = {
    "oom": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (emulated "
        "fault start: oom)"
    ),
    "die": "EngineCore failed to start. (emulated fault start: die)",
}
_CONSEQUENCE = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
_ORPHAN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"


def log(text: str, level: str = "INFO") -> None:
    """One line on stdout, at once."""
    print(f"{level} {time.strftime('%m-%d %H:%M:%S')} [emulator] {text}", flush=True)


def main(options: Options) -> int:
    """Runs until SIGTERM or SIGINT. Returns the exit status."""
    faults = options.profile.faults
    log(
        f"version {__version__}; EMULATED: no model is computed here, every time is the outcome "
        "of a stated model"
    )
    if faults.orphan:
        subprocess.Popen([sys.executable, "-c", _ORPHAN], start_new_session=True)
    if options.headless:
        return _hold_place()
    time.sleep(faults.start_delay_s)
    facts = facts_of(options.profile, options.settings)
    device = device_of(options.profile, options.hardware)
    replica = model.replica(options.settings, facts, device, options.profile.constants)
    failure = _SCRIPTED.get(faults.start or "") or start_failure(device, replica)
    if failure is not None:
        log(failure, "ERROR")
        log(_CONSEQUENCE, "ERROR")
        return 1
    if faults.start == "hang":
        return _hold_place()
    for line in start_lines(facts, device, replica):
        log(line)
    count_tokens = token_counter(options.settings.tokenizer or options.settings.model)
    serving = Serving(options, replica, facts.shape.vocab_size, count_tokens)
    status: int = uvloop.run(_serve(serving))
    return status


def start_failure(device: Accelerator, replica: model.Replica) -> str | None:
    """The line that vLLM logs when the model or one whole sequence does not fit the device; None
    when both do.
    """
    limits = replica.limits
    weight_bytes = replica.estimate.weight_bytes or 0
    token_gib = (replica.estimate.kv_bytes_per_token or 0) / _GIB
    if weight_bytes > device.memory_bytes:
        return (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
            f"{weight_bytes / _GIB:.2f} GiB."
        )
    if limits.kv_tokens <= 0:
        return (
            "ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization`."
        )
    if limits.kv_tokens < limits.max_model_len:
        needed_gib = limits.max_model_len * token_gib
        available_gib = limits.kv_tokens * token_gib
        return (
            "ValueError: To serve at least one request with the model's max seq len "
            f"({limits.max_model_len}), {needed_gib:.2f} GiB KV cache is needed, which is larger "
            f"than the available KV cache memory ({available_gib:.2f} GiB). The estimated maximum "
            f"model length is {limits.kv_tokens}."
        )
    return None


def start_lines(facts: ModelFacts, device: Accelerator, replica: model.Replica) -> list[str]:
    """The lines of the log that an engine writes at its start; ``Engine.reported`` reads them."""
    limits = replica.limits
    weight_gib = (replica.estimate.weight_bytes or 0) / _GIB
    concurrency = limits.kv_tokens / limits.max_model_len
    return [
        f"Using max model len {limits.max_model_len}",
        f"imitates {facts.model} on {device.name}, max_num_seqs={limits.max_num_seqs}, "
        f"max_num_batched_tokens={limits.max_num_batched_tokens}, "
        f"max_model_len={limits.max_model_len}",
        f"Model loading took {weight_gib:.4f} GiB memory",
        f"GPU KV cache size: {limits.kv_tokens:,} tokens, Maximum concurrency for "
        f"{limits.max_model_len:,} tokens per "
        f"request: {concurrency:.2f}x",
    ]


def token_counter(model: str) -> Callable[[str], int]:
    """A function that counts tokens with the model's own tokenizer.json, which it reads at the
    first text prompt. Without such a file it counts by length.
    """
    path = Path(os.path.expanduser(model)) / "tokenizer.json"
    if not path.is_file():
        return four_bytes

    @cache
    def tokenizer() -> Tokenizer:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(path))

    def count_tokens(text: str) -> int:
        return max(1, len(tokenizer().encode(text).ids))

    return count_tokens


def _hold_place() -> int:
    """Waits for the signal to stop, and serves nothing."""
    stop = {signal.SIGTERM, signal.SIGINT}
    # sigwait takes only signals that are held back from their default
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    log("serves nothing, waits for a signal to stop")
    signal.sigwait(stop)
    return 0


async def _serve(serving: Serving) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit status."""
    options = serving.options
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = App(serving, loop, log)
    try:
        server = await loop.create_server(app.accept, options.host, options.port, backlog=4096)
    except OSError as error:
        log(
            f"OSError: cannot listen on {options.host}:{options.port}: {error.strerror or error}",
            "ERROR",
        )
        return 1
    # So that the garbage collector never looks at what exists now, and no step pauses for that.
    gc.freeze()
    try:
        port = server.sockets[0].getsockname()[1]
        log(f"serving {options.model} on http://{options.host}:{port}")
        await stop.wait()
    finally:
        server.close()
        app.close()
        for pacer in app.pacers:
            log(f"timing error: {pacer.lag.summary()}")
    return 0
