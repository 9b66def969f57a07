"""The browsing agent's tools: what they promise, and what they do on a web."""

from __future__ import annotations

from curricula.browsing.pages import NOTHING, Web
from engines.types import Tool, ToolCall

SEARCH = Tool("search", "Titles of the pages that fit best.", {"q": "string"}, ("q",))
OPEN = Tool("open", "The page of a title.", {"title": "string"}, ("title",))
FIND = Tool(
    "find",
    "Lines of a page with a text.",
    {"title": "string", "text": "string"},
    ("title", "text"),
)
TOOLS = (SEARCH, OPEN, FIND)


def execute(call: ToolCall, web: Web) -> str:
    """What the tool answers to a checked call; `no` where there is nothing."""
    if call.name == SEARCH.name:
        return "\n".join(web.search(str(call.arguments["q"]))) or NOTHING
    page = web.pages.get(str(call.arguments["title"]))
    if page is None:
        return NOTHING
    if call.name == OPEN.name:
        return page.text
    wanted = str(call.arguments["text"])
    return "\n".join(line for line in page.text.splitlines() if wanted in line) or NOTHING
