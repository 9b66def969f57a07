"""uv: fetched once by pip into an environment of its own, then asked to install."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENT = "uv>=0.13.9,<0.14"
"""A minor version may change an option that is used here."""


class InstallError(Exception):
    """Nothing more can be tried; the message says what to do."""


def bootstrap_uv(folder: Path) -> Path:
    """The uv of `folder`, which is made where there is none."""
    binary = folder / "bin" / "uv"
    if binary.exists() and _answers(binary):
        return binary.absolute()
    try:
        venv.create(folder, clear=True, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InstallError(
            f"{sys.executable} cannot make an environment ({error}). On Debian and Ubuntu: "
            "`apt-get install python3-venv`. Elsewhere: another Python >= 3.9 as PYTHON=..."
        ) from error
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, "install", "--only-binary", ":all:", REQUIREMENT]).returncode != 0:
        raise InstallError(f"pip could not install {REQUIREMENT}; its message is above")
    return binary.absolute()


def _answers(binary: Path) -> bool:
    return subprocess.run([str(binary), "--version"], capture_output=True).returncode == 0


class Uv:
    """uv, for one environment."""

    def __init__(self, binary: Path, python: Path) -> None:
        self.binary = binary
        self.python = python

    def install(self, *what: str, typed: str = "") -> None:
        """Raises `InstallError`; uv has then said why."""
        if (
            subprocess.run([*self._command(*what), "--quiet"], input=typed, text=True).returncode
            != 0
        ):
            raise InstallError(f"`uv pip install {' '.join(what)}` failed; uv's message is above")

    def tries(self, *what: str, seconds: float | None = None) -> str:
        """Why uv could not do it, in one line; "" if it could."""
        try:
            done = subprocess.run(
                self._command(*what), capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired as late:
            return f"no answer in {late.timeout:.0f} s"
        return "" if done.returncode == 0 else _cause(done.stderr)

    def _command(self, *what: str) -> list[str]:
        """Where Python may write bytecode, a module is compiled when it is first imported: a stack
        imports a quarter of what is installed. Elsewhere each of its many processes would compile
        that quarter, so everything is compiled now."""
        compiled = ["--compile-bytecode"] if sys.dont_write_bytecode else []
        options = ["--python", str(self.python), *compiled]
        return [str(self.binary), "pip", "install", *options, *what]

    def python_runs(self, *what: str) -> None:
        subprocess.run([str(self.python), *what], check=True)

    def python_says(self, code: str, seconds: float) -> tuple[bool, str]:
        """Return whether `code` ran, and the last line that it wrote."""
        try:
            done = subprocess.run(
                [str(self.python), "-c", code], capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return False, f"not done in {seconds:.0f} s"
        written = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
        return done.returncode == 0, written[-1] if written else f"exit code {done.returncode}"


def _cause(written: str) -> str:
    """The last of the causes that uv lists: the one that says what really happened."""
    lines = [line.strip() for line in written.splitlines() if line.strip()]
    causes = [line.partition(":")[2].strip() for line in lines if line.startswith("cause:")]
    return (causes or lines or ["uv said nothing"])[-1]
