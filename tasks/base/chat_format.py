"""The chat format of a random base: GLM's, reduced to what a tiny model can afford.

    <|system|>search                              names of the tools, or a system message
    <|user|>color of ant
    <|assistant|><think></think><tool_call>search<arg_key>q</arg_key><arg_value>ant</arg_value>
    </tool_call><|observation|>color red          (all on one line)
    <|assistant|><think></think>red<|endoftext|>

`enable_thinking` leaves the thought to the model; without it the header closes an empty thought,
which is the switch: no marker in the prompt. A turn that calls tools ends with `<|observation|>`,
any other with `<|endoftext|>`.
"""

from __future__ import annotations

END, PAD = "<|endoftext|>", "<pad>"
OBSERVATION, USER = "<|observation|>", "<|user|>"
SPECIAL_TOKENS = (END, PAD, "<|system|>", USER, "<|assistant|>", OBSERVATION)
TAGS = (
    *("<think>", "</think>"),
    *("<tool_call>", "</tool_call>"),
    *("<arg_key>", "</arg_key>"),
    *("<arg_value>", "</arg_value>"),
)
STOP_TOKENS = (END, OBSERVATION, USER)

TEMPLATE = """\
{%- if tools -%}
    <|system|>{{ tools | map(attribute='function') | map(attribute='name') | join(' ') }}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        <|observation|>{{ message.content }}
    {%- elif message.role == 'assistant' -%}
        <|assistant|><think>{{ message.reasoning_content or '' }}</think>{{ message.content }}
        {%- for call in message.tool_calls or [] -%}
            <tool_call>{{ call.function.name }}
            {%- for key, value in call.function.arguments.items() -%}
                <arg_key>{{ key }}</arg_key><arg_value>
                {{- value if value is string else value | tojson -}}
                </arg_value>
            {%- endfor -%}
            </tool_call>
        {%- endfor -%}
        {%- if not message.tool_calls -%}
            <|endoftext|>
        {%- endif -%}
    {%- else -%}
        <|{{ message.role }}|>{{ message.content }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{ '' if enable_thinking else '<think></think>' }}
{%- endif -%}
"""
