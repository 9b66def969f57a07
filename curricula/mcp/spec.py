"""Settings of an MCP server whose tools the model may call (https://modelcontextprotocol.io)."""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, model_validator

from curricula.built_in_curricula import WITH_TOOLS
from infra.access import is_here
from infra.config import RESULT_NEUTRAL, Config, Count
from infra.secret_references import secret_names


class McpServer(Config):
    """A server that is started for each rollout (`command`), or one at a `url`."""

    command: list[str] = Field(default_factory=list)
    """what is run, as a list; it speaks MCP over its standard input and output. `python` is the
    interpreter of this environment, with its packages"""
    program: str = ""
    """a module or package among the recipe's `hooks`, put into the folder that it runs in"""
    env: dict[str, str] = Field(default_factory=dict)
    """further environment variables of the command; of a token only its name: `secret:NAME`"""
    sandbox: bool = True
    """whether the command runs in a sandbox of the kind `bubblewrap`, which reaches no network"""
    readable: list[str] = Field(default_factory=list)
    """folders of this machine that the command may read in its sandbox"""
    url: str = ""
    """where a server answers MCP's streamable HTTP, e.g. https://tools.example.com/mcp"""
    headers: dict[str, str] = Field(default_factory=dict)
    """of each request; a key only by name, e.g. {Authorization: secret:MCP_KEY}, where MCP_KEY
    holds the whole text, `Bearer ...`"""
    tools: list[str] = Field(default_factory=list)
    """those that the model may call; empty: all that the server lists"""
    at_once: Annotated[Count, RESULT_NEUTRAL] = 64
    """servers, or sessions at the `url`, that a domain of a stage has at the same time; further
    rollouts wait for one with their first call, which counts in no time limit of a rollout. Each
    rollout worker has its share of them, and one at least"""
    start_s: PositiveFloat = 60.0
    """time limit in seconds of its start, until it has said what it can do"""
    call_s: PositiveFloat = 30.0
    """time limit in seconds of one call; the model is told of a later answer that it is late"""
    max_calls: Count = 16
    """calls of one rollout; the first beyond them ends it without an answer"""
    result_chars: Count = 8192
    """characters of one result that the model sees; the rest is left out, and said to be"""

    @property
    def parts(self) -> tuple[str, ...]:
        """Name the parts of the result; the program that it runs counts too."""
        program = (f"{self.program}:",) if self.program else ()
        return (WITH_TOOLS, *program)

    @model_validator(mode="after")
    def _is_in_one_place(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError(
                "mcp: write either a `command`, e.g. [python, my_server.py], or a `url`"
            )
        own = ("program", "env", "sandbox", "readable") if self.url else ("headers",)
        fields = type(self).model_fields
        defaults = {name: fields[name].get_default(call_default_factory=True) for name in own}
        # By value, as what is written for a record or another process names each field.
        if idle := [name for name in own if getattr(self, name) != defaults[name]]:
            where = "url" if self.url else "command"
            raise ValueError(f"mcp.{idle[0]}: says nothing of a server by its `{where}`")
        if any("secret:" in word for word in self.command):
            raise ValueError("mcp.command: all users of a machine read command lines; use `env`")
        if self.readable and not self.sandbox:
            raise ValueError("mcp.readable: without a sandbox the command reads everything")
        return self

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        parts = urlsplit(self.url)
        if not self.url:
            return self
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"mcp.url: {self.url!r} is no address; write https://HOST/mcp")
        if secret_names(self.headers) and parts.scheme == "http" and not is_here(parts.hostname):
            raise ValueError(
                f"mcp.url: {self.url} would send `headers` in clear text; write https://"
            )
        return self

    def shared_by(self, processes: int) -> Self:
        """Return the settings for one of so many processes, which share its bound."""
        return self.model_copy(update={"at_once": max(self.at_once // processes, 1)})

    @property
    def title(self) -> str:
        """Say what messages call it."""
        return f"the MCP server {self.url or ' '.join(self.command)!r}"
