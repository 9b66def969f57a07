"""AgentSession: the policy as a harness sees it through HTTP, over one rollout's SessionHost.

    request ─▶ its place in the tree ─▶ new tokens ─▶ turn ─▶ answer ─▶ delivered? kept : forgotten

Any number of requests may be under way at the same time, of one program or of several that share a
key: each turn has a line of tokens to itself while it is sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, TypeAlias

from engines.agents.incremental_prompt import Meaning, appended_ids
from engines.agents.limits import SessionLimits
from engines.agents.session_record import SessionRecord
from engines.agents.trajectory import Kind, Place, Trajectory, Turn
from engines.agents.wire.wire_format import MOST_PARTS, Answer, Refusal, Request
from engines.rollout.drivers.session import TokenSession
from engines.rollout.drivers.session_host import End, SessionHost
from engines.rollout.drivers.session_host import Turn as HostTurn
from engines.types import Message, Problem, Rollout, Status, Tool
from infra.errors import InfrastructureError, InputError
from infra.json_text import json_bytes

Messages: TypeAlias = tuple[Message, ...]
_LONG_TEXT = 32 << 10
"""bytes of a request beyond which its tokens are found beside the event loop"""
_GRACE_S = 10.0
"""for a harness or a task to end by itself when its session is over"""
_DELIVERY_S = 5.0
"""for answers that are on their way to a client when the session ends"""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A turn that is about to be sampled."""

    parent: Turn
    context: Messages
    meanings: tuple[Meaning, ...]
    kind: Kind
    problem: Problem
    line: TokenSession
    kept: int
    """tokens of the line that stay if the turn does not"""
    begin: int


@dataclass(frozen=True, slots=True)
class _Meant:
    """A request's whole conversation, and what decides its place."""

    messages: Messages
    meanings: tuple[Meaning, ...]
    tools: bytes
    """equal for the same tools"""
    problem: Problem


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where a request continues, and what it adds there."""

    place: Place
    context: Messages
    meanings: tuple[Meaning, ...]
    problem: Problem
    ids: list[int]


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A request."""

    task: asyncio.Task[Any] | None
    is_sampled: bool = False
    """whether its answer is on its way to the client"""


class AgentSession:
    """The session of one rollout. It is used in the event loop of its host."""

    def __init__(self, host: SessionHost, problem: Problem, limits: SessionLimits) -> None:
        self.end: End | None = None
        """how the session ended, beside its harness; None: it goes on"""
        self.over = asyncio.Event()
        """set where no request will be answered any more"""
        self.lost: Exception | None = None
        """why the engine does not answer: not the rollout's fault"""
        self.tree = Trajectory()
        """the turns so far"""
        self._host = host
        self._problem = problem
        self._limits = limits
        self._record = SessionRecord(host.sampling)
        self._lines: list[TokenSession] = []
        self._begun = self._counted = 0
        self._reading = asyncio.Lock()
        self._under_way: list[_UnderWay] = []
        self._in_use: list[TokenSession] = []
        """lines of turns under way"""
        self._sampling = 0
        self._freed = asyncio.Event()
        self._answers: dict[str, Turn] = {}
        """by the id of the answer (Responses)"""
        self._out_of_context = False

    @contextmanager
    def reading(self) -> Generator[None]:
        """While its client sends a request: it counts among those at the same time, as its part
        that has come is in memory. Raises Refusal."""
        self._refuse_if_busy()
        coming = _UnderWay(None)
        self._under_way.append(coming)
        try:
            yield
        finally:
            self._under_way.remove(coming)

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncGenerator[Answer]:
        """Have the policy take a turn. It counts if the block ends without an exception: an answer
        that did not reach its client, for one, is forgotten, and not trained on.

        Raises Refusal.
        """
        self._admit()
        under_way = _UnderWay(asyncio.current_task())
        self._under_way.append(under_way)
        turn: Turn | None = None
        begun: _Begun | None = None
        try:
            begun = await self._begin(request)
            made, turn = await self._sample(begun, request)
            under_way.is_sampled = True
            yield _answer(made, turn)
        except InfrastructureError as error:
            self.lost = error
            self.over.set()
            raise Refusal(503, f"the engine does not answer: {error}", "unavailable") from error
        except BaseException:
            if turn is not None and self.tree.remove(turn):
                self._record.not_delivered(turn)
            raise
        finally:
            self._under_way.remove(under_way)
            if begun is not None:
                self._in_use.remove(begun.line)

    async def close(self) -> None:
        """Refuse all requests from now on, and give up those under way. `finish` comes after it."""
        self.over.set()
        delivering = {each.task for each in self._under_way if each.task and each.is_sampled}
        sampling = {each.task for each in self._under_way if each.task and not each.is_sampled}
        for task in sampling:
            task.cancel()
        if delivering:
            await asyncio.wait(delivering, timeout=_DELIVERY_S)
        for task in delivering:
            task.cancel()
        if tasks := sampling | delivering:
            await asyncio.wait(tasks)

    async def until_over(self, work: asyncio.Future[Any]) -> None:
        """Wait until the work has ended, or was given its time after the session had."""
        over = asyncio.create_task(self.over.wait())
        await asyncio.wait({work, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        await asyncio.wait({work}, timeout=_GRACE_S)

    async def count(self, request: Request) -> int:
        """Tokens of the prompt that a request would have. Raises Refusal."""
        self._refuse_if_busy()
        if self._counted >= self._limits.counts:
            said = f"a session may ask for {self._limits.counts} counts of tokens"
            raise Refusal(429, said, "rate_limit_exceeded")
        self._counted += 1
        with self.reading():
            placed = await self._placed(request)
        return len(placed.place.turn.tokens) + len(placed.ids)

    def remember(self, name: str, answer: Answer) -> None:
        """A conversation that a later request may name instead of sending it again."""
        self._answers[name] = next(t for t in self.tree.turns if t.number == answer.number)

    def finish(self, end: End, files: Mapping[str, str], answer: str | None = None) -> Rollout:
        """The rollout, judged by the conversation of the last turn that was delivered, with
        `answer`, if there is one, as its last word. Raises EngineError where it was lost."""
        if self.lost is not None:
            raise self.lost
        end = self.end or end
        if self._out_of_context and end.status in (Status.COMPLETED, Status.FAILED):
            end = End(Status.TRUNCATED, "context length")
        if not self.tree.turns:
            reason = end.reason or "the harness had no answer of the policy"
            return self._host.finish(End(Status.FAILED, reason), [], [], files=files)
        last = self.tree.turns[-1]
        if last.cut_off is not None and end.status is Status.COMPLETED:
            end = last.cut_off
        assert last.line is not None
        lines = [line for line in self._lines if line is not last.line and line.num_generated]
        lines.append(last.line)
        notes = self._record.notes(self.tree.turns, lines)
        judged = [*_judged(last), *([] if answer is None else [Message("assistant", answer)])]
        return self._host.finish(end, judged, lines, files=files, notes=notes)

    def _refuse_if_busy(self) -> None:
        self._refuse_if_over()
        if len(self._under_way) >= self._limits.parallel:
            at_once = f"{self._limits.parallel} requests at the same time are the limit"
            raise Refusal(429, f"{at_once} of a session; wait for an answer", "rate_limit_exceeded")

    def _admit(self) -> None:
        self._refuse_if_busy()
        if self._begun >= self._limits.turns:
            self._end(End(Status.TRUNCATED, f"limit of {self._limits.turns} turns"))
            self._refuse_if_over()
        if self.tree.kept > self._limits.text:
            self._end(End(Status.TRUNCATED, f"limit of {self._limits.text} characters"))
            self._refuse_if_over()
        self._begun += 1

    async def _begin(self, request: Request) -> _Begun:
        """Find the turn's place, and put what leads to it into a line. Raises Refusal."""
        placed = await self._placed(request)
        place, context, ids = placed.place, placed.context, placed.ids
        base = place.turn
        if any(message.role == "assistant" for message in context):
            base, ids = self.tree.find_by_tokens(place, ids)
        kind = self.tree.kind(place, base, context, placed.meanings)
        total = len(base.tokens) + len(ids)
        if total >= self._host.context_length:
            self._out_of_context = True
            most = self._host.context_length
            # In the words of both APIs, by which clients tell that they must compact.
            said = f"prompt is too long: {total} tokens > {most} maximum;"
            said += f" this model's maximum context length is {most} tokens"
            raise Refusal(400, said, "context_length_exceeded")
        self._out_of_context = False
        line, kept = self._line(base, ids)
        self._in_use.append(line)
        turn = (place.turn, context, placed.meanings)
        return _Begun(*turn, kind, placed.problem, line, kept, len(line.tokens))

    def _line(self, base: Turn, ids: Sequence[int]) -> tuple[TokenSession, int]:
        """The line of `base` if it can go on, else a new one; and what stays without the turn."""
        if base.is_last_of_line and base.line is not None:
            base.line.extend(ids)
            return base.line, base.end
        branches = sum(line.num_generated > 0 or line in self._in_use for line in self._lines)
        if branches >= self._limits.samples:
            self._end(End(Status.TRUNCATED, f"limit of {self._limits.samples} branches"))
            self._refuse_if_over()
        line = self._host.open([*base.tokens.tolist(), *ids])
        self._lines.append(line)
        return line, len(line.tokens)

    async def _placed(self, request: Request) -> _Placed:
        """The place of a request as it is now, and the tokens that follow it. Raises Refusal."""
        before = self._before(request)
        if request.size + sum(len(message.content) for message in before) <= _LONG_TEXT:
            meant = self._meant(request)
            return self._appended(meant, self._place(meant))
        async with self._reading:  # one at a time, beside the event loop: the threads are few
            meant = await asyncio.to_thread(self._meant, request)
            while True:
                place = self._place(meant)
                placed = await asyncio.to_thread(self._appended, meant, place)
                self._refuse_if_over()
                if self._place(meant) == place:  # no other turn came or went
                    return placed

    def _meant(self, request: Request) -> _Meant:
        messages = self._conversation(request)
        if len(messages) > MOST_PARTS:
            said = f"a conversation may have {MOST_PARTS} messages"
            raise Refusal(413, said, "request_too_large")
        if not messages or messages[-1].role == "assistant":
            raise Refusal(400, "messages: the last one must be of the user or of a tool")
        problem = replace(self._problem, tools=request.tools)
        tools = _signature(request.tools)
        return _Meant(messages, self.tree.meanings(messages), tools, problem)

    def _place(self, meant: _Meant) -> Place:
        return self.tree.find(self.tree.root(meant.tools), meant.messages, meant.meanings)

    def _appended(self, meant: _Meant, place: Place) -> _Placed:
        context, meanings = meant.messages[place.used :], meant.meanings[place.used :]
        try:
            ids = appended_ids(self._host.chat, meant.problem, place.turn, context)
        except InputError as error:
            raise Refusal(400, str(error)) from error
        return _Placed(place, context, meanings, meant.problem, ids)

    def _before(self, request: Request) -> Messages:
        """Return what led to the answer that a request names, and that answer. Raises Refusal."""
        if not request.previous:
            return ()
        if request.previous not in self._answers:
            raise Refusal(404, f"previous_response_id: no answer {request.previous!r} here")
        path = self._answers[request.previous].path()
        return tuple(message for turn in path for message in (*turn.context, turn.said))

    def _conversation(self, request: Request) -> Messages:
        before = self._before(request)
        if not before:
            return request.messages
        system = tuple(message for message in request.messages if message.role == "system")
        rest = tuple(message for message in request.messages if message.role != "system")
        replaced = 1 if system and before[0].role == "system" else 0
        return (*system, *before[replaced:], *rest)

    async def _sample(self, begun: _Begun, request: Request) -> tuple[HostTurn, Turn]:
        """The turn, as the last one of its line. Raises Refusal, and what the host raises."""
        turn: Turn | None = None
        try:
            made = await self._host_turn(begun)
            if made.said is None:
                assert made.end is not None
                self._end(made.end)
                self._refuse_if_over()
            assert made.said is not None
            turn = self.tree.add(
                begun.parent, begun.context, begun.meanings, made.said.message(), begun.line,
                begun.kept, begun.begin,
            )  # fmt: skip
            turn.cut_off = self._cut_off(made, turn)
            self._record.note(turn, begun.kind, request)
        except BaseException as error:
            if turn is None or not self.tree.remove(turn):
                begun.line.cut(begun.kept)
            if isinstance(error, asyncio.CancelledError):
                self._record.aborted()
            raise
        if made.end is not None and made.end.status is Status.MALFORMED:
            self._end(made.end)
            self._refuse_if_over()
        if self._host.tokens_left < 1 and self._sampling == 0:
            self._end(End(Status.TRUNCATED, "token budget"))
        return made, turn

    def _cut_off(self, made: HostTurn, turn: Turn) -> End | None:
        """Return what cut a turn off, beside the limit of one turn, which an agent may live
        with."""
        if made.end is None or made.end.status is not Status.TRUNCATED:
            return None
        return None if turn.end - turn.begin == self._limits.turn_tokens else made.end

    async def _host_turn(self, begun: _Begun) -> HostTurn:
        """Sampled when the budget has tokens for it."""
        most = self._limits.turn_tokens or None
        while self._sampling and (most is None or self._host.tokens_left < 1):
            self._freed.clear()
            await self._freed.wait()
            self._refuse_if_over()
        self._sampling += 1
        try:
            return await self._host.turn(begun.line, max_new_tokens=most, asked=begun.problem)
        finally:
            self._sampling -= 1
            self._freed.set()

    def _end(self, end: End) -> None:
        self.end = self.end or end
        self.over.set()

    def _refuse_if_over(self) -> None:
        if self.over.is_set():
            why = self.end.reason if self.end is not None else "its harness has ended"
            raise Refusal(400, f"this session is over: {why}", "session_over")


def _answer(made: HostTurn, turn: Turn) -> Answer:
    assert made.said is not None
    return Answer(
        number=turn.number,
        said=made.said,
        is_cut_off=made.end is not None,
        prompt_tokens=turn.begin,
        new_tokens=turn.end - turn.begin,
    )


def _judged(last: Turn) -> list[Message]:
    """Return what was said after the first prompt, up to this turn."""
    first, *others = last.path()
    later = [message for turn in others for message in (*turn.context, turn.said)]
    return [first.said, *later]


def _signature(tools: Sequence[Tool]) -> bytes:
    """Equal for the same tools. A tree keeps it of all that were named, so it is short."""
    said = [[tool.name, tool.description, tool.schema] for tool in tools]
    return sha256(json_bytes(said, sort_keys=True)).digest()
