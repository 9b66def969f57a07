"""The reward `code` in its sandbox: what passes, what each failure is called, and ways to be
rewarded without solving the problem, none of which is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.types import Json, Message, Problem, Status, Transcript, Verdict
from flows.checks.recipe_checks import cautions
from flows.load import load_recipe
from flows.post_train import plan_post_train
from infra.errors import InputError
from rewards.built_in_rewards import build

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("code_sandbox")]

ASSERTS = ["assert add(2, 3) == 5", "assert add(10, 4) == 14", "assert add(-1, 1) == 0"]
CHECK = """
METADATA = {"author": "x"}

def check(candidate):
    for a in range(60):
        assert candidate(a, 1) == a + 1, "one more"
    assert abs(candidate(0.1, 0.2) - 0.3) < 1e-6
    assert tuple(candidate((1,), (2,))) == (1, 2)
"""
UNITTEST = """
import unittest

class Adds(unittest.TestCase):
    def test_small(self):
        self.assertEqual(add(2, 3), 5)

    def test_others(self):
        for a in (10, 20):
            with self.subTest(a=a):
                self.assertAlmostEqual(add(a, 0.5), a + 0.5)
"""
PYTEST = """
import pytest

@pytest.mark.parametrize("a, b, total", [(2, 3, 5), (10, 4, 14)])
def test_add(a, b, total):
    assert add(a, b) == total

class TestNear:
    def test_near(self):
        assert add(0.1, 0.2) == pytest.approx(0.3)
"""
PAIRS: dict[str, Any] = {"inputs": ["2 3\n", "10 4\n", "-1 1"], "outputs": ["5\n", "14\n", "0"]}
CALLS: dict[str, Any] = {"inputs": [[2, 3], [10, 4]], "outputs": [5, [14]], "fn_name": "add"}
FORMS: dict[str, Json] = {
    "asserts": {"asserts": "\n".join(ASSERTS)},
    "check": {"asserts": CHECK, "entry_point": "add"},
    "unittest": UNITTEST,
    "pytest": PYTEST,
    "calls": CALLS,
    "pairs": PAIRS,
}
OF_FUNCTIONS = [form for form in FORMS if form != "pairs"]
RIGHT = "def add(a, b):\n    return a + b\n"
READS = "a, b = map(int, input().split())\n"


async def judged(code: str, tests: Json, **options: Any) -> Verdict:
    problem = Problem("rows/1", "d", (), {"tests": tests})
    said = f"So:\n\n```python\n{code}\n```\n\nThat is it."
    answer = Transcript(problem, (Message("assistant", said),), Status.COMPLETED, 9, raw=said)
    return await build("code", options)(answer)


@pytest.mark.parametrize("form", OF_FUNCTIONS)
async def test_a_right_function_passes_in_every_form(form: str) -> None:
    fenced = 'def add(a, b):\n    """\n    ```\n    add(2, 3)\n    ```\n    """\n    return a + b'
    for code in (
        RIGHT,
        fenced,
        f"from __future__ import annotations\n{RIGHT}",
        "add = lambda a, b: a + b",
    ):
        assert await judged(code, FORMS[form]) == Verdict(1.0, PASSED)
    method = (
        "class Solution:\n    def add(self, a: Any, b: Optional[Any]) -> Any:\n        return a + b"
    )
    assert (await judged(method, CALLS)).score == 1.0


FAULTS = ("no_code", "compile_error", "wrong_answer", "runtime_error", "timeout")
PASSED = {"passed": 1.0, **dict.fromkeys(FAULTS, 0.0)}


@pytest.mark.parametrize(
    ("code", "form", "fault", "reason", "passed"),
    [
        ("print(sum(map(int, input().split())))", "pairs", "", "", 1.0),
        (f"{READS}print(f'{{a + b}}  \\n\\n')\nimport sys\nsys.exit(0)", "pairs", "", "", 1.0),
        (f"{READS}print(a + b)\nexit() if a > 2 else quit()", "pairs", "", "", 1.0),
        (f"{READS}print(max(a + b, 5))", "pairs", "wrong_answer",
         "wrong answer: test 3 of 3: line 1 is '5', not '0'", 2 / 3),
        (f"{READS}print(a + b)\n1 / (a - 10)", "pairs", "runtime_error",
         "runtime error: test 2 of 3: ZeroDivisionError: division by zero", 2 / 3),
        (f"{READS}while a == 10: pass\nprint(a + b)", "pairs", "timeout",
         "timeout: test 2 of 3: took over 1 s", 2 / 3),
        ("print(", "pairs", "compile_error",
         "compile error: SyntaxError: '(' was never closed (answer.py, line 1)", 0.0),
        ("x = 'a' * (1 << 33)", "pairs", "runtime_error", "MemoryError", 0.0),
        ("def add(a, b):\n    return abs(a + b - 1) + 1", "asserts", "wrong_answer",
         "wrong answer: assert add(-1, 1) == 0", 2 / 3),
        ("def add(a, b):\n    return a + b if a < 9 else a / 0", "asserts", "runtime_error",
         "runtime error: assert add(10, 4) == 14 ZeroDivisionError: division"
         " by zero", 2 / 3),
        ("def add(a, b):\n    while a == 10: pass\n    return a + b", "asserts", "timeout",
         "took over 1 s", 1 / 3),
        ("def add(a b): pass", "asserts", "compile_error",
         "compile error: SyntaxError: invalid syntax (answer.py, line 1)", 0.0),
        ("def mul(a, b): pass", "asserts", "runtime_error", "no attribute 'add'", 0.0),
        ("import numpy", "asserts", "runtime_error", "No module named 'numpy'", 0.0),
        ("def add(a, b):\n    return a + b + (a > 50)", "check", "wrong_answer", "one more", 0.0),
        ("def add(a, b):\n    return a + b + (a > 5)", "calls", "wrong_answer", "add", 1 / 2),
    ],
)  # fmt: skip
async def test_each_failure_has_its_name(
    code: str, form: str, fault: str, reason: str, passed: float
) -> None:
    verdict = await judged(code, FORMS[form], time_limit=1, partial=True)
    assert reason in verdict.reason
    assert verdict.score == verdict.parts["passed"] == pytest.approx(passed)
    assert [name for name in FAULTS if verdict.parts[name]] == [fault] * bool(fault)
    if fault and passed and fault != "timeout":
        assert (await judged(code, FORMS[form], time_limit=1)).score == 0.0


@pytest.mark.parametrize(
    ("code", "asserts"),
    [
        ("def split(text):\n    return set(text.split()), {1: (2.5, None)}, b'x', 1j, {'a'}",
         "assert split('a b a') == ({'a', 'b'}, {1: (2.5, None)}, b'x', 1j, frozenset('a'))"),
        ("class Stack:\n    size = 0\n    def push(self, x):\n        self.size += x\n"
         "        return self",
         "s = Stack()\ns.push(2)\nassert s.push(3).size == 5\nassert s.size == 5"),
        ("def turn(x):\n    x.reverse()", "x = [1, 2]\nturn(x)\nassert x == [2, 1]"),
        ("def root(x):\n    if x < 0:\n        raise ValueError('below 0')\n    return x ** 0.5",
         "try:\n    root(-1)\n    assert False\nexcept ValueError as error:\n"
         "    assert 'below 0' in str(error)"),
        ("def code(x):\n    return x[::-1]\ndef decode(x):\n    return x[::-1]",
         "import random\nfor _ in range(5):\n    x = str(random.random())\n"
         "    assert decode(code(x)) == x"),
        ("def near(x):\n    return x + 1e-12",
         "from solution import near\nimport math\n\ndef test_near():\n"
         "    assert math.isclose(near(1), 1)\n\ndef test_far():\n    assert near(5) > 5"),
        ("def many():\n    return 7 ** 9000", "assert many() == 7 ** 9000"),
        ("from dataclasses import dataclass\n@dataclass\nclass At:\n    x: int = 3",
         "assert At().x == 3\nassert At(x=4).x == 4"),
    ],
)  # fmt: skip
async def test_asserts_see_an_answers_values_as_they_are(code: str, asserts: str) -> None:
    verdict = await judged(code, asserts)
    assert (verdict.score, verdict.reason) == (1.0, "")


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ("assert add(1, 2) ==", "its asserts do not run: SyntaxError"),
        ("assert 1 == 1", "its asserts ask nothing of the answer"),
        ("import numpy\nassert add(1, 2) == 3", "imports `numpy`, and only Python's own library"),
        ("1 / 0\nassert add(1, 2) == 3", "its asserts do not run: 1 / 0 ZeroDivisionError"),
        ({"inputs": ["1"], "outputs": []}, "is no tests: write asserts"),
    ],
)
async def test_tests_that_no_answer_can_pass_fail_the_sample(tests: Json, says: str) -> None:
    with pytest.raises(InputError, match=f"problem rows/1: {says}"):
        await judged(RIGHT, tests)


EQUAL = """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __contains__ = __lt__
    def __bool__(self): return True
    def __hash__(self): return 0
    def __sub__(self, other): return self
    def __abs__(self): return 0.0
    def __float__(self): return 0.3
    def __iter__(self): return iter((1, 2))
    def __getattr__(self, name): return lambda *_: True
    def __call__(self, *_): return self
    def __repr__(self): return "5"
"""
FORGE = """
import json, os, sys
{where}
for number in range(3, 20):
    try:
        os.write(number, (json.dumps({what}) + "\\n").encode() * 3)
    except OSError:
        pass
os._exit(0)
"""
SEEN = """
import gc, sys
def add(a, b):
    frame, texts = sys._getframe(), []
    while frame:
        texts += [repr(v) for v in (*frame.f_locals.values(), *frame.f_globals.values())]
        frame = frame.f_back
    texts += [repr(each) for each in gc.get_objects() if isinstance(each, (str, dict, list, tuple))]
    for value in (5, 14):
        if any(f"== {value}" in text for text in texts):
            return value
    return -7
"""
HACKS = {
    "always equal": f"{EQUAL}\ndef add(a, b):\n    return Equal()",
    "an equal class": f"{EQUAL}\nadd = Equal()",
    "an equal int": "class E(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\n"
    "def add(a, b):\n    return E(1)",
    "an equal float": "class E(float):\n    __eq__ = __lt__ = lambda *_: True\n"
    "    __sub__ = lambda self, _: self\n    __hash__ = float.__hash__\n"
    "def add(a, b):\n    return E(7)",
    "an equal list": "class E(list):\n    __eq__ = lambda *_: True\ndef add(a, b):\n    return E()",
    "an equal text": "class E(str):\n    __eq__ = lambda *_: True\n    __hash__ = str.__hash__\n"
    "def add(a, b):\n    return E('5')",
    "exit 0": "import sys\nsys.exit(0)",
    "exit 0 at once": "import os\nos._exit(0)",
    "exit 0 in the call": "import os\ndef add(a, b):\n    os._exit(0)",
    "exit 0 by an exception": "def add(a, b):\n    raise SystemExit(0)",
    "an assertion that is caught": "def add(a, b):\n    raise AssertionError",
    "a missing value": "def add(a, b):\n    raise NameError('__guesses__')",
    "patched builtins": "import builtins\nbuiltins.abs = lambda x: 0\n"
    "builtins.tuple = lambda x: (1, 2)\n"
    "builtins.all = builtins.any = lambda x: True\ndef add(a, b):\n    return -7",
    "a name of the tests": "def abs(x):\n    return 0\ndef tuple(x):\n    return (1, 2)\n"
    "def check(candidate):\n    pass\ndef add(a, b):\n    return -7",
    "names of ours": "def __same__(a, b):\n    return True\n__guesses__ = lambda: True\n"
    "def add(a, b):\n    return -7",
    "assertions off": "import sys, builtins\nbuiltins.__debug__ if 1 else 0\n"
    "builtins.AssertionError = type('E', (BaseException,), {})\ndef add(a, b):\n    return -7",
    "a patched unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\n"
    "unittest.main = lambda *_, **__: None\ndef add(a, b):\n    return -7",
    "a patched serializer": "import json\njson.dumps = lambda *_, **__: '{\"value\": true}'\n"
    "def add(a, b):\n    return -7",
    "a serializer that repeats": "import json\nreal = json.dumps\n"
    "json.dumps = lambda *_, **__: real({'calls': [], 'outcomes': [None], 'is_missing': False})\n"
    "def add(a, b):\n    return -7",
    "forged results": FORGE.format(where="", what='{"value": True}'),
    "a forged report": FORGE.format(
        where="", what='{"calls": [[]], "outcomes": [None], "is_missing": False}'
    ),
    "forged objects": FORGE.format(where="", what='{"value": {"object": "add"}}'),
    "forged kinds": FORGE.format(where="", what='{"value": {"guess": []}}'),
    "forged at the end": "import atexit, os\n@atexit.register\ndef last():\n"
    "    os.write(1, b'5\\n14\\n0\\n')\ndef add(a, b):\n    return -7",
    "a thread that forges": "import os, threading, time\ndef forge():\n    while True:\n"
    "        for n in range(1, 9):\n            try:\n"
    "                os.write(n, b'{\"value\": true}\\n')\n            except OSError: pass\n"
    "        time.sleep(0.001)\nthreading.Thread(target=forge, daemon=True).start()\n"
    "def add(a, b):\n    return -7",
    "the tests in memory": SEEN,
    "the tests in files": "import glob\ntexts = [open(f, errors='replace').read() for f in"
    " glob.glob('**', recursive=True) + glob.glob('/proc/*/cmdline') + glob.glob('/tmp/**')]\n"
    "def add(a, b):\n    found = (n for n in (5, 14) if any(f'== {n}' in t for t in texts))\n"
    "    return next(found, -7)",
    "a module for the tests": "import os\nfor name in ('ast', 'math', 'random', 'traceback',"
    " 'types', 'builtins', 'json', 'tests', '<tests>'):\n    open(f'{name}.py', 'w').write("
    '\'import os; os.write(1, b"{\\\\"calls\\\\": [], \\\\"outcomes\\\\": [null],'
    ' \\\\"is_missing\\\\": false}"); os._exit(0)\')\ndef add(a, b):\n    return -7',
    "a site of its own": "open('sitecustomize.py', 'w').write('import os; os._exit(0)')\n"
    "open('usercustomize.py', 'w').write('import os; os._exit(0)')\n"
    "def add(a, b):\n    return -7",
    "arguments that change": "def add(a, b):\n    try:\n        a.clear()\n"
    "    except Exception: pass\n    return -7",
    "a trace function": "import sys\nsys.settrace(lambda frame, event, arg: frame.f_locals.update("
    "wanted=1))\nsys.setprofile(lambda *_: None)\ndef add(a, b):\n    return -7",
    "nan": "def add(a, b):\n    return float('nan')",
    "infinite": "def add(a, b):\n    return float('inf')",
    "deep": "def add(a, b):\n    x = []\n    for _ in range(10 ** 5):\n"
    "        x = [x]\n    return x",
    "a generator": "def add(a, b):\n    yield 5",
    "a module": "import sys\nsys.modules[__name__] = sys.modules['json']\ndef add(a, b):\n"
    "    return sys",
}
PRINTED = {
    "many numbers": "print('5 14 0')",
    "each on a line": "print('5\\n14\\n0')",
    "nothing": "pass",
    "exit 0": "raise SystemExit(0)",
    "an equal sign": "print('== 5')",
    "not a number": "print('nan')",
    "errors": "import sys\nprint(5, file=sys.stderr)",
    "a result of ours": "print('{\"passed\": 1.0}')",
    "the last output": "import os\nopen('n', 'a').write('5')\nprint(open('n').read())",
}


@pytest.mark.parametrize("form", OF_FUNCTIONS)
@pytest.mark.parametrize("hack", HACKS)
async def test_no_function_is_rewarded_without_solving_it(hack: str, form: str) -> None:
    verdict = await judged(HACKS[hack], FORMS[form], partial=True, time_limit=2)
    assert verdict.score == 0.0, verdict


@pytest.mark.parametrize("hack", PRINTED)
async def test_no_output_is_rewarded_without_solving_it(hack: str) -> None:
    assert (await judged(PRINTED[hack], PAIRS, time_limit=2)).score == 0.0


@pytest.mark.parametrize(
    "code",
    [
        "def order(x):\n    x.clear()\n    return []",
        FORGE.format(where="", what='{"value": {"list": []}, "args": [{"list": []}]}'),
        "def order(x):\n    raise StopIteration",
        "def order(x):\n    raise GeneratorExit",
        "def order(x):\n    raise StopAsyncIteration",
    ],
)
async def test_an_argument_that_is_emptied_or_a_loop_that_is_ended_gains_nothing(code: str) -> None:
    tests = "x = [2, 1]\nassert sorted(order(x)) == sorted(x)"
    assert (await judged(code, tests)).score == 0.0
    loop = "def fits(x): return order(x) == sorted(x)\nassert all(map(fits, ([2, 1], [1])))"
    assert (await judged(code, loop)).score == 0.0


@pytest.mark.usefixtures("own_home")
def test_check_runs_the_solutions_that_rows_show(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"Add {n}.", "test_list": [f"assert add(1) == {1 + n}"], "code": CODE.format(n)}
        for n in range(8)
    ]
    (tmp_path / "mbpp.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def said(solution: str) -> list[str]:
        columns = {"prompt": "prompt+test_list.0", "solution": solution}
        source = {"files": ["*.jsonl"], "columns": columns}
        domain = {
            "curriculum": {"name": "files", "options": {"sources": source}},
            "rewards": [{"name": "code", "outcome": True}],
        }
        path = [{"rl": {"steps": 2, "optimizer": {"lr": 1e-4}}}]
        size = {"hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
        written = {
            "name": "programs",
            "base": {"random": {**size, "ffn_size": 64}},
            "experts": {"adds": {"domain": domain, "path": path}},
            "evaluate": {"problems": 1, "samples": 2},
        }
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(written))
        made = load_recipe(str(tmp_path / "recipe.yaml"))
        return [line for line in cautions(made, plan_post_train(made)) if "code gives 0" in line]

    assert said("code") == []
    (wrong,) = said("prompt")
    assert "compile error: SyntaxError" in wrong


CODE = "def add(a):\n    return a + {}"
