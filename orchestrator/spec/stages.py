"""The stages of an engine's settings, from the file to the command line.

| stage | made by | what it adds |
|---|---|---|
| ``WrittenSettings`` | ``spec/combinations.py`` | validated; where the engine is installed |
| ``ResolvedSettings`` | ``plan/resolved_settings.py`` | absolute paths; ``nnodes`` of large replicas |
| ``PlannedSettings`` | ``plan/planned_settings.py`` | a time limit that allows a download |
| ``PinnedSettings`` | ``engines/engine.py: Engine.pinned`` | what the engine would choose by its GPUs |

A deployment's id is made of its written settings with the resolved ``nnodes`` and the pins; its
verdict of resolved settings that are pinned. A plan holds planned settings, and a command line is
made of planned settings that are pinned. A function for which the stage makes no difference takes
``EngineSettings``. The stages are names for the type checker: at run time all are EngineSettings.
"""

from typing import NewType

from orchestrator.spec.settings import EngineSettings

WrittenSettings = NewType("WrittenSettings", EngineSettings)
ResolvedSettings = NewType("ResolvedSettings", EngineSettings)
PlannedSettings = NewType("PlannedSettings", ResolvedSettings)
PinnedSettings = NewType("PinnedSettings", EngineSettings)
