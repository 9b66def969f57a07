"""The documentation says what is: links, commands, modules, fields and files exist."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

from flows.command.main import app
from flows.load import is_recipe, load_recipe
from tests.parts.doc_blocks import PAGES, ROOT, Block, blocks, named
from tests.parts.machine import until

pytestmark = pytest.mark.unit


def test_the_site_is_whole(tmp_path: Path) -> None:
    """Every page is in the navigation, and every link between pages and to headings leads there."""
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path))
    build(config)  # as `mkdocs build --strict` does: it raises where it would warn
    reference = (tmp_path / "reference/recipe/index.html").read_text()
    assert "max_staleness" in reference


def test_tests_that_a_page_names_are_there() -> None:
    named = {
        file
        for page in (ROOT / "docs").glob("*.md")
        for file in re.findall(r"`(tests/[\w/]+\.py)`", page.read_text())
    }
    assert len(named) > 10
    assert [file for file in sorted(named) if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", page.read_text())
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@named(blocks("bash"))
def test_commands_can_be_typed(block: Block) -> None:
    """Each line's program, command, options, module, target and settings exist; nothing is run."""
    for words in _commands(block.text):
        match words:
            case ["tributary", *rest]:
                app.parse_args(rest, print_error=False, exit_on_error=False)
                _require_settings_that_the_recipe_has(rest)
            case ["python", "-m", module, *_]:
                assert importlib.util.find_spec(module), f"no module {module}"
            case ["make", target, *_]:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target
            case [
                "pytest"
                | ".venv/bin/pytest"
                | "cp"
                | "export"
                | "curl"
                | "pip"
                | "sbatch"
                | "build/uv/bin/uv",
                *_,
            ]:
                pass
            case _:
                pytest.fail(f"{block.page}: what is this command? {words}")


def _require_settings_that_the_recipe_has(words: list[str]) -> None:
    """Where the recipe is one that everybody has, `--set` must fit it."""
    match words:
        case ["run" | "check" | "diff" | "rounds" | "save", recipe, *rest] if is_recipe(recipe):
            settings = [value for option, value in pairwise(rest) if option == "--set"]
            load_recipe(recipe, [re.sub(r"\$\w+", "1", each) for each in settings])  # a loop's
        case _:
            pass


def _commands(text: str) -> Iterator[list[str]]:
    """The lines' words, without comments, variables before a command and shell loops."""
    joined = re.sub(r"'[^']*'", lambda quoted: quoted[0].replace("\n", " "), text)
    for line in joined.replace("\\\n", " ").splitlines():
        code = re.sub(r"(^|\s)#.*", "", line)
        for part in re.split(r"&&|; do |; done|;", re.sub(r"\$\(.*?\)", "", code)):
            words = shlex.split(part)
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            if words and words[0] not in ("for", "done"):
                yield words


@named(blocks("python"))
def test_python_is_python_and_its_imports_exist(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{block.page}: {node.module}.{alias.name}"


def _runs(shell: int, name: str) -> bool:
    """A child that is a shell still, as it has not become the command yet, may lose a signal."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(child.name() == name for child in psutil.Process(shell).children())
    return False


class TestDeployment:
    def test_images_copy_what_exists_and_start_what_exists(self) -> None:
        for name in ("Dockerfile.cpu", "Dockerfile.cuda"):
            text = (ROOT / "infra/docker" / name).read_text()
            for sources in re.findall(r"^COPY --chown=tributary (.*) \S+$", text, re.M):
                assert all((ROOT / source).exists() for source in sources.split()), sources
            (entry,) = re.findall(r'^ENTRYPOINT \["tini", "-g", "--", "([^"]+)"\]', text, re.M)
            assert (ROOT / entry).stat().st_mode & 0o111, f"{entry} cannot be executed"
            for lock in re.findall(r"LOCK=(\S+)", text):
                assert (ROOT / lock).exists()

    @pytest.mark.parametrize(
        ("command", "starts_s"),
        [(["serve"], 0), (["serve"], 30), (["sleep", "60"], 0), (["join", "head:6379"], 0)],
    )
    def test_a_container_that_is_stopped_stops_its_command_and_then_the_stack(
        self, command: list[str], starts_s: int, tmp_path: Path
    ) -> None:
        """Also if the stack has not started yet."""
        said = tmp_path / "said"
        stub = tmp_path / "tributary"
        slow = f'case "$1" in up) sleep {starts_s} ;; esac'
        stub.write_text(f'#!/bin/sh\necho "$*" >> {said}\n{slow}\n')
        stub.chmod(0o755)
        env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        entry = subprocess.Popen(
            [str(ROOT / "infra/docker/entrypoint.sh"), *command],
            env=env, start_new_session=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            runs = "tributary" if starts_s else "sleep"
            until(lambda: said.is_file() and _runs(entry.pid, runs), 20)
            os.killpg(entry.pid, signal.SIGTERM)  # as `tini -g` does
            assert entry.wait(20) == 143
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(entry.pid, signal.SIGKILL)
        lines = said.read_text().splitlines()
        assert lines[0] == ("up --join head:6379" if command[0] == "join" else "up")
        assert lines[-1] == "down"

    def test_compose_sets_variables_that_are_read_and_waits_for_services_that_exist(self) -> None:
        compose = yaml.safe_load((ROOT / "infra/docker/compose.yaml").read_text())
        services = compose["services"]
        code = "\n".join(path.read_text() for path in (ROOT / "infra").rglob("*.py"))
        for variable in services["tributary"]["environment"]:
            assert variable.startswith("AWS_") or f'"{variable}"' in code, variable
        for service in services.values():
            assert set(service.get("depends_on", {})) <= set(services)
            for volume in service.get("volumes", []):
                assert volume.split(":")[0] in compose["volumes"]
        assert (ROOT / "infra/docker" / services["tributary"]["build"]["context"]).resolve() == ROOT

    def test_compose_ports_are_those_of_the_stack(self) -> None:
        from infra.stack.stack_ports import fixed_ports

        service = yaml.safe_load((ROOT / "infra/docker/compose.yaml").read_text())["services"]
        fixed = fixed_ports(service["tributary"]["environment"]["TRIBUTARY_PORTS"])
        published = {int(port.split(":")[-1]) for port in service["tributary"]["ports"]}
        assert published == set(fixed.values())

    @pytest.mark.parametrize("script", ["infra/docker/entrypoint.sh", "infra/slurm/run.sbatch"])
    def test_scripts_are_scripts_of_commands_that_exist(self, script: str) -> None:
        subprocess.run(["bash", "-n", str(ROOT / script)], check=True, timeout=10)
        for command in re.findall(r"tributary (\w+)", (ROOT / script).read_text()):
            if command not in ("on", "up", "EXIT"):
                assert command in list(app), command
