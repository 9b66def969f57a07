"""Where a server keeps its sockets and shared memory: under names that identify the server.

SGLang names them at random and removes none of them, so a server that ended would leave files that
nobody can tell from a living one's.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from infra.processes.leftovers import claim_private_folder, trace_name

_NAMES_OF_SHARED_MEMORY = (
    "sglang.srt.distributed.device_communicators.shm_broadcast.make_shm_name",
    "sglang.srt.distributed.parallel_state.make_shm_name",
)


def install() -> None:
    """Have what ranks of a server with several devices share named after the server as well."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target in _NAMES_OF_SHARED_MEMORY:
        HookRegistry.register(target, _shared_memory_name, HookType.REPLACE)


def _shared_memory_name(kind: str) -> str:
    """Every process of a server keeps its temporary files in the folder that `adopt` claimed."""
    return f"{Path(tempfile.gettempdir()).name}_{kind}_{os.getpid()}_{secrets.token_hex(4)}"


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
