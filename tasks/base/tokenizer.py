"""The tokenizer of a random base, trained on the text of its curricula.

Digits stand alone, a run of letters stays together, any other character stands alone; words that
recur become one token. Below that lie the 256 bytes, so that every text encodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from curricula.vocabulary import LEXICON, PHRASES
from engines.types import Demonstration, Message
from infra.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


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


_PIECE = r"\p{N}|\p{L}+|[^\p{L}\p{N}]"
_BYTES = 256
_ADDED = (*TAGS, *PHRASES)
SMALLEST = _BYTES + len(SPECIAL_TOKENS) + len(_ADDED)
"""least vocabulary: bytes, special tokens, tags and phrases"""
_RECURS = 5
"""times that a word is seen before it may merge: random strings must stay characters"""


def train_tokenizer(demonstrations: Iterable[Demonstration], vocab_size: int) -> Tokenizer:
    """Train at most `vocab_size` tokens, the same for the same text. Raises InputError if too
    few."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < SMALLEST:
        raise InputError(
            f"base.random.vocab_size is {vocab_size}; bytes, special tokens and phrases alone need "
            f"{SMALLEST}: raise it (512 is a good size)"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(_ADDED),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_words(demonstrations), trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in _ADDED])
    return tokenizer


def _training_words(demonstrations: Iterable[Demonstration]) -> list[str]:
    """Recurring words, each as often as it was seen; the lexicon's as often as the commonest."""
    counts = Counter(word for d in demonstrations for text in _texts(d) for word in _words(text))
    most = max([_RECURS, *counts.values()])
    counts.update(dict.fromkeys(LEXICON, most))
    return [word for word in sorted(counts) for _ in range(counts[word]) if counts[word] >= _RECURS]


def _words(text: str) -> list[str]:
    for phrase in PHRASES:
        text = text.replace(phrase, "\n")
    return "".join(c if c.isalpha() else " " for c in text).split()


def _texts(demonstration: Demonstration) -> Iterator[str]:
    problem = demonstration.problem
    for tool in problem.tools:
        yield tool.name
    messages: Sequence[Message] = (*problem.messages, *demonstration.turns)
    for message in messages:
        yield message.content
        yield message.reasoning or ""
        for call in message.tool_calls:
            yield call.name
            for key, value in call.arguments.items():
                yield key
                yield str(value)
