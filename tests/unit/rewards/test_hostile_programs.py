"""Programs of a model that print and say without a bound, before a verdict is given."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from engines.rollout.drivers.session_host import End
from engines.types import Json, Message, Problem, Status, Transcript
from infra.json_text import reason_text
from rewards.code.code_reward import Code, difference
from tests.parts.agent_parts import Script, session_of

pytestmark = pytest.mark.unit


async def judged(program: str, tests: Json, limit: int = 6) -> tuple[float, str]:
    problem = Problem("p/1", "d", (Message("user", "q"),), reference={"tests": tests})
    answer = f"```python\n{program}\n```"
    said = (Message("assistant", answer),)
    verdict = await Code(sandbox="unsafe", time_limit=limit)(
        Transcript(problem, said, Status.COMPLETED, 3)
    )
    return verdict.score, verdict.reason


@pytest.mark.parametrize("printed", ["a\n" * (4 << 20), "\n" * (8 << 20), "1 " * (4 << 20)])
def test_no_more_of_an_output_is_looked_at_than_is_wanted(printed: str) -> None:
    tracemalloc.start()
    began = time.process_time()
    assert difference(printed, "x y\n").startswith("line 1 is ")
    assert time.process_time() - began < 3
    assert tracemalloc.get_traced_memory()[1] < 60 << 20
    tracemalloc.stop()


def test_lines_and_words_are_compared_as_they_were() -> None:
    for printed, wanted in (
        ("a b \n\n c\n", "a  b\nc"), ("", "\n \n"), ("1\r\n2", "1\n2"), ("0.50", "0.5"),
        ("a\x0bb", "a\nb"),
    ):  # fmt: skip
        assert difference(printed, wanted) == ""
    assert difference("a b", "a") == "line 1 is 'a b', not 'a'"
    assert difference("a", "a b") == "line 1 is 'a', not 'a b'"
    assert difference("a", "a\nb") == "line 2 is '', not 'b'"
    assert difference("a\nb", "a") == "line 2 is 'b', not ''"
    assert len(difference("a" * 9999, "b" * 9999)) < 200


async def test_what_a_program_says_of_its_end_is_short() -> None:
    """It has the descriptor on which its results are told."""
    says = (
        "import json, os\n"
        "for kind in range(3, 9):\n"
        "    try:\n"
        "        told = json.dumps({'runtime_error': 'x' * 900000}).encode()\n"
        "        while told: told = told[os.write(kind, told):]\n"
        "    except OSError: pass\n"
        "os._exit(0)"
    )
    assert await judged(says, ["assert f(2) == 4"]) == (0.0, f"runtime error: {'x' * 200}")
    lines = "import sys\nsys.stderr.write('a\\n' * 4000000 + 'b' * 5000)\nsys.exit(1)"
    score, reason = await judged(lines, {"inputs": ["1"], "outputs": ["1"]})
    assert (score, len(reason) < 300, reason[:30]) == (0.0, True, "runtime error: test 1 of 1: bb")


async def test_a_reason_that_is_kept_is_short() -> None:
    assert reason_text("why") == "why"
    assert reason_text("x" * 9999) == "x" * 2000 + "..."
    session = session_of(Script(lambda prompt: "no"))
    rollout = session.finish(End(Status.FAILED, "\ud800" + "y" * 99_999), {})
    assert rollout.transcript.reason == "?" + "y" * 1999 + "..."


async def test_a_program_that_takes_its_time_keeps_no_thread_from_the_stage() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    sleeps = judged("import time\ntime.sleep(99)", {"inputs": ["1"], "outputs": ["1"]}, limit=1)
    judging = asyncio.create_task(sleeps)
    await asyncio.sleep(0.5)
    await asyncio.wait_for(asyncio.to_thread(time.monotonic), 2)
    assert not judging.done()
    assert await judging == (0.0, "timeout: test 1 of 1: took over 1 s")
