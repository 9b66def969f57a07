"""The kinds of units that the owner of devices leases (trainer ranks, servers): what it asks of
each, where it finds each, and which parts of their memory can sleep by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from engines.devices.lease import Lease


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
_SMALL_BYTES = 64 << 20
_MOST_SHARE = 0.2


@runtime_checkable
class SentFolder(Protocol):
    """A folder in a message to another host, where its path means nothing."""

    def here(self) -> Path:
        """The folder on the host that calls this."""
        ...


class Folders(Protocol):
    """How ranks, on whatever hosts they are, get at folders of the job's host."""

    def copy(self, folder: Path) -> SentFolder:
        """Send an artifact's copy: each host has its own."""
        ...

    def to_read(
        self, folder: Path, timeout_s: float
    ) -> AbstractAsyncContextManager[Path | SentFolder]:
        """Return what to tell ranks that are to read all of it."""
        ...

    async def to_write(self, folder: Path, timeout_s: float) -> Path | SentFolder:
        """Return what to tell ranks that are to write into it; it is empty so far. Raises
        EngineError.
        """
        ...

    async def collect(self, folder: Path, timeout_s: float) -> None:
        """Bring here what ranks have written into it elsewhere. Raises EngineError."""
        ...


def on_this_host(argument: Any) -> Any:
    """Return an argument of a message, with the folders as this host has them."""
    if isinstance(argument, SentFolder):
        return argument.here()
    if isinstance(argument, Mapping):
        return {key: on_this_host(value) for key, value in argument.items()}
    return argument


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """How an owner of devices works on this cluster; a test has times and ranks of its own."""

    logs: Path
    num_gpus: int
    """that the owner hands out, on its host"""
    ttl_s: float = 60.0
    """a lease ends this long after its last renewal"""
    hung_s: float = 30.0
    """longest that a unit leaves a question open while it does nothing"""
    rank_class: type | None = None
    """None: the real `TrainerRank`"""


@dataclass(frozen=True, slots=True)
class Request:
    """What a stage asks for."""

    kind: Kind
    count: int
    pool: int
    """how many units of the kind the recipe lets run; more are never started for it"""
    holder: str
    """who asks, for people. Example: "stage-rl-ab12-a1" """
    terms: Any = None
    """what the units have to serve, in the words of their kind"""
    wait_s: float = 3600.0
    """for units that other stages hold"""
    driver: str = ""
    """the Ray job whose end also ends the lease; whoever sends the request fills it in"""
    is_sole: bool = False
    """whether no other stage may use the GPUs of its units meanwhile: its two sides share them"""


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease as its holder sees it."""

    lease_id: str
    ttl_s: float
    """the lease ends this long after its last renewal"""
    use: Any
    """what the holder needs to use the units, e.g. the actors of ranks, the URLs of servers"""


@dataclass(frozen=True, slots=True)
class Held:
    """What a role did with its memory, in bytes."""

    given_back: int
    """by this call; 0 where it only took some"""
    asleep: int
    """what it has given back and not taken again"""
    left: int
    """what it holds on its devices now"""
    largest: tuple[str, ...] = ()
    """of that, for people. Example: ("32.0 MB float32[4096, 2048]",)"""

    @property
    def is_too_much(self) -> bool:
        """Return whether one of which everything sleeps holds more than a fifth of its memory, and
        more than 64 MiB."""
        return self.left > max(_SMALL_BYTES, _MOST_SHARE * (self.asleep + self.left))


class Units(Protocol):
    """All units of one kind. A unit is used by one caller at a time: the owner sees to that.

    An implementation is made with the `HostAgent` that starts its processes and `OwnerSettings`.
    """

    restarts: int
    """how many leased units were started again"""

    def grow(self, count: int) -> Sequence[str]:
        """Have at least `count` units, started or not; returns the names of all, in order."""
        ...

    def running(self) -> Mapping[str, int]:
        """The process id of each unit that has a process."""
        ...

    def place(self, requests: Sequence[Request], taken: frozenset[int]) -> Sequence[Request] | None:
        """Requests of one holder, with GPUs of their own in the terms of each that needs some;
        `taken` have other leases. None if there are none now. Raises InputError if there never
        will be."""
        ...

    def choose(self, free: Sequence[str], request: Request) -> Sequence[str]:
        """Choose the free units that suit the request best; fewer than it wants: it waits."""
        ...

    def gpus(self, name: str, request: Request) -> frozenset[int]:
        """Numbers of the GPUs that a unit would use for the request; none on a CPU."""
        ...

    def held_gpus(self, name: str) -> frozenset[int]:
        """Return the GPUs whose memory a unit that nobody uses holds all the same."""
        ...

    async def free_memory(self, name: str) -> None:
        """Have a unit that nobody uses give the memory of its GPUs back."""
        ...

    async def warm(self, name: str) -> None:
        """Make a unit ready for a lease, so that the next one does not have to."""
        ...

    async def prepare(self, lease: Lease, terms: Any) -> Any:
        """Make a lease's units serve `terms`; returns what the holder needs to use them. A holder
        may ask again, with other terms. Raises EngineError."""
        ...

    def end_lease(self, lease: Lease) -> None:
        """Forget what was particular to the lease; each unit is given back by itself."""
        ...

    async def give_back(self, name: str, is_clean: bool) -> None:
        """Make a unit fit for the next lease, whatever the last one left it in."""
        ...

    async def repair(self, leases: Sequence[Lease], idle: Sequence[str]) -> Sequence[str]:
        """Look for dead units; called every second. Returns the idle ones to warm again."""
        ...

    async def use(self, lease: Lease) -> Any | None:
        """Return what `prepare` returned, as it is now: a unit may have moved. None unless every
        unit of the lease works, as far as `repair` knows."""
        ...

    def close(self) -> None:
        """End every process of the kind."""
        ...


def rank_place(index: int, gpus: Sequence[int], tp: int = 1) -> tuple[int, int | None]:
    """Host and GPU of the rank with this number, by the GPUs of each host.

    Examples: rank_place(9, [8, 8]) -> (1, 1); rank_place(1, [0, 0]) -> (1, None)
    """
    if not any(gpus):
        return index // tp % len(gpus), None
    # Of a host whose GPUs are no multiple of a group's size, the last ones are left over.
    places = [(host, i) for host, n in enumerate(gpus) for i in range(n // tp * tp)]
    if not places:  # groups are larger than hosts, which nothing can repair here
        places = [(host, i) for host, n in enumerate(gpus) for i in range(n)]
    return places[index % len(places)]


def server_host(index: int, gpus: Sequence[int], tp: int) -> int:
    """Host of the server with this number, by the GPUs of each host.

    Examples: server_host(0, [8, 8], 2) -> 1; server_host(4, [8, 8], 2) -> 0
    """
    blocks = [
        host
        for host in reversed(range(len(gpus)))
        for _ in range(_blocks(gpus[host], tp, is_gpu_cluster=any(gpus)))
    ]
    return blocks[index % len(blocks)]


def first_server_device(index: int, tp: int, num_gpus: int) -> int:
    """The first of a server's `tp` neighbouring GPUs on its host: servers with successive numbers
    have different ones. Example: first_server_device(0, 2, 8) -> 6"""
    blocks = max(num_gpus // tp, 1)
    return max(num_gpus - tp * (index % blocks + 1), 0)


def _blocks(num_gpus: int, tp: int, *, is_gpu_cluster: bool) -> int:
    """Return how many servers a host takes before the next host's turn."""
    return max(num_gpus // tp, 1) if num_gpus or not is_gpu_cluster else 0
