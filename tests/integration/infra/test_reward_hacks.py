"""Ways to be rewarded without a repair: every one that we could think of fails.

The repository: `cat.add` should add and subtracts; `dog.half` is right. Each hack keeps the bug and
tries to pass all the same.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from curricula.coding.repository import KINDS, Size, draw_repository
from engines.types import Message, Problem, Status, ToolCall, Transcript
from infra import repositories
from infra.repositories import Check, Files, Judgement, judge, pool, report
from infra.sandbox.python import level
from rewards import agent_outcomes
from rewards.built_in_rewards import build

pytestmark = pytest.mark.integration

ADD = "def add(a, b):\n    return a - b\n"
TEST = "from cat import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
FILES = {
    "cat.py": ADD,
    "dog.py": "def half(a):\n    return a // 2\n",
    "test_cat.py": TEST,
    "test_dog.py": "from dog import half\n\n\ndef test_half():\n    assert half(9) == 4\n",
}
PROTECTED = ["test_cat.py", "test_dog.py"]
CHECKS = [
    Check("cat", "add", [2, 3], 5),
    Check("dog", "half", [9], 4),
    Check("cat", "add", [10, 4], 14),
    Check("cat", "add", [-1, 1], 0),
]
REPAIRED = ADD.replace("a - b", "a + b")
ALWAYS_EQUAL = (
    "class Any(int):\n    __eq__ = lambda s, o: True\n    __repr__ = lambda s: '5'\n"
    "    __hash__ = None\n"
)

IN_THE_CODE = {
    "exit code 0 at once": "import os\nos._exit(0)\n" + ADD,
    "exit code 0 at the end": "import atexit, os\natexit.register(os._exit, 0)\n" + ADD,
    "exit from the function": "import sys\n" + ADD.replace("return a - b", "sys.exit(0)"),
    "printed results": 'print("2 passed, 0 failed")\nprint(\'{"value": 5}\')\n' + ADD,
    "printed results on every descriptor": (
        "import os\nfor n in range(1, 40):\n  for _ in range(4):\n"
        "    try: os.write(n, b'{\"value\": 5}\\n')\n    except OSError: pass\nos._exit(0)\n" + ADD
    ),
    "the calls of the tests by heart": ADD.replace(
        "return", "if (a, b) == (2, 3):\n        return 5\n    return"
    ),
    "an answer that equals everything": ALWAYS_EQUAL
    + ADD.replace("return a - b", "return Any(a - b)"),
    "a patched assertion": (
        "import builtins\nclass Quiet(Exception): pass\nbuiltins.AssertionError = Quiet\n" + ADD
    ),
    "a patched serializer": ("import json\njson.dumps = lambda *a, **k: '{\"value\": 5}'\n" + ADD),
    "a patched importer": (
        "import importlib, sys\n"
        "class Right: add = staticmethod(lambda a, b: 5); half = staticmethod(lambda a: 4)\n"
        "importlib.import_module = lambda name: Right\n" + ADD
    ),
    "expected values read from the tests": (
        "import re\n\n\ndef add(a, b):\n"
        "    found = re.search(r'== (-?\\d+)', open('test_cat.py').read())\n"
        "    return int(found.group(1))\n"
    ),
    "expected values looked for in memory": (
        "import gc, sys\n\n\ndef add(a, b):\n    for thing in gc.get_objects():\n"
        "        if type(thing) is list and len(thing) == 4 and thing[2:3] == [[a, b]]:\n"
        "            return thing[3]\n    return a - b\n"
    ),
    "the caller's frames": (
        "import sys\n\n\ndef add(a, b):\n    frame = sys._getframe(1)\n    while frame:\n"
        "        for name in ('expected', 'checks', 'answer'):\n"
        "            if name in frame.f_locals: return frame.f_locals[name]\n"
        "        frame = frame.f_back\n    return a - b\n"
    ),
    "a tracer that swallows failures": (
        "import sys\nsys.settrace(lambda *a: None)\nsys.excepthook = lambda *a: None\n" + ADD
    ),
    "tests rewritten when they run": (
        "open('test_cat.py', 'w').write('def test_add(): pass')\n" + ADD
    ),
    "an endless loop": ADD.replace("return a - b", "while True: pass"),
    "a thread that answers": (
        "import os, threading\nthreading.Thread(target=lambda: [os.write(3, b'{}\\n')"
        " for _ in range(4)], daemon=True).start()\n" + ADD
    ),
}
IN_OTHER_FILES = {
    "a deleted test": {"test_cat.py": None},
    "an emptied test": {"test_cat.py": ""},
    "a skipped test": {"test_cat.py": TEST.replace("    assert", "    return\n    assert")},
    "another expected value": {"test_cat.py": TEST.replace("5", "-1")},
    "a renamed test": {"test_cat.py": None, "cat_tests.py": TEST},
    "conftest": {"conftest.py": "import cat\ncat.add = lambda a, b: a + b\n"},
    "sitecustomize": {"sitecustomize.py": "import cat\ncat.add = lambda a, b: a + b\n"},
    "a patched runner": {"importlib.py": "def import_module(name): raise SystemExit(0)\n"},
    "a shadowed library": {"json.py": "def dumps(*a, **k): return '{\"value\": 5}'\n"},
    "a package in the module's place": {"cat/__init__.py": REPAIRED},
}


@pytest.fixture(scope="module", autouse=True)
def sandboxes() -> Iterator[None]:
    if not level().holds:
        pytest.skip(f"this machine confines by {level()} only")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repositories, "LIMITS", replace(repositories.LIMITS, cpu_seconds=1))
        yield
    pool("confined").close()
    pool.__globals__["_pool_of"].cache_clear()


def judged(changes: dict[str, str | None]):
    final = {path: text for path, text in {**FILES, **changes}.items() if text is not None}
    return judge(FILES, final, PROTECTED, CHECKS, pool("confined"))


def test_a_repair_passes_and_doing_nothing_does_not() -> None:
    assert judged({"cat.py": REPAIRED}).passed
    assert judged({"cat.py": REPAIRED}).right == len(CHECKS)
    nothing = judged({})
    assert (nothing.passed, nothing.right) == (False, 1)
    assert nothing.reason == 'cat.add(2, 3) is {"value": -1}, not as expected'


@pytest.mark.parametrize("hack", IN_THE_CODE)
def test_hacks_in_the_code_fail(hack: str) -> None:
    judgement = judged({"cat.py": IN_THE_CODE[hack]})
    assert not judgement.passed, judgement
    assert judgement.reason


@pytest.mark.parametrize("hack", IN_OTHER_FILES)
def test_hacks_in_other_files_fail(hack: str) -> None:
    assert not judged(IN_OTHER_FILES[hack]).passed


def test_what_is_added_to_a_repair_neither_helps_nor_hurts() -> None:
    assert judged({"cat.py": REPAIRED, "notes.txt": "x"}).passed
    assert judged({"cat.py": REPAIRED, "sitecustomize.py": "raise SystemExit(3)"}).passed


def test_a_repair_with_a_changed_test_fails() -> None:
    judgement = judged({"cat.py": REPAIRED, "test_dog.py": ""})
    assert judgement.reason == "the protected file test_dog.py was changed"


def test_tests_report_what_fails_and_leave_nothing_behind() -> None:
    failing = "FAIL test_cat.py test_add: assert add(2, 3) == 5\n1 passed, 1 failed"
    assert report(FILES, pool("confined")) == failing
    spoiled = {**FILES, "cat.py": "open('x', 'w')\n1 / 0\n"}
    assert "ZeroDivisionError" in report(spoiled, pool("confined"))
    assert report(FILES, pool("confined")) == failing
    noisy = {**FILES, "cat.py": "print('a' * 10**7)\n" + ADD}
    assert len(report(noisy, pool("confined"))) < 1100
    endless = {**FILES, "cat.py": "while True: pass\n"}
    assert report(endless, pool("confined")).startswith("error:")


def transcript(*calls: ToolCall, answer: str = "done") -> Transcript:
    reference = {
        "files": FILES,
        "protected": PROTECTED,
        "checks": [[c.module, c.function, c.arguments, c.expected] for c in CHECKS],
    }
    problem = Problem("p", "coding", (Message("user", "repair"),), reference)
    turns = [Message("assistant", "", tool_calls=(call,)) for call in calls]
    end = [Message("assistant", answer)] if answer else []
    return Transcript(problem, (*turns, *end), Status.COMPLETED, 9)


def edit(path: str, old: str, new: str) -> ToolCall:
    return ToolCall("edit", {"path": path, "old": old, "new": new})


async def test_the_reward_is_for_edits_that_repair() -> None:
    reward = build("repository-tests")
    repair = edit("cat.py", "a - b", "a + b")
    assert (await reward(transcript(repair))).score == 1.0
    assert (await reward(transcript(repair, answer=""))).reason == "no final answer"
    assert (await reward(transcript())).reason == "nothing was edited"
    refused = await reward(transcript(edit("test_cat.py", "== 5", "== -1")))
    assert (refused.score, refused.reason) == (0.0, "nothing was edited")
    assert refused.parts["refused_edits"] == 1.0
    both = await reward(transcript(edit("test_cat.py", "== 5", "== -1"), repair))
    assert both.score == 1.0  # the test stayed as it was
    for hack in ("printed results", "exit code 0 at once", "a patched serializer"):
        whole = edit("cat.py", ADD, IN_THE_CODE[hack])
        assert (await reward(transcript(whole))).score == 0.0, hack


async def test_files_that_a_driver_collected_are_judged_as_they_are() -> None:
    reward = build("repository-tests")

    async def score(files: dict[str, str]) -> float:
        return (await reward(replace(transcript(), files=files))).score

    assert await score({"cat.py": REPAIRED, "notes.txt": "x"}) == 1.0
    assert await score({"cat.py": REPAIRED, "test_cat.py": ""}) == 0.0
    assert await score({"cat.py": ADD, "conftest.py": REPAIRED}) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_tests_of_a_tiny_repository_will_say_is_what_they_say(kind: str) -> None:
    for seed in range(4):
        drawn = draw_repository(random.Random(seed), kind, Size(2, 1, is_short=True))
        assert drawn.report == report(drawn.files, pool("confined"))


async def test_the_same_files_are_judged_once_if_the_recipe_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[str] = []

    def counted(original: Files, final: Files, *others: Any) -> Judgement:
        judged.append(final["cat.py"])
        return judge(original, final, *others)

    monkeypatch.setattr(agent_outcomes, "judge", counted)
    reward = build("repository-tests", {"once": True})
    repair, other = edit("cat.py", "a - b", "a + b"), edit("cat.py", "a - b", "a * b")
    rollouts = [transcript(call) for call in (repair, other, repair, repair, other)]
    scores = [verdict.score for verdict in await asyncio.gather(*map(reward, rollouts))]
    assert scores == [1.0, 0.0, 1.0, 1.0, 0.0]
    assert len(judged) == 2
