"""The policy as a model of Inspect: each sample asks the session that its rollout has."""

# The library is optional: its types are there only where somebody installed it.

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Any

import httpx
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Model,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    StopReason,
    get_model,
    modelapi,
)
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo

from infra.processes.network import loosed

_MANY = 4096
"""requests at the same time: what a session takes is the gateway's to say"""
_STOPS: Mapping[str, StopReason] = {
    "stop": "stop",
    "length": "max_tokens",
    "tool_calls": "tool_calls",
}
_SESSION: ContextVar[tuple[str, str]] = ContextVar("session of the policy")
"""address and key; set before a sample's own solvers, so that all they start has it"""


@solver(name="tributary_session")
def reached(sessions: Mapping[str, tuple[str, str]]) -> Solver:
    """Return a solver that comes first: `sessions` has address and key by the sample's id."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        _SESSION.set(sessions[str(state.sample_id)])
        return state

    return solve


def policy_model() -> Model:
    return get_model("tributary/policy")


class PolicyAPI(ModelAPI):
    """Chat Completions at the gateway. What a task asks beside messages and tools is told to the
    gateway, which records it."""

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)

    def max_connections(self) -> int:
        return _MANY

    async def aclose(self) -> None:
        """The connections stay: an evaluation ends, and the next one asks again."""

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Raises RuntimeError where the gateway refuses."""
        url, key = _SESSION.get()
        body: dict[str, Any] = {
            "model": "policy",
            "messages": [_written(message) for message in input],
            **config.model_dump(include={"temperature", "top_p", "max_tokens"}, exclude_none=True),
        }
        if tools:
            body["tools"] = [_function(tool) for tool in tools]
        headers = {"Authorization": f"Bearer {key}"}
        got = await self._client.post(f"{url}/v1/chat/completions", json=body, headers=headers)
        answer: Any = loosed(got).json()
        if got.status_code != 200:
            error = answer["error"]
            if error["code"] == "context_length_exceeded":
                return ModelOutput.from_content("policy", "", "model_length")
            raise RuntimeError(error["message"])
        return _output(answer, tools)


@modelapi(name="tributary")
def policy_api() -> type[ModelAPI]:
    return PolicyAPI


def _written(message: ChatMessage) -> dict[str, Any]:
    """Return it as Chat Completions has it. Raises RuntimeError for what is no text."""
    written: dict[str, Any] = {"role": message.role, "content": _text(message)}
    if isinstance(message, ChatMessageTool):
        written["tool_call_id"] = message.tool_call_id
        if message.error is not None:
            written["content"] = message.error.message
    if isinstance(message, ChatMessageAssistant):
        thoughts = [p.reasoning for p in _parts(message) if isinstance(p, ContentReasoning)]
        if thoughts:
            written["reasoning_content"] = "\n".join(thoughts)
        if message.tool_calls:
            written["tool_calls"] = [_call(call) for call in message.tool_calls]
    return written


def _parts(message: ChatMessage) -> Sequence[Any]:
    return () if isinstance(message.content, str) else message.content


def _text(message: ChatMessage) -> str:
    for part in _parts(message):
        if not isinstance(part, ContentText | ContentReasoning):
            raise RuntimeError(f"a message has a part of type {part.type!r}: text only")
    return message.text


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function, "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _function(tool: ToolInfo) -> dict[str, Any]:
    told = tool.model_dump(include={"name", "description", "parameters"}, exclude_none=True)
    return {"type": "function", "function": told}


def _output(answer: Any, tools: Sequence[ToolInfo]) -> ModelOutput:
    (choice,) = answer["choices"]
    said = choice["message"]
    content: list[Any] = []
    if thought := said.get("reasoning_content"):
        content.append(ContentReasoning(reasoning=thought))
    content.append(ContentText(text=said["content"] or ""))
    calls = [
        ToolCall(
            id=call["id"],
            function=call["function"]["name"],
            arguments=json.loads(call["function"]["arguments"]),
        )
        for call in said.get("tool_calls", ())
    ]
    message = ChatMessageAssistant(
        content=content if len(content) > 1 else said["content"] or "",
        tool_calls=calls or None,
        model="policy",
        source="generate",
    )
    usage = answer["usage"]
    return ModelOutput(
        model="policy",
        choices=[
            ChatCompletionChoice(message=message, stop_reason=_STOPS[choice["finish_reason"]])
        ],
        usage=ModelUsage(
            input_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"],
            total_tokens=usage["total_tokens"],
        ),
    )
