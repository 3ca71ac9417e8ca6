"""What is kept outside the store: logs of template builds.

Belongs here: the port ``BuildLogs`` and its adapter over a folder. Does not belong here: what is written
(templates) or shown (api). Called by the builder, the API and the reaper.
"""

from controlplane.artifacts.folder import FolderBuildLogs
from controlplane.artifacts.port import BuildLogs, LogChunk

__all__ = ["BuildLogs", "FolderBuildLogs", "LogChunk"]
