"""Moving a trainer's weights into running servers: by shared memory, from disk, by broadcast.

`publish` is the one a trainer on the servers' host uses. Every transport has the same contract:
when it returns, each server serves the new weights under the new version with an empty cache, and
when it raises, no server is left paused.
"""

from engines.weight_sync.report import PublishReport
from engines.weight_sync.shared_memory import publish

__all__ = ["PublishReport", "publish"]
