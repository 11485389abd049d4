"""``python -m orchestrator.engines.emulator``: the process that ``Emulator.command`` starts."""

import sys

from orchestrator.engines.emulator.flags import run

sys.exit(run(sys.argv[1:]))
