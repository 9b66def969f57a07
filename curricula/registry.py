"""Curricula by name: ours, or a user's class by dotted path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curricula.built_in import BUILT_IN
from engines.types import Curriculum, Environment
from infra.errors import InputError
from infra.hooks import construct, require_methods, resolve


def build(name: str, options: Mapping[str, Any] | None = None) -> Curriculum:
    """The curriculum `name` (built in, or `module:attribute`) made with its options.

    Raises `InputError` for an unknown name, a path that does not lead to a curriculum, or options
    that it does not take.
    """
    factory = resolve("curriculum", name, BUILT_IN)
    curriculum = construct("curriculum", name, factory, options or {})
    require_methods("curriculum", name, curriculum, ("problems", "demonstrations", "environment"))
    return curriculum


def build_environment(name: str, options: Mapping[str, Any]) -> Environment:
    """The environment of a curriculum. Raises `InputError` where it has none."""
    environment = build(name, options).environment()
    if environment is None:
        raise InputError(f"curriculum {name!r} has no environment")
    return environment
