"""Our drivers by name. Imports nothing, so that a spec can name them."""

from __future__ import annotations

from collections.abc import Mapping

BUILT_IN: Mapping[str, str] = {
    "conversation": "engines.rollout.drivers.conversation:Conversation",
    "harness": "engines.agents.harness:Harness",
    "library": "engines.agents.library_driver:LibraryDriver",
}
