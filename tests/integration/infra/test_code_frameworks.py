"""The reward `code` with tests of `unittest` and `pytest`: what passes, what fails, and ways to be
rewarded by a framework without solving the problem."""

from __future__ import annotations

import pytest

from engines.types import Message, Problem, Status, Transcript, Verdict
from infra.data_files.code_tests import read_code_tests
from infra.errors import InputError
from rewards.built_in_rewards import build

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("code_sandbox")]

BOXES = """
import json
import unittest

class TestBox(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.size = 2

    def setUp(self):
        self.box = Box(self.size)

    def tearDown(self):
        self.box.empty()

    def test_takes(self):
        self.box.put("a")
        self.assertIn("a", self.box.all())
        self.assertEqual(self.box.all(), ["a"], "it is the first")
        self.assertIsInstance(self.box.all(), list)
        self.assertIsNone(self.box.empty())
        self.assertFalse(self.box.all())
        self.assertCountEqual({"b": 1}, {"b": 1})

    def test_is_full(self):
        for each in "ab":
            with self.subTest(each):
                self.box.put(each)
                self.assertLessEqual(len(self.box.all()), 2)
        with self.assertRaises(ValueError) as caught:
            self.box.put("c")
        self.assertEqual(str(caught.exception), "no room for 'c'")
        self.assertRaisesRegex(LookupError, "^'d'$", self.box.take, "d")
        with self.assertRaises(json.JSONDecodeError):
            self.box.load("[")
        self.assertRaises(FileNotFoundError, self.box.open, "nowhere")

if __name__ == "__main__":
    unittest.main()
"""
BOX = """
import json

class Full(ValueError):
    pass

class Box:
    def __init__(self, size):
        self.size, self.held = size, []
    def put(self, each):
        if len(self.held) == self.size:
            raise Full(f"no room for {each!r}")
        self.held.append(each)
    def take(self, each):
        return {name: name for name in self.held}[each]
    def all(self):
        return self.held
    def empty(self):
        self.held = []
    def load(self, text):
        self.held = json.loads(text)
    def open(self, path):
        return open(path)
"""
ROOTS = """
import math
import pytest
from solution import root

@pytest.fixture
def nine():
    yield 9

@pytest.fixture(scope="function")
def square(nine):
    return nine

@pytest.mark.parametrize("x", [0, pytest.param(4, id="four")])
@pytest.mark.parametrize(["power", "least"], [(2, 0), (3, 0)])
def test_is_the_inverse(x, power, least):
    assert root(x, power) ** power == pytest.approx(x, abs=1e-9)
    assert root(x, power) >= least

def test_of_a_fixture(square, nine):
    assert root(square) == 3
    assert [root(square), {"a": root(nine)}] == [pytest.approx(3.0), {"a": pytest.approx(3)}]

class TestErrors:
    def setup_method(self):
        self.below = -1

    def test_below(self):
        with pytest.raises(ValueError, match="below") as caught:
            root(self.below)
        assert str(caught.value) == "it is below 0"
        pytest.raises((TypeError, KeyError), root, "a")
        if not math.isclose(root(4), 2):
            pytest.fail("of 4")
"""
ROOT = """
def root(x, power=2):
    if isinstance(x, str):
        raise TypeError(x)
    if x < 0:
        raise ValueError("it is below 0")
    return x ** (1 / power)
"""
ADDS = """
import unittest

class Adds(unittest.TestCase):
    def test_small(self):
        self.assertEqual(add(2, 3), 5)

    def test_large(self):
        self.assertEqual(add(20, 3), 23)
"""
FAULTS = ("no_code", "compile_error", "wrong_answer", "runtime_error", "timeout")


async def judged(code: str, tests: str, entry_point: str = "", **options: object) -> Verdict:
    given = read_code_tests(tests, entry_point).as_json()
    problem = Problem("rows/1", "d", (), {"tests": given})
    said = f"So:\n\n```python\n{code}\n```"
    answer = Transcript(problem, (Message("assistant", said),), Status.COMPLETED, 9, raw=said)
    return await build("code", {"time_limit": 2, "partial": True, **options})(answer)


@pytest.mark.parametrize(
    ("code", "tests", "entry"), [(BOX, BOXES, "Box"), (BOX, BOXES, ""), (ROOT, ROOTS, "")]
)
async def test_what_the_frameworks_have_is_there(code: str, tests: str, entry: str) -> None:
    verdict = await judged(code, tests, entry)
    assert (verdict.score, verdict.reason) == (1.0, "")


@pytest.mark.parametrize(
    ("code", "tests", "fault", "passed", "reason"),
    [
        (BOX.replace("Full(f", "IndexError(f"), BOXES, "runtime_error", 1 / 2,
         "IndexError: no room for 'c'"),
        (BOX.replace("no room", "room"), BOXES, "wrong_answer", 1 / 2,
         'self.assertEqual(str(caught.exception), "no room for'),
        (BOX.replace("self.held = []", "return 1"), BOXES, "wrong_answer", 1 / 2,
         "self.assertIsNone(self.box.empty())"),
        (BOX.replace("size, []", "size, None"), BOXES, "runtime_error", 0.0, "TypeError"),
        (BOX.replace("__init__(self, size)", "__init__(self)"), BOXES, "runtime_error", 0.0,
         "self.box = Box(self.size) TypeError"),
        ("def add(a, b):\n    while a > 9: pass\n    return a + b", ADDS, "timeout", 0.0,
         "took over 2 s"),
        ("def add(a, b):\n    return [0] * (1 << 40)", ADDS, "runtime_error", 0.0, "MemoryError"),
        (ROOT.replace("below 0", "small"), ROOTS, "wrong_answer", 5 / 6,
         'with pytest.raises(ValueError, match="below")'),
        (ROOT.replace("raise ValueError", "return str"), ROOTS, "wrong_answer", 5 / 6,
         'with pytest.raises(ValueError, match="below")'),
        (ROOT.replace("1 / power", "0.5"), ROOTS, "wrong_answer", 5 / 6, "== pytest.approx(x"),
    ],
)  # fmt: skip
async def test_each_failure_is_that_of_its_test(
    code: str, tests: str, fault: str, passed: float, reason: str
) -> None:
    verdict = await judged(code, tests)
    assert reason in verdict.reason
    assert verdict.score == pytest.approx(passed)
    assert [name for name in FAULTS if verdict.parts[name]] == [fault]


TELLS = """
import json, os
for number in range(1, 20):
    try:
        os.write(number, (json.dumps({{"error": ["{kind}"], "said": ""}}) + "\\n").encode() * 3)
    except OSError:
        pass
os._exit(0)
"""
RAISES = "{before}\ndef add(a, b):\n    raise {what}"
HACKS = {
    "a skip": RAISES.format(before="import unittest", what="unittest.SkipTest('x')"),
    "a stop": RAISES.format(before="import unittest.case", what="unittest.case._ShouldStop()"),
    "a skip by another name": RAISES.format(
        before="import unittest\nclass Skip(unittest.SkipTest): pass", what="Skip"
    ),
    "a skip of pytest": RAISES.format(
        before="class Skipped(BaseException): pass\nSkipped.__module__ = '_pytest.outcomes'",
        what="Skipped",
    ),
    "a told skip": TELLS.format(kind="unittest.case:SkipTest"),
    "a told stop": TELLS.format(kind="unittest.case:_ShouldStop"),
    "a told failure that is expected": TELLS.format(kind="unittest:SkipTest"),
    "a name of ours": TELLS.format(kind="__main__:Guess"),
    "an interrupt": RAISES.format(before="", what="KeyboardInterrupt"),
    "an exit": RAISES.format(before="", what="SystemExit(0)"),
    "tests that are deleted": "import sys, gc, unittest\nfor each in gc.get_objects():\n"
    "    if isinstance(each, type) and issubclass(each, unittest.TestCase):\n"
    "        for name in dir(each):\n            if name.startswith('test'):\n"
    "                try: delattr(each, name)\n                except Exception: pass\n"
    "def add(a, b):\n    return -7",
    "a loader without tests": "import unittest\n"
    "unittest.TestLoader.getTestCaseNames = lambda *_: []\n"
    "unittest.defaultTestLoader = None\ndef add(a, b):\n    return -7",
    "a case that passes": "import unittest\nunittest.TestCase.run = lambda *_: None\n"
    "unittest.TestCase.failureException = KeyError\n"
    "unittest.TestCase = type('TestCase', (), {})\ndef add(a, b):\n    return -7",
    "a verdict of a runner": "import sys\nprint('..\\nRan 2 tests in 0.001s\\n\\nOK')\n"
    "print('..\\n\\nOK', file=sys.stderr)\ndef add(a, b):\n    return -7",
    "modules in the folder": "import os\nfor name in ('unittest', 'pytest', 'difflib', 'inspect',"
    " 're', 'itertools', 'solution'):\n    os.makedirs(name, exist_ok=True)\n"
    "    for file in (f'{name}.py', f'{name}/__init__.py'):\n"
    "        open(file, 'w').write('import os; os._exit(0)')\n"
    "def add(a, b):\n    return -7",
    "a file of pytest": "for name in ('conftest.py', 'pytest.ini', 'sitecustomize.py'):\n"
    "    open(name, 'w').write('raise SystemExit(0)')\ndef add(a, b):\n    return -7",
    "a test case": "import unittest\nclass Adds(unittest.TestCase):\n"
    "    def test_small(self): ...\ndef add(a, b):\n    return -7",
    "a value for the class": "class E:\n    def __eq__(self, _): return True\n"
    "    def __getattr__(self, _): return self\n    def __call__(self, *_): return self\n"
    "add = E()",
}  # fmt: skip
OF_PYTEST = """
import pytest

@pytest.mark.parametrize("a", [2, 20])
def test_add(a):
    assert add(a, 3) == a + 3

class TestMore:
    def test_more(self):
        assert add(1, 1) == pytest.approx(2)
"""


@pytest.mark.parametrize("tests", [ADDS, OF_PYTEST], ids=["unittest", "pytest"])
@pytest.mark.parametrize("hack", HACKS)
async def test_no_framework_rewards_what_is_not_solved(hack: str, tests: str) -> None:
    verdict = await judged(HACKS[hack], tests)
    assert verdict.score == 0.0, verdict


SWALLOWS = """
class Pool:
    def __enter__(self): return self
    def __exit__(self, *_): return True
    def __sub__(self, other): return self
    async def __aenter__(self): return self
    async def __aexit__(self, *_): return True
    def get(self, x): raise ValueError
    def value(self): return 5
class Ignored:
    def __init__(self, kind): self.kind = kind
    def __enter__(self): return self
    def __exit__(self, kind, error, place): return kind is not None and issubclass(kind, self.kind)
"""


@pytest.mark.parametrize(
    "body",
    [
        "with Pool() as pool:\n        assert pool.value() == 4",
        "with Pool() as pool:\n        assert pool.get(2) == 4",
        "with Pool() as pool:\n        value = pool.get(2)\n        assert value == 4",
        "with Pool() as pool:\n        assert pool - 4 == 0",
        "def told(value):\n        assert value == 4\n"
        "    with Pool() as pool:\n        told(pool.value())",
        "async def ask():\n        async with Pool() as pool:\n"
        "            assert pool.value() == 4\n    asyncio.run(ask())",
    ],
)
async def test_a_block_of_the_answers_swallows_no_assertion(body: str) -> None:
    tests = f"import asyncio\nfrom solution import Ignored, Pool\ndef test_it():\n    {body}"
    assert (await judged(SWALLOWS, tests)).score == 0
    ignores = f"{tests}\n    with Ignored(ZeroDivisionError):\n        1 / 0"
    right = SWALLOWS.replace("5", "4").replace("raise ValueError", "return 4")
    right = right.replace("other): return self", "other): return other - 4")
    assert (await judged(right, ignores)).score == 1


@pytest.mark.parametrize(
    "tests",
    [
        "import unittest\nx = add(1, 2)\nclass T(unittest.TestCase):\n    def check(self):\n"
        "        self.assertEqual(x, 3)",
        "x = add(1, 2)\ndef proves():\n    assert x == 3",
        "import unittest\nx = add(1, 2)\nclass T(unittest.TestCase):\n    def check(self):\n"
        "        self.assertEqual(x, 3)\n"
        "unittest.TextTestRunner().run(unittest.makeSuite(T))",
        "x = add(1, 2)\nclass Adds:\n    def test_it(self):\n        assert x == 3",
    ],
)
async def test_where_no_test_ran_nothing_has_passed(tests: str) -> None:
    verdict = await judged("def add(a, b):\n    return a + b", tests)
    assert (verdict.score, verdict.reason) == (0.0, "wrong answer: no test ran")


@pytest.mark.parametrize(
    "tests",
    [
        "def proves(x):\n    assert x == 3\nproves(add(1, 2))",
        "import sys\nif add(1, 2) != 3:\n    raise ValueError('no')",
        "def proves(x):\n    assert x == 3\ndef all_of():\n    proves(add(1, 2))\nall_of()",
    ],
)
async def test_tests_without_a_framework_count_where_they_assert(tests: str) -> None:
    assert (await judged("def add(a, b):\n    return a + b", tests)).score == 1.0
    assert (await judged("def add(a, b):\n    return a - b", tests)).score == 0.0


async def test_what_asks_nothing_is_no_test_that_passed() -> None:
    """Or a wrong answer would have a share of it."""
    tests = (
        "def known(x):\n    if x < 0:\n        raise ValueError(x)\n    return x + 2\n"
        "wanted = known(1)\nassert add(1, 2) == wanted\n"
        "def test_add():\n    assert add(2, 2) == known(2)\n"
        "if __name__ == '__main__':\n    test_add()\n    raise SystemExit(add(2, 2) != 4)"
    )
    assert (await judged("def add(a, b):\n    return a + b", tests)).score == 1.0
    assert (await judged("def add(a, b):\n    return a - b", tests)).score == 0.0


async def test_a_test_that_skips_itself_has_not_passed() -> None:
    """A condition of its own may hang on the answer."""
    tests = ADDS.replace(
        "        self.assertEqual(add(2, 3), 5)",
        "        skip = getattr(unittest, 'SkipTest')\n"
        "        if add(2, 3) != 5:\n            raise skip('x')",
    )
    assert (await judged("def add(a, b):\n    return a + b", tests)).score == 1.0
    assert (await judged("def add(a, b):\n    return a + b * (a > 9)", tests)).score == 0.5


async def test_tests_that_fail_by_themselves_fail_the_sample() -> None:
    asks = ADDS.replace("add(2, 3)", "add(2, missing.value)")
    with pytest.raises(InputError, match=r"its asserts do not run: .*AttributeError"):
        await judged("def add(a, b):\n    return a + b", f"import re as missing\nre.x\n{asks}")
