"""Run sglang-router with a key: as its own module, with the router's options.

The arguments are the router's own. The key is added here, for everybody may read a process's
arguments: the one in the environment variable, or that of this home.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any, NoReturn

from infra.access import required_key
from infra.processes.network import forget_proxies

KEY_VARIABLE = "TRIBUTARY_ROUTER_KEY"
_NO_PAGE = "http://no-page.invalid"
"""an origin that no page has: an empty list would let pages of every origin read answers"""


class _NoBalancer:
    def __init__(self, _arguments: Any) -> NoReturn:
        raise ValueError("the balancer for tests (--mini-lb) is not offered: leave the option out")


def leave_out_balancer() -> None:
    """The router's package imports its balancer for tests at start, and with it torch and SGLang:
    two seconds of a processor for what nobody uses."""
    balancer: Any = ModuleType("sglang_router.mini_lb")
    balancer.MiniLoadBalancer = _NoBalancer
    sys.modules[balancer.__name__] = balancer


def main(arguments: list[str]) -> None:
    leave_out_balancer()
    from sglang_router.launch_router import launch_router, parse_router_args

    forget_proxies()
    given = parse_router_args(arguments)
    given.api_key = os.environ.pop(KEY_VARIABLE, "") or required_key()
    given.cors_allowed_origins = given.cors_allowed_origins or [_NO_PAGE]
    launch_router(given)  # it says Namespace, takes both  # pyrefly: ignore[bad-argument-type]


if __name__ == "__main__":
    main(sys.argv[1:])
