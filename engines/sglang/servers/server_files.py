"""Where a server keeps its sockets and shared memory: under names that identify the server.

SGLang names them at random and removes none of them, so a server that ended would leave files that
nobody can tell from a living one's.
"""

from __future__ import annotations

import os
from typing import Any

from infra.processes.leftovers import claim_private_folder, trace_name


def adopt() -> None:
    """From now on this process, and those that it starts, leave traces under its own name only."""
    from sglang.srt.server_args import PortArgs

    claim_private_folder()
    name = trace_name(os.getpid())
    stock = PortArgs.init_new

    def init_new(*arguments: Any, **options: Any) -> PortArgs:
        ports = stock(*arguments, **options)
        ports.instance_id = name
        return ports

    PortArgs.init_new = staticmethod(init_new)
