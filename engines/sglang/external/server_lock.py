"""The exclusive right to change a server of others, kept on the server itself, and how it is left
as it was found: with its own weights, under their own version.

Two homes on different hosts share nothing but the server. It has named sessions, each of which can
be opened once and ends by itself some time after that: an open session is the right. As a session
cannot be prolonged, the holder has two and renews them in turn. Who wants the right opens the first
and then the second, so nobody gets both while the holder has one. A third session has the holder's
own name: it tells him that the two are still his, and not somebody else's after a restart.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from engines.devices.waiting_time import transfer_bound_s
from engines.sglang.http import Refused, call, order, read_text
from engines.weight_versions import BROKEN_WEIGHTS
from engines.weights.buckets import TAKE_S
from engines.weights.transport import CONTROL_S, server_weights
from engines.weights.update import Servers, Update
from infra.errors import EngineError, LeaseLost

_FIRST, _SECOND = "tributary-lease-1", "tributary-lease-2"
_ATTEMPT_S = 10.0
"""how long a first session lasts of somebody who may not get the second"""
_LOOK_S = 0.2
_TAKEN = "same id is still open"


class ServerLock:
    """Made for one server; `acquire`, then `renew` well within `ttl_s`, then `release`."""

    def __init__(self, url: str, ttl_s: float, holder: str = "") -> None:
        """`ttl_s`: the right ends this many seconds after its last renewal. `holder`: of a lock
        that another process acquired."""
        self.url = url
        self.ttl_s = ttl_s
        self.holder = holder or f"tributary-lease-{uuid4().hex}"

    def acquire(self) -> bool:
        """Return whether the right is ours now; False if somebody has it. Raises EngineError."""
        if not self._open(_FIRST, min(_ATTEMPT_S, self.ttl_s)):
            return False
        if not self._open(_SECOND, self.ttl_s):
            self._close(_FIRST)
            return False
        self._open(self.holder, self.ttl_s)
        self._reopen(_FIRST)
        return True

    def renew(self) -> None:
        """Keep the right. Raises LeaseLost if it ended, for the server was restarted or somebody
        else has it, EngineError if the server does not answer."""
        if not self._is_ours():
            raise self._lost()
        # The own name first: it has to end before the other two do.
        for name in (self.holder, _FIRST, _SECOND):
            self._reopen(name)

    def release(self) -> None:
        """Best effort: the right also ends by itself."""
        with suppress(EngineError):
            if self._is_ours():
                for name in (_SECOND, _FIRST, self.holder):
                    self._close(name)

    def _is_ours(self) -> bool:
        """Return whether nobody can have got the right since it was renewed."""
        if not self._open(self.holder, self.ttl_s):
            return True
        self._close(self.holder)
        return False

    def _reopen(self, name: str) -> None:
        """A session of the holder's, while the others say that he is the holder."""
        self._close(name)
        deadline = time.monotonic() + _ATTEMPT_S + 1
        while not self._open(name, self.ttl_s):  # somebody tries to get it just now
            if time.monotonic() > deadline:
                raise self._lost()
            time.sleep(_LOOK_S)

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"the right to {self.url} ended: it was restarted, or another run has taken it"
        )

    def _open(self, name: str, ttl_s: float) -> bool:
        body = {"capacity_of_str_len": 1, "session_id": name, "timeout": ttl_s}
        try:
            read_text(self.url, "/open_session", body, timeout=CONTROL_S)
        except Refused as error:
            if _TAKEN in str(error):
                return False
            raise
        return True

    def _close(self, name: str) -> None:
        read_text(self.url, "/close_session", {"session_id": name}, timeout=CONTROL_S)


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """Example: OwnWeights("http://10.0.0.2:30000", "/models/mine", "default", "9f2c...", 2631)"""

    url: str
    model_path: str
    """as the server reads it: a folder of its host, or a name on a hub"""
    version: str
    checksum: str
    """empty where the server offers none"""
    num_bytes: int
    """size of the model, which says how long reading it may take"""


def restore(found: OwnWeights) -> None:
    """Let the server load what it was found with; nothing happens if it holds that already.

    Raises EngineError if it cannot: then it is left paused, as its weights may be half new; and if
    those that it serves now are not those that it had.
    """
    if _holds(found):
        return
    with suppress(EngineError):  # refused when no update is open
        order(found.url, "/end_weight_update", {}, timeout=CONTROL_S)
    bound_s = transfer_bound_s(found.num_bytes, TAKE_S)
    body = {
        "model_path": found.model_path,
        "weight_version": BROKEN_WEIGHTS,
        "flush_cache": False,
    }
    try:
        with Servers([found.url]) as servers:
            update = Update(servers, found.version, in_parts=False)
            update.begin()
            order(found.url, "/update_weights_from_disk", body, timeout=bound_s)
            update.end()
    except EngineError as error:
        with suppress(EngineError):
            order(found.url, "/pause_generation", {"mode": "retract"}, timeout=CONTROL_S)
        raise EngineError(
            f"{found.url} could not be given its weights in {found.model_path} again ({error}). It"
            " is paused, so that nobody gets answers of half-new weights: restart it"
        ) from error
    if found.checksum and not _holds(found):
        raise EngineError(
            f"{found.url} serves the weights in {found.model_path} again. Those that it was found"
            " with were others, which had been pushed to it and are in no folder"
        )


def _holds(found: OwnWeights) -> bool:
    """Return whether the server says its own version and shows its own bits."""
    said = str(call(found.url, "/model_info", timeout=CONTROL_S)["weight_version"])
    if said != found.version or not found.checksum:
        return False
    try:
        return server_weights(found.url).checksum == found.checksum
    except Refused:
        return False
