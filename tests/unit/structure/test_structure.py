"""The shape of the repository: who may import whom, how large a file is, what starts fast."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("flows", "tasks", "curricula", "rewards", "engines", "infra")
MAY_IMPORT = {
    "flows": {"flows", "tasks", "curricula", "rewards", "engines", "infra"},
    "tasks": {"tasks", "curricula", "rewards", "engines", "infra"},
    "curricula": {"curricula", "engines.types", "infra"},
    "rewards": {"rewards", "engines.types", "infra"},
    "engines": {"engines", "infra"},
    "infra": {"infra"},
}
HEAVY = {"torch", "ray", "sglang", "megatron", "prefect", "mlflow", "transformers", "tokenizers"}
RECIPES = sorted((ROOT / "flows/recipes").glob("*.yaml"))
TEXTS = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".json", ".sh", ""}
TEXT_TOKENS = (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1))
"""those of Python 3.11, and of 3.12, where the text of an f-string is a token of its own"""


@cache
def tracked_files() -> list[str]:
    return subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


@cache
def source_files() -> dict[str, Path]:
    """Our modules by dotted name, tests not among them."""
    files = (file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py")))
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for file in files
    }


def imports(tree: ast.AST, *, for_types: bool = False) -> Iterator[tuple[str, bool]]:
    """Dotted names that `tree` imports, also inside functions; whether for type checking only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from ((f"{node.module}.{alias.name}", for_types) for alias in node.names)
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            is_check = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            yield from imports(node, for_types=for_types or is_check)


@cache
def all_imports_of(module: str) -> frozenset[tuple[str, bool]]:
    return frozenset(imports(ast.parse(source_files()[module].read_text())))


def imports_of(module: str, *, for_types: bool = True) -> set[str]:
    """With those for type checking only, or without."""
    return {name for name, is_for_types in all_imports_of(module) if for_types or not is_for_types}


def own_modules(name: str) -> list[str]:
    """Which of our modules importing `name` (a module or an attribute of one) is about."""
    if name in source_files():
        return [name]
    parent = name.rpartition(".")[0]
    return [parent] if parent in source_files() else []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    wrong = [
        f"{module} imports {name}"
        for module in source_files()
        if module.partition(".")[0] == room
        for name in imports_of(module)
        if name.partition(".")[0] in (*ROOMS, "tests")
        and not any(f"{name}.".startswith(f"{allowed}.") for allowed in MAY_IMPORT[room])
    ]
    assert wrong == []


def test_prefect_is_imported_only_by_flows_and_the_durable_task() -> None:
    users = {
        module
        for module in source_files()
        if any(name.partition(".")[0] == "prefect" for name in imports_of(module))
    }
    assert {
        m for m in users if not m.startswith("flows.") and m != "tasks.durable.prefect_task"
    } == set()


def test_no_modules_import_each_other_in_a_circle_not_even_inside_functions() -> None:
    graph = {
        module: {
            own
            for name in imports_of(module, for_types=False)
            for own in own_modules(name)
            if own != module
        }
        for module in source_files()
    }
    while free := {module for module, needs in graph.items() if not needs & graph.keys()}:
        graph = {module: needs for module, needs in graph.items() if module not in free}
    assert {module: sorted(needs & graph.keys()) for module, needs in graph.items()} == {}


def test_no_module_imports_a_private_name_of_another() -> None:
    """ruff refuses one behind a dot."""
    names = ((module, name) for module in source_files() for name in imports_of(module))
    assert [each for each in names if each[1].startswith(ROOMS) and "._" in each[1]] == []


def test_what_runs_in_a_sandbox_imports_nothing_that_is_not_shown_there() -> None:
    """Of our code a sandbox shows the folder `infra/sandbox`, in which nothing is installed."""
    found = set[str]()
    pending = [name for name in source_files() if name.startswith("infra.sandbox.inside.")]
    while pending:
        if (name := pending.pop()) not in found:
            found.add(name)
            pending += [m for i in imports_of(name, for_types=False) for m in own_modules(i)]
    assert "infra.sandbox.trees" in found
    assert [name for name in found if not name.startswith("infra.sandbox.")] == []


def test_no_file_has_more_than_400_lines() -> None:
    files = [*source_files().values(), *(ROOT / "tests").rglob("*.py")]
    lengths = {str(f.relative_to(ROOT)): len(f.read_text().splitlines()) for f in files}
    assert {name: n for name, n in lengths.items() if n > 400} == {}


def test_a_folder_has_at_most_15_modules_and_a_file_a_name_of_its_own() -> None:
    """A stranger sees at a glance what a folder holds, and finds a file by its name."""
    files = [file for file in source_files().values() if file.name != "__init__.py"]
    folders = Counter(str(file.parent.relative_to(ROOT)) for file in files)
    assert {folder: n for folder, n in folders.items() if n > 15} == {}
    shared = {"spec.py", "body.py", "__main__.py"}
    names = Counter(file.name for file in files if file.name not in shared)
    assert {name: n for name, n in names.items() if n > 1} == {}


def test_no_module_gives_one_name_to_two_things() -> None:
    """The later would count in functions that were written for the earlier."""
    twice: list[str] = []
    for path in source_files().values():
        named = Counter(name for node in ast.parse(path.read_text()).body for name in _named(node))
        twice += [f"{path}: {name}" for name, count in named.items() if count > 1]
    assert twice == []


def _named(node: ast.stmt) -> list[str]:
    """The names that a statement of a module gives; overloads of a function are one thing."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        is_overload = "overload" in map(ast.unparse, node.decorator_list)
        return [] if is_overload else [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    inside = (part for target in targets for part in ast.walk(target))
    stored = (part for part in inside if isinstance(getattr(part, "ctx", None), ast.Store))
    return [part.id for part in stored if isinstance(part, ast.Name)]


def test_what_is_said_of_a_function_is_a_sentence() -> None:
    """But for kinds of constraints, whose words are a table of the docs."""
    fragments = tuple(
        f"{word} " for word in ("Of", "The same", "Those", "Its", "As", "Whether", "How")
    )
    found: list[str] = []
    for module, path in source_files().items():
        for node in ast.walk(ast.parse(path.read_text())):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            said = (ast.get_docstring(node) or "") if is_function else ""
            if said.startswith(fragments) and not module.startswith("rewards.constraints."):
                found.append(f"{path}:{node.lineno}: {said.splitlines()[0]}")
    assert found == []


def test_what_runs_as_a_program_begins_behind_all_that_its_file_defines() -> None:
    for path in source_files().values():
        for node in ast.parse(path.read_text()).body[:-1]:
            begins = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
            assert not begins, f"{path}:{node.lineno}"


def test_every_folder_with_code_is_a_package() -> None:
    folders = {file.parent for file in source_files().values()}
    assert [str(f) for f in sorted(folders) if not (f / "__init__.py").exists()] == []


def texts_that_name_modules() -> Iterator[tuple[str, str]]:
    """A place and a text: strings and comments of code, and whole files of other kinds. Unit tests
    and cases invent names, and the change log keeps old ones."""
    for name in tracked_files():
        path = ROOT / name
        if name.startswith(("tests/unit/", "tests/cases/", "CHANGELOG")) or not path.is_file():
            continue
        if path.suffix == ".py":
            with path.open("rb") as file:
                for token in tokenize.tokenize(file.readline):
                    if token.type in TEXT_TOKENS:
                        yield f"{name}:{token.start[0]}", token.string
        elif path.suffix in TEXTS:
            yield name, path.read_text()


@cache
def defined_names(module: str) -> set[str]:
    """Everything that a module binds, in functions and classes too."""
    nodes = [*ast.walk(ast.parse(source_files()[module].read_text()))]
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return (
        {node.name for node in nodes if isinstance(node, definitions)}
        | {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        | {n.asname or n.name for n in nodes if isinstance(n, ast.alias)}
    )


def exists(name: str) -> bool:
    """Whether `name`, e.g. `engines.types:Problem.id`, is a module or is bound in one."""
    module, colon, names = name.partition(":")
    while not colon and module not in source_files() and "." in module:
        module, _, attribute = module.rpartition(".")
        names = f"{names}.{attribute}"
    attributes = {each for each in names.split(".") if each}
    return module in source_files() and attributes <= defined_names(module)


def test_a_module_attribute_or_file_that_a_text_names_exists() -> None:
    rooms = "|".join(ROOMS)
    dotted = re.compile(rf"(?<![\w./@-])(?:{rooms})(?!\.md)(?:\.[A-Za-z_]\w*)+(?::\w+(?:\.\w+)*)?")
    file = re.compile(rf"(?<![\w./@-])(?:{rooms})(?:/[\w.-]+)+(?![\w.-]*/?[<{{*])")
    wrong = [
        f"{place}: {name}"
        for place, text in texts_that_name_modules()
        for name in (*dotted.findall(text), *file.findall(text))
        if "NAME" not in name and not exists(name) and not (ROOT / name.rstrip(".")).exists()
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_resolves_to_this_repository_and_is_typed(room: str) -> None:
    spec = find_spec(room)
    assert spec is not None
    assert spec.origin == str(ROOT / room / "__init__.py")
    assert (ROOT / room / "py.typed").exists()


SHOW_HELP = """
from flows.command.main import app, main
try:
    main(["--help"])
except SystemExit as end:
    assert not end.code, end.code
"""
SHOW_EVERY_HELP = """
commands = [name for name in app if not name.startswith("-")]
assert commands
for command in commands:
    try:
        main([command, "--help"])
    except SystemExit as end:
        assert not end.code, (command, end.code)
"""
CHECK = """
try:
    main(["check", "cpu-demo"])
except SystemExit as end:
    assert not end.code, end.code
"""
LOAD = f"""
from flows.load import load_recipe
for path in {[str(path) for path in RECIPES]}:
    load_recipe(path)
"""
LIGHT = {
    "one help": SHOW_HELP,
    "every help": SHOW_EVERY_HELP,
    "load recipes": LOAD,
    "drive ranks": "import engines.megatron.ranks.trainer_group",
    "drive servers": "import engines.sglang.fleet",
    "check a recipe": CHECK,
}
"""what a fresh process does, one after the other"""
NEEDED = {"check a recipe": ["tokenizers"]}


@cache
def heavy_packages() -> dict[str, list[str]]:
    """Which heavy packages each of these imports that the earlier ones have not."""
    probe = (
        f"import json, sys\nheavy, found = {HEAVY}, {{}}\n"
        f"for name, code in {LIGHT}.items():\n"
        "    before = {*sys.modules}\n    exec(code, globals())\n"
        "    found[name] = sorted(heavy & ({*sys.modules} - before))\n"
        "print('\\n' + json.dumps(found))"
    )
    with TemporaryDirectory() as home:
        run = subprocess.run(
            [sys.executable, "-c", probe], capture_output=True, text=True, timeout=240, cwd="/",
            env={**os.environ, "TRIBUTARY_HOME": home},
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("what", LIGHT)
def test_help_checks_and_drivers_of_engines_import_no_engine_and_no_service(what: str) -> None:
    """A command that waits for a run holds what it imported until the run ends."""
    assert heavy_packages()[what] == NEEDED.get(what, [])


def test_no_tracked_text_names_a_private_folder_or_package_index() -> None:
    private = re.compile(
        r"(?<![\w.$}/-])/(home|Users|root)/\w"
        r"|--(extra-)?index-url[ =]+(?!https://(pypi\.org|download\.pytorch\.org)/)\S*//"
    )
    wrong = [
        f"{name}:{number}: {line.strip()}"
        for name in tracked_files()
        if Path(name).suffix in TEXTS and (ROOT / name).is_file()
        for text in [(ROOT / name).read_text()]
        if private.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if private.search(line)
    ]
    assert wrong == []
