"""Which files a warm process may run: what it imports, what it names, nothing that it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engines.devices import find_owner
from engines.devices.find_owner import running_code, running_files
from engines.devices.units import KINDS
from infra.home import SOURCE_ROOT

pytestmark = pytest.mark.unit


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """engines.start imports one module at the top, one in a function, and names two."""
    files = {
        "engines/__init__.py": "",
        "engines/start.py": (
            "import os\nfrom engines.top import x\n"
            "def f():\n    from engines.package import (\n        inner,\n"
            "        other as o,\n    )\n"
            'PART = "engines.part:Class"\nSCRIPT = ["-m", "engines.script"]\n'
        ),
        "engines/top.py": "x = 1",
        "engines/package/__init__.py": "",
        "engines/package/inner.py": "import engines.deep",
        "engines/package/other.py": "",
        "engines/package/unused.py": "",
        "engines/deep.py": "",
        "engines/part.py": "",
        "engines/script.py": "",
        "engines/elsewhere.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_is_imported_or_named_is_followed_and_nothing_else(tree: Path) -> None:
    found = {str(file.relative_to(tree)) for file in running_files(["engines.start"], tree)}
    assert found == {
        "engines/__init__.py", "engines/start.py", "engines/top.py", "engines/package/__init__.py",
        "engines/package/inner.py", "engines/package/other.py", "engines/deep.py",
        "engines/part.py", "engines/script.py",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["deep", "part", "script"])
def test_an_edit_of_any_of_them_makes_another_process(tree: Path, name: str) -> None:
    before = running_code(["engines.start"], tree)
    (tree / "engines/elsewhere.py").write_text("y = 2")
    assert running_code(["engines.start"], tree) == before
    (tree / f"engines/{name}.py").write_text("y = 2")
    assert running_code(["engines.start"], tree) != before


def test_the_owner_of_devices_is_known_by_every_part_that_its_engines_may_run() -> None:
    modules = [part.partition(":")[0] for part in KINDS.values()]
    files = running_files(["engines.devices.find_owner", *modules])
    found = {str(file.relative_to(SOURCE_ROOT)) for file in files}
    assert found >= {
        "engines/devices/process_parent.py",  # started by its name
        "engines/devices/units.py",  # only declares
        "engines/sglang/servers/server_launcher.py",
        "engines/sglang/servers/router_main.py",
        "engines/sglang/plugin.py",
        "engines/megatron/train/value_trainers.py",  # named in a table of roles
        "engines/algorithms/losses.py",
        "infra/access.py",
    }


def test_an_edit_of_a_model_family_makes_another_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family is found by its name, so no import leads to it."""
    asked: list[list[str]] = []

    def noted(modules: list[str]) -> str:
        asked.append(modules)
        return running_code(modules)

    monkeypatch.setattr(find_owner, "running_code", noted)
    find_owner._own_name.__wrapped__()
    found = {str(file.relative_to(SOURCE_ROOT)) for file in running_files(asked[0])}
    families = (SOURCE_ROOT / "engines/families").rglob("*.py")
    assert found >= {str(file.relative_to(SOURCE_ROOT)) for file in families}
    assert "engines/sglang/models/families.py" in found


def test_no_file_that_a_warm_process_has_loaded_is_missing() -> None:
    """What the owner, a rank and a server's process really import, against what was derived."""
    loads = """
import importlib, json, sys
from engines.devices import find_owner
from engines.devices.units import KINDS
from engines.megatron.spec import ROLES
named = [part.partition(":")[0] for part in [*KINDS.values(), *ROLES.values()]]
for name in [*named, "engines.devices.find_owner", "engines.devices.process_parent",
             "engines.sglang.plugin"]:
    importlib.import_module(name)
tops = ("engines.", "infra.", "tasks.", "flows.", "rewards.", "curricula.")
print(json.dumps([sys.modules[m].__file__ for m in sys.modules if m.startswith(tops)]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", loads], cwd=SOURCE_ROOT, capture_output=True, text=True, check=True
    )
    loaded = {Path(file) for file in json.loads(ran.stdout.splitlines()[-1]) if file}
    modules = [part.partition(":")[0] for part in KINDS.values()]
    derived = set(running_files(["engines.devices.find_owner", *modules]))
    assert len(loaded) > 50
    assert {str(x) for x in loaded - derived} == set()
