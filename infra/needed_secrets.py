"""Which secrets a process gets: those that it needs.

    up's environment, block ──▶ flow ──▶ job of a stage ──▶ its servers, its users' parts
                       └─ the store's ──▶ Ray

A secret of the store is needed by all that read or write it; one of a place that models come from,
by stages that name such a place; one that an option refers to, by stages with that option. Anything
else in the recipe's block is for the user's own parts, so every job gets it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.secret_references import is_secret_variable, secret_names, texts
from infra.server_keys import EXTERNAL_KEY_VARIABLE

_STORE = "AWS_"
_SOURCES = ("HF_", "HUGGING_FACE_", "GOOGLE_", "AZURE_")
_SOURCE = re.compile(r"hf:|(?!https?://|file://)[a-z0-9]+://")
"""how the name of a model that lies elsewhere begins"""


@dataclass(frozen=True, slots=True)
class RunSecrets:
    """The secrets that a run has, by the variables that hold them."""

    held: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    referred: frozenset[str] = frozenset()
    """those that options of the recipe refer to"""

    def needed_by(self, stage: Any) -> dict[str, str]:
        """What a stage's job needs; `stage` is what makes it up, as JSON values."""
        own, found = secret_names(stage), list(texts(stage))
        has_source = any(_SOURCE.match(text) for _, text in found)
        has_servers = any("external" in at for at, _ in found)

        def is_needed(name: str) -> bool:
            if name in own or name.startswith(_STORE):
                return True
            if name in self.referred:
                return False
            if name.startswith(_SOURCES):
                return has_source
            return has_servers if name == EXTERNAL_KEY_VARIABLE else True

        return {name: text for name, text in self.held.items() if is_needed(name)}


def is_for_jobs(name: str) -> bool:
    """Whether jobs may need this secret of the environment, though no option refers to it."""
    return name.startswith((_STORE, *_SOURCES)) or name == EXTERNAL_KEY_VARIABLE


def with_secrets_of_the_store(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with no other secret: for servers, and for what Ray starts."""
    return {
        name: text
        for name, text in environment.items()
        if name.startswith(_STORE) or not is_secret_variable(name, text)
    }


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with no secret at all: for what neither reads the store nor runs stages."""
    return {n: text for n, text in environment.items() if not is_secret_variable(n, text)}


def for_part(environment: Mapping[str, str], options: Any) -> dict[str, str]:
    """The environment of a user's part: of what is ours to use, only what its options refer to."""
    named = secret_names(options)
    return {
        name: text
        for name, text in environment.items()
        if name in named
        or not (name.startswith(_STORE) or name == EXTERNAL_KEY_VARIABLE)
        or not is_secret_variable(name, text)
    }
