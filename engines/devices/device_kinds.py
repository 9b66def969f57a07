"""The kinds of units that the owner of devices leases, where it finds each, and which parts of
their memory can sleep by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

Kind = Literal["rank", "server"]

KINDS: Mapping[Kind, str] = {
    "rank": "engines.megatron.ranks.rank_units:RankUnits",
    "server": "engines.sglang.servers.server_units:ServerUnits",
}
SETTINGS: Mapping[Kind, str] = {"rank": "resources.trainer_ranks", "server": "resources.servers"}
"""the recipe's field that says how many there may be"""

OPEN_OWNER = "engines.devices.find_owner:open_owner"
"""found by name, too: who hands units out is no part of what a stage computes with them"""
FOLDERS = "engines.devices.folder_transfer:RankFolders"
"""made with the addresses of ranks; by name for the same reason"""

TrainerPart = Literal["weights", "optimizer", "frozen", "gradients"]
"""`optimizer`: moments and master weights. `frozen`: the reference's weights"""
ServerPart = Literal["weights", "cache"]
"""`cache`: keys and values, and what CUDA graphs hold"""
TRAINER_PARTS: frozenset[TrainerPart] = frozenset({"weights", "optimizer", "frozen", "gradients"})
SERVER_PARTS: frozenset[ServerPart] = frozenset({"weights", "cache"})


@runtime_checkable
class SentFolder(Protocol):
    """A folder in a message to another host, where its path means nothing."""

    def here(self) -> Path:
        """The folder on the host that calls this."""
        ...


class Folders(Protocol):
    """How ranks, on whatever hosts they are, get at folders of the job's host."""

    def copy(self, folder: Path) -> SentFolder:
        """Of an artifact's copy: each host has its own."""
        ...

    def to_read(
        self, folder: Path, timeout_s: float
    ) -> AbstractAsyncContextManager[Path | SentFolder]:
        """What to tell ranks that are to read all of it."""
        ...

    async def to_write(self, folder: Path, timeout_s: float) -> Path | SentFolder:
        """What to tell ranks that are to write into it; it is empty so far. Raises EngineError."""
        ...

    async def collect(self, folder: Path, timeout_s: float) -> None:
        """Bring here what ranks have written into it elsewhere. Raises EngineError."""
        ...


def on_this_host(argument: Any) -> Any:
    """An argument of a message, with the folders as this host has them."""
    if isinstance(argument, SentFolder):
        return argument.here()
    if isinstance(argument, Mapping):
        return {key: on_this_host(value) for key, value in argument.items()}
    return argument
