"""Model folders with a small tokenizer and a chat template of each kind that models come with."""

from __future__ import annotations

import json
from pathlib import Path

from engines.types import Message, Problem, Tool

SEARCH = Tool("search", "Search the index.", {"q": "string", "n": "integer"}, ("q",))
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]

# Qwen3's own logic: a thought stays only after the last user message, and a last turn without a
# thought gets an empty one.
QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + '\\n' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = message.reasoning_content or '' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n' if message.content or not loop.first }}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

LLAMA = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start|>' + message.role + '<|end|>\\n\\n' + message.content | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""

_TURNS = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|start|>assistant<|end|>' + BEFORE + message.content.split('</think>')[-1] }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|end|>' + message.content }}
    {%- endif %}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>' + OPEN }}
{%- endif %}
"""

# As of DeepSeek-R1's distilled models: the header opens the thought, and turns are written without.
R1_IN_HEADER = _TURNS.replace("BEFORE", "''").replace("OPEN", "'<think>\\n'")
# As they were at first: the model opens its thought itself.
R1_IN_TEXT = _TURNS.replace("BEFORE", "''").replace("OPEN", "''")
# The switch has another name, and is off when it is not given.
DEEPSEEK_V31 = "{% if not thinking is defined %}{% set thinking = false %}{% endif %}" + (
    _TURNS.replace("BEFORE", "'</think>'").replace(
        "OPEN", "('<think>' if thinking else '</think>')"
    )
)
# A switch that asks for a thought in the system's words, which the model then opens itself.
GRANITE = (
    "{% if thinking %}{{ '<|start|>system<|end|>Think in <think></think>.<|eot|>' }}{% endif %}"
    + (R1_IN_TEXT)
)

NOT_A_PREFIX = """\
{%- for message in messages %}
    {{- '<|start|>' + message.role + '<|end|>' }}
    {{- message.content if loop.last else '(left out)' }}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>' }}
{%- endif %}
"""

THOUGHT_TEMPLATES = {
    "qwen3": QWEN3,
    "deepseek-v31": DEEPSEEK_V31,
    "granite": GRANITE,
    "r1": R1_IN_HEADER,
    "r1-in-text": R1_IN_TEXT,
    "llama": LLAMA,
}
"""one of each way to treat thoughts"""
LLAMA_TOKENS = ["<|begin|>", "<|start|>", "<|end|>", "<|eot|>"]
QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def chat_folder(folder: Path, template: str, special: list[str], eos: str) -> Path:
    """A folder that holds what chat needs; every byte is a token, tags and specials are one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAGS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": eos, "bos_token": special[0], "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def random_base(folder: Path, experts: int = 0) -> Path:
    """A small random base: its tokenizer knows the lexicon and no other text."""
    from tasks.base.random_model import write_random_model
    from tasks.base.spec import RandomModel

    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"hidden_size": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "ffn_size": 32}
    shape = RandomModel(**sizes, layers=2 if experts else 1, experts=experts)
    write_random_model(folder, shape, [], seed=0)
    return folder


def problem(
    text: str = "12+30", *, thinking: bool = False, tools: tuple[Tool, ...] = ()
) -> Problem:
    return Problem("p/1", "test", (Message("user", text),), tools=tools, thinking=thinking)
