"""Two requests that our servers answer beside SGLang's own: for weights that come as deltas."""

from __future__ import annotations

from typing import Any

from engines.weights.disk_delta.requests import (
    CONFIRM,
    PREPARE,
    answer_confirm,
    answer_prepare,
)
from engines.weights.disk_delta.served_copy import ServedCopy


def install() -> None:
    """Add them to SGLang's application, under the same key as its requests that change weights.

    They are plain functions, which the application runs in threads: it generates on meanwhile.
    """
    from fastapi import Body
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.utils.auth import AuthLevel, auth_level

    copy = ServedCopy()

    def prepare(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return answer_prepare(copy, body)

    def confirm(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return answer_confirm(copy, body)

    for path, answer in ((PREPARE, prepare), (CONFIRM, confirm)):
        app.post(path)(auth_level(AuthLevel.ADMIN_OPTIONAL)(answer))
