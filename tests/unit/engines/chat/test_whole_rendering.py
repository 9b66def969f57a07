"""Tokens of real templates against transformers' own rendering of the whole conversation.

Templates are those that TRL ships. Each writes twenty conversations with tokenizers of several
kinds; what is trained and what is prompted must be what transformers makes of the same messages, or
be refused for a reason that the template gives.
"""

from __future__ import annotations

import datetime
import re
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from engines.chat import Chat
from engines.chat.mode import Thoughts
from engines.chat.template import DATE
from engines.chat.training_text import TrainingText
from engines.types import Message, Problem
from infra.errors import InputError
from tests.parts.whole_rendering import Talk, TokenizerKind, by_transformers, talks, write_folder

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.unit
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
FAMILIES = {
    "cohere": 11, "cohere2": 11, "deepseek_r1_distill": 16, "deepseekv3": 17, "gemma": 9,
    "gemma3": 11, "glm4moe": 19, "glm4moe_training": 19, "gptoss": 17, "lfm2": 11, "lfm2_2_5": 19,
    "llama3": 11, "llama3_1": 14, "llama3_2": 14, "nemotron_3_nano": 19, "nemotron_3_super": 19,
    "phi3": 11, "phi3_5": 11, "phi3_training": 11, "qwen2_5": 16, "qwen2_5_training": 16,
    "qwen3": 18, "qwen3_5_think": 19, "qwen3_8": 20, "qwen3_instruct_2507": 16,
    "qwen3_training": 20, "qwen3_vl": 16, "diffusion_gemma": 17, "gemma4": 15, "gemma4_v5": 18,
    "idefics3": 0, "lfm2_v2": 16, "muse_glimmer": 19, "nemotron_3_5_lightning": 19,
    "qwen2_5_vl": 11, "qwen3_5_nothink": 19, "qwen3_6": 19,
}  # fmt: skip
"""how many of the twenty conversations each can write without a loss"""
KINDS: tuple[TokenizerKind, ...] = ("bytes", "prepend", "first", "always", "words")
KEEPS_EMPTY_THOUGHTS = ("qwen3", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6")
"""that drop the empty thoughts of earlier turns, which rollouts have"""
WRITES_NO_THOUGHT = ("deepseek_r1_distill", "deepseekv3")
"""whose thoughts are written as the model writes them"""
CHANNELS = ("gptoss",)
"""whose turns end otherwise once a message follows, and lose thoughts of calls once it answers"""
EMPTY = re.compile(r"<think> ?\n\n ?</think> ?\n\n|<think> </think> ")
REASONS = re.compile(
    r"the chat template (drops the turn's (text|thought|tool calls)|does not keep the prefix"
    r"|cannot render the turns|writes the text of a turn with calls as its thought)"
)


class _Day(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> _Day:
        return cls(DATE.year, DATE.month, DATE.day)


@pytest.fixture(autouse=True)
def _that_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", _Day)


def _cases() -> list[tuple[str, TokenizerKind]]:
    """Every family with bytes and with one other kind."""
    return [
        (name, kind) for n, name in enumerate(FAMILIES) for kind in (KINDS[0], KINDS[1 + n % 4])
    ]


@pytest.mark.parametrize(("family", "kind"), _cases())
def test_tokens_are_those_of_the_whole_rendering(
    tmp_path: Path, family: str, kind: TokenizerKind
) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = write_folder(tmp_path, (TEMPLATES / f"{family}.jinja").read_text(), kind)
    chat, theirs = Chat.load(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    is_same = partial(_is_same, chat, may_differ=family in KEEPS_EMPTY_THOUGHTS)
    written = 0
    for talk in talks():
        text = _text_or_reason(chat, talk)
        if isinstance(text, str):
            assert REASONS.search(text), (talk.name, text)
            continue
        written += 1
        ids, mask = chat.masked_ids([text])[0]
        drops = talk.thinking and (
            family in WRITES_NO_THOUGHT or (family in CHANNELS and talk.tools)
        )
        if not drops:
            whole = by_transformers(theirs, talk)
            if whole is None:  # it leaves calls out unless their message has a null as its text
                assert (family, bool(talk.tools)) == ("deepseek_r1_distill", True)
            else:
                assert is_same(ids[:-1], whole), (talk.name, chat.decode(ids), chat.decode(whole))
        _check_mask(chat, talk, ids, mask, is_exact=kind == "bytes")
        if (not talk.tools or chat.can_call_tools) and chat.mode.thoughts is not Thoughts.ALWAYS:
            _check_rollout(chat, theirs, talk, ids, mask, is_same)
    assert written == FAMILIES[family]


def _text_or_reason(chat: Chat, talk: Talk) -> TrainingText | str:
    try:
        return chat.training_text(talk.messages, talk.tools, thinking=talk.thinking)
    except InputError as error:
        return str(error)


def _is_same(chat: Chat, ours: list[int], theirs: list[int], *, may_differ: bool) -> bool:
    """Ours may end before white space; an end token that nobody else writes is left out."""
    if ours == theirs[: len(ours)]:
        return True
    texts = [EMPTY.sub("", chat.decode(ids)) for ids in (ours, theirs)]
    return may_differ and texts[1].startswith(texts[0])


def _runs(ids: list[int], mask: list[int]) -> list[list[int]]:
    pairs = zip(ids, mask, strict=True)
    return [[i for i, _ in run] for on, run in groupby(pairs, key=lambda pair: pair[1]) if on]


def _check_mask(chat: Chat, talk: Talk, ids: list[int], mask: list[int], *, is_exact: bool) -> None:
    """Each turn is one run that holds its text and ends with a stop token."""
    turns = [message for message in talk.messages if message.role == "assistant"]
    runs = _runs(ids, mask)
    assert len(runs) == len(turns), talk.name
    others = [m.content for m in talk.messages if m.role == "system"]
    for turn, run in zip(turns, runs, strict=True):
        said = chat.decode(run)
        assert not any(other in said for other in others)
        if is_exact:
            assert turn.content.strip() in said
            assert EMPTY.match(said) is None
        is_open = chat.mode.thoughts is Thoughts.CHANNEL and not turn.tool_calls
        if (chat.can_call_tools or not turn.tool_calls) and not (is_open and turn is not turns[-1]):
            assert run[-1] in chat.stop_token_ids
            assert run[-2] not in chat.stop_token_ids


def _check_rollout(
    chat: Chat, theirs: Any, talk: Talk, ids: list[int], mask: list[int], is_same: Any
) -> None:
    """Prompts, and what a rollout appends to a turn that its model wrote as it is trained."""
    turns = [at for at, message in enumerate(talk.messages) if message.role == "assistant"]
    problem = Problem("p", "d", talk.messages[: turns[0]], None, talk.tools, talk.thinking)
    prompt = chat.prompt_ids(problem)
    assert prompt == by_transformers(theirs, talk, turns[0]), talk.name
    ends = [at + 1 for at in range(len(ids)) if mask[at] and not [*mask, 0][at + 1]]
    for at, following, end in zip(turns, turns[1:], ends, strict=False):
        said, new = talk.messages[at], talk.messages[at + 1 : following]
        more = chat.continuation_ids(problem, [said], new, ids[end - 1])
        rolled, whole = [*ids[:end], *more], by_transformers(theirs, talk, following)
        assert whole is not None
        shown = (talk.name, chat.decode(rolled), chat.decode(whole))
        assert is_same(rolled, whole), shown
        assert is_same(whole, rolled), shown


def test_a_date_is_always_the_same_day_and_recorded_as_such(tmp_path: Path) -> None:
    text = (TEMPLATES / "llama3_2.jinja").read_text()
    chat = Chat.load(write_folder(tmp_path, text, "bytes"))
    prompt = chat.decode(chat.prompt_ids(Problem("p", "d", (Message("user", "Hi"),))))
    assert "Today Date: 26 Jul 2024" in prompt
