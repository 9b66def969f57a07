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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

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
    "import what is of Python's library and, from `solution`, what is the answer's; define in the"
    " tests what is theirs, or name the tested function as `entry_point`"
)
_NEW = "new "
_TRIVIAL = {"True", "False", "None", "0", "0.0", "''", "[]", "{}", "()", "set()"}
"""with which many values that say nothing are equal"""
_ELSEWHERE = "which runs in another process; leave such rows out"


@dataclass(frozen=True, slots=True)
class AssertNames:
    """Holds names that are used and not defined, and what keeps them from being told apart, in
    words."""

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
    """Return names that a program uses and nothing in it makes, nor Python has."""
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
    other name of the answer's, nor a variable, which may hold a value of it."""
    nodes = list(ast.walk(tree))
    open_to = known | {each.arg for each in nodes if isinstance(each, ast.arg)}
    open_to |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    found = set[str]()
    for node in nodes:
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


def _judging(tree: ast.Module, guessed: set[str], imported: set[str]) -> Iterator[str]:
    """Yield in words where several of the answer's functions decide a test, one of them guessed.

    They may meet in what is equal to a value that none of them gave (`add(mul(2, 3), 4) == 10`).
    Two that always give the same would pass all else: the truth of `is_equal(f(2), 4)`,
    `distance(f(2), 4) < 0.1`, `f(2) in allowed(4)`. An object of the answer's that is only made
    decides nothing (`is_balanced(Node(1))`); what its methods give may.
    """
    answers, held = guessed | imported, dict[str, set[str]]()
    for node in _in_order(tree) if guessed and len(answers) > 1 else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            held[node.name] = _sources(ast.Module(node.body, []), answers, held)
        for target, value in _bound(node):
            came = _sources(value, answers, held)
            for each in ast.walk(target):
                if isinstance(each, ast.Name | ast.Attribute) and ast.unparse(each) != "self":
                    adds = isinstance(each.ctx, ast.Load) or isinstance(node, ast.AugAssign)
                    before = held.get(ast.unparse(each), set()) if adds else set[str]()
                    held[ast.unparse(each)] = before | came
        is_test = isinstance(node, ast.Assert | ast.If | ast.While) or _asserts(node)
        test = getattr(node, "test", node)
        met = _sources(test, answers, held) if is_test else set()
        met = {name for name in met if not name.startswith(_NEW)}
        if len(met) > 1 and met & guessed:
            said = " and ".join(f"`{name}`" for name in sorted(met)[:2])
            where = ast.unparse(test)[:80]
            yield f"`{where}` has {said} of the answer's decide a test together; {_IN_FULL}"


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it as they stand in the text."""
    yield node
    for each in ast.iter_child_nodes(node):
        yield from _in_order(each)


def _bound(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield what gets a value, and from what."""
    match node:
        case ast.Assign():
            yield from ((target, node.value) for target in node.targets)
        case ast.AugAssign() | ast.NamedExpr() | ast.AnnAssign(value=ast.expr()):
            yield node.target, cast("ast.expr", node.value)
        case ast.For() | ast.comprehension():
            yield node.target, node.iter
        case ast.withitem(optional_vars=ast.expr() as target):
            yield target, node.context_expr
        case _:
            pass


def _asserts(node: ast.AST) -> bool:
    """Return whether it is a call such as `self.assertTrue(x)`."""
    name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
    return name.startswith("assert") and not name.startswith("assertRaises")


def _sources(node: ast.AST, answers: set[str], held: Mapping[str, set[str]]) -> set[str]:
    """Return what of the answer's gave the values in an expression, none for an equality with what
    it did not give; behind `new ` a class that is only named, or its object only made."""

    def of(*nodes: ast.AST) -> set[str]:
        return set[str]().union(*(_sources(each, answers, held) for each in nodes))

    if isinstance(node, ast.Name):
        is_class = node.id[:1].isupper() and not node.id.isupper()
        name = _NEW + node.id if is_class else node.id
        return held.get(node.id, {name} if node.id in answers else set())
    if isinstance(node, ast.Attribute) and (name := ast.unparse(node)) in held:
        return held[name]
    sides = node.args[:2] if isinstance(node, ast.Call) and _asserts(node) else []
    if isinstance(node, ast.Compare) and isinstance(node.ops[-1], ast.Eq):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and not ast.unparse(node.func).endswith("Equal"):
        sides = []
    if sides:
        came = [of(each) for each in sides]
        texts = [ast.unparse(side) for side, found in zip(sides, came, strict=True) if not found]
        return set[str]().union(*came) if {*texts} <= _TRIVIAL else set()
    if not isinstance(node, ast.Call):
        return of(*ast.iter_child_nodes(node))
    by, came = of(node.func), of(*node.args, *[each.value for each in node.keywords])
    if not isinstance(node.func, ast.Name) or not all(each.startswith(_NEW) for each in came):
        by = {each.removeprefix(_NEW) for each in by}
    elif node.func.id in by and node.func.id.isupper():
        by = {_NEW + node.func.id}  # a class, e.g. `DSU`
    return by | came
