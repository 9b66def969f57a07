"""`tributary chat`: a conversation with a model, in the terminal or through a pipe."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, cast

import httpx

from engines.chat import Chat
from engines.chat.mode import Thoughts
from engines.chat.template import SWITCHES
from engines.families.common.model_config import read_config, usable_positions
from engines.sglang.serving.endpoint import Endpoint, ServedModel, parsers_of
from engines.sglang.spec import CPU_TOKENS
from engines.sglang.topology import ServedFleet
from engines.types import Message, Problem
from flows.command.app import CommandConsole
from flows.command.models.named_artifacts import find_model
from infra.access import LOOPBACK, bearer_of
from infra.errors import EngineError, InputError
from infra.home import home
from infra.processes.network import free_ports

_NAME = "model"
_LONGEST = 512
"""tokens of an answer, where nothing else is said"""
_TURN_S = 600.0
"""longest silence within an answer"""
NEW, QUIT = "/new", "/quit"
_END = {"length": "the answer was cut off at its limit of tokens; --max-tokens allows more"}


@dataclass(frozen=True, slots=True)
class ChatOptions:
    system: str
    temperature: float
    max_tokens: int | None
    """None: as many as the context has room for, at most 512"""
    thinking: bool


@dataclass(frozen=True, slots=True)
class ChatModel:
    """What must be known of a model to ask it."""

    chat: Chat
    context: int
    """tokens of a prompt and its answer together"""

    @classmethod
    def of(cls, folder: Path, fleet: ServedFleet) -> ChatModel:
        longest = usable_positions(read_config(folder))
        known = [n for n in (longest, fleet.max_total_tokens) if n is not None]
        return cls(Chat.load(folder), min(known, default=CPU_TOKENS))

    def check(self, options: ChatOptions) -> None:
        """Raises InputError where it cannot think and should."""
        if options.thinking and self.chat.mode.thoughts is Thoughts.NONE:
            raise InputError(
                f"--thinking: the model's {self.chat.template_file} knows no thoughts; leave it out"
            )
        self.chat.mode.decide(options.thinking or None)

    def switches(self, options: ChatOptions) -> dict[str, bool]:
        """`chat_template_kwargs` of a request."""
        return {self.chat.mode.switch or SWITCHES[0]: options.thinking}

    def budget(self, messages: Sequence[Mapping[str, str]], options: ChatOptions) -> int:
        """Tokens of the next answer. Raises InputError where there is no room for it."""
        said = tuple(Message(cast(Any, each["role"]), each["content"]) for each in messages)
        asked = Problem("chat", "chat", said, thinking=options.thinking or None)
        prompt = len(self.chat.prompt_ids(self.chat.decided(asked)))
        room, wanted = self.context - prompt, options.max_tokens or 1
        if room < wanted:
            raise InputError(
                f"the conversation has {prompt} tokens of the {self.context} that the model's"
                f" context holds: that leaves {max(room, 0)} for an answer, and it needs {wanted}."
                f" Say less at once, begin anew ({NEW})"
                + (", or lower --max-tokens" if options.max_tokens else "")
            )
        return options.max_tokens or min(_LONGEST, room)


@dataclass(slots=True)
class Conversation:
    """What was said so far, at an endpoint of OpenAI's API."""

    url: str
    model: ChatModel
    options: ChatOptions
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        said = self.options.system
        self.messages = [{"role": "system", "content": said}] if said else []

    def say(self, text: str) -> Iterator[tuple[str, str]]:
        """Pieces of the answer as they come, each as (`reasoning` or `content`, text); `end` is why
        it ends before the model was done, e.g. `length`.

        What was asked and answered is remembered, also of an answer that was stopped. Raises
        EngineError, and InputError for what does not fit into the context.
        """
        asked = {"role": "user", "content": text}
        budget = self.model.budget([*self.messages, asked], self.options)
        self.messages.append(asked)
        answer: list[str] = []
        try:
            for kind, piece in self._stream(budget):
                if kind == "content":
                    answer.append(piece)
                yield kind, piece
        finally:
            self.messages.append({"role": "assistant", "content": "".join(answer)})

    def _stream(self, budget: int) -> Iterator[tuple[str, str]]:
        body: dict[str, Any] = {
            "model": _NAME,
            "messages": self.messages,
            "stream": True,
            "temperature": self.options.temperature,
            "max_tokens": budget,
            "chat_template_kwargs": self.model.switches(self.options),
        }
        where = f"{self.url}/v1/chat/completions"
        try:
            with httpx.stream(
                "POST", where, json=body, timeout=_TURN_S, trust_env=False,
                headers=bearer_of(self.url),
            ) as response:  # fmt: skip
                if response.status_code != 200:
                    text = response.read().decode(errors="replace")
                    raise EngineError(f"the model refused ({response.status_code}): {text[:300]}")
                for line in lines_of(response.iter_bytes()):
                    yield from _pieces(line)
        except httpx.HTTPError as error:
            raise EngineError(f"the answer broke off: {error!r}; see the server's log") from error


def lines_of(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a stream. httpx would end a line at U+2028 and its like too, which JSON
    may hold."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    yield rest.decode(errors="replace")


def _pieces(line: str) -> Iterator[tuple[str, str]]:
    """Yield the pieces of one line of the stream."""
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
        if (why := choice.get("finish_reason")) not in (None, "stop"):
            yield "end", why


def chat(artifact: str, options: ChatOptions, root: str, console: CommandConsole) -> int:
    """Start a server for the model and converse until the input ends; -> exit code."""
    if options.max_tokens is not None and options.max_tokens < 1:
        raise InputError(f"--max-tokens {options.max_tokens}: give a whole number of at least 1")
    if not 0 <= options.temperature < inf:
        raise InputError(f"--temperature {options.temperature}: give a number from 0, e.g. 0.7")
    folder = find_model(artifact, root)
    fleet = ServedFleet(model=str(folder))
    model = ChatModel.of(folder, fleet)
    model.check(options)
    logs = home() / "logs" / "chat" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    is_terminal = sys.stdin.isatty()
    lines = _typed(console) if is_terminal else _piped()
    told = CommandConsole(stderr=True)
    with Endpoint(logs, LOOPBACK, free_ports(1)[0], "") as endpoint:
        told.print(f"starting the model; logs in {logs}", markup=False, soft_wrap=True)
        endpoint.start_here([ServedModel(_NAME, folder, parsers_of(folder), fleet)])
        talk = Conversation(endpoint.url, model, options)
        if is_terminal:
            told.print(f"{NEW} begins anew, {QUIT} or Ctrl-D ends, Ctrl-C stops an answer")
        for line in lines:
            if line == QUIT:
                break
            if line == NEW:
                talk.restart()
            elif line:
                _answer(talk, line, console, told, is_terminal)
    return 0


def _piped() -> Iterator[str]:
    """Wait for the first message, so that no model is started for none. Raises InputError."""
    first = sys.stdin.readline()
    if not first:
        raise InputError("there is no message: standard input is empty; each line of it is one")
    return (line.strip() for line in chain([first], sys.stdin))


def _typed(console: CommandConsole) -> Iterator[str]:
    while True:
        try:
            yield console.input("[bold]> [/bold]").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return


def _answer(
    talk: Conversation, line: str, console: CommandConsole, told: CommandConsole, is_terminal: bool
) -> None:
    """Print an answer as it comes; through a pipe without what the model thought."""
    end = ""
    if len(line.encode()) > 1_000_000:
        raise InputError("a message of more than 1 MB cannot be answered; split it")
    try:
        for kind, piece in talk.say(line):
            if kind == "content":
                console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
            elif kind == "end":
                end = _END.get(piece, f"the answer is not whole: {piece}")
            elif is_terminal:
                console.print(piece, end="", style="dim", markup=False, soft_wrap=True)
            console.file.flush()
    except KeyboardInterrupt:
        if not is_terminal:
            raise
    except InputError as error:
        if not is_terminal:
            raise
        console.print(str(error), markup=False, soft_wrap=True)
    console.print()
    if end:
        told.print(end, markup=False, soft_wrap=True)
