"""Finding the cluster's owner of devices, or starting it. Imports no ray."""

from __future__ import annotations

import functools
import hashlib
import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from engines.devices.owner import DeviceOwner
from engines.devices.ray_cluster import NAMESPACE, connect, on_node, own_node
from engines.devices.units import KINDS, OwnerSettings
from engines.families.common.registry import family_modules
from infra.code.identity import PACKAGES, files_of
from infra.home import SOURCE_ROOT, home

_NAMED = re.compile(
    # imports, in functions too
    rb"^\s*(?:from|import) +([\w.]+)(?: +import +(?:\(([^)]*)\)|([^#\n]*)))?"
    # "package.module", "package.module:attribute"
    rb"|[\"']([a-z]\w*(?:\.\w+)+)(?::\w+)?[\"']",
    re.MULTILINE,
)
_PREFIX = "device-owner-"
_HUNG_S = 30.0
"""what a living owner may take to answer; it only keeps books"""
_END_S = 15.0
_log = logging.getLogger(__name__)


def running_code(modules: Sequence[str], root: Path = SOURCE_ROOT) -> str:
    """sha256 hex over our files that processes of these modules may run."""
    digest = hashlib.sha256()
    for file, content in sorted(running_files(modules, root).items()):
        digest.update(f"{file.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def running_files(modules: Sequence[str], root: Path = SOURCE_ROOT) -> dict[Path, bytes]:
    """The files by path, with their contents."""
    found: dict[Path, bytes] = {}
    pending = list(modules)
    seen: set[str] = set()
    while pending:
        if (name := pending.pop()) in seen:
            continue
        seen.add(name)
        for file in files_of(root, name):
            if file not in found:
                found[file] = file.read_bytes()
                pending += _named_in(found[file])
    return found


def _named_in(content: bytes) -> Iterator[str]:
    """Dotted names of ours that a file imports or holds as a string."""
    for module, several, one, text in _NAMED.findall(content):
        base = (module or text).decode()
        if base.partition(".")[0] in PACKAGES:
            yield base
            for attribute in (several or one).decode().split(","):
                yield f"{base}.{attribute.strip().partition(' ')[0]}"


def open_owner(name: str = "", settings: OwnerSettings | None = None) -> Any:
    """The Ray actor handle of the one owner that runs this very code; started if need be.

    Idle owners that run other code are asked to end, so that their engines do not pile up; one
    that hangs is replaced. It runs on this host, which is that of stages' jobs. Blocks like
    `connect` the first time. A test passes a name and settings of its own.
    """
    connect()
    import ray
    from ray.util import list_named_actors

    settings = settings or OwnerSettings(home() / "logs" / "fleet", _own_gpus())
    name = name or _own_name()
    if name in (alive := list_named_actors()):
        _end_if_hung(name)
    else:
        for other in alive:
            if other.startswith(_PREFIX):
                with suppress(ValueError):  # it ended meanwhile
                    ray.get_actor(other, NAMESPACE).retire.remote()
    return (
        ray.remote(DeviceOwner)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            num_gpus=settings.num_gpus,
            max_restarts=0,
            scheduling_strategy=on_node(own_node()),
        )
        .remote(settings)
    )


@functools.cache
def _own_name() -> str:
    """Return the name of the owner that runs the code that this process runs."""
    parts = [part.partition(":")[0] for part in KINDS.values()]
    # Found by name at run time, so no file imports them.
    found = [*family_modules(), "engines.sglang.models.families", "engines.sglang.models.gemma3"]
    return _PREFIX + running_code([__name__, *parts, *found])[:10]


def _own_gpus() -> int:
    """GPUs of this host, which the owner holds itself; agents hold those of others."""
    import ray

    own = own_node()
    here = [node["Resources"] for node in ray.nodes() if node["NodeID"] == own]
    return sum(int(resources.get("GPU", 0)) for resources in here)


def _end_if_hung(name: str) -> None:
    """Kill an owner that does not answer in time, with all that it started."""
    import ray
    from ray.util import list_named_actors

    with suppress(Exception):  # it ended meanwhile
        owner = ray.get_actor(name, NAMESPACE)
        if not _answers(owner):
            _log.warning("%s did not answer within %.0f s: it is replaced", name, _HUNG_S)
            ray.kill(owner, no_restart=True)
            deadline = time.monotonic() + _END_S
            while name in list_named_actors() and time.monotonic() < deadline:
                time.sleep(0.1)


def _answers(owner: Any) -> bool:
    """Return whether it answers in time. Raises ray's ActorDiedError when it is over."""
    import ray
    from ray.exceptions import ActorUnavailableError, GetTimeoutError

    deadline = time.monotonic() + _HUNG_S
    while (left := deadline - time.monotonic()) > 0:
        try:
            ray.get(owner.ping.remote(), timeout=left)
            return True
        except GetTimeoutError:
            return False
        except ActorUnavailableError:  # its connection broke: it may live, or hang
            time.sleep(0.5)
    return False
