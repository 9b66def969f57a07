"""A page on which a person says which of two answers is better: `tributary label`.

    a `distill` stage's answers ──▶ pairs, shuffled ──▶ a page ──▶ a file of preferences

The page shows neither which model wrote an answer nor what a reward said of it, and which answer
stands on the left hangs on the problem alone. What was chosen is appended to the file at once, a
row a line, as the stages `preference` and `reward` read it; a pair that is skipped goes to a file
beside it, so that the next session goes on where this one ended.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import webbrowser
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import ValidationError

from curricula.rows.pair_columns import PairColumns
from curricula.rows.pairs import read_judged
from engines.chat.template import message_row, tool_row
from engines.rollout.records.dataset import DATA_FILE, ParquetRows
from engines.rollout.records.packing import load_problem, load_turns
from engines.types import Message, Problem
from flows.command.app import CommandConsole
from flows.command.samples import find_samples
from flows.reports.page import serve_page
from infra.config import Config
from infra.data_files.rows import BadRow
from infra.errors import InputError

if TYPE_CHECKING:
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

    problem: Problem
    left: Answer
    right: Answer

    @property
    def id(self) -> str:
        """Return the id of these two answers, on whichever side they stand."""
        said = sorted(f"{answer.messages}" for answer in (self.left, self.right))
        about = f"{self.problem.domain}\n{self.problem.id}\n{said}"
        return sha256(about.encode(errors="backslashreplace")).hexdigest()[:16]

    def shown(self) -> dict[str, Any]:
        """Return what the page gets to know."""
        return {
            "id": self.id,
            "prompt": [message_row(message) for message in self.problem.messages],
            "left": [message_row(message) for message in self.left.messages],
            "right": [message_row(message) for message in self.right.messages],
        }

    def row(self, choice: Choice, by: str) -> dict[str, Any]:
        """Return what is written down."""
        said = {"id": self.id, "by": by, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        if choice == "skip":
            return {"skipped": said}
        sides = (self.left, self.right)
        chosen, rejected = sides if choice == "left" else sides[::-1]
        tools = self.problem.tools
        return {
            "prompt": [message_row(message) for message in self.problem.messages],
            "chosen": [message_row(message) for message in chosen.messages],
            "rejected": [message_row(message) for message in rejected.messages],
            **({"tools": [tool_row(tool) for tool in tools]} if tools else {}),
            "labelled": {
                **said,
                "problem": f"{self.problem.domain} {self.problem.id}",
                "chosen_model": f"{chosen.model} {chosen.digest[:12]}",
                "rejected_model": f"{rejected.model} {rejected.digest[:12]}",
            },
        }


def comparisons_of(rows: Iterable[AnswerRow]) -> tuple[list[Comparison], int]:
    """The first two different answers to each problem, and how many problems have none, or none
    that a stage could learn from."""
    by_problem: dict[tuple[str, str], list[AnswerRow]] = {}
    for row in rows:
        by_problem.setdefault((row.problem.domain, row.problem.id), []).append(row)
    found: list[Comparison] = []
    for answers in by_problem.values():
        first = _seen(answers[0])
        other = next((each for each in answers if _seen(each) != first), None)
        if other is None:
            continue
        both = [_answer(answers[0]), _answer(other)]
        made = Comparison(answers[0].problem, *both)
        if int(made.id, 16) % 2:
            made = Comparison(answers[0].problem, *both[::-1])
        with suppress(BadRow):
            read_judged(made.row("left", ""), PairColumns(), "auto")
            found.append(made)
    found.sort(key=lambda each: each.id)
    return found, len(by_problem) - len(found)


def _seen(row: AnswerRow) -> list[Message]:
    """What a person sees of an answer: all but its thoughts."""
    return [replace(turn, reasoning=None) for turn in row.turns]


class AnswerRow(Protocol):
    """Holds what is read of a `distill` stage's row."""

    @property
    def problem(self) -> Problem: ...
    @property
    def turns(self) -> tuple[Message, ...]: ...
    @property
    def expert(self) -> str: ...
    @property
    def artifact_digest(self) -> str: ...


def _answer(row: AnswerRow) -> Answer:
    return Answer(row.expert, row.artifact_digest, row.turns)


class Labels:
    """Keeps what has been said so far, on disk; one session at a time has the file."""

    def __init__(self, to: Path, by: str) -> None:
        """Raises InputError for a file that holds something else, cannot be written, or is another
        session's."""
        self.by = by
        self._files = {"row": to, "skip": to.with_name(f"{to.name}.skipped")}
        self._done: dict[str, str] = {}
        """by id of a pair that was chosen or skipped, the file"""
        self._mine: list[tuple[str, str, int]] = []
        """of this session: id, file, and how long the file was before"""
        try:
            self._held = to.open("ab")
        except OSError as error:
            raise InputError(f"--to {to}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"--to {to}: another session writes to it; end that one") from None
        for kind, key in (("row", "labelled"), ("skip", "skipped")):
            self._done |= dict.fromkeys(_ids(self._files[kind], key), kind)

    @property
    def done(self) -> Collection[str]:
        """Ids of pairs that were chosen or skipped."""
        return self._done.keys()

    def add(self, comparison: Comparison, choice: Choice) -> None:
        kind = "skip" if choice == "skip" else "row"
        line = json.dumps(comparison.row(choice, self.by), ensure_ascii=False) + "\n"
        with self._files[kind].open("ab") as file:
            before = file.tell()
            file.write(line.encode(errors="backslashreplace"))
        self._done[comparison.id] = kind
        self._mine.append((comparison.id, kind, before))

    def undo(self) -> None:
        """Takes back the last choice of this session, if there is one."""
        if self._mine:
            id, kind, before = self._mine.pop()
            os.truncate(self._files[kind], before)
            del self._done[id]

    def close(self) -> None:
        self._held.close()
        for file in self._files.values():
            if file.exists() and not file.stat().st_size:
                file.unlink()


def _ids(file: Path, key: str) -> Iterator[str]:
    """Yield the ids of the pairs in a file that an earlier session wrote."""
    *whole, rest = (file.read_bytes() if file.exists() else b"").split(b"\n")
    for number, line in enumerate([*whole, *filter(None, [rest])], 1):
        try:
            if line.strip():
                yield str(json.loads(line)[key]["id"])
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{file}: line {number} is no row of `tributary label`; choose another file"
            ) from None
    if rest:
        raise InputError(f"{file}: its last line does not end; remove it, or end it")


class _Said(Config):
    """Holds what the page sends."""

    id: str
    choice: Choice


class LabelPage:
    """Shows the pairs that are left, one at a time, and writes down what is chosen."""

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

        body = b""
        try:
            async for piece in request.stream():
                if len(body := body + piece) > _MOST_BYTES:
                    break
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


def label(
    artifact: str, run: str, to: str, by: str, root: str, open_: bool, console: CommandConsole
) -> int:
    """Serve the page until Ctrl-C. Raises InputError where there is nothing to compare."""
    found = find_samples(artifact, run, root, lambda name: True)
    if found.file.name != DATA_FILE:
        raise InputError(
            f"{found.record.name} keeps rollouts as tokens; name a `distill` stage, with"
            " `samples: 2` or more and `min_outcome: 0`, whose answers can be compared and learned"
        )
    rows = ParquetRows(found.file).columns(("problem", "turns", "expert", "artifact_digest"))
    comparisons, left_out = comparisons_of(map(_Row.of, rows))
    if not comparisons:
        raise InputError(
            f"{found.record.name} has no problem with two different answers; give `distill`"
            " `samples: 2` or more, `min_outcome: 0` to keep wrong ones, and `near_duplicate: 1` to"
            " keep short ones"
        )
    labels = Labels(_place(to), by or _user())
    done = sum(each.id in labels.done for each in comparisons)
    console.say(
        f"{found.record.name}: two answers to each of {len(comparisons)} problems, {done} done;"
        f" {left_out} more have no two that could be compared and learned"
    )

    def told(link: str) -> None:
        console.say(f"choices go to {to}, until Ctrl-C (the link works once): {link}")
        if open_:
            webbrowser.open(link)

    try:
        serve_page(LabelPage(comparisons, labels).app, told)
    except KeyboardInterrupt:
        pass
    finally:
        labels.close()
    return 0


@dataclass(frozen=True, slots=True)
class _Row:
    """A row without its tokens."""

    problem: Problem
    turns: tuple[Message, ...]
    expert: str
    artifact_digest: str

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> _Row:
        problem, turns = load_problem(raw["problem"]), load_turns(raw["turns"])
        return cls(problem, turns, raw["expert"], raw["artifact_digest"])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise InputError("--by: this user has no name; say who chooses, e.g. --by ada") from None


def _place(to: str) -> Path:
    file = Path(to).expanduser()
    if file.suffix != ".jsonl":
        raise InputError(f"--to {to}: name a file that ends with .jsonl")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise InputError(f"--to {to}: its folder is not there, or it is a folder itself")
    return file
