"""Detectors of pathologies: replies that show one, and sound ones that look a little like it."""

from __future__ import annotations

import pytest

from engines.types import Message, Problem, Status, ToolCall, Transcript
from rewards.built_in_rewards import build
from rewards.pathologies import pathologies_in

pytestmark = pytest.mark.unit

ENGLISH = "How many apples are left?"


def reply(
    content: str,
    thought: str | None = None,
    *,
    asked: str = ENGLISH,
    thinking: bool | None = None,
    status: Status = Status.COMPLETED,
) -> Transcript:
    problem = Problem("p", "d", (Message("user", asked),), thinking=thinking)
    return Transcript(problem, (Message("assistant", content, thought),), status, 5)


LOOP = "I need to check this again. " * 12
REFUSAL = "I'm sorry, but I cannot help with that. "


@pytest.mark.parametrize(
    ("transcript", "name"),
    [
        (reply("So we 计算 the rest and get 4."), "language-mixing"),
        (reply("4.", "First we take two. Затем остаётся four."), "language-mixing"),
        (reply("남은 사과는 因此 넷입니다.", asked="사과는 몇 개 남았나요?"), "language-mixing"),
        (reply("还剩四个, because we had to eat two.", asked="还剩几个?"), "language-mixing"),
        (reply("Осталось четыре яблока."), "language-mixing"),
        (reply("4 因此", asked="You are a large language model. Add two."), "language-mixing"),
        (reply(LOOP), "repetition"),
        (reply("4.", LOOP), "repetition"),
        (reply("我们再算一次。" * 20, asked="还剩几个苹果?"), "repetition"),
        (reply("a" * 60), "repetition"),
        (reply("A" + "再算一次" * 30, asked="还剩几个苹果?"), "repetition"),
        (reply("The answer is 4.\n" * 20, status=Status.TRUNCATED), "repetition"),
        (reply("4.</think>"), "broken-format"),
        (reply("<tool_call>{}"), "broken-format"),
        (reply("4 <|im_start|>"), "broken-format"),
        (reply(" \n"), "broken-format"),
        (reply("```python\nprint(4)\n"), "broken-format"),
        (reply("4", status=Status.MALFORMED), "broken-format"),
        (reply("4", " \n", thinking=True), "empty-thought"),
        (reply("4", thinking=True), "empty-thought"),
        (reply("Let me see,", thinking=True, status=Status.TRUNCATED), "endless-thought"),
        (reply("<think>Let me see,", status=Status.TRUNCATED), "endless-thought"),
        (reply(REFUSAL * 4), "refusal-loop"),
        (reply("I can't help. I won't assist. As an AI, no. I am unable to."), "refusal-loop"),
    ],
)  # fmt: skip
def test_a_broken_reply_shows_its_pathology_alone(transcript, name):
    assert pathologies_in(transcript) == [name]


VERSE = "Row, row, row your boat,\nGently down the stream.\nMerrily, merrily, merrily, merrily,\n"
TABLE = "| name | a | b |\n|------|---|---|\n" + "".join(
    f"| row {i} | yes | yes |\n" for i in range(40)
)
BOARD = (
    "```python\nboard = [\n"
    + "    [None, None, None, None, None, None, None, None],\n" * 8
    + "]\n```"
)


@pytest.mark.parametrize(
    "transcript",
    [
        reply("There are 4 apples left."),
        reply(r"$\alpha + \beta = 2\pi$, so α + β = 2π, αβγ > 0 and ΔE = 5 Ω."),
        reply("“яблоко” means apple, and 苹果 (`苹果`) too.", asked="What is яблоко, or 苹果?"),
        reply("Say Здравствуйте to everybody.", asked="How do I greet people in Russian?"),
        reply("Philosophy comes from Greek φιλοσοφία.", asked="What is philosophy?"),
        reply("Kyoto (京都) was the capital, and **東京** is it today.", asked="Which one was it?"),
        reply("Осталось четыре яблока.", asked="Translate: four apples are left."),
        reply("用 Python 写一个 for loop 即可。", asked="怎么写循环?"),
        reply("还剩四个。", "Two of the six are taken, so four are left.", asked="还剩几个?"),
        reply("リンゴは四個残っています。東京のリンゴです。", asked="リンゴは何個残っていますか?"),
        reply("Es bleiben vier Äpfel übrig, très bien, ¿no?"),
        reply("```python\nname = 'яблоко'  # яблоко\nprint(name)\n```"),
        reply(VERSE * 3),
        reply(TABLE),
        reply(BOARD),
        reply("0.0 0.0 0.0 0.0\n" * 40),
        reply("\n".join(f"{i} bottles on the wall, take one down." for i in range(99, 0, -1))),
        reply("=" * 80 + "\n" + ". " * 100 + "\n" + "-" * 80),
        reply("- yes\n- no\n- yes\n- no\n- yes\n- no"),
        reply("Models think between `<think>` and `</think>`:\n```xml\n<think>so</think>\n```"),
        reply("4", "Six less two.", thinking=True),
        reply("4", thinking=False),
        reply("", status=Status.TRUNCATED),
        reply("```python\nprint(4", status=Status.TRUNCATED),
        reply("The answer is", "Six less two.", thinking=True, status=Status.TRUNCATED),
        reply(REFUSAL + "I can tell you how locks work, and I cannot stress enough how few open."),
        reply("4", "I can't share it. I cannot do that. I can't help it. I won't answer this."),
        Transcript(Problem("p", "d", ()), (Message("assistant", "", "", (ToolCall("f", {}),)),),
                   Status.COMPLETED, 5),
    ],
)  # fmt: skip
def test_a_sound_reply_shows_none(transcript):
    assert pathologies_in(transcript) == []


async def test_the_reward_takes_one_for_any_pathology_and_says_which():
    verdict = await build("pathologies")(reply(LOOP + "</think>"))
    assert (verdict.score, verdict.reason) == (-1.0, "shows repetition, broken-format")
    assert [kind for kind, value in verdict.parts.items() if value] == [
        "repetition",
        "broken-format",
    ]
    only = await build("pathologies", {"kinds": ["refusal-loop"]})(reply(LOOP))
    assert (only.score, only.parts, only.reason) == (0.0, {"refusal-loop": 0.0}, "")
