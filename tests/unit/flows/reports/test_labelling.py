"""`tributary label`: a person's choices become rows that preference stages read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from curricula.rows.pair_columns import PairColumns
from curricula.rows.pairs import read_judged
from engines.rollout.records.dataset import DistilledRow
from engines.types import Message, Problem, Tool, ToolCall
from flows.reports.labelling import Comparison, LabelPage, Labels, comparisons_of
from infra.errors import InputError
from tests.parts.recorded_run import RecordedRun, exit_code

pytestmark = pytest.mark.unit


def answered(problem: Problem, text: str, model: str = "a-rl", thought: str = "") -> DistilledRow:
    turns = (Message("assistant", text, thought or None),)
    return DistilledRow([1, 2], [0, 1], problem, turns, model, "9f" * 32, 0, 0, {"outcome": 1.0})


def asked(number: int, tools: tuple[Tool, ...] = (), domain: str = "general") -> Problem:
    messages = (Message("system", "Be short."), Message("user", f"<b>{number}</b>?"))
    return Problem(f"p/{number}", domain, messages, tools=tools)


def pairs(count: int = 4) -> list[Comparison]:
    rows = [answered(asked(n), f"{text} {n}") for n in range(count) for text in ("yes", "no")]
    return comparisons_of(rows)[0]


def test_a_pair_is_two_different_answers_to_one_problem() -> None:
    tool = Tool("look", "", {"at": "string"})
    called = Message("assistant", "", tool_calls=(ToolCall("look", {"at": "sea"}),))
    seen = (called, Message("tool", "blue"), Message("assistant", "blue"))
    rows = [
        *(answered(asked(1), text) for text in ("same", "same")),
        *(answered(asked(2, domain=domain), f"{domain} {n}") for domain in "ab" for n in "12"),
        *(answered(asked(3), text) for text in ("one", "one", "two", "three")),
        *(answered(asked(4), text) for text in ("", "no stage learns nothing")),
        *(answered(asked(6), "same", thought=thought) for thought in ("one", "two")),
        answered(asked(5, (tool,)), "green"),
        replace(answered(asked(5, (tool,)), ""), turns=seen),
    ]
    found, left_out = comparisons_of(rows)
    said = {
        frozenset(side.messages[-1].content for side in (each.left, each.right)) for each in found
    }
    pairs_of_texts = (("a 1", "a 2"), ("b 1", "b 2"), ("one", "two"), ("green", "blue"))
    assert said == set(map(frozenset, pairs_of_texts))
    assert left_out == 3
    (with_tool,) = (each for each in found if each.problem.tools)
    read = read_judged(with_tool.row("left", "ada"), PairColumns(), "auto")
    assert read.answers[0].messages[2:] in (seen, (Message("assistant", "green"),))
    assert read.answers[0].tools[0].name == "look"


def test_sides_and_order_hang_on_the_problems_alone_and_not_on_who_wrote_first() -> None:
    found = pairs(64)
    lefts = sum(each.left.messages[0].content.startswith("yes") for each in found)
    assert 20 <= lefts <= 44, "the first answer stands on either side"
    numbers = [int(each.problem.id.partition("/")[2]) for each in found]
    assert numbers != sorted(numbers)
    assert found == pairs(64)
    shown = json.dumps(found[0].shown())
    assert "a-rl" not in shown
    assert "outcome" not in shown


async def said(page: LabelPage, path: str, body: Any = None) -> Any:
    transport = httpx.ASGITransport(page.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        reply = await (client.get(path) if body is None else client.post(path, json=body))
    return reply.json() if reply.is_success else reply.status_code


async def test_choices_are_rows_that_preference_stages_read(tmp_path: Path) -> None:
    to = tmp_path / "pairs.jsonl"
    first, second, third, fourth = pairs()
    labels = Labels(to, "ada")
    page = LabelPage([first, second, third, fourth], labels)
    told = await said(page, "/next")
    assert (told["done"], told["all"], told["pair"]) == (0, 4, first.shown())
    told = await said(page, "/choose", {"id": first.id, "choice": "left"})
    assert told["pair"] == second.shown()
    await said(page, "/choose", {"id": second.id, "choice": "right"})
    await said(page, "/choose", {"id": second.id, "choice": "left"})
    told = await said(page, "/choose", {"id": third.id, "choice": "skip"})
    assert (told["done"], told["pair"]) == (3, fourth.shown())

    rows = [json.loads(line) for line in to.read_text().splitlines()]
    wanted = [(first, first.left, first.right), (second, second.right, second.left)]
    assert len(rows) == len(wanted), "a second choice about one pair counts nothing"
    for row, (pair, better, worse) in zip(rows, wanted, strict=True):
        read = read_judged(row, PairColumns(), "auto")
        assert read.pairs == ((0, 1, 0.0),)
        assert read.answers[0].messages == (*pair.problem.messages, *better.messages)
        assert read.answers[1].messages == (*pair.problem.messages, *worse.messages)
        assert row["labelled"].keys() == {
            "id", "by", "at", "problem", "chosen_model", "rejected_model",
        }  # fmt: skip
        assert (row["labelled"]["by"], row["labelled"]["id"]) == ("ada", pair.id)
        assert row["labelled"]["chosen_model"] == "a-rl 9f9f9f9f9f9f"

    with pytest.raises(InputError, match="another session writes to it"):
        Labels(to, "bob")
    labels.close()
    again = LabelPage(pairs(), Labels(to, "bob"))
    told = await said(again, "/next")
    assert (told["done"], told["pair"]) == (3, fourth.shown()), "a later session goes on"


async def test_the_last_choices_of_a_session_can_be_taken_back(tmp_path: Path) -> None:
    to = tmp_path / "pairs.jsonl"
    first, second, *_ = pairs()
    before = Labels(to, "ada")
    await said(LabelPage(pairs(), before), "/choose", {"id": first.id, "choice": "right"})
    before.close()
    kept = to.read_text()
    page = LabelPage(pairs(), Labels(to, "ada"))
    await said(page, "/choose", {"id": second.id, "choice": "skip"})
    assert (await said(page, "/undo", {}))["pair"] == second.shown()
    await said(page, "/choose", {"id": second.id, "choice": "left"})
    assert (await said(page, "/undo", {}))["pair"] == second.shown()
    assert (await said(page, "/undo", {}))["pair"] == second.shown(), "not one of another session"
    assert to.read_text() == kept


async def test_lines_that_only_unicode_ends_are_no_lines_of_the_file(tmp_path: Path) -> None:
    to = tmp_path / "pairs.jsonl"
    rows = [answered(asked(1), text) for text in ("a\u2028b", "c\u0085d\u2029")]
    found, _ = comparisons_of(rows)
    labels = Labels(to, "ada")
    await said(LabelPage(found, labels), "/choose", {"id": found[0].id, "choice": "left"})
    labels.close()
    labels = Labels(to, "ada")
    assert [*labels.done] == [found[0].id]
    labels.undo()
    assert to.read_bytes().count(b"\n") == 1
    labels.close()


def test_other_answers_to_a_problem_are_another_pair() -> None:
    first, again = (
        comparisons_of([answered(asked(1), f"{text}{n}") for text in ("yes", "no")])[0][0]
        for n in range(2)
    )
    assert first.id != again.id


async def test_a_thought_is_kept_with_its_answer(tmp_path: Path) -> None:
    rows = [answered(asked(1), text, thought=f"so {text}") for text in ("yes", "no")]
    ((pair,), _) = comparisons_of(rows)
    await said(
        LabelPage([pair], Labels(tmp_path / "a.jsonl", "ada")),
        "/choose",
        {"id": pair.id, "choice": "left"},
    )
    row = json.loads((tmp_path / "a.jsonl").read_text())
    read = read_judged(row, PairColumns(), "auto")
    assert read.answers[0].messages[-1] == pair.left.messages[0]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"id": "0", "choice": "both"}, 400),
        ({"id": "0", "choice": "left"}, 404),
        ([], 400),
        ({"id": "0", "choice": "left", "by": "eve"}, 400),
    ],
)
async def test_what_is_no_choice_is_refused(body: Any, status: int, tmp_path: Path) -> None:
    to = tmp_path / "pairs.jsonl"
    labels = Labels(to, "ada")
    assert await said(LabelPage(pairs(), labels), "/choose", body) == status
    labels.close()
    assert not to.exists(), "nothing was chosen"


async def test_a_choice_without_an_end_is_refused_as_it_comes(tmp_path: Path) -> None:
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 100:
            sent += 1
            yield b" " * 1024

    labels = Labels(tmp_path / "pairs.jsonl", "ada")
    given = httpx.Request("POST", "http://page/choose", content=pieces())
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(LabelPage(pairs(), labels).app)
    ) as client:
        assert (await client.send(given)).status_code == 400
    assert sent < 10
    labels.close()


@pytest.mark.parametrize(
    "data",
    [
        b"hello\n",
        b'{"id": "x", "prompt": "x", "chosen": "a", "rejected": "b"}\n',
        b"[1]\n",
        b"\xff\n",
    ],
)
def test_a_file_of_something_else_is_not_written_to(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_bytes(data)
    with pytest.raises(InputError, match=r"line 1 is no row of `tributary label`"):
        Labels(tmp_path / "pairs.jsonl", "ada")
    assert (tmp_path / "pairs.jsonl").read_bytes() == data


def test_a_file_that_cannot_be_written_is_refused_before_anybody_chooses() -> None:
    with pytest.raises(InputError, match="cannot be written"):
        Labels(Path("/proc/pairs.jsonl"), "ada")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["agent-rl", "--to", "a.jsonl"], "name a `distill` stage"),
        (["unified-distill", "--to", "a.jsonl"], "has no problem with two different answers"),
        ([], "needs --to"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_what_to_do(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    made = RecordedRun.of(tmp_path / "made").with_samples()
    named = [f"{made.run}/{words[0]}", *words[1:]] if words else []
    assert exit_code(["label", *named]) == 2
    assert told in capsys.readouterr().err
