"""The reward `code` where an answer gives more than plain data: what its asserts see of values,
objects and errors, and ways in which an object of its own might judge itself."""

from __future__ import annotations

import pytest

from engines.types import Message, Problem, Status, Transcript, Verdict
from infra.data_files.code_tests import read_code_tests
from infra.errors import InputError
from rewards.built_in_rewards import build

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("code_sandbox")]


async def judged(code: str, tests: str, **options: object) -> Verdict:
    given = read_code_tests(tests).as_json()
    problem = Problem("rows/1", "d", (), {"tests": given})
    said = f"```python\n{code}\n```"
    answer = Transcript(problem, (Message("assistant", said),), Status.COMPLETED, 9, raw=said)
    return await build("code", {"time_limit": 2, **options})(answer)


LIBRARY = "from collections import *\nfrom datetime import *\nfrom decimal import Decimal\n"


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(n): return map(str, range(n))", "assert [*f(2)] == ['0', '1']\nassert next(f(1))"),
        ("def f(n): return range(n)", "assert f(3) == range(3) and list(f(3)) == [0, 1, 2]"),
        ("def f(n): return zip([n], [2])", "assert list(f(1)) == [(1, 2)]"),
        ("def f(d): return d.keys()", "assert sorted(f({'b': 1, 'a': 2})) == ['a', 'b']\n"
         "assert f({'a': 1}) == {'a'}"),
        ("def f(d): return d.values()", "assert list(f({'a': 1, 'b': 1})) == [1, 1]"),
        ("def f(d): return d.items()", "assert list(f({'a': 1})) == [('a', 1)]"),
        ("def f(x): return deque(x, 2)", "assert list(f([1, 2, 3])) == [2, 3] == list(f([2, 3]))"),
        ("def f(x): return Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}\n"
         "assert f('aab').most_common(1) == [('a', 2)]"),
        ("def f(x):\n    d = defaultdict(list)\n    d[x].append(2)\n    return d",
         "assert f(1) == {1: [2]} and f(1)[7] == []"),
        ("def f(x): return OrderedDict(x)", "assert list(f([(2, 1), (1, 1)])) == [2, 1]"),
        ("def f(x): return x + Decimal('0.1')", "assert f(Decimal('1')) == Decimal('1.1')"),
        ("from fractions import Fraction\ndef f(x): return x + Fraction(1, 3)",
         "assert f(Fraction(1, 3)) == Fraction(2, 3)"),
        ("def f(x): return x + timedelta(days=1)",
         "assert f(date(2020, 1, 1)) == date(2020, 1, 2)\n"
         "assert f(datetime(2020, 1, 1)).day == 2\nassert f(timedelta(1)) == timedelta(2)"),
        ("def f():\n    n = 0\n    while True:\n        yield n\n        n += 1",
         "g = f()\nassert [next(g), next(g)] == [0, 1]\nassert [*islice(f(), 300)][-1] == 299"),
        ("def f(n):\n    yield n\n    raise ValueError('x')",
         "import pytest\ndef test_f():\n    assert next(f(2)) == 2\n"
         "    with pytest.raises(ValueError, match='x'):\n        list(f(1))"),
        ("def f(n): return (i for i in range(n))\ndef g(x): return sum(x)", "assert g(f(4)) == 6"),
        ("def f(k, x): return k(x)", "assert f(int, '3') == f(len, 'abc') == f(math.sqrt, 9) == 3"),
        ("def f(x): return type(x)", "assert f(3) is int"),
        ("Pt = namedtuple('Pt', 'x y')\ndef f(): return Pt(1, 2)\ndef g(p): return p.x",
         "assert f() == (1, 2) and f().x == 1 == g(f()) and isinstance(f(), Pt)"),
        ("from enum import Enum\nclass Color(Enum):\n    RED = 1\n    BLUE = 2\n"
         "    def up(self): return self.name + '!'\ndef f(x): return Color(x)\n"
         "def g(c): return c.value",
         "assert f(1) == Color.RED and f(1) is Color.RED and f(2) != Color.RED\n"
         "assert (f(2).name, f(2).value, f(2).up(), g(Color.BLUE)) == ('BLUE', 2, 'BLUE!', 2)"),
        ("class Cache(OrderedDict):\n    def put(self, k, v): self[k] = v",
         "c = Cache()\nc.put(1, 2)\nassert c.get(1) == 2 and c == {1: 2} and len(c) == 1"),
    ],
)  # fmt: skip
async def test_values_of_the_library_come_as_they_are(code: str, tests: str) -> None:
    verdict = await judged(LIBRARY + code, tests)
    assert (verdict.score, verdict.reason) == (1.0, "")


STACK = """
class Stack:
    def __init__(self, *items): self.items = list(items)
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def size(self): return len(self.items)
    def __len__(self): return len(self.items)
    def __contains__(self, x): return x in self.items
    def __getitem__(self, i): return self.items[i]
    def __setitem__(self, i, v): self.items[i] = v
    def __delitem__(self, i): del self.items[i]
    def __iter__(self): return iter(self.items)
    def __eq__(self, o): return isinstance(o, Stack) and self.items == o.items
    def __lt__(self, o): return len(self) < len(o)
    def __str__(self): return f"S{self.items}"
    def __bool__(self): return bool(self.items)
    def __hash__(self): return hash(tuple(self.items))
    def __add__(self, o): return Stack(*self.items, *o.items)
    def __rmul__(self, n): return Stack(*(self.items * n))
    def __neg__(self): return Stack(*self.items[::-1])
    def __enter__(self): return self
    def __exit__(self, *a): return False

class Up:
    def __init__(self, most): self.now, self.most = 0, most
    def __iter__(self): return self
    def __next__(self):
        if self.now == self.most: raise StopIteration
        self.now += 1
        return self.now

def make(): return Stack(1)
"""
OPERATORS = """
s = Stack()
assert len(s) == 0 and not s
s.push(1)
s.push(2)
assert len(s) == 2 and 1 in s and 3 not in s
assert s[0] == 1 and s[0:1] == [1] and list(s) == [x for x in s] == [1, 2]
assert s == Stack(1, 2) and s != Stack(1) and s != [1, 2]
assert sorted([Stack(1, 2), Stack(1)])[0] == Stack(1)
assert str(s) == f"{s}" == "S[1, 2]"
assert len({Stack(1), Stack(1)}) == 1 and hash(Stack(1)) == hash(Stack(1))
assert (s + Stack(3)).items == [1, 2, 3] and (2 * Stack(1)).items == [1, 1]
assert (-s).items == [2, 1]
s[0] = 5
del s[1]
assert s.items == [5]
with s as t:
    t.items = [9]
assert s.items == [9]
assert isinstance(make(), Stack) and not isinstance(3, Stack)
found = []
while s.size() > 0:
    found.append(s.pop())
assert found == [9] and list(Up(3)) == [1, 2, 3] and next(Up(1)) == 1
"""


async def test_operators_ask_an_answers_object() -> None:
    verdict = await judged(STACK, OPERATORS)
    assert (verdict.score, verdict.reason) == (1.0, "")
    for wrong in ("x in self.items", "isinstance(o, Stack) and self.items == o.items",
                  "len(self) < len(o)", "bool(self.items)", "iter(self.items)"):  # fmt: skip
        assert (await judged(STACK.replace(wrong, "None"), OPERATORS)).score == 0.0, wrong
    five = STACK.replace("def make(): return Stack(1)", "def make(): return 5")
    assert (await judged(five, OPERATORS)).score == 0.0


EQUAL = """
class E:
    __eq__ = __lt__ = __gt__ = __contains__ = lambda self, other: True
    __sub__ = __rsub__ = lambda self, other: self
    __abs__ = lambda self: 0.0
    startswith = issubset = isdigit = lambda *_: True
def f(x): return E()
"""


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        *((EQUAL, f"assert {each}") for each in (
            "f(2) == 4", "4 == f(2)", "4 in f(2)", "f(2) < 5", "abs(f(2) - 4) < 1",
            "abs(4 - f(2)) < 1", "f(2) in [4]", "f(2) == Decimal(4)",
            "f(2).startswith('a')", "f(2).issubset({4})", "f(2).isdigit()",
        )),
        ("class math:\n    isclose = staticmethod(lambda *a: True)\ndef f(x): return 99",
         "assert math.isclose(f(2), 4.0)"),
        ("def Counter(x): return 0\ndef f(x): return 3", "assert Counter(f([1])) == Counter([1])"),
        (EQUAL + "class Color:\n    RED = 1", "assert f(2) == Color.RED"),
        ("def f():\n    while True: yield 1", "assert sum(f()) == 3"),
        ("def gcd(a, b): return 3\ndef f(x): return 4", "assert gcd(4, 6) == 2\nassert f(2) == 4"),
    ],
)  # fmt: skip
async def test_no_object_is_right_by_its_own_word(code: str, tests: str) -> None:
    assert (await judged(code, tests)).score == 0.0


async def test_an_iterator_without_end_ends() -> None:
    verdict = await judged("def f():\n    while True: yield 1", "assert sum(f()) == 3")
    assert verdict.reason.endswith("OverflowError: it goes on after 100000 items")


POINT = """
class Point:
    def __init__(self, x, y): self.x, self.y = x, y
    def __eq__(self, o): return self.x == o.x and self.y == o.y
    def __add__(self, o): return Point(self.x + o.x, self.y + o.y)
def add(a, b): return a + b
"""


@pytest.mark.parametrize("left", ["add(Point(1, 2), Point(3, 4))", "Point(1, 2) + Point(3, 4)"])
async def test_a_class_whose_objects_all_are_equal_is_wrong(left: str) -> None:
    tests = f"assert {left} == Point(4, 6)"
    assert (await judged(POINT, tests)).score == 1.0
    less = POINT.replace("self.x + o.x", "self.x")
    equal = less.replace("self.x == o.x and self.y == o.y", "isinstance(o, Point)")
    for wrong in (less, equal, equal.replace("isinstance(o, Point)", "True")):
        assert (await judged(wrong, tests, partial=True)).score == 0.0


TAKE = """
def take(a, v):
    k = 0
    for x in list(a):
        if x != v:
            a[k] = x
            k += 1
    return k
"""


@pytest.mark.parametrize(
    "tests",
    [
        "n = [3, 2, 2, 3]\nk = take(n, 3)\nassert k == 2\nassert n[:k] == [2, 2]",
        "def check(c):\n    n = [3, 2, 2, 3]\n    wanted = [2, 2]\n    k = c(n, 3)\n"
        "    for i in range(k):\n        assert n[i] == wanted[i]\n    assert k == 2\n"
        "    assert sorted(n[:k]) == sorted(wanted)\ncheck(take)",
        "import pytest\n@pytest.mark.parametrize('n, v, e', [([3, 2, 2, 3], 3, [2, 2])])\n"
        "def test_take(n, v, e):\n    k = take(n, v)\n    assert n[:k] == e",
        "import unittest\nclass T(unittest.TestCase):\n    def test_take(self):\n"
        "        n = [3, 2, 2, 3]\n        k = take(n, 3)\n        self.assertEqual(n[:k], [2, 2])",
        "n = [3, 2, 2, 3]\nk = take(n, 3)\nassert take(n[:k], 2) == 0",
    ],
)
async def test_an_argument_that_is_changed_is_seen_beside_what_is_returned(tests: str) -> None:
    assert (await judged(TAKE, tests)).score == 1.0
    assert (await judged("def take(a, v): return 2", tests)).score == 0.0


@pytest.mark.parametrize(
    "tests",
    [
        "x = [2, 1]\nr = f(x)\nassert r == sorted(x)",
        "x = [2, 1]\nr = f(x)\nwanted = sorted(x)\nassert r == wanted",
        "x = [2, 1]\nr = f(x)\nassert len(r) == len(x)\nassert r == [1, 2]",
        "def run(g):\n    x = [2, 1]\n    r = g(x)\n    assert r == sorted(x)\nrun(f)",
        "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
        "        x = [2, 1]\n        self.assertEqual(f(x), sorted(x))",
    ],
)
async def test_an_argument_that_is_emptied_says_nothing_of_what_is_expected(tests: str) -> None:
    assert (await judged("def f(x): return sorted(x)", tests)).score == 1.0
    assert (await judged("def f(x):\n    x.clear()\n    return []", tests)).score == 0.0


async def test_what_of_the_tests_cannot_reach_the_answer_fails_the_sample() -> None:
    with pytest.raises(InputError, match="a Thing of theirs cannot be handed to the answer"):
        await judged("def f(x): return 1", "class Thing: ...\nx = Thing()\nassert f(x) == 1")


EMPTY = """
class EmptyError(Exception):
    pass

class Full(EmptyError, ValueError):
    def __init__(self, size):
        super().__init__(f"full at {size}")
        self.size = size

class Stack:
    class Inner(KeyError):
        pass
    def pop(self):
        raise EmptyError("none")
    def push(self, x):
        raise Full(x)
    def inner(self):
        raise self.Inner("a")
"""
RAISED = {
    "pytest": """
import pytest
from solution import EmptyError, Full, Stack

def test_errors():
    with pytest.raises(EmptyError, match="none"):
        Stack().pop()
    with pytest.raises((KeyError, EmptyError)) as told:
        Stack().push(3)
    assert told.value.size == 3 and isinstance(told.value, EmptyError)
    assert issubclass(EmptyError, Exception) and not issubclass(EmptyError, KeyError)
    pytest.raises(ValueError, Stack().push, 3)
    with pytest.raises(Stack.Inner):
        Stack().inner()
""",
    "unittest": """
import unittest

class T(unittest.TestCase):
    def test_errors(self):
        with self.assertRaises(EmptyError):
            Stack().pop()
        self.assertRaisesRegex(EmptyError, "full at 4", Stack().push, 4)
        with self.assertRaises(Full) as told:
            Stack().push(2)
        self.assertEqual(told.exception.size, 2)
        self.assertRaises(Stack.Inner, Stack().inner)
""",
    "asserts": """
try:
    Stack().pop()
    assert False
except (KeyError, EmptyError) as error:
    assert str(error) == "none"
""",
}


@pytest.mark.parametrize("form", RAISED)
async def test_an_answers_own_exceptions_are_known_by_their_names(form: str) -> None:
    verdict = await judged(EMPTY, RAISED[form])
    assert (verdict.score, verdict.reason) == (1.0, "")
    for wrong in (
        EMPTY.replace('raise EmptyError("none")', "return 3"),
        EMPTY.replace('raise EmptyError("none")', 'raise ValueError("none")'),
        "EmptyError = Full = Exception\nclass Stack:\n    Inner = Exception",
        "class Any(type):\n    __instancecheck__ = __subclasscheck__ = lambda *_: True\n"
        "class EmptyError(Exception, metaclass=Any): ...\nFull = EmptyError\nclass Stack:\n"
        "    Inner = EmptyError\n    def pop(self, *_): 1 / 0\n    push = inner = pop",
    ):
        assert (await judged(wrong, RAISED[form])).score == 0.0


@pytest.mark.parametrize(
    "tests",
    [
        "try:\n    f(0)\n    assert False\nexcept ValueError:\n    pass",
        "try:\n    f(0)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError",
        "try:\n    f(0)\nexcept ValueError:\n    pass\nelse:\n    assert False, 'no'",
        "for x in (0, 0):\n    try:\n        f(x)\n        assert False\n"
        "    except ValueError:\n        pass",
        "def t():\n    try:\n        f(0)\n        assert False\n    except ValueError:\n"
        "        pass\nt()",
    ],
)
async def test_an_error_that_is_asked_for_is_a_test(tests: str) -> None:
    right = "def f(x):\n    if x == 0:\n        raise ValueError(x)"
    assert (await judged(right, tests)).score == 1.0
    for wrong in ("def f(x):\n    return x", "def f(x):\n    raise KeyError(x)", "g = 1"):
        assert (await judged(wrong, tests)).score == 0.0


PAGES = """
import asyncio
LIMIT, NAMES = 5, ["a"]
class Point(NamedTuple):
    x: int
    y: int
    def __add__(self, other): return Point(self.x + other.x, self.y + other.y)
class Size(NamedTuple):
    x: int
    y: int
    def area(self): return self.x * self.y
class Pool:
    one = None
    def __new__(cls):
        cls.one = cls.one or super().__new__(cls)
        return cls.one
    async def __aenter__(self): return self
    async def __aexit__(self, *_): return False
    async def get(self, x): return x * x
async def page(x):
    await asyncio.sleep(0)
    if x < 0: raise ValueError("no")
    return x * x
async def pages(n):
    for x in range(n): yield x
"""


@pytest.mark.parametrize(
    "tests",
    [
        "assert asyncio.run(page(3)) == 9",
        "async def all_of(): return [x async for x in pages(3)]\n"
        "assert asyncio.run(all_of()) == [0, 1, 2]",
        "async def both(): return await asyncio.gather(page(1), page(2))\n"
        "assert asyncio.run(both()) == [1, 4]",
        "async def task(): return await asyncio.wait_for(asyncio.create_task(page(2)), 1)\n"
        "assert asyncio.run(task()) == 4",
        "assert asyncio.new_event_loop().run_until_complete(page(2)) == 4",
        "async def held():\n    async with Pool() as pool: return await pool.get(3)\n"
        "assert asyncio.run(held()) == 9",
        "import pytest\nwith pytest.raises(ValueError, match='no'):\n    asyncio.run(page(-1))",
        "p = Point(1, 2)\nassert p + Point(1, 1) == Point(2, 3) and p.x == 1",
        "p = Size(3, 2)\nassert p.area() == 6 and p == (3, 2)",
        "assert Pool() is Pool()",
        "assert LIMIT == 5 and LIMIT > 4 and NAMES == ['a'] and LIMIT != 4",
    ],
)
async def test_what_an_answer_gives_later_or_names_is_seen(tests: str) -> None:
    named = "Point, Size, Pool, page, pages, LIMIT, NAMES"
    tests = f"import asyncio\nfrom solution import {named}\n{tests}"
    assert (await judged(PAGES, tests)).score == 1
    wrong = PAGES.replace("x * x", "x + x + 1").replace("self.y +", "").replace("self.x * ", "")
    wrong = wrong.replace("range(n)", "range(n + 1)").replace("LIMIT, N", "LIMIT = 4\nM, N")
    wrong = wrong.replace("cls.one or", "").replace('"no"', '"yes"')
    assert (await judged(wrong, tests)).score == 0
