"""`tributary chat`: a conversation with a model, in the terminal or through a pipe."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from rich.console import Console

from engines.sglang.serving.endpoint import Endpoint
from engines.sglang.serving.parsers import parsers_of
from engines.sglang.serving.served_model import ServedModel
from engines.sglang.topology.spec import ServedFleet
from flows.command.find_artifact import find_model
from infra.access import LOOPBACK
from infra.errors import EngineError, InputError
from infra.home import home
from infra.processes.ports import free_ports

_NAME = "model"
_TURN_S = 600.0
"""longest silence within an answer"""
NEW, QUIT = "/new", "/quit"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    system: str
    temperature: float
    max_tokens: int
    thinking: bool


@dataclass(slots=True)
class Conversation:
    """What was said so far, at an endpoint of OpenAI's API."""

    url: str
    options: ChatOptions
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        said = self.options.system
        self.messages = [{"role": "system", "content": said}] if said else []

    def say(self, text: str) -> Iterator[tuple[str, str]]:
        """Pieces of the answer as they come, each as (`reasoning` or `content`, text).

        What was asked and answered is remembered, also of an answer that was stopped. Raises
        EngineError.
        """
        self.messages.append({"role": "user", "content": text})
        answer: list[str] = []
        try:
            for kind, piece in self._stream():
                if kind == "content":
                    answer.append(piece)
                yield kind, piece
        finally:
            self.messages.append({"role": "assistant", "content": "".join(answer)})

    def _stream(self) -> Iterator[tuple[str, str]]:
        body: dict[str, Any] = {
            "model": _NAME,
            "messages": self.messages,
            "stream": True,
            "temperature": self.options.temperature,
            "max_tokens": self.options.max_tokens,
            "chat_template_kwargs": {"enable_thinking": self.options.thinking},
        }
        where = f"{self.url}/v1/chat/completions"
        try:
            with httpx.stream(
                "POST", where, json=body, timeout=_TURN_S, trust_env=False
            ) as response:
                if response.status_code != 200:
                    text = response.read().decode(errors="replace")
                    raise EngineError(f"the model refused ({response.status_code}): {text[:300]}")
                for line in response.iter_lines():
                    yield from _pieces(line)
        except httpx.HTTPError as error:
            raise EngineError(f"the answer broke off: {error!r}; see the server's log") from error


def _pieces(line: str) -> Iterator[tuple[str, str]]:
    """Of one line of the stream."""
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or data == "[DONE]":
        return
    event = json.loads(data)
    if "error" in event:
        raise EngineError(f"the model failed: {event['error']}")
    for choice in event.get("choices", []):
        delta = choice.get("delta", {})
        if delta.get("reasoning_content"):
            yield "reasoning", delta["reasoning_content"]
        if delta.get("content"):
            yield "content", delta["content"]


def chat(artifact: str, options: ChatOptions, root: str, console: Console) -> int:
    """Start a server for the model and converse until the input ends; -> exit code."""
    folder = find_model(artifact, root)
    logs = home() / "logs" / "chat" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    is_terminal = sys.stdin.isatty()
    told = Console(stderr=True)
    with Endpoint(logs, LOOPBACK, free_ports(1)[0], "") as endpoint:
        told.print(f"starting the model; logs in {logs}", markup=False, soft_wrap=True)
        fleet = ServedFleet(model=str(folder))
        endpoint.start_here([ServedModel(_NAME, folder, parsers_of(folder), fleet)])
        talk = Conversation(endpoint.url, options)
        if is_terminal:
            told.print(f"{NEW} begins anew, {QUIT} or Ctrl-D ends, Ctrl-C stops an answer")
        for line in _lines(console, is_terminal):
            if line == QUIT:
                break
            if line == NEW:
                talk.restart()
            elif line:
                _answer(talk, line, console, is_terminal)
    return 0


def _lines(console: Console, is_terminal: bool) -> Iterator[str]:
    if not is_terminal:
        for raw in sys.stdin:
            yield raw.strip()
        return
    while True:
        try:
            yield console.input("[bold]> [/bold]").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return


def _answer(talk: Conversation, line: str, console: Console, is_terminal: bool) -> None:
    """Print an answer as it comes; through a pipe without what the model thought."""
    if len(line.encode()) > 1_000_000:
        raise InputError("a message of more than 1 MB cannot be answered; split it")
    try:
        for kind, piece in talk.say(line):
            if kind == "content":
                console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
            elif is_terminal:
                console.print(piece, end="", style="dim", markup=False, soft_wrap=True)
            console.file.flush()
    except KeyboardInterrupt:
        if not is_terminal:
            raise
    console.print()
