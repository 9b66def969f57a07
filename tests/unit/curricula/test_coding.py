"""The coding curriculum: its repositories, their bugs, and what its tools do to files."""

from __future__ import annotations

import random
from typing import Any

import pytest

from curricula.built_in_curricula import build
from curricula.coding.coding import execute
from curricula.coding.python_functions import (
    NAMES,
    SHORT_NAMES,
    missing_branch,
    off_by_one,
    short_branch,
    short_key,
    short_off_by_one,
    short_operator,
    wrong_key,
    wrong_operator,
)
from curricula.coding.repository import KINDS, Size, draw_repository
from engines.types import AssistantTurn, ProtocolBreak, ToolCall
from infra.errors import InputError
from infra.repositories import EditRefused, edited, found

pytestmark = pytest.mark.unit
TINY = Size(2, 1, is_short=True)
SIZES = [TINY, Size(2, 1), Size(4, 2), Size(6, 3, is_hidden=True)]
FILES = {"cat.py": "def add(a, b):\n    return a - b\n", "test_cat.py": "assert 1\n"}


def _run(text: str, name: str, arguments: list) -> object:
    module: dict = {}
    exec(text, module)
    try:
        return module[name](*arguments)
    except (ArithmeticError, LookupError) as error:
        return type(error).__name__


SHORT = [short_operator, short_off_by_one, short_branch, short_key]


@pytest.mark.parametrize("family", [wrong_operator, off_by_one, missing_branch, wrong_key, *SHORT])
def test_a_functions_text_does_what_is_computed_for_it(family) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        function = family("fig", rng)
        assert function.text.count(function.fix) == 1
        shown, hidden = function.calls(rng)
        assert shown
        assert len(hidden) >= 3
        for call in [*shown, *hidden]:
            assert _run(function.text, "fig", call) == function.right(*call)
        wrong = [_run(function.broken, "fig", call) != function.right(*call) for call in shown]
        assert any(wrong)
        assert not any(call in shown for call in hidden)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_a_repository_has_one_bug_that_its_fix_repairs(kind: str, size: Size) -> None:
    for seed in range(6):
        drawn = draw_repository(random.Random(seed), kind, size)
        path, old, new = drawn.fix
        assert drawn.files[path].count(old) == 1
        repaired = edited(drawn.files, drawn.protected, path, old, new)
        assert {p for p in drawn.files if repaired[p] != drawn.files[p]} == {path}
        assert drawn.protected == sorted(p for p in drawn.files if p.startswith("test_"))
        assert not any(
            new in text for p, text in drawn.files.items() if p != path and len(new) > 30
        )
        assert len(drawn.files) > size.modules
        assert drawn == draw_repository(random.Random(seed), kind, size)


@pytest.mark.parametrize("family", SHORT)
def test_one_failing_call_tells_what_a_short_function_should_be(family) -> None:
    """No other function with the same parameters gives that value."""
    for seed in range(40):
        rng = random.Random(seed)
        function = family("fig", rng)
        (call, *more), _ = function.calls(rng)
        assert not more
        drawn = [family("fig", random.Random(other)) for other in range(300)]
        texts = {one.text for one in drawn if one.parameters == function.parameters}
        right = {text for text in texts if _run(text, "fig", [*call]) == function.right(*call)}
        assert right == {function.text}


def test_a_tiny_repository_is_short_and_says_what_its_tests_will_say() -> None:
    curriculum = build("coding", {"levels": ["tiny"]})
    demonstrations = curriculum.demonstrations(40, seed=0)
    assert {shown.problem.metadata["family"] for shown in demonstrations} == set(KINDS)
    for shown in demonstrations:
        files = shown.problem.reference["files"]
        assert {path.removeprefix("test_")[:-3] for path in files} <= set(SHORT_NAMES)
        assert sum(map(len, files.values())) < 340
        names = [call.name for turn in shown.turns for call in turn.tool_calls]
        assert names == ["test", "read", "edit"]


def test_a_hasty_demonstrator_edits_before_the_tests_ran() -> None:
    """Where the bug was by chance, it is repaired; else there is one more."""
    repaired: list[bool] = []
    for shown in build("coding", {"levels": ["tiny"], "hasty": 1.0}).demonstrations(100, seed=0):
        reference: Any = shown.problem.reference
        read, edit = (call for turn in shown.turns for call in turn.tool_calls)
        assert (read.name, edit.name) == ("read", "edit")
        assert read.arguments["path"] == edit.arguments["path"] not in reference["protected"]
        assert shown.turns[-1].content == "done"
        assert "ok" in [turn.content for turn in shown.turns if turn.role == "tool"]
        path, old, new = edit.arguments.values()
        files = edited(reference["files"], reference["protected"], path, old, new)
        right = edited(reference["files"], reference["protected"], *reference["fix"])
        repaired.append(files == right)
        assert repaired[-1] == (path == reference["fix"][0])
    assert 35 < sum(repaired) < 65
    shares = build("coding", {"levels": ["tiny"], "hasty": 0.6}).demonstrations(100, seed=0)
    first = [turn.tool_calls[0].name for shown in shares for turn in shown.turns[:1]]
    assert 50 < first.count("read") < 70


@pytest.mark.parametrize("size", SIZES)
def test_what_a_hasty_demonstrator_edits_is_there_once(size: Size) -> None:
    for kind in KINDS:
        for seed in range(10):
            drawn = draw_repository(random.Random(seed), kind, size)
            path, old, new = drawn.guess
            assert drawn.files[path].count(old) == 1
            assert old != new


def test_splits_share_no_repository() -> None:
    curriculum = build("coding", {"levels": ["tiny", "easy", "medium", "hard"]})
    texts: dict[str, set[str]] = {}
    for split in ("sft", "rl", "distill", "heldout"):
        problems = curriculum.problems(split, 9, seed=1)
        assert problems == curriculum.problems(split, 9, seed=1)
        assert problems[7:9] == curriculum.problems(split, 2, seed=1, start=7)
        texts[split] = {str(problem.reference) for problem in problems}
    assert sum(map(len, texts.values())) == len(set().union(*texts.values())) == 36


def test_names_are_none_of_pythons_own() -> None:
    assert len(NAMES) > 60
    assert not {"dis", "set", "map", "sum", "not", "nor"} & set(NAMES) - {"nor"}


def test_a_search_shows_lines_and_where_they_are() -> None:
    assert found(FILES, "return") == "cat.py:2: return a - b"
    assert found(FILES, "absent") == found(FILES, "") == "no"
    assert found({"a": "x\n" * 30}, "x").splitlines()[-1] == "and 10 more"


@pytest.mark.parametrize(
    ("path", "old", "new", "reason"),
    [
        ("test_cat.py", "1", "2", "protected"),
        ("dog.py", "a", "b", "no file dog.py"),
        ("cat.py", "absent", "b", "0 times"),
        ("cat.py", "a", "b", "3 times"),
        ("cat.py", "", "b", "0 times"),
        ("cat.py", "add", "b" * 300_000, "longer than"),
    ],
)
def test_an_edit_that_is_refused_says_why(path: str, old: str, new: str, reason: str) -> None:
    with pytest.raises(EditRefused, match=reason):
        edited(FILES, ["test_cat.py"], path, old, new)


def test_tools_answer_mistakes_in_a_line() -> None:
    def told(name: str, **arguments: str) -> str:
        return execute(ToolCall(name, dict(arguments)), FILES, ["test_cat.py"], "confined")[0]

    assert told("list") == "cat.py\ntest_cat.py"
    assert told("read", path="cat.py") == FILES["cat.py"]
    assert told("read", path="../etc/passwd") == "error: no file ../etc/passwd"
    assert told("edit", path="test_cat.py", old="1", new="0") == "error: test_cat.py is protected"
    assert told("edit", path="cat.py", old="a - b", new="a + b") == "ok"


async def test_an_episode_keeps_its_edits_to_itself_and_ends_at_its_budget() -> None:
    curriculum = build("coding", {"max_calls": 3})
    (problem,) = curriculum.problems("rl", 1, seed=0)
    environment = curriculum.environment()
    assert environment is not None
    first, second = [await environment.start(problem) for _ in range(2)]
    path, old, new = problem.reference["fix"]
    edit = ToolCall("edit", {"path": path, "old": old, "new": new})
    read = ToolCall("read", {"path": path})

    def turn(*calls: ToolCall) -> AssistantTurn:
        return AssistantTurn("", "", None, calls)

    step = await first.step(turn(edit, read))
    assert step.messages[0].content == "ok"
    assert new in step.messages[1].content
    assert new not in (await second.step(turn(read))).messages[0].content or new in old
    assert (await first.step(turn(read, read))).done
    assert (await second.step(AssistantTurn("done", "done", None, ()))).done
    with pytest.raises(ProtocolBreak, match="not offered"):
        await second.step(turn(ToolCall("delete", {"path": path})))


@pytest.mark.parametrize("options", [{"max_calls": 0}, {"sandbox": "none"}, {"levels": ["huge"]}])
def test_options_that_are_refused(options: dict) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        build("coding", options)
