"""The stages of an engine's settings, from the file to the command line.

| stage | made by | what it adds |
|---|---|---|
| ``WrittenSettings`` | ``spec/combinations.py`` | validated; where the engine is installed |
| ``ResolvedSettings`` | ``plan/settle.py: resolved`` | absolute paths; ``nnodes`` of large replicas |
| ``PlannedSettings`` | ``plan/settle.py: with_time_to_start`` | a time limit that allows a download |
| ``PinnedSettings`` | ``engines/engine.py: Engine.pinned`` | what the engine would choose by its GPUs |

An id is made of written settings with the resolved ``nnodes`` and the pins, and a verdict of pinned
settings; a plan holds planned settings, and a
command line is made of pinned ones. A function for which the stage makes no difference takes
``EngineSettings``. The stages are names for the type checker: at run time all are EngineSettings.
"""

from typing import NewType

from orchestrator.spec.settings import EngineSettings

WrittenSettings = NewType("WrittenSettings", EngineSettings)
ResolvedSettings = NewType("ResolvedSettings", EngineSettings)
PlannedSettings = NewType("PlannedSettings", ResolvedSettings)
PinnedSettings = NewType("PinnedSettings", EngineSettings)
