"""Servers of others while we use them: locked against other homes, and given back as found.

hold ─▶ lock ─▶ look ─▶ guard started ─▶ ... weights pushed ... ─▶ give back ─▶ unlock
                          └─ gives them back if this process dies
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from engines.devices.waiting_time import transfer_bound_s
from engines.sglang.external.found_server import FoundServer, look_at
from engines.sglang.external.server_guard import Guard
from engines.sglang.external.server_lock import OwnWeights, ServerLock, restore
from infra.access import external_key, forget_key, note_key
from infra.errors import EngineError, InputError, LeaseLost

_TTL_S = 60.0
"""how long the right to a server lasts without renewal, for weights of no size"""
_log = logging.getLogger(__name__)


class HeldServers:
    """Made by `hold`; `renew` it well within `ttl_s`, and end it with `give_back`. Methods block.

    `found` has what was seen of each server when its lock was ours, and before anything changed.
    """

    def __init__(self, urls: Sequence[str], num_bytes: int) -> None:
        """`num_bytes`: size of the weights that the servers take and give back."""
        self.ttl_s = transfer_bound_s(num_bytes, _TTL_S)
        self.found: dict[str, FoundServer] = {}
        self._urls = tuple(sorted(urls))  # in one order for everybody, or two would wait for ever
        self._num_bytes = num_bytes
        self._dropped: dict[str, FoundServer] = {}
        self._locks: dict[str, ServerLock] = {}
        self._guard = Guard()

    def hold(self) -> str:
        """Get the right to all servers, or to none: returns one that another run has, else ""."""
        try:
            for url in self._urls:
                if not self._lock(url):
                    self.give_back()
                    return url
            for url in self._urls:
                self._look_and_guard(url)
        except BaseException:
            self.give_back()
            raise
        return ""

    def in_use(self, url: str) -> EngineError:
        return EngineError(
            f"{url} is in use by another run of Tributary, of this home or of another one: wait for"
            " its end, or give other servers. If that run was killed with its host, the server is"
            f" free within {self.ttl_s:.0f} s"
        )

    def take_back(self, url: str) -> bool:
        """The right to a server that was dropped; False if somebody else has it."""
        if not self._lock(url):
            return False
        try:
            self._look_and_guard(url)
        except BaseException:
            self.drop(url)
            raise
        return True

    def drop(self, url: str) -> None:
        """Do without a server that is lost: it is not ours, or it is not there."""
        if (lock := self._locks.pop(url, None)) is not None:
            lock.release()
        if (found := self.found.pop(url, None)) is not None:
            self._dropped[url] = found
        self._guard.leave(url)

    def renew(self) -> list[str]:
        """Keep the right to all; returns those to which it is lost."""
        lost: list[str] = []
        for url, lock in list(self._locks.items()):
            try:
                lock.renew()
            except LeaseLost:
                lost.append(url)
            except EngineError as error:  # busy, or away: the right's own end decides
                _log.warning("the right to %s is not renewed yet: %s", url, error)
        return lost

    def check_restorable(self) -> None:
        """Raise InputError for a server that could not be left as it was found."""
        for found in self.found.values():
            if not found.can_be_restored:
                raise InputError(
                    f"fleet.external: {found.url} holds weights of version {found.version!r} that"
                    " were pushed to it and are in no folder (it was started with"
                    f" {found.started_version!r}), so it could not be left as it was found:"
                    " restart it, or give it a folder's weights with `tributary publish --by disk`"
                )
            if found.started_version.isdecimal():
                raise InputError(
                    f"fleet.external: {found.url} was started with --weight-version"
                    f" {found.started_version}; a stage counts its own versions and could not tell"
                    " whether it was restarted: start it without, or with a word"
                )

    def restore(self) -> list[str]:
        """Let all servers load what they were found with; returns what went wrong."""
        own = [self._own_weights(url) for url in self.found]
        with ThreadPoolExecutor(max(1, len(own))) as pool:
            return [text for text in pool.map(_trouble_restoring, own) if text]

    def give_back(self) -> None:
        """End all rights, after `restore` or without it. Safe to call twice."""
        for url in list(self._locks):
            self.drop(url)
        self._guard.end()

    def _lock(self, url: str) -> bool:
        lock = ServerLock(url, self.ttl_s)
        if not lock.acquire():
            return False
        self._locks[url] = lock
        return True

    def _look_and_guard(self, url: str) -> None:
        found, before = look_at(url), self._dropped.get(url)
        if before is not None and found.version != found.started_version:
            found = before  # it only hung, and still has weights of ours
        self.found[url] = found
        self._guard.watch(self._own_weights(url), self._locks[url])

    def _own_weights(self, url: str) -> OwnWeights:
        found = self.found[url]
        return OwnWeights(url, found.model_path, found.version, found.checksum, self._num_bytes)


def _trouble_restoring(own: OwnWeights) -> str:
    """Empty if there was none."""
    try:
        restore(own)
        return ""
    except EngineError as error:
        return str(error)


def note_keys(urls: Sequence[str]) -> None:
    """Let requests to these servers carry the key in the environment, or none, from now on."""
    for url in urls:
        note_key(url, external_key())


def forget_keys(urls: Sequence[str]) -> None:
    for url in urls:
        forget_key(url)
