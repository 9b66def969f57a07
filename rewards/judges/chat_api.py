"""ChatApi: asks a model at an OpenAI-compatible address, within bounds, for judges and users.

    question ──▶ answered before? ──▶ a place ──▶ a time ──▶ POST /chat/completions ──▶ text
                 (cache, by content)  (at_once)   (per minute)   again on 408, 429, 5xx, too late

What goes wrong with one question raises EngineError: a refusal, a reply that is none, no answer in
time though others got theirs, a bound that is reached. An API that answers nobody, or turns what
is asked away, is waited for: only past `outage_s` the question raises OutOfReach, which is nobody's
fault but the API's and so no verdict, and ends the stage.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from random import uniform
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from pydantic import (
    BaseModel,
    Field,
    JsonValue,
    NonNegativeFloat,
    ValidationError,
    field_validator,
    model_validator,
)

from infra.access import is_here, sendable
from infra.code.digest import digest_of
from infra.config import Config, Count
from infra.data_files.remembered import forget_unused
from infra.errors import EngineError, InputError, OutOfReach
from infra.home import home, write_whole
from infra.processes.network import goes_by_proxies
from infra.processes.outages import Outage, waiting_for
from infra.secret_references import is_reference, resolved, secret_names
from rewards.judges.judge_prompt import SHOWN

if TYPE_CHECKING:
    import httpx

Read = TypeVar("Read")
_MOST_BYTES = 4 << 20
"""of one reply"""
_MOST_OF_TOKEN = 100
"""characters"""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 60.0
"""before another try, and at most; each is twice as long, or what the reply's `Retry-After` says"""
_JITTER = (0.75, 1.25)
"""times a wait: those who wait for one API do not all ask at once"""
_TURNED_AWAY = (429, 503)
"""statuses by which an API does not look at the question"""
_PROBE, _PROBE_TOKENS = "Say OK.", 16


class ChatApiSettings(Config):
    """An OpenAI-compatible API, and what may be asked of it."""

    url: str
    """where the API begins, e.g. https://api.example.com/v1; `/chat/completions` is added"""
    model: str
    """as the API calls it"""
    key: str = ""
    """`secret:NAME`, which stands for the environment variable NAME; empty: it asks for none"""
    token_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    """what the API calls that bound"""
    body: dict[str, JsonValue] = Field(default_factory=dict)
    """further fields of each request, e.g. {reasoning_effort: low}"""
    at_once: Count = 16
    """requests under way at the same time; each rollout worker has its share of them, and one at
    least"""
    calls_per_minute: Count = 600
    """requests that are sent in a minute; they are spread evenly, also over rollout workers"""
    max_calls: Count = 10_000
    """requests that may be sent for one domain in one attempt of a stage, tries and votes included,
    but for those that the API turned away (429, 503) or was not reached by; every later one
    fails. Rollout workers have equal shares of them"""
    tries: int = Field(default=5, ge=1, le=20)
    """how often in a row a question gets no answer in time, or an error (408, 5xx), though the API
    answers others, or a small one that is sent to find out"""
    outage_s: NonNegativeFloat = 14_400.0
    """seconds for which a question waits for an API that answers nobody, is not reached or turns it
    away; then the stage ends, and can be resumed"""
    cache: bool = True
    """whether an answer is kept in this home until nobody asks for it for 30 days: the same
    question is not paid for twice"""

    @field_validator("key")
    @classmethod
    def _is_reference(cls, key: str) -> str:
        if key and not is_reference(key):
            raise ValueError(
                "a key stands in an environment variable, in capitals, and here `secret:NAME`"
                " stands for it"
            )
        return key

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url: {self.url!r} is no address; write https://HOST/v1")
        if self.key and parts.scheme == "http" and not is_here(parts.hostname):
            raise ValueError(
                f"url: {self.url} would send the key in clear text; write https://, or leave `key`"
                " out"
            )
        if reserved := {"model", "messages", "stream", "n"} & self.body.keys():
            raise ValueError(f"body: {min(reserved)} is set already; leave it out")
        if named := secret_names(self.body):
            raise ValueError(f"body: secret:{min(named)} would be sent as it is; only `key` is one")
        return self


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Reply(BaseModel):
    """What is read of a reply: https://platform.openai.com/docs/api-reference/chat/object."""

    choices: list[_Choice] = Field(min_length=1)


class _Busy(Exception):
    """Another try may help. The text says what happened."""

    def __init__(
        self, text: str, retry_after_s: float = 0.0, *, is_turned_away: bool = False
    ) -> None:
        """`is_turned_away`: the question was not looked at, so that it cannot be its fault."""
        super().__init__(text)
        self.asked_wait_s = min(retry_after_s, _LONGEST_WAIT_S)
        self.is_turned_away = is_turned_away


class ChatApi:
    """Asks an API from one event loop."""

    def __init__(
        self,
        settings: ChatApiSettings,
        timeout_s: float,
        sharing: int = 1,
        key: str = "",
        *,
        title: str,
        max_new_tokens: int,
    ) -> None:
        """`timeout_s`: what one request may take, once it is sent; `sharing`: processes that have
        the settings' bounds together; `key`: in place of the settings'; `title`: who asks. Raises
        InputError for a key that is not set, and for fewer calls than processes."""
        self._settings, self._timeout_s = settings, timeout_s
        self._max_new_tokens = max_new_tokens
        self._calls = settings.max_calls // sharing
        self._apart_s = 60.0 * sharing / settings.calls_per_minute
        if not self._calls:
            raise InputError(
                f"{title}: `max_calls` ({settings.max_calls}) is to be shared by {sharing}"
                " rollout workers; raise it, or have fewer `rollout_workers`"
            )
        self._url = f"{settings.url.rstrip('/')}/chat/completions"
        self._named = settings.key or "the key"
        self._key = sendable(key or cast("str", resolved(settings.key)), self._named)
        self._places = asyncio.Semaphore(max(settings.at_once // sharing, 1))
        self._next_at = 0.0
        """on the loop's clock, when the next request may be sent"""
        self._sent = 0
        self._answered_at = 0.0
        """on the loop's clock, when it last got any other reply than that another try may help"""
        self._client: httpx.AsyncClient | None = None
        self._asking = WeakValueDictionary[str, asyncio.Lock]()
        """by question: those who ask the same wait for one answer"""
        self._looked_through: set[Path] = set()
        """folders of answers from which those that nobody asks for any more were removed"""

    async def answer(
        self,
        messages: list[dict[str, str]],
        more: Mapping[str, Any],
        read: Callable[[str], Read],
        number: int = 0,
    ) -> Read:
        """Return what `read` makes of the model's text, which is kept if that does not raise.
        `more` are further fields of the request; answers of other numbers are others. Raises
        EngineError, OutOfReach."""
        bound = {self._settings.token_field: self._max_new_tokens}
        named = {"model": self._settings.model, "messages": messages}
        body = named | dict(more) | bound | self._settings.body
        if not self._settings.cache:
            return read(await self._ask(body))
        asked = {"url": self._url, "body": body}
        name = digest_of({**asked, "vote": number} if number else asked)
        kept = home() / "cache" / "judged" / name[:2] / f"{name}.txt"
        lock = self._asking.setdefault(name, asyncio.Lock())
        async with lock:
            if kept.exists():
                return read(kept.read_text())
            said = await self._ask(body)
            found = read(said)
            self._keep(kept, said)
            return found

    def _keep(self, path: Path, said: str) -> None:
        write_whole(path, said)
        if path.parent not in self._looked_through:
            self._looked_through.add(path.parent)
            forget_unused(path.parent)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _ask(self, body: Mapping[str, Any]) -> str:
        """Return what the model says. Raises EngineError, OutOfReach."""
        began, since, bound = self._now, time.time(), self._settings.outage_s
        failed_at, wait_s, alone = began, _FIRST_WAIT_S, 0
        with ExitStack() as waiting:
            for tries in count(1):
                try:
                    async with self._places:
                        return await self._try(body)
                except _Busy as error:
                    told = f"{self._url}: {error}"
                    is_answering = await self._answers_others(failed_at, error)
                    # Those that an outage cut off are among the first to fail once it is over.
                    alone = alone + 1 if is_answering and not error.is_turned_away else 0
                    if alone >= self._settings.tries:
                        why = f"{told}, {alone} times in a row; others are answered"
                        raise EngineError(why) from None
                    failed_at = self._now
                    left = began + bound - failed_at
                    if tries >= self._settings.tries:
                        if left <= 0 and not alone:
                            raise OutOfReach(_given_up(told, bound)) from None
                        waiting.close()
                        if not is_answering:
                            outage = Outage(self._url, str(error), since, since + bound)
                            waiting.enter_context(waiting_for(outage))
                    pause = max(wait_s * uniform(*_JITTER), error.asked_wait_s)
                await asyncio.sleep(min(pause, max(left, wait_s)))
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        raise AssertionError("it is tried until it is answered or given up")

    async def _answers_others(self, since: float, error: _Busy) -> bool:
        """Return whether it replied to another question since then, or does so to a small one now:
        where nobody else asks, nothing else tells a question that it cannot answer from an outage.
        """
        if self._answered_at <= since and not error.is_turned_away:
            async with self._places:
                if self._answered_at <= since:
                    with suppress(_Busy, EngineError):
                        await self._try(self._probe())
        return self._answered_at > since

    def _probe(self) -> Mapping[str, Any]:
        """Return a question that costs next to nothing."""
        asked = {"messages": [{"role": "user", "content": _PROBE}]}
        bound = {self._settings.token_field: _PROBE_TOKENS}
        return {"model": self._settings.model} | asked | bound | self._settings.body

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _try(self, body: Mapping[str, Any]) -> str:
        """Raises _Busy, EngineError."""
        await self._wait_for_turn()
        try:
            async with asyncio.timeout(self._timeout_s):
                status, content = await self._post(body)
        except TimeoutError:
            raise _Busy(f"no answer within timeout_s {self._timeout_s:g}") from None
        except _Busy as busy:
            self._sent -= busy.is_turned_away
            raise
        self._answered_at = self._now
        if status != 200:
            raise EngineError(f"{self._url}: it refuses ({status}): {self._shown(content)}")
        try:
            first = _Reply.model_validate_json(content).choices[0]
        except ValidationError:
            raise EngineError(f"{self._url}: no chat completion: {self._shown(content)}") from None
        if not first.message.content or first.finish_reason == "length":
            raise EngineError(
                f"{self._url}: its answer was cut off or empty ({first.finish_reason}): raise"
                f" `max_new_tokens` ({self._max_new_tokens})"
            )
        said = self._without_key(first.message.content)
        if len(said) > _MOST_OF_TOKEN * self._max_new_tokens:
            raise EngineError(
                f"{self._url}: its answer has {len(said)} characters, more than `max_new_tokens`"
                f" ({self._max_new_tokens}) can be"
            )
        return said

    def _without_key(self, text: str) -> str:
        """A server may say what it was asked with, and what it says is kept and shown."""
        return text.replace(self._key, self._named) if self._key else text

    def _shown(self, content: bytes) -> str:
        return repr(self._without_key(content.decode(errors="replace"))[:SHOWN])

    async def _wait_for_turn(self) -> None:
        """Requests are sent in equal distances. Raises EngineError once all of them are spent."""
        if self._sent >= self._calls:
            whole = self._settings.max_calls
            share = "" if self._calls == whole else f", {self._calls} for this rollout worker,"
            raise EngineError(f"{self._url}: `max_calls` ({whole}){share} are spent")
        self._sent += 1
        now = self._now
        at = max(self._next_at, now)
        self._next_at = at + self._apart_s
        await asyncio.sleep(at - now)

    async def _post(self, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Status and content of the reply. Raises _Busy, EngineError."""
        import httpx

        if self._client is None:
            # An answer of kilobytes may be gigabytes once it is unpacked.
            headers = {"Accept-Encoding": "identity"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            self._client = httpx.AsyncClient(
                headers=headers, timeout=None, trust_env=goes_by_proxies(self._url)
            )
        content = bytearray()
        try:
            async with self._client.stream("POST", self._url, json=body) as reply:
                async for chunk in reply.aiter_raw():
                    content += chunk
                    if len(content) > _MOST_BYTES:
                        raise EngineError(f"{self._url}: its reply has more than {_MOST_BYTES} B")
        except httpx.HTTPError as error:
            away = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            what = self._without_key(f"{type(error).__name__}: {error}")[:SHOWN]
            raise _Busy(f"it is not reached ({what})", is_turned_away=away) from error
        status = reply.status_code
        if status in (408, 429) or status >= 500:
            wait = reply.headers.get("retry-after", "")
            seconds = float(wait) if wait.isdecimal() else 0.0
            said = f"it is busy or broken ({status}): {self._shown(bytes(content))}"
            raise _Busy(said, seconds, is_turned_away=status in _TURNED_AWAY)
        if reply.headers.get("content-encoding", "identity") != "identity":
            raise EngineError(f"{self._url}: its reply is packed, which nobody asked for")
        return status, bytes(content)


def _given_up(told: str, bound: float) -> str:
    return (
        f"{told}; it answered nothing for {bound:g} s (`outage_s`). No rollout counts as failed for"
        " it: resume the run once it answers"
    )
