"""Passes pip's settings to uv, which does not read pip's configuration.

pip reads, and later ones win: the machine's files, the user's, the environment's, the file that
PIP_CONFIG_FILE names, and PIP_* variables.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from install.uv import InstallError

_FOR_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
"""pip's option, and uv's variable for it"""
_SAME = {"UV_DEFAULT_INDEX": "UV_INDEX_URL", "UV_INDEX": "UV_EXTRA_INDEX_URL"}
"""uv's older names"""


def settings_for_uv(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to set. What uv was told itself stays as it is."""
    given = {
        variable: ("," if option == "find-links" else " ").join(options[option].split())
        for option, variable in _FOR_UV.items()
        if options.get(option, "").split()
        and variable not in environ
        and _SAME.get(variable, variable) not in environ
    }
    if "UV_INDEX" in given and "UV_INDEX_STRATEGY" not in environ:
        # pip takes the best version of all indexes, uv that of the first index that has any.
        given["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return given


def pip_options(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> dict[str, str]:
    """Every option for `pip install`, by its name on the command line."""
    options: dict[str, str] = {}
    for file in configuration_files(environ, root):
        options.update(_read(file))
    for name, value in environ.items():
        if name.startswith("PIP_"):
            options[_option(name[len("PIP_") :])] = value
    return options


def configuration_files(environ: Mapping[str, str], root: Path = Path("/")) -> list[Path]:
    """Return the files that exist; a later one wins."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return []
    home = Path(environ.get("HOME") or Path.home())
    system = environ.get("XDG_CONFIG_DIRS") or str(root / "etc/xdg")
    user = environ.get("XDG_CONFIG_HOME") or str(home / ".config")
    files = [Path(folder) / "pip/pip.conf" for folder in system.split(os.pathsep) if folder]
    files += [root / "etc/pip.conf", home / ".pip/pip.conf", Path(user) / "pip/pip.conf"]
    environments = (sys.prefix, environ.get("VIRTUAL_ENV"))
    files += [Path(folder) / "pip.conf" for folder in environments if folder]
    files += [Path(named)] if named else []
    return [file for file in files if file.is_file()]


def _read(file: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError) as error:
        raise InstallError(f"pip's configuration {file} cannot be read: {error}") from error
    return {
        _option(name): value
        for section in ("global", "install")  # the command's own section wins
        if parser.has_section(section)
        for name, value in parser.items(section)
    }


def _option(name: str) -> str:
    return name.lower().replace("_", "-")
