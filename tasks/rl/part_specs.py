"""Settings that name a part of the loop: one of ours, or the user's own."""

from __future__ import annotations

from pydantic import PositiveFloat

from engines.rollout.protocols import BUFFERS, FILTERS, SOURCES
from tasks.domain import HookSpec

ROLLOUT_PARTS = ("data_source", "group_filter", "buffer")
"""the settings that name one"""


class DataSourceSpec(HookSpec):
    """Which problem a ticket stands for."""

    name: str = "in-turns"
    """built-in name, or `module:attribute` of the user's own"""

    @property
    def parts(self) -> tuple[str, ...]:
        return (SOURCES.get(self.name, self.name),)


class GroupFilterSpec(HookSpec):
    """Which groups may teach."""

    name: str = "can-teach"
    """built-in name, or `module:attribute` of the user's own"""
    timeout_s: PositiveFloat = 60.0
    """time limit in seconds of one call of your own filter; a group that exceeds it is dropped"""

    @property
    def parts(self) -> tuple[str, ...]:
        return (FILTERS.get(self.name, self.name),)


class BufferSpec(HookSpec):
    """Which of the groups that wait a step takes, and whether one may be taken again."""

    name: str = "oldest-first"
    """built-in name, or `module:attribute` of the user's own"""

    @property
    def parts(self) -> tuple[str, ...]:
        return (BUFFERS.get(self.name, self.name),)
