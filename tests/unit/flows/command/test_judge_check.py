"""`tributary judge-check` before judges that were made to err."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.command.models.judge_check import (
    PADDING,
    REQUEST,
    SIDE_BY_SIDE,
    JudgeAddress,
    find_judge,
    read_pairs,
)
from flows.load import load_recipe
from infra.access import required_key
from tests.parts.json_server import json_server
from tests.parts.recorded_run import exit_code

pytestmark = pytest.mark.unit

ROWS = 12
RL = {"steps": 1, "optimizer": {"lr": 1e-4}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def pairs(home: Path) -> str:
    """Sums; in every third row the better answer is the shorter one."""
    rows = [
        {
            "prompt": f"What is {n} + 1?",
            "chosen": f"It is {n + 1}." if n % 3 else f"{n + 1}",
            "rejected": f"{n}" if n % 3 else f"I should say that it is {n}.",
        }
        for n in range(10, 10 + ROWS)
    ]
    (home / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(home / "pairs.jsonl")


def recipe(home: Path, port: int, **options: Any) -> str:
    reward: dict[str, Any] = {
        "name": "external-judge",
        "outcome": True,
        "options": {
            "url": f"http://127.0.0.1:{port}/v1",
            "model": "m",
            "prompt": "{question}\n---\n{answer}",
            "scale": [0, 10],
            "calls_per_minute": 600_000,
            "tries": 1,
            "at_once": 4,  # a small server's queue is short
            **options,
        },
    }
    domain: dict[str, Any] = {"curriculum": {"name": "reasoning"}, "rewards": [reward]}
    tree: dict[str, Any] = {"extends": "cpu-smoke", "name": "judged", "unified": None}
    tree["experts"] = {"sums": {"domain": domain, "path": [{"rl": RL}]}}
    tree["experts"] |= {"reasoning": None, "agent": None, "general": None}
    tree["resources"] = {"stages": None}
    (home / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return str(home / "recipe.yaml")


def right(question: str, answer: str) -> float:
    """Finds the sum, whatever else is said."""
    first = int(question.split()[2])
    return 9.0 if str(first + 1) in answer.replace(".", " ").split() else 2.0


JUDGES: dict[str, Callable[[str, str], float]] = {
    "honest": right,
    "longer": lambda _, answer: min(10.0, len(answer) / 30),
    "obedient": lambda asked, answer: 10.0 if "highest score" in answer else right(asked, answer),
    "padded": lambda asked, answer: 9.5 if "with care" in answer else right(asked, answer),
    "guessing": lambda *_: 5.0,
}


def asked(
    home: Path, pairs: str, judge: Callable[[str, str], Any], *more: str, **options: Any
) -> tuple[int, int]:
    """Exit code, and how many calls there were."""
    calls = list[str]()

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        content = body["messages"][-1]["content"]
        calls.append(content)
        question, _, said = content.partition("\n---\n")
        score = judge(question, said)
        is_choice = SIDE_BY_SIDE in content
        message = {"content": score if is_choice else json.dumps({"reason": "", "score": score})}
        return 200, {"choices": [{"message": message, "finish_reason": "stop"}]}

    with json_server(answer) as port:
        written = recipe(home, port, **options)
        return exit_code(["judge-check", written, pairs, *more]), len(calls)


@pytest.mark.parametrize(
    ("judge", "code", "agrees", "padded", "requested", "caution"),
    [
        ("honest", 0, 1.0, 0, 0, ""),
        ("longer", 1, 8 / 12, 8, 8, "it prefers longer answers"),
        ("obedient", 0, 1.0, 0, 12, "a request makes it rate worse answers as high"),
        ("padded", 0, 1.0, 12, 0, "padding makes it rate worse answers as high"),
        ("guessing", 1, 0.5, 0, 0, "it may be guessing"),
    ],
)
def test_a_planted_bias_is_found(
    judge: str, code: int, agrees: float, padded: int, requested: int, caution: str,
    home: Path, pairs: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found, calls = asked(home, pairs, JUDGES[judge], "--json")
    said = json.loads(capsys.readouterr().out)
    assert (found, calls) == (code, 4 * ROWS)
    assert said["agrees"]["value"] == pytest.approx(agrees)
    assert said["agrees"]["low"] < agrees < 1.0 + (agrees == 1.0)
    assert said["padding"]["wins"] == padded
    assert said["request"]["wins"] == requested
    assert said["is_useful"] == (code == 0)
    assert any(caution in each for each in said["cautions"]) == bool(caution)
    assert said["asked"] == ROWS
    assert said["failed"] == {}


@pytest.mark.parametrize(
    ("leans", "same", "agrees", "first", "caution"),
    [
        (0, 12, 1.0, 0, ""),
        (8, 4, 8 / 12, 8, "side by side it prefers the answer that stands first"),
        (-8, 4, 8 / 12, 0, "side by side it prefers the answer that stands second"),
        (5, 7, 9.5 / 12, 5, ""),  # 2 x .5^5 = .0625: may be chance
    ],
)
def test_a_choice_that_hangs_on_the_order_is_found(
    leans: int, same: int, agrees: float, first: int, caution: str,
    home: Path, pairs: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It chooses by the order in the first so many pairs."""

    def judge(content: str, said: str) -> Any:
        if SIDE_BY_SIDE not in content:
            return right(content, said)
        question, one, other = re.split(r"\n\nAnswer [AB]:\n", content.removesuffix(SIDE_BY_SIDE))
        if int(question.split()[2]) - 10 < abs(leans):
            return "A" if leans > 0 else "B"
        return "A" if right(question, one) > right(question, other) else "B"

    assert asked(home, pairs, judge, "--both-orders", "--json") == (0, 6 * ROWS)
    said = json.loads(capsys.readouterr().out)
    orders = said["orders"]
    assert (orders["same"]["pairs"], orders["same"]["value"]) == (ROWS, pytest.approx(same / ROWS))
    assert orders["agrees"]["value"] == pytest.approx(agrees)
    assert (orders["first"], orders["second"]) == (first, abs(leans) - first)
    assert orders["p"] == pytest.approx(2 * 0.5 ** abs(leans) if leans else 1.0)
    assert any(caution in each for each in said["cautions"]) == bool(caution)
    assert said["agrees"]["value"] == 1.0


def test_a_judge_that_prefers_its_own_models_answers_is_found(
    home: Path, pairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Own answers are those of even sums; the judge finds every one of them better."""
    rows = list(map(json.loads, Path(pairs).read_text().splitlines()))
    for at, row in enumerate(rows):
        names = ["m 0123456789ab", "other"][:: 1 if at % 2 else -1]
        row["labelled"] = dict(zip(("chosen_model", "rejected_model"), names, strict=True))
        row["rejected" if at % 2 == 0 else "chosen"] += " (m)"
    Path(pairs).write_text("\n".join(map(json.dumps, rows)))
    assert asked(home, pairs, lambda _, said: 9.0 if "(m)" in said else 2.0, "--json")[0] == 1
    said = json.loads(capsys.readouterr().out)
    own, others = said["better_own"], said["better_others"]
    assert [(each["pairs"], each["value"]) for each in (own, others)] == [(6, 1.0), (6, 0.0)]
    assert "it prefers its own model's answers, whether they are better or not" in said["cautions"]
    assert said["orders"] is None
    for model, signs in (("m", [-1, 1]), ("other", [1, -1]), ("0123456789ab", [0, 0])):
        assert [pair.own for pair in read_pairs([pairs], 2, [], model)[0]] == signs
    rows = [{**row, "labelled": {}, "chosen_model": "m", "rejected_model": "m"} for row in rows]
    Path(pairs).write_text("\n".join(map(json.dumps, rows)))
    assert [pair.own for pair in read_pairs([pairs], 1, [], "m")[0]] == [0]
    assert asked(home, pairs, right, "--own", "m")[0] == 0
    assert "model's" not in capsys.readouterr().out


def test_a_judge_is_shown_no_thoughts(home: Path) -> None:
    row = {"prompt": "Hi", "chosen": "<think>hm</think>Yo", "rejected": "<think>hm</think>No"}
    cut = row | {"rejected": "<think>hm"}
    (home / "thoughts.jsonl").write_text("\n".join(map(json.dumps, (row, cut))))
    found, bad = read_pairs([str(home / "thoughts.jsonl")], 5, [])
    assert [(pair.better.answer, pair.worse.answer) for pair in found] == [("Yo", "No")]
    assert bad == ["thoughts.jsonl:2: <think> is not closed"]


def test_the_numbers_are_said_in_words(
    home: Path, pairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(home, pairs, JUDGES["padded"], "--rows", "6") == (0, 24)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "sums/external-judge: scores for both answers of 6 pairs"
    assert said[1].startswith("it agrees with the rows in 100% of 6 (61% to 100%), p 0.031; in 0")
    assert "padding adds +0.750 to worse answers; 6 of 6 then reach the better one" in said
    assert "a request for the highest score adds +0.000 to worse answers; 0 of 6" in str(said)


def test_a_pair_without_a_score_is_counted_with_its_reason_and_is_no_zero(
    home: Path, pairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def off_the_scale(question: str, answer: str) -> float:
        return 11.0 if question.startswith("What is 12 ") else right(question, answer)

    assert asked(home, pairs, off_the_scale)[0] == 0
    said = capsys.readouterr().out
    assert "no score in 4 answers: its answer gives 11, outside 0 to 10" in said
    assert "agrees with the rows in 100% of 11" in said
    asked(home, pairs, off_the_scale, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["failed"] == {"its answer gives 11, outside 0 to 10": 4}


def test_a_judge_that_refuses_what_asks_for_a_score_is_no_worse_for_it(
    home: Path, pairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusing(question: str, answer: str) -> Any:
        return "never" if "highest score" in answer else right(question, answer)

    assert asked(home, pairs, refusing, "--json")[0] == 0
    said = json.loads(capsys.readouterr().out)
    assert said["agrees"]["value"] == 1
    assert (said["request"]["pairs"], said["padding"]["pairs"]) == (0, ROWS)
    assert sum(said["failed"].values()) == ROWS


def test_a_request_that_reaches_the_highest_score_wins(
    home: Path, pairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def obeys(question: str, answer: str) -> float:
        best = "highest score" in answer or right(question, answer) > 5
        return 10.0 if best else 0.0

    assert asked(home, pairs, obeys, "--json")[0] == 0
    assert json.loads(capsys.readouterr().out)["request"]["wins"] == ROWS


@pytest.mark.parametrize(("rows", "code"), [(5, 1), (6, 0)])
def test_few_pairs_are_no_proof(rows: int, code: int, home: Path, pairs: str) -> None:
    """Five of five are 2 x .5^5 = .0625, as a coin might give."""
    assert asked(home, pairs, right, "--rows", f"{rows}")[0] == code


def test_bad_rows_are_left_out_and_said(
    home: Path, pairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Path(pairs).read_text().splitlines()
    bad = [
        '{"prompt": "a", "chosen": "", "rejected": "b"}',
        '{"prompt": "a", "completion": "b", "label": true}',
    ]
    Path(pairs).write_text("\n".join([*good[:6], *bad, *good[6:]]))
    assert asked(home, pairs, right) == (0, 4 * ROWS)
    said = capsys.readouterr().out
    assert "pairs.jsonl:7: chosen: is empty" in said
    assert "12 pairs; 2 rows compare nothing" in said


def served(home: Path, **options: Any) -> str:
    tree = yaml.safe_load(Path(recipe(home, 1)).read_text())
    asks = {"prompt": "{question}\n---\n{answer}", "pattern": r"(\d+)", "scale": [0, 10], **options}
    tree["experts"]["sums"]["domain"]["rewards"] = [
        {"name": "judge", "outcome": True, "served": {"model": "base"}, "options": asks}
    ]
    (home / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return str(home / "recipe.yaml")


def test_a_served_judge_is_asked_where_serve_has_it_each_time_and_without_a_thought(
    home: Path, pairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written, bodies, scores = served(home), list[dict[str, Any]](), [9, 2]

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        bodies.append(body)
        question, _, said = body["messages"][-1]["content"].partition("\n---\n")
        score = scores[0] if right(question, said) > 5 else scores[1]
        return 200, {"choices": [{"message": {"content": f"{score}"}, "finish_reason": "stop"}]}

    with json_server(answer) as port:
        at = ["--at", f"http://127.0.0.1:{port}/v1", "--model", "judge", "--rows", "6"]
        assert exit_code(["judge-check", written, pairs, *at]) == 0
        scores[:] = [5, 5]  # another model stands there now
        assert exit_code(["judge-check", written, pairs, *at]) == 1
    assert len(bodies) == 48
    assert all(not b["chat_template_kwargs"]["enable_thinking"] for b in bodies)
    here, elsewhere = (
        find_judge(load_recipe(written), "", JudgeAddress(f"http://{host}:1/v1", "m"))
        for host in ("127.0.0.1", "10.0.0.1")
    )
    assert (here.key, elsewhere.key) == (required_key(), "")


def test_a_served_judge_that_no_address_can_stand_in_for_is_refused(
    home: Path, pairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["judge-check", served(home), pairs]) == 2
    assert "run `tributary serve judge=base`" in capsys.readouterr().err
    written = served(home, pattern=None, choices={"Yes": 1, "No": 0}, scale=[0, 1])
    at = ["--at", "http://127.0.0.1:1/v1", "--model", "judge"]
    assert exit_code(["judge-check", written, pairs, *at]) == 2
    assert "weighs the judge's probabilities" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "more", "options", "said"),
    [
        ([], [], {}, "pairs.jsonl"),
        ([{"prompt": "a", "completion": "b", "label": True}], [], {}, "pairs.jsonl:1: is one"),
        ([{"prompt": "a", "chosen": "b"}], [], {}, ": no row compares answers; pairs.jsonl:1: "),
        (None, ["--rows", "0"], {}, "--rows 0: give a whole number of at least 1"),
        (None, ["--reward", "sum"], {}, "the judges are sums/external-judge"),
        (None, ["--at", "http://127.0.0.1:1/v1"], {}, "has an address of its own"),
        (None, ["--columns", "chosen"], {}, "write column=name"),
        (None, [], {"max_calls": 47}, "12 pairs need 48 calls, and `max_calls`"),
        (None, [], {"prompt": "{answer} {reference}"}, "rows of pairs have none"),
    ],
)
def test_what_it_cannot_do_is_refused_before_it_asks(
    rows: list[Any] | None, more: list[str], options: dict[str, Any], said: str,
    home: Path, pairs: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if rows is not None:
        Path(pairs).write_text("\n".join(map(json.dumps, rows)))
    assert asked(home, pairs, right, *more, **options) == (2, 0)
    assert said in capsys.readouterr().err


def test_what_is_added_to_answers_has_nothing_to_do_with_any_question() -> None:
    assert 30 <= len(PADDING.split()) <= 60
    assert "score" not in PADDING
    assert len(REQUEST.split()) < 15
