"""The clients that harnesses are made with, against a scripted policy: tools, streams, errors, a
compaction, a sub-agent."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from engines.agents.agent_session import AgentSession
from engines.rollout.drivers.session_host import End
from engines.types import Message, Problem, Status
from tests.parts.agent_parts import Script, served, session_of
from tests.parts.clients import client

pytestmark = pytest.mark.unit

READ = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
PLAIN = Problem("p/1", "agents", (Message("user", "task"),))


def say(prompt: str) -> str:
    """The policy of all clients, by the last thing that it is told."""
    last = prompt.rsplit("> ", 2)[-2]
    if "use tools" in last:
        return '<think>two files</think>I read.\n!read {"path": "a.py"}\n!read {"path": "b.py"}'
    if "boom" in last:
        return "it failed"
    if "sum up" in last:
        return "summary: two files"
    if "sub-agent" in last:
        return "sub-agent's answer"
    return "done"


def ended(session: AgentSession) -> tuple[list[str], list[str]]:
    """How each turn came, and the text that each sample trains."""
    rollout = session.finish(End(Status.COMPLETED), {})
    notes = [cast("dict[str, Any]", sample.metadata["session"]) for sample in rollout.samples]
    turns = sorted((turn for note in notes for turn in note["turns"]), key=lambda t: t["turn"])
    texts = ["".join(map(chr, sample.tokens[sample.loss_mask])) for sample in rollout.samples]
    return [turn["kind"] for turn in turns], texts


KINDS = ["first", "continued", "continued", "continued", "new conversation", "new conversation"]
MAIN = (
    '<think>two files</think>I read.\n!read {"path": "a.py"}\n!read {"path": "b.py"}\0it failed\0'
    "done\0summary: two files\0"
)


@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_chat_completions(streamed: bool) -> None:
    openai = client("openai")
    session = session_of(Script(say), problem=PLAIN)
    tools = [{"type": "function", "function": {"name": "read", "parameters": READ, "strict": True}}]
    async with served(session) as (url, key):
        api = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)

        async def ask(messages: list[Any]) -> dict[str, Any]:
            given = {"model": "m", "messages": messages, "tools": tools, "temperature": 0.1}
            if not streamed:
                made = await api.chat.completions.create(**given)
                assert made.usage.completion_tokens > 0
                return made.choices[0].message.model_dump(exclude_none=True)
            usage = {"include_usage": True}
            async with api.chat.completions.stream(**given, stream_options=usage) as stream:
                made = await stream.get_final_completion()
            assert made.usage.completion_tokens > 0
            said = made.choices[0].message.model_dump(exclude_none=True)
            said.pop("parsed", None)
            return said

        messages: list[Any] = [{"role": "user", "content": "use tools"}]
        messages.append(await ask(messages))
        calls = messages[-1]["tool_calls"]
        assert [json.loads(call["function"]["arguments"]) for call in calls] == [
            {"path": "a.py"}, {"path": "b.py"},
        ]  # fmt: skip
        for call, output in zip(calls, ("x = 1", "boom"), strict=True):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
        for text in ("go on", "sum up"):
            messages.append(await ask(messages))
            messages.append({"role": "user", "content": text})
        summary = await ask(messages)
        await ask([{"role": "user", "content": f"sub-agent, {summary['content']}"}])
        await ask(
            [{"role": "system", "content": summary["content"]}, {"role": "user", "content": "x"}]
        )
        image = {"type": "image_url", "image_url": {"url": "data:"}}
        with pytest.raises(openai.BadRequestError, match="not supported: the policy reads text"):
            await ask([{"role": "user", "content": [image]}])
        await api.close()
    found, texts = ended(session)
    assert found == KINDS
    assert texts == [MAIN, "sub-agent's answer\0", "done\0"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_responses(streamed: bool) -> None:
    openai = client("openai")
    session = session_of(Script(say), problem=PLAIN)
    tools = [{"type": "function", "name": "read", "parameters": READ}]
    async with served(session) as (url, key):
        api = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)

        async def ask(items: Any, **more: Any) -> Any:
            given = {"model": "m", "input": items, "tools": tools, **more}
            if not streamed:
                return await api.responses.create(**given)
            async with api.responses.stream(**given) as stream:
                return await stream.get_final_response()

        made = await ask("use tools")
        items: list[Any] = [{"role": "user", "content": "use tools"}]
        items += [item.model_dump(exclude_none=True) for item in made.output]
        calls = [item for item in made.output if item.type == "function_call"]
        assert made.output_text == "I read."
        for call, output in zip(calls, ("x = 1", "boom"), strict=True):
            answer = {"type": "function_call_output", "call_id": call.call_id, "output": output}
            items.append(answer)
        made = await ask(items)
        for text in ("go on", "sum up"):
            made = await ask(text, previous_response_id=made.id)
        await ask("sub-agent")
        await ask("x", instructions=made.output_text)
        with pytest.raises(openai.NotFoundError, match="no answer 'resp_99'"):
            await ask("x", previous_response_id="resp_99")
        await api.close()
    found, texts = ended(session)
    assert found == KINDS
    assert texts == [MAIN, "sub-agent's answer\0", "done\0"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_anthropic_messages(streamed: bool) -> None:
    anthropic = client("anthropic")
    session = session_of(Script(say), problem=PLAIN)
    tools = [{"name": "read", "input_schema": READ}]
    async with served(session) as (url, key):
        api = anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)

        async def ask(messages: list[Any], **more: Any) -> Any:
            given = {"model": "m", "messages": messages, "tools": tools, "max_tokens": 50, **more}
            if not streamed:
                return await api.messages.create(**given)
            async with api.messages.stream(**given) as stream:
                return await stream.get_final_message()

        messages: list[Any] = [{"role": "user", "content": "use tools"}]
        made = await ask(messages)
        assert made.stop_reason == "tool_use"
        assert made.content[0].thinking == "two files"
        said = [block.model_dump(exclude_none=True) for block in made.content]
        messages.append({"role": "assistant", "content": said})
        calls = [block for block in made.content if block.type == "tool_use"]
        assert [call.input for call in calls] == [{"path": "a.py"}, {"path": "b.py"}]
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": output, "is_error": True}
            for call, output in zip(calls, ("x = 1", "boom"), strict=True)
        ]
        messages.append({"role": "user", "content": results})
        for text in ("go on", "sum up"):
            made = await ask(messages)
            messages.append({"role": "assistant", "content": made.content[0].text})
            messages.append({"role": "user", "content": text})
        made = await ask(messages)
        counted = await api.messages.count_tokens(model="m", messages=messages, tools=tools)
        assert counted.input_tokens == made.usage.input_tokens
        await ask([{"role": "user", "content": "sub-agent"}])
        await ask([{"role": "user", "content": "x"}], system=made.content[0].text)
        image = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": ""},
        }
        with pytest.raises(anthropic.BadRequestError, match="not supported: the policy reads text"):
            await ask([{"role": "user", "content": [image]}])
        await api.close()
    found, texts = ended(session)
    assert found == KINDS
    assert texts == [MAIN, "sub-agent's answer\0", "done\0"]
