"""Tests and rubrics in columns of their own, as data sets have them, in a problem's reference."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from infra.data_files.assert_names import read_names
from infra.data_files.code_tests import CodeTests, read_code_tests
from infra.data_files.rows import BadRow
from infra.errors import InputError
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


CASE = {"input": "1 2\n", "output": "3\n"}
HELPED = {
    "prompt": "import math\n\ndef code(s):\n    return s[::-1]\n\ndef decode(s):\n    'Undo.'\n",
    "test": "def check(candidate):\n    assert candidate(code('ab')) == 'ab'",
    "entry_point": "decode",
}


@pytest.mark.parametrize(
    ("row", "tests"),
    [
        (HELPED, {"asserts": "import math\n\ndef code(s):\n    return s[::-1]\n" + HELPED["test"],
                  "entry_point": "decode"}),
        ({"question": "Q", "tests": [{**CASE, "fn_name": None, "type": "stdin_stdout"}]}, PAIRS),
        ({"question": "Q", "public_test_cases": json.dumps([{**CASE, "testtype": "stdin"}]),
          "private_test_cases": [{**CASE, "input": "2 1"}]},
         {"inputs": ["1 2\n", "2 1"], "outputs": ["3\n", "3\n"]}),
        ({"question": "Q", "metadata": '{"func_name": "cat"}', "public_test_cases": [
            {"input": "[1]\n[2]", "output": "[1, 2]", "testtype": "functional"}]},
         {"asserts": "assert __same__(cat(*[[1], [2]]), [1, 2])", "entry_point": "cat"}),
        ({"question": "Q", "tests": [{"fn_name": "f", "input": [1], "output": None}]},
         {"asserts": "assert __same__(f(*[1]), None)", "entry_point": "f"}),
        ({"question": "Q", "tests": {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [2]]}},
         {"asserts": "assert __same__(f(*[1]), [1], True)\nassert __same__(f(*[2]), [2], True)",
          "entry_point": "f"}),
        ({"question": "Q", "tests": PAIRS, "input_output": json.dumps(PAIRS), "language": "en"},
         PAIRS),
    ],
)  # fmt: skip
def test_tests_in_lists_and_helpers_of_a_prompt_are_read(row: dict[str, Any], tests: Any):
    assert prompt(row, needs=["tests"]).reference == {"tests": tests}


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ("add(1, 2) == 3", "`add.1, 2. == 3` tests nothing; write `assert`"),
        ("print(add(1, 2) == 3)", "holds no assert"),
        ("import unittest\nclass T(unittest.TestCase):\n    def test(self):\n"
         "        add(1)", "holds no assert"),
        (">>> add(1, 2)\n3", "its asserts do not run: SyntaxError"),
        ("def check(candidate):\n    assert candidate(1) == 2", "name the tested function as"),
        ([{**CASE, "testtype": "functional"}], "'functional' without a function"),
        ([{**CASE, "testtype": "special"}], "has the type 'special'; known: stdin"),
        ([CASE, {**CASE, "fn_name": "f"}], "mixes calls of functions with programs"),
        ({**PAIRS, "checker": "any order"}, "holds `checker`"),
        ([{**CASE, "is_interactive": True}], "holds `is_interactive`"),
    ],
)  # fmt: skip
def test_tests_that_would_judge_all_answers_alike_are_refused(tests: Any, said: str):
    with pytest.raises(BadRow, match=said):
        prompt({"prompt": "Add.", "tests": tests}, needs=["tests"])


UNITTEST = """
import unittest

class T(unittest.TestCase):
    def test(self):
        <IS>

def run_tests():
    unittest.TextTestRunner().run(unittest.makeSuite(T))

if __name__ == "__main__":
    unittest.main()
"""
PYTEST = """
import pytest
from solution import add

@pytest.fixture
def one():
    yield 1

@pytest.mark.parametrize("a, b", [(1, 2)])
def test_add(one, a, b):
    assert add(one, a) == pytest.approx(b)
"""


def test_classes_of_unittest_and_functions_of_pytest_are_tests():
    case = UNITTEST.replace("<IS>", "self.assertEqual(task(1), 2)")
    row = {"instruct_prompt": "Add.", "test": case, "entry_point": "task"}
    found = prompt(row, columns={"prompt": "instruct_prompt"}, needs=["tests"])
    assert found.reference == {"tests": {"asserts": case, "entry_point": "task"}}
    assert read_code_tests(PYTEST).asserts == PYTEST


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ("from unittest.mock import patch\nassert f(1) == 2", "replaces parts of what is tested"),
        ("import unittest\n@unittest.skip('x')\nclass T(unittest.TestCase): ...",
         "uses `unittest.skip`; known here: TestCase, "),
        ("from unittest import IsolatedAsyncioTestCase", "imports `IsolatedAsyncioTestCase` of"),
        ("import pytest\n@pytest.mark.skipif(f(1), reason='')\ndef test_f(): assert f(1)",
         "uses `pytest.mark.skipif`; known here: parametrize"),
        ("def test_f(capsys):\n    assert f(1)", "`test_f` asks for `capsys`, which nothing here"),
        ("class TestF:\n    def test_f(self, tmp_path): assert f(1)", "asks for `tmp_path`"),
        ("async def test_f(): assert await f(1)", "its test `test_f` is asynchronous"),
        ("def setup_module(): ...\ndef test_f(): assert f(1)", "defines `setup_module`, which is"),
        ("import pytest\n@pytest.fixture(autouse=True)\ndef x(): ...\ndef test_f(): assert f(1)",
         "has a fixture with `autouse=True`, and each is made for one test here"),
        (UNITTEST.replace("<IS>", "self.assertLogs(f)"), "uses `self.assertLogs`, which looks at"),
        (UNITTEST.replace("<IS>", "self.skipTest(f(1))"), "uses `self.skipTest`, which looks at"),
        ("import io, sys\nsys.stdout = io.StringIO()\nf()\nassert sys.stdout.getvalue()",
         "looks at what is printed .`sys.stdout`., and the answer runs in another process"),
    ],
)  # fmt: skip
def test_what_of_a_framework_is_not_there_is_named(tests: str, said: str):
    with pytest.raises(BadRow, match=f"tests: .*{said}.*; leave such rows out"):
        prompt({"prompt": "Add.", "tests": tests}, needs=["tests"])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tests": "assert f() == 1", "test_list": ["assert f() == 2"]},
         "tests in tests and test_list, which differ"),
        ({"tests": "assert f() == 1", "language": "Java"}, "only Python runs here"),
        ({"tests": PAIRS, "input_file": "in.txt"}, "has `input_file`"),
        ({"tests": PAIRS, "generated_checker": "def check(): ..."}, "has `generated_checker`"),
        ({"test": "def check(c):\n    assert poly(c(1)) == 0", "entry_point": "root"},
         "uses `poly`, which neither it nor the function root defines"),
        ({"private_test_cases": "eJxrYJ0"}, "holds no list of tests; decompress it"),
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
    asked = row if "question" in row else {"prompt": "Add.", **row}
    with pytest.raises(BadRow, match=said):
        prompt(asked, needs=["tests"])


MATH = "uses `isclose` and `sqrt` without a word on which of them is the answer's; import what is"
JUDGES = "`f` and `same` of the answer.s decide a test together; import what is of Python"


@pytest.mark.parametrize(
    ("asserts", "said"),
    [
        ("import numpy as np\nassert f(2) == 4", "imports `numpy`, and only Python's own library"),
        ("from scipy.special import x\nassert f(2) == x", "imports `scipy.special`, and only"),
        ("def check(c):\n    import torch\n    assert f(2)", "imports `torch`, and only Python's"),
        ("assert np.allclose(f(2), 4)", "uses `np`, and only Python's own library is there; leave"),
        ("from os import *\nassert f(2) == 4", "imports all of `os`; import the names that it"),
        ("import math\nassert 1 == 1", "its asserts ask nothing of the answer"),
        ("assert isclose(sqrt(2), 1.4)", MATH),
        ("assert same(f(2), 4)", JUDGES),
        ("assert not same(wanted=4, got=f(2))", JUDGES),
        ("r = f(2)\nwanted = 4\nassert same(r, wanted) is True", JUDGES),
        ("r = Solution().f(2)\nassert same(r, 4)", "has `Solution` and `same` of"),
        ("assert abs(same(f(2), 4)) < 1e-6", JUDGES),
        ("assert all(same(f(x), y) for x, y in [(2, 4)])", JUDGES),
        ("from solution import f\nif not same(f(2), 4):\n    raise ValueError", JUDGES),
        ("good = same(f(2), 4)\nassert good", JUDGES),
        ("r = f(2)\nr.seen = True\nassert same(r, 4)", JUDGES),
        ("def good(a):\n    return same(a, 4)\nassert good(f(2))", JUDGES),
        (UNITTEST.replace("<IS>", "self.assertTrue(same(f(2), 4))"), JUDGES),
        ("assert f(2) == WANTED", "has `WANTED` and `f` of the answer.s decide"),
        ("assert f(2) == N", "has `N` and `f` of the answer.s decide"),
        ("assert Same(f(2), 4)", "has `Same` and `f` of the answer.s decide"),
        ("assert Same(4).of(f(2))", "has `Same` and `f` of the answer.s decide"),
        (
            "assert f(2) in allowed(4)",
            "has `allowed` and `f` of the answer.s decide a test together;",
        ),
        ("assert f(lambda x: x, 2) == 2", "hands `lambda x: x` to the answer, which runs in"),
        ("def g(): ...\nassert f(g) == 2", "hands `g` to the answer, which runs in another"),
        ("class B(A): ...\nassert B().x == 2", "makes `B` by something of the answer's, which"),
    ],
)
def test_what_would_let_an_answer_judge_itself_is_a_bad_row(asserts: str, said: str):
    with pytest.raises(BadRow, match=f"tests: .*{said}"):
        prompt({"prompt": "Add.", "tests": asserts}, needs=["tests"])


@pytest.mark.parametrize(
    ("asserts", "entry", "answers", "library"),
    [
        ("assert math.isclose(f(2), 4.0)", "", {"f"}, {"math"}),
        ("assert Counter(f([1])) == Counter([1])", "", {"f"}, {"Counter"}),
        ("def check(c):\n    assert isclose(c(2), sqrt(16))", "f", {"f"}, {"isclose", "sqrt"}),
        ("assert sqrt(4) == 2", "", {"sqrt"}, set()),
        ("assert gcd(4, 6) == 2\nassert f(2) == 4", "", {"gcd", "f"}, set()),
        ("x = f(2)\nassert isclose(x, 4)", "", {"f"}, {"isclose"}),
        ("assert isclose(4, 4)", "isclose", {"isclose"}, set()),
        ("assert f(datetime(2020, 1, 2)) == 4", "", {"f"}, {"datetime"}),
        ("from math import *\nassert isclose(f(2), tau)", "", {"f"}, set()),
        ("from solution import *\nassert f(2) == 4", "", {"f"}, set()),
        ("try:\n    import numpy\nexcept ImportError:\n    numpy = 0\nassert f(2)", "", {"f"},
         set()),
        ("assert decode(encode('x')) == 'x'", "", {"decode", "encode"}, set()),
        ("assert add(mul(2, 3), 4) == 10", "", {"add", "mul"}, set()),
        ("r = add(1, 2)\nassert r == 3\nr = even(2)\nassert r", "", {"add", "even"}, set()),
        ("t = BST()\nassert has(t, 3)", "", {"BST", "has"}, set()),
        ("t = Tree()\nassert has(t, 3)\nassert add(Point(1), 2) == Point(3)", "",
         {"Tree", "has", "add", "Point"}, set()),
        ("assert f(len, int) == reduce(lambda a, b: a + b, [1])", "", {"f"}, {"reduce"}),
    ],
)  # fmt: skip
def test_names_are_told_apart(asserts: str, entry: str, answers: set[str], library: set[str]):
    assert read_code_tests(asserts, entry).asserts == asserts
    found = read_names(ast.parse(asserts), entry)
    assert (found.answers, {*found.library}, found.fault) == (answers, library, "")


def test_rows_as_data_sets_have_them_are_the_same_tests() -> None:
    three: dict[str, Any] = {"inputs": ["2 3\n", "10 4\n", "-1 1"], "outputs": ["5\n", "14\n", "0"]}
    pairs = CodeTests(inputs=("2 3\n", "10 4\n", "-1 1"), outputs=("5\n", "14\n", "0"))
    listed = [{"input": i, "output": o} for i, o in zip(*three.values(), strict=True)]
    lines = [["2 3", ""], ["10 4", ""], "-1 1"]
    for value in (
        three,
        json.dumps(three),
        {"input": three["inputs"], "output": three["outputs"]},
        listed,
        json.dumps(listed),
        three | {"inputs": lines, "fn_name": None},
        pairs.as_json(),
    ):
        assert read_code_tests(value) == pairs
    called = CodeTests(asserts="assert __same__(f(*[[1, 2], 'a']), True)", entry_point="f")
    for value in (
        {"inputs": [[[1, 2], "a"]], "outputs": [True], "fn_name": "f"},
        {"inputs": ['[1, 2]\n"a"'], "outputs": ["true"], "fn_name": "f"},
        called.as_json(),
    ):
        assert read_code_tests(value) == called
    assert read_code_tests(["assert add(2, 3) == 5"], setup="import math").asserts.startswith(
        "import math\nassert a"
    )
    for nothing in (
        "",
        [],
        {},
        None,
        5,
        {"inputs": ["1"], "outputs": [None]},
        [1],
        {"asserts": ""},
    ):
        with pytest.raises(InputError):
            read_code_tests(nothing)


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


@pytest.mark.parametrize(
    ("rubric", "unread"),
    [
        ("Be kind.", []), (["Be kind."], []), ('[{"criterion": "Be kind.", "score": 2}]', []),
        ({"description": "Be kind.", "weight": "Essential", "title": "T"}, ["rubric.title"]),
        ([{"criterion": "Be kind.", "points": 5, "tags": ["x"], "note": ""}], ["rubric.tags"]),
    ],
)  # fmt: skip
def test_what_a_judge_is_not_shown_of_a_rubric_is_named(rubric: Any, unread: list[str]):
    assert sorted(prompt({"prompt": "Q", "rubric": rubric}, needs=["rubric"]).unread) == unread


@pytest.mark.parametrize(
    ("rubric", "said"),
    [
        ([{"title": "T"}], "rubric: an item of its rubric has no text under criterion or"),
        ({"clarity": "Is it clear?"}, "has no text under"),
        ([{"criterion": "a", "points": 5, "weight": 2}], "has points and weight; leave one"),
        ('[{"criterion": ""}]', "has no text under"),
    ],
)
def test_a_rubric_that_no_judge_can_be_shown_is_a_bad_row(rubric: Any, said: str):
    with pytest.raises(BadRow, match=said):
        prompt({"prompt": "Q", "rubric": rubric}, needs=["rubric"])
