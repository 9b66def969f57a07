"""Where a served role's model is asked, as plain data: rollout workers on any host get it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

MOST_ASKED = 64
"""at one server at once, where a recipe does not say"""


@dataclass(frozen=True, slots=True)
class RoleAddress:
    """Of one role's running servers."""

    router_url: str
    max_batch: int
    """turns in one request"""
    most_asked: int
    """at all servers together, by everybody who shares this address"""
    chat_files: Mapping[str, bytes]
    """of the model's folder"""
    context_length: int

    def shared_by(self, clients: int) -> RoleAddress:
        """For one of so many clients."""
        return replace(self, most_asked=max(self.most_asked // clients, 1))
