"""Whether a model thinks: what templates of every kind allow, and what is asked of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.chat import Chat
from engines.chat.mode import FREELY, STAND_IN, Mode, Thoughts, mode_of
from engines.chat.template import ChatTemplate
from engines.rollout.drivers.driver import Conversation, LiveDomain
from engines.rollout.roller import Roller
from engines.types import Demonstration, Generation, Message, Problem, Rollout, Sampling
from engines.weight_versions import WeightVersions
from infra.errors import InputError
from rewards.math import Math
from rewards.rubric import Rubric, Term
from tests.parts.chat_parts import (
    LLAMA_TOKENS,
    QWEN_TOKENS,
    THOUGHT_TEMPLATES,
    chat_folder,
    random_base,
)

pytestmark = pytest.mark.unit

KINDS = {
    "qwen3": Mode("t", Thoughts.SWITCHED, "enable_thinking", True),
    "deepseek-v31": Mode("t", Thoughts.SWITCHED, "thinking", False),
    "granite": Mode("t", Thoughts.SWITCHED, "thinking", False),
    "r1": Mode("t", Thoughts.ALWAYS, "", True),
    "r1-in-text": Mode("t", Thoughts.FREE),
    "llama": Mode("t", Thoughts.NONE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_template_does_about_thoughts_is_found_by_rendering(kind: str) -> None:
    text, expected = THOUGHT_TEMPLATES[kind], KINDS[kind]
    assert mode_of(ChatTemplate(text, "t", {"bos_token": "<|begin|>"})) == expected


SHIPPED = {
    "qwen2_5": (Thoughts.NONE, "", False),
    "qwen3": (Thoughts.SWITCHED, "enable_thinking", True),
    "qwen3_instruct_2507": (Thoughts.NONE, "", False),
    "qwen3_5_nothink": (Thoughts.SWITCHED, "enable_thinking", False),
    "qwen3_5_think": (Thoughts.SWITCHED, "enable_thinking", True),
    "nemotron_3_nano": (Thoughts.SWITCHED, "enable_thinking", True),
    "glm4moe": (Thoughts.SWITCHED, "enable_thinking", True),
    "deepseek_r1_distill": (Thoughts.ALWAYS, "", True),
    "gemma4": (Thoughts.FOREIGN, "enable_thinking", False),
    "gptoss": (Thoughts.CHANNEL, "", False),
    "llama3": (Thoughts.NONE, "", False),
    "phi3": (Thoughts.NONE, "", False),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_what_real_templates_do_about_thoughts(name: str) -> None:
    trl = pytest.importorskip("trl")
    text = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    mode = mode_of(ChatTemplate(text, name, {"bos_token": "<s>", "eos_token": "</s>"}))
    assert (mode.thoughts, mode.switch, mode.default) == SHIPPED[name]


def test_our_random_base_does_not_think_unless_asked(tmp_path: Path) -> None:
    mode = Chat.load(random_base(tmp_path)).mode
    assert (mode.thoughts, mode.switch, mode.default) == (
        Thoughts.SWITCHED, "enable_thinking", False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("thoughts", "asked_on", "asked_off", "not_said"),
    [
        (Thoughts.SWITCHED, True, False, False),
        (Thoughts.ALWAYS, True, "always|opens a thought in every turn", True),
        (Thoughts.FREE, True, False, None),
        (Thoughts.CHANNEL, True, False, None),
        (Thoughts.NONE, True, False, None),
        (Thoughts.FOREIGN, "other than <think>", False, False),
    ],
)
def test_what_is_asked_is_done_or_refused_by_name(
    thoughts: Thoughts, asked_on: Any, asked_off: Any, not_said: Any
) -> None:
    mode = Mode("chat_template.jinja", thoughts)
    for asked, expected in ((True, asked_on), (False, asked_off), (None, not_said)):
        problem = Problem("p/1", "test", (Message("user", "u"),), thinking=asked)
        if isinstance(expected, str):
            with pytest.raises(InputError, match=f"p/1: `thinking: .*{expected}"):
                mode.decided(problem)
        else:
            assert mode.decide(asked) is expected
            assert mode.decided(problem) == replace(problem, thinking=expected)


@pytest.mark.parametrize(
    ("kind", "thought", "closing"),
    [
        ("qwen3", "<think>\nwell", "\n</think>\n\n"),
        ("qwen3", "<think>\nwell\n", "</think>\n\n"),
        ("deepseek-v31", "well", "</think>"),
        ("granite", "<think>well", "</think>"),
        ("r1", "well", "\n</think>\n\n"),
        ("r1-in-text", "<think>\nwell", "\n</think>\n\n"),
    ],
)
def test_a_thought_that_is_open_is_closed_as_the_template_does(
    kind: str, thought: str, closing: str, tmp_path: Path
) -> None:
    tokens, end = (QWEN_TOKENS, "<|im_end|>") if kind == "qwen3" else (LLAMA_TOKENS, "<|eot|>")
    chat = Chat.load(chat_folder(tmp_path, THOUGHT_TEMPLATES[kind], tokens, end))
    asked = chat.decided(Problem("p/1", "test", (Message("user", "u"),), thinking=True))
    assert chat.may_think(asked)
    said = chat.text_ids(thought)
    assert chat.open_thought(asked, []) is (None if thought.startswith("<think>") else True)
    assert chat.open_thought(asked, said) is True
    assert chat.open_thought(asked, chat.text_ids("42")) is not None
    ended = [*said, *chat.thought_closing_ids(said)]
    assert chat.decode(ended) == thought + closing
    assert chat.open_thought(asked, ended) is False
    assert chat.thought_end_ids == tuple(chat.text_ids("</think>"))
    parsed = chat.parse(asked, [*ended, *chat.text_ids("42"), chat.stop_token_ids[0]])
    assert (parsed.content, parsed.error) == ("42", "")
    assert (parsed.reasoning or "").strip() == "well"


def test_a_choice_that_may_not_work_is_cautioned() -> None:
    for thoughts in Thoughts:
        mode = Mode("t", thoughts)
        assert mode.caution(None) == ""
        assert bool(mode.caution(True)) == (thoughts is Thoughts.NONE)
        assert bool(mode.caution(False)) == (thoughts in FREELY)


def test_a_demonstration_is_trained_after_the_header_that_rollouts_have(tmp_path: Path) -> None:
    """A template that always opens a thought: without one, another prefix would be trained."""
    chat = Chat.load(chat_folder(tmp_path, THOUGHT_TEMPLATES["r1"], LLAMA_TOKENS, "<|eot|>"))
    asked = Problem("p/1", "test", (Message("user", "12+30"),))
    shown = Demonstration(asked, (Message("assistant", "\\boxed{42}"),))
    decided = chat.mode.decided_demonstration(shown)
    assert decided.problem.thinking is True
    assert decided.turns[-1].reasoning == STAND_IN
    prompt = chat.prompt_ids(decided.problem)
    tokens, mask = chat.training_ids(decided.problem, decided.turns)
    assert tokens[: len(prompt)] == prompt
    assert mask == [0] * len(prompt) + [1] * (len(tokens) - len(prompt))
    own = replace(shown, turns=(Message("assistant", "\\boxed{42}", reasoning="12 and 30"),))
    assert chat.mode.decided_demonstration(own).turns == own.turns


def test_a_thought_of_a_template_that_closes_it_before_each_turn(tmp_path: Path) -> None:
    """DeepSeek-V3.1 writes `</think>` before every turn, and drops what was thought."""
    template = THOUGHT_TEMPLATES["deepseek-v31"]
    chat = Chat.load(chat_folder(tmp_path, template, LLAMA_TOKENS, "<|eot|>"))
    asked = Problem("p/1", "test", (Message("user", "u"),), thinking=True)
    tokens, mask = chat.training_ids(asked, (Message("assistant", "C", reasoning="R"),))
    trained = [token for token, is_trained in zip(tokens, mask, strict=True) if is_trained]
    assert chat.decode(chat.prompt_ids(asked)).endswith("<|start|>assistant<|end|><think>")
    assert chat.decode(trained) == "R</think>C<|eot|>"
    assert chat.parse(asked, trained).reasoning == "R"
    assert chat.parse(asked, trained).content == "C"


def test_a_mark_that_the_header_writes_before_a_turn_without_a_thought_is_not_trained_on(
    tmp_path: Path,
) -> None:
    """DeepSeek-V3.1's lone `</think>`, in a conversation of which another turn has a thought."""
    template = THOUGHT_TEMPLATES["deepseek-v31"]
    chat = Chat.load(chat_folder(tmp_path, template, LLAMA_TOKENS, "<|eot|>"))
    said = [Message("user", "u"), Message("assistant", "C"), Message("user", "v")]
    text = chat.training_text([*said, Message("assistant", "D", "R")], (), thinking=True)
    tokens, mask = chat.masked_ids([text])[0]
    trained = [token for token, is_trained in zip(tokens, mask, strict=True) if is_trained]
    assert chat.decode(trained) == "C<|eot|>R</think>D<|eot|>"


@pytest.mark.parametrize(
    ("kind", "asked", "said", "score"),
    [
        ("r1", None, "it is 42\n</think>\n\n\\boxed{42}", 1.0),
        ("r1", None, "it is 42\n</think>\n\n\\boxed{41}", 0.0),
        ("r1", True, "it is 42\n</think>\n\n\\boxed{42}", 1.0),
        ("r1-in-text", None, "<think>\nit is 42\n</think>\n\n\\boxed{42}", 1.0),
        ("r1-in-text", None, "\\boxed{42}", 1.0),
        ("r1-in-text", False, "<think>\nit is 42\n</think>\n\n\\boxed{42}", 0.0),
        ("qwen3", None, "\\boxed{42}", 1.0),
        ("qwen3", True, "<think>\nit is 42\n</think>\n\n\\boxed{42}", 1.0),
        ("qwen3", True, "\\boxed{42}", 0.0),
        ("deepseek-v31", True, "it is 42</think>\\boxed{42}", 1.0),
        ("deepseek-v31", None, "\\boxed{42}", 1.0),
        ("llama", None, "<think>it is 42</think>\\boxed{42}", 1.0),
        ("llama", None, "\\boxed{42}", 1.0),
        ("llama", True, "\\boxed{42}", 0.0),
    ],
)
async def test_a_right_answer_in_the_template_s_own_form_is_right(
    tmp_path: Path, kind: str, asked: bool | None, said: str, score: float
) -> None:
    rollout = await _rolled(tmp_path, THOUGHT_TEMPLATES[kind], asked, said)
    assert rollout.samples[0].reward == score
    judged = rollout.transcript.problem.thinking
    assert judged is Chat.load(tmp_path).mode.decide(asked)


async def _rolled(folder: Path, template: str, asked: bool | None, said: str) -> Rollout:
    """By the real roller, of a policy that says this."""
    tokens = LLAMA_TOKENS if "<|eot|>" in template else QWEN_TOKENS
    end = "<|eot|>" if "<|eot|>" in template else "<|im_end|>"
    chat = Chat.load(chat_folder(folder, template, tokens, end))
    problem = Problem(
        "p/1", "test", (Message("user", "12+30"),), reference={"answer": "42"}, thinking=asked
    )
    ids = [*chat._encode(said), chat.vocabulary[end]]

    async def generate(prompt_ids: Any, sampling: Sampling) -> Generation:
        versions = WeightVersions.of_runs([(0, len(ids))])
        logprobs = np.full(len(ids), -1.0, np.float32)
        return Generation(np.array(ids, np.int32), logprobs, versions, "stop")

    curriculum: Any = None
    domain = LiveDomain(
        "test", curriculum, Rubric([Term("math", 1.0, True, Math())]), Conversation(None), 400
    )
    roller = Roller(generate=generate, chat=chat, context_length=4096, seed=0)
    (rollout,) = await roller.roll_group(
        domain, problem, 1, temperature=1.0, group_id="g", seed_name="g"
    )
    return rollout
