"""Run sglang-router with the key of this home: as its own module, with the router's options.

The arguments are the router's own. The key is added here, for everybody may read a process's
arguments.
"""

from __future__ import annotations

import sys

from infra.access import required_key


def main(arguments: list[str]) -> None:
    from sglang_router.launch_router import launch_router, parse_router_args

    given = parse_router_args(arguments)
    given.api_key = required_key(given.host) or None
    launch_router(given)  # pyright: ignore[reportArgumentType]  # it says Namespace, takes both


if __name__ == "__main__":
    main(sys.argv[1:])
