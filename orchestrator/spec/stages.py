"""The stages of an engine's settings, from the file to the command line.

| stage | made by | what it adds |
|---|---|---|
| ``WrittenSettings`` | ``spec/combinations.py`` | validated; an environment of the file says where
the engine is installed |
| ``ResolvedSettings`` | ``plan/settle.py: resolved`` | absolute paths; ``nnodes`` of replicas that
are larger than a node |
| ``PlannedSettings`` | ``plan/settle.py: with_time_to_start`` | a time limit within which a new
node can download the weights |
| ``PinnedSettings`` | ``engines/engine.py: Engine.pinned`` | values for fields that the engine
would choose by its hardware; the engine's own words |

An id is made of written settings, a verdict of pinned ones; a plan holds planned settings, and a
command line is made of pinned ones. A function for which the stage makes no difference takes
``EngineSettings``. The stages are names for the type checker: at run time all are EngineSettings.
"""

from typing import NewType

from orchestrator.spec.settings import EngineSettings

WrittenSettings = NewType("WrittenSettings", EngineSettings)
ResolvedSettings = NewType("ResolvedSettings", EngineSettings)
PlannedSettings = NewType("PlannedSettings", ResolvedSettings)
PinnedSettings = NewType("PinnedSettings", EngineSettings)
