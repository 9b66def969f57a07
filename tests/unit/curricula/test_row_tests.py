"""Tests and rubrics in columns of their own, as data sets have them, in a problem's reference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.data_files.tally import BadRow
from tests.parts.row_parts import prompt

pytestmark = pytest.mark.unit

MBPP = {
    "task_id": 2,
    "prompt": "Add two numbers.",
    "code": "def add(a, b): return a + b",
    "test_imports": ["import math"],
    "test_setup_code": "",
    "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
}
HUMANEVAL = {
    "prompt": "def add(a, b):",
    "canonical_solution": "    return a + b",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3",
    "entry_point": "add",
}
PAIRS = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
APPS = {
    "question": "Add.",
    "starter_code": "",
    "input_output": json.dumps(PAIRS),
    "solutions": json.dumps(["print(3)"]),
}
TRIO = {
    "question": "Add.",
    "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
    "private_tests": {"input": [], "output": []},
    "generated_tests": {"input": ["2 2\n"], "output": ["4\n"]},
}
VERL = {
    "prompt": [{"role": "user", "content": "Add."}],
    "reward_model": {"style": "rule", "ground_truth": json.dumps(PAIRS)},
}


@pytest.mark.parametrize(
    ("row", "columns", "tests", "asked", "solution"),
    [
        (MBPP, {"prompt": "prompt+test_list.0", "solution": "code"},
         {"asserts": "import math\nassert add(1, 2) == 3\nassert add(0, 0) == 0",
          "entry_point": ""},
         "Add two numbers.\nassert add(1, 2) == 3",
         "```python\ndef add(a, b): return a + b\n```"),
        (HUMANEVAL, {"solution": "prompt+canonical_solution"},
         {"asserts": HUMANEVAL["test"], "entry_point": "add"}, "def add(a, b):",
         "```python\ndef add(a, b):\n    return a + b\n```"),
        (APPS, {"prompt": "question+starter_code", "solution": "solutions.0"}, PAIRS, "Add.",
         "```python\nprint(3)\n```"),
        (TRIO, {}, {"inputs": ["1 2\n", "2 2\n"], "outputs": ["3\n", "4\n"]}, "Add.", ""),
        (VERL, {}, PAIRS, "Add.", ""),
        ({"question": "Add.", "checks": PAIRS, "answer": "3"}, {"reference": "checks"}, PAIRS,
         "Add.", ""),
    ],
)  # fmt: skip
def test_tests_are_read_where_a_reward_runs_them(
    row: dict[str, Any], columns: dict[str, str], tests: Any, asked: str, solution: str
):
    found = prompt(row, columns=columns, needs=["tests"])
    assert found.reference == {"tests": tests}
    assert (found.messages[-1].content, found.solution) == (asked, solution)
    if row not in (VERL, row | {"checks": PAIRS}):
        assert prompt(row, columns=columns) == found


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "Add.", "answer": "3"}, "has no tests, which the reward `code` reads; name"),
        ({"prompt": "Add.", "test_list": [1]}, "test_list: is no tests: write asserts"),
        ({"prompt": "Add.", "input_output": '{"inputs": ["1"], "outputs": []}'}, "input_output: "),
        ({"prompt": "Add.", "tests": {"inputs": ["a"], "outputs": ["b"], "fn_name": "f"}},
         "tests: a call of `f` is no JSON, one value a line"),
        ({"question": "Add.", "starter_code": "def f():", "tests": "assert f()"},
         "has `starter_code`, which is not read"),
    ],
)  # fmt: skip
def test_a_row_whose_tests_cannot_be_read_is_a_bad_one(row: dict[str, Any], said: str):
    with pytest.raises(BadRow, match=said):
        prompt(row, needs=["tests"])


def test_a_rubric_stands_beside_the_reference():
    rubric = [{"criterion": "Names a doctor.", "points": 5, "tags": []}]
    assert prompt({"prompt": "Ill.", "rubrics": rubric}).reference == {"rubric": rubric}
    both = {"prompt": "Ill.", "answer": "Rest.", "rubric": "Be kind."}
    assert prompt(both, needs=["rubric"]).reference == {"answer": "Rest.", "rubric": "Be kind."}
    assert prompt({"prompt": "Ill.", "answer": "Rest.", "rubric": 3}).reference == {
        "answer": "Rest."
    }
    with pytest.raises(BadRow, match="the rewards read `rubric` of it"):
        prompt({"prompt": "Ill.", "answer": "Rest."}, needs=["rubric"])
    tested = {"prompt": "Add.", "tests": "assert f() == 1", "rubric": "Be brief.", "answer": "1"}
    assert list(prompt(tested, needs=["tests"]).reference) == ["tests", "rubric"]
    assert list(prompt(tested, needs=["answer", "tests"]).reference) == [
        "answer",
        "tests",
        "rubric",
    ]
