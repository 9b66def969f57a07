"""Our drivers, data sources, group filters and buffers by name.

Imports nothing, so that a spec can name them.
"""

from __future__ import annotations

from collections.abc import Mapping

DRIVERS: Mapping[str, str] = {
    "conversation": "engines.rollout.drivers.driver:Conversation",
    "harness": "engines.agents.harness:Harness",
    "library": "engines.agents.library_driver:LibraryDriver",
}

SOURCES: Mapping[str, str] = {
    "in-turns": "engines.rollout.tickets:TicketSource",
    "weighted": "engines.rollout.sources:Weighted",
}

FILTERS: Mapping[str, str] = {
    "can-teach": "engines.rollout.filters:CanTeach",
    "outcome-between": "engines.rollout.filters:OutcomeBetween",
    "every": "engines.rollout.filters:Every",
}

BUFFERS: Mapping[str, str] = {
    "oldest-first": "engines.rollout.buffers:GroupBuffer",
}
