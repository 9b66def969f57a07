"""McpConnection: a session with an MCP server. Every wait has a bound, and so has what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from curricula.mcp.heard import answers_alone
from curricula.mcp.mcp_streams import McpStreams
from curricula.mcp.spec import McpServer
from engines.types import Json, Tool
from infra.json_text import writable
from infra.secret_references import without_secrets

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.types import ClientRequestType

Answer = TypeVar("Answer", bound=BaseModel)
_CLOSE_S = 5.0
_TOLD = 300
_MOST_TOOLS = 1 << 20
"""characters of all tools: each problem has them in its prompt"""


class McpLost(Exception):
    """The server does not start, does not answer, or is gone."""


class _Late(Exception):
    """No answer came within the server's `call_s`."""


class _Listed(BaseModel):
    """A tool, as far as it is read."""

    name: str
    description: str | None = None
    inputSchema: dict[str, Any] = Field(default_factory=dict)

    def tool(self) -> Tool:
        said = {"name": self.name, "description": self.description or ""}
        return Tool.of_function({**said, "parameters": self.inputSchema})


class _Page(BaseModel):
    tools: list[dict[str, Any]]
    nextCursor: str | None = None


class _Result(BaseModel):
    """The answer to a call. The package's own model of it takes seconds for many parts, and a
    schema of the server's, with which it would compare them, may take hours."""

    content: list[dict[str, Any]] = Field(default_factory=list)
    isError: bool = False

    def text(self) -> str:
        said = (
            str(part.get("text", ""))
            if part.get("type") == "text"
            else f"({str(part.get('type'))[:_TOLD]}: not shown)"
            for part in self.content
        )
        return ("error: " if self.isError else "") + "\n".join(said)


class McpConnection:
    """Serves one event loop; its calls may come from any task of it."""

    def __init__(self, server: McpServer) -> None:
        """Starts it. Raises InputError as `McpStreams` does."""
        self._server = server
        self._streams = McpStreams(server)
        self._over = asyncio.Event()
        self._session: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        # The session's scopes must be left by the task that entered them.
        self._task = asyncio.create_task(self._hold())

    def on_ended(self, call: Callable[[], None]) -> None:
        """Call it once the session is over and its process gone."""
        self._task.add_done_callback(lambda _: call())

    async def close(self) -> None:
        """End the session, and its process."""
        self._over.set()
        await asyncio.wait({self._task}, timeout=_CLOSE_S)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CLOSE_S)
        if self._session.done() and not self._session.cancelled():
            self._session.exception()

    async def tools(self) -> list[Tool]:
        """Return all that the server lists. Raises McpLost."""
        from mcp.types import ListToolsRequest, PaginatedRequestParams

        found, cursor, size = list[Tool](), None, 0
        while True:
            asked = ListToolsRequest(params=PaginatedRequestParams(cursor=cursor))
            try:
                page = await self._asked(asked, _Page)
                told = [_with_texts(each, self._keepable) for each in page.tools]
                listed = [_Listed.model_validate(each) for each in told]
            except _Late:
                raise McpLost(self._told(f"lists no tools within {self._late()}")) from None
            except McpLost:
                raise
            except Exception as error:
                raise self._lost("lists no tools", error) from error
            size += sum(len(str(each)) for each in page.tools) + _TOLD
            if size > _MOST_TOOLS:
                raise McpLost(self._told(f"lists tools of over {_MOST_TOOLS:,} characters"))
            found += [each.tool() for each in listed]
            if (cursor := page.nextCursor) is None:
                return found

    async def call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Return what the model is told: the result, or why there is none. Raises McpLost."""
        from mcp.types import CallToolRequest, CallToolRequestParams

        params = CallToolRequestParams(name=name, arguments=_with_texts(dict(arguments), writable))
        try:
            result = await self._asked(CallToolRequest(params=params), _Result)
            return self._bounded(result.text())
        except McpLost:
            raise
        except _Late:
            return f"error: no answer within {self._late()}"
        except ValidationError:
            return "error: the server's answer is no result of a tool"
        except Exception as error:  # that the server answers
            return self._bounded(f"error: {error}")

    async def _asked(self, request: ClientRequestType, answer: type[Answer]) -> Answer:
        """Raises _Late, McpLost, and what the package raises for an error that is answered."""
        from mcp import McpError
        from mcp.types import CONNECTION_CLOSED, ClientRequest

        session = await self._open()
        try:
            # Also of the sending: the server may read nothing.
            async with asyncio.timeout(self._server.call_s):
                return await session.send_request(ClientRequest(request), answer)
        except TimeoutError:
            raise _Late from None
        except Exception as error:
            closed = isinstance(error, McpError) and error.error.code == CONNECTION_CLOSED
            if not closed and not self._task.done() and not self._streams.heard.is_full.is_set():
                raise
            await self.close()  # then it is known what a process said at its end
            raise self._lost("is gone", error) from error

    def _late(self) -> str:
        return f"{self._server.call_s:g} s"

    def _bounded(self, text: str) -> str:
        text = self._keepable(text)
        most = self._server.result_chars
        more = len(text) - most
        return text if more <= 0 else f"{text[:most]}\n({more} more characters are left out)"

    def _keepable(self, text: str) -> str:
        """Return what the server says as it may stand in prompts, records and pages."""
        return writable(self._without_secrets(text))

    def _without_secrets(self, text: str) -> str:
        return without_secrets(text, [self._server.env, self._server.headers])

    async def _open(self) -> ClientSession:
        try:
            return await asyncio.shield(self._session)
        except McpLost:
            raise
        except Exception as error:
            raise self._lost("does not start", error) from error

    def _lost(self, what: str, error: BaseException) -> McpLost:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if self._streams.heard.is_full.is_set():
            return McpLost(self._told(f"{what}: it says more than an answer can be"))
        said = self._without_secrets(self._streams.said.strip())[-_TOLD:]
        why = self._without_secrets(f"{type(error).__name__}: {error}".rstrip(": "))[: 2 * _TOLD]
        return McpLost(self._told(f"{what}: {said or why}"))

    def _told(self, what: str) -> str:
        return f"{self._server.title} {what}"

    async def _hold(self) -> None:
        from mcp import ClientSession

        streams = self._streams
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._server.start_s):
                    opened = await stack.enter_async_context(streams.opened())
                    heard = answers_alone(opened, streams.heard)
                    read, write = await stack.enter_async_context(heard)
                    session = await stack.enter_async_context(ClientSession(read, write))
                    await session.initialize()
                self._session.set_result(session)
                await self._over.wait()
        except TimeoutError:
            self._fail(TimeoutError(f"no answer within start_s {self._server.start_s:g}"))
        except Exception as error:  # how it ends is nobody's business once it is over
            self._fail(error)
        finally:
            if not self._session.done():
                self._session.cancel()

    def _fail(self, error: Exception) -> None:
        if not self._session.done():
            self._session.set_exception(self._lost("does not start", error))


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return JSON in which each text, names too, is what `change` makes of it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_with_texts(each, change) for each in value]
    if isinstance(value, dict):
        return {change(name): _with_texts(each, change) for name, each in value.items()}
    return value
