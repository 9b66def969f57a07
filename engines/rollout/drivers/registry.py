"""Drivers by name: ours, or a user's class by dotted path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.rollout.drivers.built_in import BUILT_IN
from engines.rollout.drivers.live_domain import Driver
from engines.types import Environment
from infra.hooks import construct_with, require_methods, resolve


def build(
    name: str, options: Mapping[str, Any], environment: Environment | None, max_turns: int
) -> Driver:
    """The driver `name` (built in, or `module:attribute`) made with its options, and with the
    domain's `environment` and `max_turns` where its constructor has parameters of these names.

    Raises `InputError` for an unknown name, a path that does not lead to a driver, or options that
    it does not take.
    """
    factory = resolve("driver", name, BUILT_IN)
    offered = {"environment": environment, "max_turns": max_turns}
    refusal = "the driver gets the domain's"
    driver = construct_with("driver", name, factory, options, offered, refusal=refusal)
    require_methods("driver", name, driver, ("run",))
    return driver
