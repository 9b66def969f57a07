"""What our servers answer beside SGLang's own requests: for weights that arrive while they
generate, as deltas or by broadcast, and for the choice of their transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def install(gpus: Sequence[int], num_hosts: int = 1) -> None:
    """Add them to SGLang's application, under the same key as its requests that change weights.
    They are plain functions, which the application runs in threads: it generates on meanwhile.

    `gpus`: the numbers of those that its ranks on this host have; `num_hosts`: over which its ranks
    are spread, for what arrives lies in the memory of this one.
    """
    from fastapi import Body
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.utils.auth import AuthLevel, auth_level

    from engines.weights.broadcast import arrivals
    from engines.weights.broadcast.arrivals import Arrivals
    from engines.weights.disk_delta import requests
    from engines.weights.disk_delta.weight_copy import ServedCopy
    from engines.weights.reach import REACH, answer_gpus, answer_reach

    copy, arriving = ServedCopy(), Arrivals()

    def prepare(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return requests.answer_prepare(copy, body)

    def confirm(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return requests.answer_confirm(copy, body)

    def forget(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return requests.answer_forget(copy)

    def reach(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return answer_gpus(gpus) if "gpu" in body else answer_reach(body)

    def join(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return arriving.join(body)

    def receive(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return arriving.receive(body)

    def open_arrived(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return arriving.open(body)

    def leave(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return arriving.leave(body)

    answers = {
        requests.PREPARE: prepare,
        requests.CONFIRM: confirm,
        requests.FORGET: forget,
        REACH: reach,
    }
    if num_hosts == 1:
        answers |= {
            arrivals.JOIN: join,
            arrivals.RECEIVE: receive,
            arrivals.OPEN: open_arrived,
            arrivals.LEAVE: leave,
        }
    for path, answer in answers.items():
        app.post(path)(auth_level(AuthLevel.ADMIN_OPTIONAL)(answer))
