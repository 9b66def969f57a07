"""Tests as `unittest` and `pytest` have them, where asserts about a program run.

    class T(unittest.TestCase) ─┐
    class TestT, def test_...  ─┼─▶ each test by itself, with its fixtures and parameters ─▶ attempt
    @pytest.mark.parametrize   ─┘

A test has passed only where its framework says that it ran to its end: one that is skipped, or
expected to fail, has failed. Of `pytest` there is what `infra.data_files.code_tests` lets pass, as
Python's own library has none of it. The text is part of the program of `rewards.code.asserts`; its
answer runs in another process; while a value of it is missing, no assertion fails.
"""

from __future__ import annotations

FRAMEWORKS = r"""
import inspect, itertools, re

num_checks = 0

def count_check():
    global num_checks
    num_checks += 1
    return True

def of_unittest():
    import difflib, unittest
    difflib.ndiff = difflib.unified_diff = lambda *_, **__: ()  # hours, for long texts
    case = unittest.TestCase
    in_block = type(case().assertRaises(ValueError))
    leave = in_block.__exit__

    def left(self, kind, error, place):
        if kind is None and missing:
            self.exception = Guess()
            return True
        return leave(self, kind, error, place)

    def lenient(check):
        def checked(self, *args, **options):
            count_check()
            if check.__name__.startswith("assertRaises") and args:
                args = (error_kind(args[0]), *args[1:])
            try:
                return check(self, *args, **options)
            except Exception:
                if not missing:
                    raise
        return checked

    in_block.__exit__ = left
    for name in dir(case):
        if name.startswith("assert"):
            setattr(case, name, lenient(getattr(case, name)))
    unittest.main = lambda *_, **__: None
    unittest.TextTestRunner.run = lambda *_, **__: unittest.TestResult()

def of_asyncio():
    import asyncio

    async def wait_for(it):
        return await it

    def waiting(do):
        return lambda it, *args, **options: do(wait_for(it), *args, **options)

    asyncio.run, asyncio.create_task = waiting(asyncio.run), waiting(asyncio.create_task)

class Raises:
    def __init__(self, kinds, match):
        self.kinds, self.match_text = error_kind(kinds), match
    def __enter__(self):
        return self
    def __exit__(self, kind, error, place):
        count_check()
        if kind is None:
            self.type = self.value = Guess()
            if not missing:
                raise AssertionError(f"it raises no {self.kinds}")
            return True
        if not issubclass(kind, self.kinds):
            return False
        self.type, self.value = kind, error
        if self.match_text is not None:
            self.match(self.match_text)
        return True
    def match(self, pattern):
        if not missing and not re.search(pattern, str(self.value)):
            raise AssertionError(f"{str(self.value)!r:.80} does not match {pattern!r:.80}")
        return True

class Approx:
    def __init__(self, expected, rel=None, abs=None, nan_ok=False):
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok
    def __eq__(self, value):
        return self.is_near(value, self.expected)
    def is_near(self, value, expected):
        if isinstance(expected, dict):
            is_alike = isinstance(value, dict) and value.keys() == expected.keys()
            return is_alike and all(self.is_near(value[key], expected[key]) for key in expected)
        if isinstance(expected, (list, tuple)):
            is_alike = isinstance(value, (list, tuple)) and len(value) == len(expected)
            return is_alike and all(map(self.is_near, value, expected))
        numbers = (int, float, complex)
        if isinstance(expected, bool) or not isinstance(expected, numbers):
            return value == expected
        if isinstance(value, bool) or not isinstance(value, numbers):
            return False
        if value == expected or expected != expected:
            return value == expected or (self.nan_ok and value != value)
        if abs(expected) == math.inf:
            return False
        near = 1e-12 if self.abs is None else self.abs
        if self.rel is not None or self.abs is None:
            near = max(near, (1e-6 if self.rel is None else self.rel) * abs(expected))
        return abs(value - expected) <= near

class Param:
    def __init__(self, *values, id=None):
        self.values = values

class Mark:
    @staticmethod
    def parametrize(parameters, values, ids=None):
        listed = parameters.split(",") if isinstance(parameters, str) else parameters
        listed = [name.strip() for name in listed if name.strip()]
        given = [each.values if isinstance(each, Param) else each for each in values]
        if len(listed) == 1:
            given = [v if isinstance(e, Param) else [v] for v, e in zip(given, values)]
        rows = [dict(zip(listed, each, strict=True)) for each in given]

        def marked(test):
            test.cases = [*getattr(test, "cases", ()), rows]
            return test
        return marked

def raises(kinds, *called, match=None, **options):
    block = Raises(kinds, match)
    if called:
        with block:
            called[0](*called[1:], **options)
    return block

def fixture(function=None, scope="function"):
    def marked(function):
        function.is_fixture = True
        return function
    return marked if function is None else marked(function)

def fail(reason="", pytrace=True):
    raise AssertionError(reason)

def of_pytest():
    module = sys.modules["pytest"] = types.ModuleType("pytest")
    module.approx, module.fail, module.fixture, module.raises = Approx, fail, fixture, raises
    module.mark, module.param, module.main = Mark, Param, lambda *_, **__: 0

def wanted(function):
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is each.empty]

def supply(name, given, endings):
    if name not in given:
        function = names.get(name)
        if not getattr(function, "is_fixture", False):
            stop(f"a test asks for `{name}`, which nothing gives")
        made = function(**{each: supply(each, given, endings) for each in wanted(function)})
        if inspect.isgenerator(made):
            endings.append(made)
            made = next(made)
        given[name] = made
    return given[name]

def run_with(function, case, before=None, after=None):
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        stop(f"{function.__name__} is no plain function")
    given, endings = dict(case), []
    try:
        (before or int)()
        function(**{name: supply(name, given, endings) for name in wanted(function)})
    finally:
        for each in reversed(endings):
            next(each, None)
        (after or int)()

def cases(*marked):
    every = [rows for each in marked for rows in getattr(each, "cases", ())]
    for chosen in itertools.product(*every):
        yield {name: value for row in chosen for name, value in row.items()}

def run_unittest(kind):
    import unittest

    class Result(unittest.TestResult):
        passed, found = 0, None
        def addSuccess(self, test):
            self.passed += 1
        def addError(self, test, error):
            self.found = self.found or error[1]
        def addSubTest(self, test, part, error):
            if error is not None:
                self.addError(test, error)
        addFailure = addError

    def run(name):
        result = Result()
        kind(name).run(result)
        if result.found is not None:
            raise result.found
        if result.passed != 1:
            raise AssertionError(f"{name} did not run to its end")

    attempt(False, kind.setUpClass)
    for name in unittest.defaultTestLoader.getTestCaseNames(kind):
        attempt(True, lambda: run(name))
    attempt(False, kind.tearDownClass)
    attempt(False, kind.doClassCleanups)

def run_plain(kind):
    def run(name, case):
        made = kind()
        around = [getattr(made, each, None) for each in ("setup_method", "teardown_method")]
        around = [each and (lambda each=each: each(*[None] * len(wanted(each)))) for each in around]
        run_with(getattr(made, name), case, *around)

    attempt(False, getattr(kind, "setup_class", int))
    for name in [each for each in dir(kind) if each.startswith("test")]:
        for case in cases(kind, getattr(kind, name)):
            attempt(True, lambda: run(name, case))
    attempt(False, getattr(kind, "teardown_class", int))

def run_tests():
    kinds = (type, types.FunctionType)
    for name, made in [held for held in names.items() if isinstance(held[1], kinds)]:
        if made.__module__ != names["__name__"]:
            continue  # it was imported
        unittest = sys.modules.get("unittest")
        if inspect.isclass(made) and unittest and issubclass(made, unittest.TestCase):
            run_unittest(made)
        elif inspect.isclass(made) and name.startswith("Test"):
            run_plain(made)
        elif name.startswith("test") and not inspect.isclass(made):
            if not hasattr(made, "is_fixture"):
                for case in cases(made):
                    attempt(True, lambda: run_with(made, case))

prepares = {"asyncio": of_asyncio, "unittest": of_unittest, "pytest": of_pytest}
for module, prepare in prepares.items():
    if module in given["tests"]:
        prepare()
"""
