"""Drivers by name: ours, or a user's class by dotted path."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from engines.rollout.drivers.built_in import BUILT_IN
from engines.rollout.drivers.live_domain import Driver
from engines.types import Environment
from infra.errors import InputError
from infra.hooks import construct, require_methods, resolve


def build(
    name: str, options: Mapping[str, Any], environment: Environment | None, max_turns: int
) -> Driver:
    """The driver `name` (built in, or `module:attribute`) made with its options, and with the
    domain's `environment` and `max_turns` where its constructor has parameters of these names.

    Raises `InputError` for an unknown name, a path that does not lead to a driver, or options that
    it does not take.
    """
    factory = resolve("driver", name, BUILT_IN)
    given = {"environment": environment, "max_turns": max_turns}
    if taken := sorted(given.keys() & options.keys()):
        raise InputError(
            f"driver {name!r}: options.{taken[0]}: the driver gets the domain's; remove it here"
        )
    known = inspect.signature(factory).parameters
    ours = {key: value for key, value in given.items() if key in known}
    driver = construct("driver", name, factory, {**options, **ours})
    require_methods("driver", name, driver, ("run",))
    return driver
