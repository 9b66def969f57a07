"""Splits answers and reads calls as SGLang's server does, in a process that may import SGLang.

A case is {"template", "parser", "kwargs", "said"}; its split is [[thought, content], the same of a
stream that comes letter by letter, with harmony's marks whole, as each is a token].
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

Case = dict[str, Any]
Split = tuple[str, str]


def splits_of(cases: Sequence[Case]) -> list[tuple[Split, Split]]:
    return [_split(case) for case in cases]


def _parser(case: Case) -> Any:
    """As SGLang's server makes it for a request: with its own choice of where it begins."""
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
    from sglang.srt.parser.reasoning_parser import ReasoningParser
    from sglang.srt.parser.template_detection import detect_reasoning_pattern

    name = case["parser"]
    forced, config = detect_reasoning_pattern(case["template"])
    server: Any = SimpleNamespace(
        reasoning_parser=name,
        _reasoning_detector=ReasoningParser(name).detector,
        template_manager=SimpleNamespace(reasoning_config=config),
    )
    request: Any = SimpleNamespace(chat_template_kwargs=case["kwargs"] or None)
    asked = OpenAIServingChat._get_reasoning_from_request(server, request)
    return ReasoningParser(name, True, forced or asked, request)


def _split(case: Case) -> tuple[Split, Split]:
    thought, content = _parser(case).parse_non_stream(case["said"])
    made = _parser(case)
    letters = re.findall(r"<\|[a-z]+\|>|.", case["said"], re.DOTALL)
    pieces = [made.parse_stream_chunk(letter) for letter in letters]
    pieces.append(made.parse_stream_end())
    streamed = ("".join(t or "" for t, _ in pieces), "".join(c or "" for _, c in pieces))
    return (thought or "", content or ""), streamed


def calls_of(cases: Sequence[Case]) -> list[list[tuple[str, str]]]:
    """Names and arguments of the calls that a parser finds in a text. A case is {"parser", "said",
    "tool"}, the tool being a function's name and its parameters' JSON schema."""
    from sglang.srt.entrypoints.openai.protocol import Function, Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    found: list[list[tuple[str, str]]] = []
    for case in cases:
        parser = FunctionCallParser([Tool(function=Function(**case["tool"]))], case["parser"])
        _, calls = parser.parse_non_stream(case["said"])
        found.append([(call.name or "", call.parameters) for call in calls])
    return found
