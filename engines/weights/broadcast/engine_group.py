"""A group of a trainer's sender with the ranks of the engines themselves, which receive while they
are paused: between GPUs, and for servers that are not ours.

A sender and its servers come into it all or none; else it says who did not, and why.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from engines.devices.waiting_time import transfer_bound_s
from engines.rendezvous import interfaces, listen, store_at, use_interface_of
from engines.sglang.http import order
from engines.weight_versions import BROKEN_WEIGHTS
from engines.weights.buckets import TAKE_S, Bucket
from engines.weights.reach import address_towards
from engines.weights.transport import CONTROL_S, Target
from engines.weights.update import Servers, finish
from infra.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


JOIN_S = 120.0
"""what joining a group may take"""
ANSWER_S = 5.0
"""what servers may take to say what went wrong with them"""


def failed(
    what: str,
    urls: Sequence[str],
    asked: Sequence[Future[Any]],
    error: RuntimeError | TimeoutError,
    within_s: float | None = None,
) -> EngineError:
    """Make an error with what each server says; one that refused is the cause, the others waited
    for it.

    Torch raises nothing but RuntimeError for a group; TimeoutError is of a call that never ended.
    """
    wait(asked, timeout=ANSWER_S)
    told = [f"{url}: {_said(future)}" for url, future in zip(urls, asked, strict=True)]
    bound_s = JOIN_S if within_s is None else within_s
    return EngineError(
        f"weights by broadcast: servers {what} within {bound_s:.0f} s ({_first_line(error)});"
        f" {'; '.join(told)}. Look at a server that refused or does not answer; if they all run,"
        " let their hosts connect to that of the trainer, or set `weights.transport` in the stage's"
        " resources to `disk_delta` with a `url` that both sides reach"
    )


def _said(future: Future[Any]) -> str:
    if not future.done():
        return "no answer yet"
    error = future.exception()
    return "ready" if error is None else _first_line(error)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


_Group = TypeVar("_Group")


def join_all(
    urls: Sequence[str],
    ask: Callable[[str], Any],
    own: Callable[[], _Group],
    leave: Callable[[_Group], None],
    address: str,
) -> _Group:
    """The group that `own` makes here while `ask` has each server join it at `address`; all `leave`
    it if a server then refuses. Raises EngineError."""
    with Servers(urls) as servers:
        joining = servers.start(ask)
        try:
            group = own()
        except RuntimeError as error:
            what = f"did not all join the trainer's process group at {address}"
            raise failed(what, urls, joining, error) from error
        try:
            finish(joining)
        except BaseException:
            leave(group)
            raise
    return group


CONNECT_S = 60.0
"""what the ranks of a group may take to connect; NCCL's own calls would wait for ever"""


class EngineGroup:
    """One stage's sender and all ranks of all servers."""

    def __init__(self, targets: Sequence[Target], backend: str) -> None:
        """Join with every server, each of which has to reach this host where it reaches them."""
        # A server takes each name once in its life.
        self._name = name = f"tributary-{uuid4().hex}"
        self._urls = [target.url for target in targets]
        self._is_connected = False
        self._is_stuck = False
        """whether a call of its library never came back"""
        self._host = host = address_towards(self._urls[0])
        use_interface_of(host)
        listener = listen(host)
        address, port = f"tcp://{host}:{listener.getsockname()[1]}", listener.getsockname()[1]
        world_size = 1 + sum(target.num_ranks for target in targets)
        offsets: dict[str, int] = {}
        for target in targets:
            offsets[target.url] = 1 + sum(t.num_ranks for t in targets[: len(offsets)])

        def join(url: str) -> None:
            body = {
                "master_address": host,
                "master_port": port,
                "rank_offset": offsets[url],
                "world_size": world_size,
                "group_name": name,
                "backend": backend,
            }
            order(url, "/init_weights_update_group", body, timeout=JOIN_S)

        self._group: ProcessGroup = join_all(
            self._urls,
            join,
            lambda: _joined(backend, address, world_size, name, listener),
            self._leave,
            address,
        )

    def send(self, servers: Servers, bucket: Bucket) -> list[Future[Any]]:
        """The whole bucket in one broadcast; servers cut it up as they are told."""
        if not self._is_connected:
            self._connect(servers, bucket)
        bound_s = transfer_bound_s(bucket.flat.nbytes, TAKE_S)
        what = f"did not all receive a bucket of {bucket.flat.nbytes} bytes"
        return self._sent(servers, bucket, bound_s, what)

    def _connect(self, servers: Servers, bucket: Bucket) -> None:
        """Send one small tensor by itself, which comes again with its bucket: ranks connect at
        their first broadcast, and those that cannot are told apart from a slow network."""
        name, tensor = min(bucket.tensors, key=lambda named: named[1].nbytes)
        unit = bucket.flat.element_size()
        begin = (tensor.data_ptr() - bucket.flat.data_ptr()) // unit
        small = Bucket(bucket.flat[begin : begin + tensor.nbytes // unit], [(name, tensor)])
        what = (
            f"did not all connect to the trainer at {self._host} ({interfaces()}; another network"
            " interface can be set by these variables where the stack starts)"
        )
        finish(self._sent(servers, small, CONNECT_S, what))
        self._is_connected = True

    def _sent(
        self, servers: Servers, bucket: Bucket, bound_s: float, what: str
    ) -> list[Future[Any]]:
        body = {
            "names": [name for name, _ in bucket.tensors],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket.tensors],
            "shapes": [list(tensor.shape) for _, tensor in bucket.tensors],
            "group_name": self._name,
            "load_format": "flattened_bucket",
            "flush_cache": False,
            "weight_version": BROKEN_WEIGHTS,
        }
        path = "/update_weights_from_distributed"
        taking = servers.start(lambda url: order(url, path, body, timeout=bound_s))
        try:
            if self._is_connected:
                self._broadcast(bucket.flat, bound_s)
            else:
                _within(bound_s, lambda: self._broadcast(bucket.flat, bound_s))
        except (RuntimeError, TimeoutError) as error:
            self._is_stuck = isinstance(error, TimeoutError)
            raise failed(what, self._urls, taking, error, bound_s) from error
        return taking

    def _broadcast(self, flat: Tensor, bound_s: float) -> None:
        from torch.distributed import distributed_c10d as c10d

        options = c10d.BroadcastOptions()
        options.rootRank = 0
        # Told twice: by itself a wait for a GPU's broadcast returns at once, and its watchdog would
        # end this process instead of raising.
        options.timeout = limit = timedelta(seconds=bound_s)
        self._group.broadcast([flat], options).wait(limit)

    def close(self) -> None:
        """Leave the group here and on every server that still answers."""
        self._leave(self._group)

    def _leave(self, group: ProcessGroup) -> None:
        body = {"group_name": self._name}

        def leave(url: str) -> None:
            with suppress(EngineError):
                order(url, "/destroy_weights_update_group", body, timeout=CONTROL_S)

        with Servers(self._urls) as servers:
            servers.each(leave)
        if self._is_stuck:
            return  # to end the group would wait for the call that never came back
        from torch.distributed import distributed_c10d as c10d

        c10d.destroy_process_group(group)


def _within(bound_s: float, work: Callable[[], None]) -> None:
    """Raises TimeoutError if `work`, which has no bound of its own, takes longer; it goes on."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    Thread(target=run, name="connect", daemon=True).start()
    try:
        done.result(bound_s)
    except TimeoutError as error:
        raise TimeoutError("no connection came to be") from error


def _joined(
    backend: str, address: str, world_size: int, name: str, listener: socket.socket
) -> ProcessGroup:
    """Return a process group apart from torch's global one, which the trainer uses for itself.

    SGLang makes its side the same way: a store under the group's name, then the bare constructor.
    Neither names a device: NCCL then connects at the first broadcast, for which each server has its
    request by then. With one it would connect here, where servers do not.
    """
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed import distributed_c10d as c10d

    limit = timedelta(seconds=JOIN_S)
    store = store_at(address, 0, world_size, limit, listener)
    made: tuple[Any, Any] = c10d._new_process_group_helper(  # noqa: SLF001
        world_size,
        0,
        [],
        c10d.Backend(backend),
        PrefixStore(name, store),
        group_name=c10d.GroupName(name),
        timeout=limit,
    )
    group: ProcessGroup = made[0]
    # For a group apart torch keeps no ranks, and could not forget it again.
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}  # noqa: SLF001
    return group
