"""`tributary serve`: OpenAI's API for models that a person names, until Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from engines.sglang.serving.endpoint import Endpoint, ServedModel
from engines.sglang.serving.parsers import Parsers, parsers_of
from flows.command.find_artifact import find_model
from infra.access import is_loopback, key_path, required_key
from infra.errors import InputError
from infra.home import home
from infra.processes.ports import is_free

_NAME = re.compile(r"[\w.@/:+-]{1,120}")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `tributary serve` was asked for."""

    host: str
    port: int
    key_variable: str
    """environment variable that holds the key; empty: no key is asked for on loopback"""
    tool_parser: str
    reasoning_parser: str
    servers: int
    tp: int
    sglang: Sequence[str]
    """NAME=VALUE of SGLang's server arguments"""
    root: str


def serve(models: Sequence[str], options: ServeOptions, console: Console) -> int:
    """Serve until Ctrl-C; -> exit code."""
    key = _key(options)
    served = models_to_serve(models, options)
    logs = home() / "logs" / "serve" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    console.print(f"starting {len(served)} model(s); logs in {logs}", markup=False, soft_wrap=True)
    with Endpoint(logs, options.host, options.port, key) as endpoint:
        try:
            endpoint.start(served)
            for line in ready_lines(endpoint.url, served, shown_key(options)):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            endpoint.watch()
        except KeyboardInterrupt:
            console.print("stopping")
    return 0


def models_to_serve(models: Sequence[str], options: ServeOptions) -> list[ServedModel]:
    """Raises InputError for what is wrong with any of them, before anything is started."""
    if not models:
        raise InputError("name at least one model: an artifact, an alias, or an HF folder")
    passed = _passed(options.sglang)
    found: dict[str, ServedModel] = {}
    for text in models:
        name, folder = _named(text, options.root)
        if name in found:
            raise InputError(f"two models would be called {name}: write NAME=ARTIFACT for one")
        chosen = _parsers(folder, options)
        found[name] = ServedModel(name, folder, chosen, options.servers, options.tp, passed)
    return list(found.values())


def ready_lines(url: str, models: Sequence[ServedModel], key: str) -> list[str]:
    """What a person needs to use the endpoint. `key`: how a shell finds it; empty: none is asked
    for."""
    body = {"model": models[0].name, "messages": [{"role": "user", "content": "Hello"}]}
    header = f' -H "Authorization: Bearer {key}"' if key else ""
    lines = [
        f"{model.name}: {model.folder}, tool calls by {model.parsers.tools}, thinking by"
        f" {model.parsers.thinking}"
        for model in models
    ]
    return [
        *lines,
        f"ready: {url}/v1  (Ctrl-C ends it)",
        f"  curl {url}/v1/chat/completions{header} -H 'Content-Type: application/json' \\",
        f"    -d '{json.dumps(body)}'",
    ]


def shown_key(options: ServeOptions) -> str:
    """For a shell; the key itself is in no output."""
    if options.key_variable:
        return f"${options.key_variable}"
    return "" if is_loopback(options.host) else f"$(cat {key_path()})"


def _named(text: str, root: str) -> tuple[str, Path]:
    """Name and folder of `NAME=ARTIFACT`, or of an artifact that is called as it was written."""
    name, equals, wanted = text.partition("=")
    folder = find_model(wanted if equals else text, root)
    if not equals:
        name = text if _NAME.fullmatch(text) and not Path(text).is_absolute() else folder.name
    if not _NAME.fullmatch(name):
        raise InputError(f"{text}: a model's name has letters, digits and any of `.@/:+_-`")
    return name, folder


def _parsers(folder: Path, options: ServeOptions) -> Parsers:
    found = parsers_of(folder)
    return Parsers(options.tool_parser or found.tools, options.reasoning_parser or found.thinking)


def _passed(given: Sequence[str]) -> dict[str, Any]:
    passed: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--sglang {text}: write it as NAME=VALUE, e.g. context_length=8192")
        passed[name] = yaml.safe_load(value)
    return passed


def _key(options: ServeOptions) -> str:
    if not is_free(options.port):
        raise InputError(f"port {options.port} is taken: choose another with --port")
    if options.key_variable:
        key = os.environ.get(options.key_variable, "")
        if not key:
            raise InputError(f"--api-key-from {options.key_variable}: that variable is not set")
        return key
    if is_loopback(options.host):
        return ""
    return required_key(options.host)
