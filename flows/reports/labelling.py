"""A page on which a person says which of two answers is better: `tributary label`.

    a `distill` stage's answers ──▶ pairs, shuffled ──▶ a page ──▶ a file of preferences

The page shows neither which model wrote an answer nor what a reward said of it, and which answer
stands on the left hangs on the problem alone. What was chosen is appended to the file at once, a
row a line, as the stages `preference` and `reward` read it; a pair that is skipped goes to a file
beside it, so that the next session goes on where this one ended.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from engines.rollout.records.dataset import DistilledRow
from engines.types import Message
from infra.access import LOOPBACK, required_key
from infra.config import Config
from infra.errors import InputError
from infra.guard import Guard, login_link

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response

Choice = Literal["left", "right", "skip"]
_PAGE = Path(__file__).parent / "templates" / "label.html"
_MOST_BYTES = 4096
"""of what a page sends"""


@dataclass(frozen=True, slots=True)
class Answer:
    model: str
    digest: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers to one problem."""

    id: str
    prompt: tuple[Message, ...]
    left: Answer
    right: Answer

    def shown(self) -> dict[str, Any]:
        """What the page gets to know."""
        return {
            "id": self.id,
            "prompt": [_as_row(message) for message in self.prompt],
            "left": [_as_row(message) for message in self.left.messages],
            "right": [_as_row(message) for message in self.right.messages],
        }

    def row(self, choice: Choice, by: str) -> dict[str, Any]:
        """What is written down."""
        said = {"id": self.id, "by": by, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        if choice == "skip":
            return said
        sides = (self.left, self.right)
        chosen, rejected = sides if choice == "left" else sides[::-1]
        return {
            "prompt": [_as_row(message) for message in self.prompt],
            "chosen": [_as_row(message) for message in chosen.messages],
            "rejected": [_as_row(message) for message in rejected.messages],
            "labelled": {
                **said,
                "chosen_model": f"{chosen.model} {chosen.digest[:12]}",
                "rejected_model": f"{rejected.model} {rejected.digest[:12]}",
            },
        }


def comparisons_of(rows: Iterable[DistilledRow]) -> tuple[list[Comparison], int]:
    """The first two different answers to each problem, and how many problems have none or call
    tools, which the page does not show."""
    by_problem: dict[str, list[DistilledRow]] = {}
    for row in rows:
        by_problem.setdefault(row.problem.id, []).append(row)
    found: list[Comparison] = []
    for id, answers in by_problem.items():
        problem = answers[0].problem
        other = next((each for each in answers if each.turns != answers[0].turns), None)
        if other is None or problem.tools:
            continue
        both = [_answer(answers[0]), _answer(other)]
        if sha256(id.encode()).digest()[0] % 2:
            both.reverse()
        found.append(Comparison(id, problem.messages, *both))
    found.sort(key=lambda each: sha256(each.id.encode()).digest())
    return found, len(by_problem) - len(found)


def _answer(row: DistilledRow) -> Answer:
    return Answer(row.expert, row.artifact_digest, row.turns)


def _as_row(message: Message) -> dict[str, Any]:
    thought = {"reasoning_content": message.reasoning} if message.reasoning else {}
    return {"role": message.role, "content": message.content, **thought}


@dataclass(slots=True)
class Labels:
    """What has been said so far, on disk."""

    to: Path
    by: str
    done: set[str] = field(default_factory=set[str])
    """ids of pairs that were chosen or skipped"""
    _written: list[Path] = field(default_factory=list[Path])
    """of this session, the file of each choice"""

    def __post_init__(self) -> None:
        """Raises InputError for a file that holds something else."""
        for file in (self.to, self._skipped):
            if file.exists():
                self.done |= set(_ids(file))

    @property
    def _skipped(self) -> Path:
        return self.to.with_name(f"{self.to.stem}.skipped.jsonl")

    def add(self, comparison: Comparison, choice: Choice) -> None:
        file = self._skipped if choice == "skip" else self.to
        with file.open("a") as opened:
            opened.write(json.dumps(comparison.row(choice, self.by), ensure_ascii=False) + "\n")
        self.done.add(comparison.id)
        self._written.append(file)

    def undo(self) -> None:
        """Takes back the last choice of this session, if there is one."""
        if not self._written:
            return
        file = self._written.pop()
        *before, last = file.read_text().splitlines(keepends=True)
        file.write_text("".join(before))
        self.done.discard(_id_of(json.loads(last)))


def _ids(file: Path) -> Iterator[str]:
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            yield _id_of(json.loads(line))
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"--to {file}: line {number} is no row of `tributary label`; choose another file"
            ) from None


def _id_of(row: Mapping[str, Any]) -> str:
    return row["labelled"]["id"] if "labelled" in row else row["id"]


class _Said(Config):
    """What the page sends."""

    id: str
    choice: Choice


class LabelPage:
    """The app behind the key."""

    def __init__(self, comparisons: Sequence[Comparison], labels: Labels) -> None:
        from starlette.applications import Starlette
        from starlette.routing import Route

        self._by_id = {each.id: each for each in comparisons}
        self._labels = labels
        routes = [
            Route("/", self._page),
            Route("/next", self._next),
            Route("/choose", self._choose, methods=["POST"]),
            Route("/undo", self._undo, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    async def _page(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse

        return HTMLResponse(_PAGE.read_text(), headers={"cache-control": "no-store"})

    async def _next(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        left = [each for id, each in self._by_id.items() if id not in self._labels.done]
        done = len(self._by_id) - len(left)
        said = {"done": done, "all": len(self._by_id), "pair": left[0].shown() if left else None}
        return JSONResponse(said, headers={"cache-control": "no-store"})

    async def _choose(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse

        body = await request.body()
        try:
            said = _Said.model_validate_json(body[:_MOST_BYTES])
        except ValidationError:
            return PlainTextResponse("400: send the id of a pair, and left, right or skip\n", 400)
        comparison = self._by_id.get(said.id)
        if comparison is None:
            return PlainTextResponse("404: no such pair\n", 404)
        if comparison.id not in self._labels.done:  # two windows may show the same
            self._labels.add(comparison, said.choice)
        return await self._next(request)

    async def _undo(self, request: Request) -> Response:
        self._labels.undo()
        return await self._next(request)


def label_server(comparisons: Sequence[Comparison], labels: Labels) -> uvicorn.Server:
    """Runs on whatever sockets it is given."""
    from uvicorn import Config, Server

    from infra.processes.http_heads import BoundedHeads

    app = Guard(LabelPage(comparisons, labels).app, required_key(), LOOPBACK, ())
    return Server(
        Config(app, log_level="warning", access_log=False, lifespan="off", http=BoundedHeads)
    )


def serve_labels(
    comparisons: Sequence[Comparison], labels: Labels, told: Callable[[str], None]
) -> None:
    """Until Ctrl-C. `told` gets the link that lets a browser in."""
    server = label_server(comparisons, labels)
    with socket.socket() as listening:
        listening.bind((LOOPBACK, 0))
        listening.listen()  # a browser that comes before the server waits for it
        told(login_link(f"http://{LOOPBACK}:{listening.getsockname()[1]}/"))
        server.run(sockets=[listening])
