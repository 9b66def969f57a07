"""Run the stock SGLang server, also on a host without CUDA.

`python -m engines.sglang.servers.server_launcher '{"model_path": "...", "port": 30000}'` takes
fields of SGLang's
ServerArgs as JSON. Where CUDA is, this is `sglang serve` with one small plugin.
"""

from __future__ import annotations

import hmac
import importlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from engines.sglang import plugin
from engines.sglang.cpu import missing_modules as absent
from engines.sglang.servers import server_hooks
from engines.sglang.servers.host import prepare_environment, prepare_memory_saver, share_cores
from infra.access import basic_token, required_key
from infra.cuda import has_cuda

PRELOADED = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.scheduler",
    "sglang.srt.model_executor.model_runner",
    "sglang.srt.models.registry",  # imports the model files
    "engines.weights.disk_delta.weight_copy",
)


def prepare() -> None:
    """Make SGLang importable in this process and load its plugins."""
    keep_place_of_title()
    prepare_environment()
    if not has_cuda():
        absent.install()
        _fork_instead_of_spawn()
    from sglang.srt.plugins import load_plugins

    load_plugins()
    if not plugin.is_registered():
        raise RuntimeError(
            "SGLang did not load Tributary's plugin: reinstall the project so that its entry"
            " point is known, and see the log above for an exception"
        )


def preload() -> None:
    """Import what a server needs, so that a fork of this process starts at once."""
    prepare()
    for name in PRELOADED:
        importlib.import_module(name)


def keep_place_of_title() -> None:
    """Let SGLang's processes get their titles, by which people and tools know them. The library
    looks for the place of a title when it is first asked, and finds none, without a word, once the
    environment's first variable has changed."""
    import setproctitle

    name = Path("/proc/self/comm")
    before = name.read_text().strip()
    setproctitle.getproctitle()
    name.write_text(before)  # it has made that the begin of the command line


def _fork_instead_of_spawn() -> None:
    """Start scheduler and detokenizer by fork: no second and third import of torch and SGLang."""
    import multiprocessing

    stock = multiprocessing.set_start_method

    def set_start_method(method: str | None, force: bool = False) -> None:
        stock("fork", force=True)

    multiprocessing.set_start_method = set_start_method


def keep_from_logs(secret: str) -> None:
    """Write no log record of this process with it: SGLang logs all its arguments when asked to."""
    stock = logging.getLogRecordFactory()

    def redacted(*given: Any, **named: Any) -> logging.LogRecord:
        record = stock(*given, **named)
        text = record.getMessage()
        if secret in text:
            record.msg, record.args = text.replace(secret, "***"), ()
        return record

    logging.setLogRecordFactory(redacted)


def answer_no_other_origin() -> None:
    """SGLang lets pages of every origin read its answers, and send what a browser keeps for it."""
    from fastapi.middleware.cors import CORSMiddleware
    from sglang.srt.entrypoints.http_server import app

    app.user_middleware = [each for each in app.user_middleware if each.cls is not CORSMiddleware]


class ClosedMetrics:
    """Asks for the key before SGLang's metrics, which SGLang itself shows to everybody. It is asked
    for as a password: the router, which shows everybody what it gets, sends it otherwise."""

    def __init__(self, app: Any, password: str) -> None:
        self._app = app
        self._expected = f"Basic {password}"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/metrics"):
            from starlette.datastructures import Headers
            from starlette.responses import PlainTextResponse

            given = Headers(scope=scope).get("authorization", "")
            if not hmac.compare_digest(given.encode(), self._expected.encode()):
                refused = PlainTextResponse("give the key as the password of `tributary`", 401)
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)


def close_metrics(key: str) -> None:
    """Show them to nobody without the key."""
    from sglang.srt.entrypoints.http_server import app

    app.add_middleware(ClosedMetrics, password=basic_token(key))


def serve(options: dict[str, Any]) -> None:
    """Serve until told to stop. `options` are fields of ServerArgs; `prepare` comes first.

    The key is added here, for everybody may read a process's arguments. One key protects both what
    generates and what changes weights.
    """
    from sglang.launch_server import run_server
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils import kill_process_tree

    key = required_key()
    keys = {"api_key": key, "admin_api_key": key}
    keep_from_logs(key)
    answer_no_other_origin()
    close_metrics(key)
    share_cores(options.get("tp_size", 1))
    if options.get("enable_memory_saver"):
        prepare_memory_saver()
    server_hooks.adopt()
    first, num_hosts = options.get("base_gpu_id", 0), options.get("nnodes", 1)
    gpus = range(first, first + options.get("tp_size", 1) // num_hosts)
    server_hooks.answer_for_weights(gpus, num_hosts)
    try:
        run_server(ServerArgs(**options, **keys))  # pyrefly: ignore[unexpected-keyword]
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    prepare()
    serve(json.loads(sys.argv[1]))
