"""Owns an engine process until it is told what to do: run as a program by test_engine_process.py.

Arguments: folder, launch id, grace in seconds, then the engine's argv. Reads one word: ``exit``,
``raise``, ``hard``.
"""

import os
import signal
import sys
from pathlib import Path

from orchestrator.engines.command import Command
from orchestrator.node.process import EngineProcess

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # what a raylet does to its workers
os.nice(5)
process = EngineProcess(
    Command(tuple(sys.argv[4:])), Path(sys.argv[1]), sys.argv[2], grace_s=float(sys.argv[3])
)
process.start()
print(process.pid, flush=True)
word = sys.stdin.readline().strip()
if word == "raise":
    raise SystemExit("the owner failed")
if word == "hard":
    os._exit(9)
