"""Installing on a plain machine: pip's settings, the order of torch's sources, the locks."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from install.environment import VERSIONS, create_environment, put_launcher
from install.lock import read_lock, simplified
from install.pip_settings import pip_options, settings_for_uv
from install.torch_sources import install_torch
from install.uv import InstallError, Uv
from tests.programs.fresh.debian import mirror

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
# What is resolved from a TOML file; the clients of some tests are a list without one.
LOCKS = [file.with_suffix(".txt") for file in sorted((ROOT / "locks").glob("*.toml"))]


def test_the_installer_is_written_for_python_3_9_and_its_standard_library() -> None:
    for file in (ROOT / "install").glob("*.py"):
        tree = ast.parse(file.read_text(), feature_version=(3, 9))
        names = {
            (node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name)
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        foreign = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"install"}
        assert foreign == set(), file


@pytest.mark.parametrize("python", VERSIONS)
@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_a_lock_names_each_package_once_for_every_patch_release(lock: Path, python: str) -> None:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    for patch in (0, 2, 9):
        machine = {"python_version": python, "python_full_version": f"{python}.{patch}"}
        wanted = [Requirement(line) for line in lines]
        names = [one.name for one in wanted if one.marker is None or one.marker.evaluate(machine)]
        assert len(names) == len(set(names))
        assert ("async-timeout" in names) == (machine["python_full_version"] < "3.11.3")
        assert {"torch", "sglang", "prefect", "ray", "megatron-core"} <= set(names)
        assert "pycosat" not in names, "it has to be compiled"


def test_a_marker_keeps_only_what_is_not_always_true() -> None:
    everywhere = "python_full_version < '3.14' and sys_platform == 'linux'"
    assert simplified(f"six==1.17.0 ; {everywhere}") == "six==1.17.0"
    line = f"async-timeout==5.0.1 ; python_full_version < '3.11.3' and {everywhere}"
    assert simplified(line) == "async-timeout==5.0.1 ; python_full_version < '3.11.3'"


def test_every_level_of_pips_configuration_is_read_and_later_ones_win(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))

    write("etc/xdg/pip/pip.conf", "[global]\nfind-links = /xdg\ntimeout = 5\nproxy = http://p:1\n")
    write("etc/pip.conf", "[global]\nfind_links =\n  /one\n  /two\n[download]\nproxy = no\n")
    write("home/.pip/pip.conf", "[global]\ntimeout = 6\n")
    write("home/.config/pip/pip.conf", "[install]\ntimeout = 7\n[global]\nindex-url = http://i\n")
    write("venv/pip.conf", "[global]\nextra-index-url = http://a http://b\n")
    write("named.conf", "[global]\ntrusted-host = a b\n")
    environ = {
        "HOME": str(tmp_path / "home"),
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "PIP_CONFIG_FILE": str(tmp_path / "named.conf"),
        "PIP_INDEX_URL": "http://mirror",
    }
    options = pip_options(environ, root=tmp_path)
    assert options["find-links"].split() == ["/one", "/two"]
    assert (options["timeout"], options["proxy"]) == ("7", "http://p:1")
    assert settings_for_uv(options, {}) == {
        "UV_DEFAULT_INDEX": "http://mirror",
        "UV_INDEX": "http://a http://b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/one,/two",
        "UV_INSECURE_HOST": "a b",
        "ALL_PROXY": "http://p:1",
        "UV_HTTP_TIMEOUT": "7",
    }
    own = {"UV_INDEX_URL": "u", "UV_FIND_LINKS": "f", "UV_EXTRA_INDEX_URL": "e"}
    assert (
        settings_for_uv(options, own)
        .keys()
        .isdisjoint({"UV_DEFAULT_INDEX", "UV_FIND_LINKS", "UV_INDEX"})
    ), "what uv was told itself stays"


def test_pips_configuration_is_off_where_pip_says_so_and_a_broken_file_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/pip.conf").write_text("find-links = /x\n")
    home = {"HOME": str(tmp_path)}
    assert pip_options(home | {"PIP_CONFIG_FILE": os.devnull}, tmp_path).keys() == {"config-file"}
    with pytest.raises(InstallError, match=r"etc/pip\.conf"):
        pip_options(home, tmp_path)


FAKE_UV = """#!{python}
import pathlib
import sys

said = " ".join(sys.argv)
if "--no-index" in said:
    kind = "find-links"
elif "--torch-backend" in said:
    kind = "backend"
else:
    kind = "index" if "+cpu" in said else "pypi"
folder = pathlib.Path(r"{folder}")
(folder / "asked").touch()
if kind not in "{offered}".split():
    sys.exit("error: No solution\\n  cause: it is not there\\n  hint: ask")
if "--dry-run" not in said:
    (folder / "installed").write_text(kind)
"""
FAKE_PYTHON = """#!/bin/sh
case "$(cat "{folder}/installed" 2>/dev/null)" in
"") echo "ModuleNotFoundError: No module named 'torch'" >&2; exit 1;;
{broken}) echo "ImportError: libcublasLt.so.13: cannot open" >&2; exit 1;;
pypi) echo "2.13.0+cu130 for CUDA 13.0";;
*) echo "2.13.0+cpu for CPU";;
esac
"""


def stand_in(folder: Path, offered: str, broken: str = "none") -> Uv:
    """A uv whose sources have what is `offered`, and a Python that loads all but `broken`."""
    scripts = {"uv": FAKE_UV, "python": FAKE_PYTHON}
    for name, text in scripts.items():
        filled = text.format(python=sys.executable, folder=folder, offered=offered, broken=broken)
        (folder / name).write_text(filled)
        (folder / name).chmod(0o755)
    return Uv(folder / "uv", folder / "python")


@pytest.mark.parametrize(
    ("offered", "broken", "source", "failed"),
    [
        ("find-links index backend pypi", "none", "find-links", 0),
        ("index backend pypi", "none", "an index of pip or uv", 1),
        ("backend pypi", "none", "PyTorch's own index", 2),
        ("pypi", "none", "PyPI's CUDA build with its libraries", 3),
        ("find-links backend", "find-links", "PyTorch's own index", 2),
    ],
)
def test_torch_comes_from_the_first_source_whose_torch_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], offered, broken, source, failed
) -> None:
    said = install_torch(stand_in(tmp_path, offered, broken), "2.13.0")
    assert source in said
    assert ("for CUDA 13.0" in said) == (offered == "pypi")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == failed, "one line for each source that does not do"
    if broken != "none":
        assert "does not load: ImportError: libcublasLt.so.13" in lines[0]
    elif failed:
        assert lines[0].endswith("it is not there")


def test_a_torch_that_loads_is_kept_and_one_that_nobody_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match=r"no source has a torch 2\.13\.0"):
        install_torch(stand_in(tmp_path, "nothing"), "2.13.0")
    (tmp_path / "asked").unlink()
    (tmp_path / "installed").write_text("backend")
    assert "installed before" in install_torch(stand_in(tmp_path, "pypi"), "2.13.0")
    assert not (tmp_path / "asked").exists(), "uv is not asked"


def test_a_silent_source_is_given_up(tmp_path: Path) -> None:
    uv = stand_in(tmp_path, "")
    (tmp_path / "uv").write_text("#!/bin/sh\nexec sleep 60\n")
    assert uv.tries("--dry-run", "torch", seconds=0.2) == "no answer in 0 s"


def test_a_lock_without_one_torch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match=r"no such file; use locks/cpu\.txt"):
        read_lock(tmp_path / "gone.txt")
    (tmp_path / "lock.txt").write_text("# a lock\nsix==1.17.0\n")
    with pytest.raises(InstallError, match="one line `torch==VERSION`, and has 0"):
        read_lock(tmp_path / "lock.txt")
    assert read_lock(ROOT / "locks/cuda.txt").brings_cuda
    assert not read_lock(ROOT / "locks/cpu.txt").brings_cuda


def test_an_environment_of_another_python_is_refused_by_name(tmp_path: Path) -> None:
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 3.8\n")
    python.chmod(0o755)
    with pytest.raises(InstallError, match=r"Python 3\.8: `make clean install`"):
        create_environment(tmp_path / "uv", tmp_path / ".venv")


def test_the_installer_ends_with_a_message_and_exit_code_2() -> None:
    command = [sys.executable, "-m", "install", "--lock", "locks/none.txt"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("install: LOCK=locks/none.txt: no such file")


ONE_LINE = "# deb http://old/debian bookworm main\ndeb [arch=amd64] http://m/d bookworm main\n"
DEB822 = "Types: deb\n# note\nURIs: http://m/d\nSuites: bookworm bookworm-updates\n"
TWO = "URIs: http://s/x\nSuites: bookworm-security\n\nURIs: http://m/d\nSuites: bookworm\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sources.list", ONE_LINE),
        ("sources.list.d/a.sources", DEB822),
        ("sources.list.d/b.sources", TWO),
    ],
)
def test_the_mirror_is_the_one_that_apt_uses(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_text(text)
    assert mirror(tmp_path) == "http://m/d"
    (tmp_path / name).unlink()
    assert mirror(tmp_path) == "http://deb.debian.org/debian"


class TestLauncher:
    @pytest.fixture
    def program(self, tmp_path: Path) -> Path:
        return self.installed(tmp_path / "clone")

    @staticmethod
    def installed(clone: Path) -> Path:
        program = clone / ".venv/bin/tributary"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho $0\n")
        program.chmod(0o755)
        return program

    @staticmethod
    def shell(home: Path, *more: str) -> dict[str, str]:
        return {"HOME": str(home), "PATH": ":".join([*more, "/usr/bin", "/bin"])}

    def runs(self, environ: dict[str, str]) -> bool:
        shell = ["/bin/sh", "-c", "tributary"]
        return subprocess.run(shell, env=environ, capture_output=True).returncode == 0

    def test_the_command_works_without_a_path_where_the_shell_looks_in_the_users_folder(
        self, program: Path, tmp_path: Path
    ) -> None:
        environ = self.shell(tmp_path, str(tmp_path / ".local/bin"))
        for _ in range(2):
            assert "type `tributary doctor` next" in put_launcher(program, environ)
            assert self.runs(environ)
        assert (tmp_path / ".local/bin/tributary").resolve() == program

    def test_elsewhere_the_line_that_is_printed_makes_it_work(
        self, program: Path, tmp_path: Path
    ) -> None:
        environ = self.shell(tmp_path)
        said = put_launcher(program, environ)
        assert not self.runs(environ)
        assert not (tmp_path / ".local").exists()
        line = said.partition(": ")[2]
        typed = subprocess.run(["/bin/sh", "-c", f"{line}; tributary"], env=environ)
        assert typed.returncode == 0

    def test_a_command_of_that_name_that_is_there_is_left_alone(
        self, program: Path, tmp_path: Path
    ) -> None:
        other, folder = self.installed(tmp_path / "other"), tmp_path / ".local/bin"
        environ = self.shell(tmp_path, str(folder))
        put_launcher(other, environ)
        assert f"export PATH={program.parent}:$PATH" in put_launcher(program, environ)
        assert (folder / "tributary").resolve() == other
        other.unlink()  # that clone was removed
        assert "next" in put_launcher(program, environ)
        assert (folder / "tributary").resolve() == program
