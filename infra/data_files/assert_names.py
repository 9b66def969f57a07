"""The names that asserts use and do not define: the answer's, or those of Python's own library.

An answer must not get what a test expects of it, nor decide the test. So beside `f`, `math` and
`Counter` are never the answer's, modules of others make a bad row, and so does a function that is
guessed to be the answer's (nothing in the tests makes it) where it judges another. Tests that
import one from `solution` say themselves whose it is.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

_MODULES = {
    "bisect", "calendar", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal",
    "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json", "math",
    "operator", "os", "random", "re", "statistics", "string", "sys", "textwrap", "time", "types",
    "typing",
}  # fmt: skip
"""taken for modules where an attribute of them is used"""
_HOMES = {
    "bisect": "bisect bisect_left bisect_right insort",
    "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
    "copy": "copy deepcopy",
    "dataclasses": "dataclass",
    "datetime": "date datetime timedelta timezone",
    "decimal": "Decimal ROUND_HALF_UP getcontext",
    "enum": "Enum",
    "fractions": "Fraction",
    "functools": "cmp_to_key lru_cache partial reduce",
    "heapq": "heapify heappop heappush nlargest nsmallest",
    "io": "BytesIO StringIO",
    "itertools": "accumulate chain combinations combinations_with_replacement groupby islice"
    " pairwise permutations product starmap takewhile zip_longest",
    "math": "ceil comb cos exp factorial floor gcd hypot isclose isinf isnan lcm log log10 log2 pi"
    " prod sin sqrt tan trunc",
    "operator": "attrgetter itemgetter",
    "random": "randint uniform",
    "string": "ascii_letters ascii_lowercase ascii_uppercase punctuation",
    "typing": "Any Callable Deque Dict FrozenSet Generator Iterable Iterator List Mapping"
    " NamedTuple Optional Sequence Set Tuple Type TypeVar Union",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_OTHERS = {
    "np", "numpy", "nx", "networkx", "pd", "pandas", "plt", "matplotlib", "scipy", "sklearn", "sns",
    "sp", "sympy", "tensorflow", "tf", "torch",
}  # fmt: skip
"""what modules that are not there are usually called"""
_OF_THE_ANSWER = "solution"
"""the module as which tests import an answer"""
_CAUGHT = {"BaseException", "Exception", "ImportError", "ModuleNotFoundError"}
_MADE = {"inf", "nan", "__name__", "__same__"}
"""what is there where asserts run"""
_NO_LIBRARY = "and only Python's own library is there; leave such rows out"
_IN_FULL = (
    "import what is of Python's library, define in the tests what is theirs, or name the tested"
    " function as `entry_point`"
)
_WRAPPERS = ("abs", "bool", "float", "round")
"""functions around a call whose result is judged all the same"""
_ELSEWHERE = "which runs in another process; leave such rows out"


@dataclass(frozen=True, slots=True)
class AssertNames:
    """Names that are used and not defined, and what keeps them from being told apart, in words."""

    answers: frozenset[str]
    library: dict[str, tuple[str, str]]
    """the module and the name in it, e.g. {"sqrt": ("math", "sqrt"), "re": ("re", "")}"""
    fault: str = ""


def read_names(tree: ast.Module, entry_point: str = "") -> AssertNames:
    """Tell apart the names that asserts use and do not define; with `entry_point`, the answer has
    that one only."""
    used_alone = undefined(tree) - {entry_point}
    modules = _modules_in(tree, used_alone)
    library = {name: (name, "") for name in modules}
    unsure = {name for name in used_alone - modules if name in _HOME_OF}
    answers = {entry_point, "candidate", *_imported(tree), *used_alone} - modules - unsure - {""}
    if fault := next(_elsewhere(tree, used_alone), "") or next(_handed(tree, answers), ""):
        return AssertNames(frozenset(), library, fault)
    if entry_point:
        library |= {name: (_HOME_OF[name], name) for name in unsure}
        if others := used_alone - {*library}:
            named = f"uses `{min(others)}`, which neither it nor the function {entry_point} defines"
            return AssertNames(frozenset(), library, named)
        return AssertNames(frozenset({entry_point}), library)
    guessed = used_alone - {*library} - unsure
    imported = set(_imported(tree))
    known = guessed | imported
    guessed |= _alone(tree, unsure, known)
    unsure -= guessed
    if not known and not guessed and unsure:
        if len(unsure) > 1:
            named = " and ".join(f"`{name}`" for name in sorted(unsure)[:2])
            fault = f"uses {named} without a word on which of them is the answer's; {_IN_FULL}"
            return AssertNames(frozenset(), library, fault)
        guessed, unsure = unsure, set[str]()
    library |= {name: (_HOME_OF[name], name) for name in unsure}
    return AssertNames(frozenset(guessed), library, next(_judging(tree, guessed, imported), ""))


def undefined(tree: ast.AST) -> set[str]:
    """Names that a program uses and nothing in it makes, nor Python has."""
    used, made = set[str](), set(_MADE)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            made.add(node.name)
        if isinstance(node, ast.ImportFrom) and any(each.name == "*" for each in node.names):
            known = node.module if node.module in _HOMES else ""
            made |= {*dir(importlib.import_module(known))} if known else set()
    return {name for name in used - made if not hasattr(builtins, name)}


def asks_an_answer(tree: ast.Module, names: AssertNames) -> bool:
    """Return whether anything in the asserts is the answer's."""
    return bool(names.answers) or any(True for _ in _imported(tree))


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the names as which asserts import the answer or what is in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == _OF_THE_ANSWER:
            yield from (each.asname or each.name for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (e.asname or e.name for e in node.names if e.name == _OF_THE_ANSWER)


def _modules_in(tree: ast.AST, names: set[str]) -> set[str]:
    """Return which names stand for modules: an attribute is taken of each, and none is called."""
    based, called = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            is_class = node.value.id == "datetime" and _HOME_OF.get(node.attr) != "datetime"
            based |= set() if is_class else {node.value.id}  # `datetime.now()`
    return (names & _MODULES & based) - called


def _elsewhere(tree: ast.AST, names: set[str]) -> Iterator[str]:
    """Yield what is used of modules that are not there, in words."""
    tried = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and any(map(_catches_import, node.handlers))
        for held in node.body
        for each in ast.walk(held)
    }
    for node in ast.walk(tree):
        if id(node) in tried:
            continue
        modules = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
            is_all = any(each.name == "*" for each in node.names)
            if is_all and node.module not in (*_HOMES, _OF_THE_ANSWER):
                yield f"imports all of `{node.module}`; import the names that it uses"
        for module in modules:
            name = module.partition(".")[0]
            if name not in sys.stdlib_module_names | {_OF_THE_ANSWER, "pytest"}:
                yield f"imports `{module}`, {_NO_LIBRARY}"
        if isinstance(node, ast.Attribute) and _root(node.value) in names & _OTHERS:
            yield f"uses `{_root(node.value)}`, {_NO_LIBRARY}"


def _handed(tree: ast.AST, answers: set[str]) -> Iterator[str]:
    """Yield what of the tests' own code is to run where the answer is, in words."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    own = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    own -= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}  # as of fixtures
    for node in ast.walk(tree):
        if isinstance(node, functions):
            through = [*node.decorator_list, *getattr(node, "bases", ())]
            if {*map(_root, through)} & (answers - own):
                yield f"makes `{node.name}` by something of the answer's, {_ELSEWHERE}"
        elif isinstance(node, ast.Call) and _root(node.func) in answers - own:
            for each in [*node.args, *[more.value for more in node.keywords]]:
                if isinstance(each, ast.Lambda) or (isinstance(each, ast.Name) and each.id in own):
                    yield f"hands `{ast.unparse(each)[:40]}` to the answer, {_ELSEWHERE}"


def _catches_import(handler: ast.ExceptHandler) -> bool:
    named = {each.id for each in ast.walk(handler.type or handler) if isinstance(each, ast.Name)}
    return handler.type is None or bool(named & _CAUGHT)


def _alone(tree: ast.Module, unsure: set[str], known: set[str]) -> set[str]:
    """Return which names some assert is about alone, so that they are what is tested: it has no
    other name of the answer's, nor a variable that may hold a value of it."""
    held = _values_held(tree, known)
    open_to = known | {*held} | {each.arg for each in ast.walk(tree) if isinstance(each, ast.arg)}
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            names = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
            if len(names & unsure) == 1 and not names & open_to:
                found |= names & unsure
    return found


def _root(node: ast.AST) -> str:
    """Return the name at which a dotted or called expression begins, e.g. `a` of `a.b(1).c`."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _values_held(tree: ast.AST, answers: set[str]) -> dict[str, set[str]]:
    """Return the variables that may hold what the answer gave, each with the names it came from,
    which end in `()` where a method of an object gave it."""
    bound = list[tuple[ast.AST, ast.AST]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            bound += [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            bound += [(node.target, node.value)] if node.value else []
        elif isinstance(node, ast.For | ast.comprehension):
            bound.append((node.target, node.iter))
        elif isinstance(node, ast.withitem) and node.optional_vars:
            bound.append((node.optional_vars, node.context_expr))
    held, size = dict[str, set[str]](), -1
    while sum(map(len, held.values())) > size:
        size = sum(map(len, held.values()))
        for target, value in bound:
            calls = [e.func for e in ast.walk(value) if isinstance(e, ast.Call)]
            by_methods = {_root(each) for each in calls if isinstance(each, ast.Attribute)}
            found = {
                name.removesuffix("()") + "()" * (each.id in by_methods or name.endswith("()"))
                for each in ast.walk(value)
                if isinstance(each, ast.Name)
                for name in ({each.id} & answers) | held.get(each.id, set())
            }
            for each in ast.walk(target):
                if found and isinstance(each, ast.Name):
                    held.setdefault(each.id, set()).update(found)
    return held


def _judging(tree: ast.Module, guessed: set[str], imported: set[str]) -> Iterator[str]:
    """Yield in words where a guessed function of the answer's judges what another gave.

    Refused are the truth of a call that gets another's value and more (`is_equal(f(2), 4)`,
    `not differs(f(2), 4)`, `distance(f(2), 4) < 0.1`), and comparisons of two functions' values
    (`f(2) in allowed(4)`), which two that always give the same would pass. A call whose result is
    compared with what is expected goes on (`add(mul(2, 3), 4) == 10`), so does one of another's
    value alone (`decode(encode(x)) == x`), and so do objects that a class of the answer's made,
    whose methods are tested.
    """
    answers = guessed | imported
    if len(answers) < 2 or not guessed:
        return
    held = _values_held(tree, answers)

    def sources(node: ast.AST) -> set[str]:
        """Return whose values are in an expression; an object that is only made is none."""
        found = set[str]()
        if isinstance(node, ast.Call):
            root = _root(node.func)
            if root in answers and not (isinstance(node.func, ast.Name) and root[:1].isupper()):
                found |= {root}
            elif root in held and isinstance(node.func, ast.Attribute):
                found |= held[root]
        elif isinstance(node, ast.Name):
            came = held.get(node.id, set())
            found |= {each for each in came if each.endswith("()") or not each[:1].isupper()}
        found = {each.removesuffix("()") for each in found}
        for each in ast.iter_child_nodes(node):
            found |= sources(each)
        return found

    def judges(node: ast.AST) -> str:
        """Return the name of a function that is called on another's value, and on more."""
        while isinstance(node, ast.Call) and _root(node.func) in _WRAPPERS:
            node = node.args[0] if node.args else node.func
        if not isinstance(node, ast.Call):
            return ""
        root = _root(node.func)
        by = {root} & guessed or (
            set() if isinstance(node.func, ast.Name) else held.get(root, set())
        )
        by = {each.removesuffix("()") for each in by}
        given = [*node.args, *[each.value for each in node.keywords]]
        came = [sources(each) - by for each in given]
        has_more = not all(came) or isinstance(node.func, ast.Attribute)  # its object may hold it
        return min(by) if by and any(came) and has_more else ""

    for node in _verdicts(tree):
        sides = _sides(node)
        told = [judges(node)] if not sides else [judges(s) for s in sides if _decides(node, s)]
        if by := next(filter(None, told), ""):
            yield (
                f"`{ast.unparse(node)[:80]}` has `{by}` of the answer's judge another of its"
                f" functions; {_IN_FULL}"
            )
        if len(sides) == 2:
            first, second = ({n for n in sources(s) if not n[:1].isupper()} for s in sides)
            if first and second and not first & second and (first | second) & guessed:
                yield (
                    f"`{ast.unparse(node)[:80]}` compares what two functions of the answer's give"
                    f" (`{min(first)}`, `{min(second)}`); {_IN_FULL}"
                )


def _verdicts(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the expressions whose truth decides a test, and calls that compare two values."""
    waiting = list[ast.expr]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert | ast.If):
            waiting.append(node.test)
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", "")
            if name in ("assertTrue", "assertFalse"):
                waiting.append(node.args[0])
            elif name.startswith("assert") and len(node.args) > 1:
                yield node
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.BoolOp):
            waiting += node.values
        elif isinstance(node, ast.UnaryOp):
            waiting.append(node.operand)
        elif isinstance(node, ast.Call) and _root(node.func) in ("all", "any") and node.args:
            if isinstance(node.args[0], ast.GeneratorExp | ast.ListComp):
                waiting.append(node.args[0].elt)
        else:
            yield node


def _sides(node: ast.expr) -> list[ast.expr]:
    """Return the two sides of a comparison; empty for anything else."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return [node.left, *node.comparators]
    is_test = isinstance(node, ast.Call) and getattr(node.func, "attr", "").startswith("assert")
    return node.args[:2] if is_test and isinstance(node, ast.Call) else []


def _decides(node: ast.expr, side: ast.expr) -> bool:
    """Return whether a comparison says no more of a side than that it is true, none or small."""
    others = [each for each in _sides(node) if each is not side]
    is_order = isinstance(node, ast.Compare) and isinstance(
        node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE
    )
    called = getattr(getattr(node, "func", None), "attr", "")
    return (
        is_order
        or "Less" in called
        or "Greater" in called
        or any(
            (isinstance(each, ast.Constant) and not each.value)
            or ast.unparse(each) in ("True", "[]")
            for each in others
        )
    )
