"""Where torch comes from. The default wheel for Linux on PyPI belongs to a CUDA stack of 3 GB."""

from __future__ import annotations

from typing import NamedTuple

from install.uv import InstallError, Uv

PROBE_SECONDS = 60.0
"""for asking whether a source has the wheel; fetching it may take as long as it needs"""
LOAD_SECONDS = 300.0
_BUILD = """
import torch
print(torch.__version__, "for CUDA " + torch.version.cuda if torch.version.cuda else "for CPU")
"""


class Source(NamedTuple):
    name: str
    options: list[str]


def sources(version: str) -> list[Source]:
    """In the order in which they are tried. Only an index other than PyPI can have a `+cpu`."""
    wanted = f"torch=={version}"
    return [
        Source("a wheel that find-links of pip or uv offers", ["--no-index", wanted]),
        Source("a CPU wheel that an index of pip or uv offers", [f"{wanted}+cpu"]),
        Source("PyTorch's own index of CPU wheels", ["--torch-backend", "cpu", f"{wanted}+cpu"]),
        Source("PyPI's CUDA build with its libraries", [wanted]),
    ]


def install_torch(uv: Uv, version: str) -> str:
    """Installs the first that loads, and says which; one line for each that does not do."""
    ready, build = _loads(uv, version)
    if ready:
        return f"torch {build}, installed before"
    for source in sources(version):
        fault = _try(uv, source)
        if not fault:
            ready, build = _loads(uv, version)
            if ready:
                return f"torch {build}, from {source.name}"
            fault = f"installed, but it does not load: {build}"
        print(f"install: torch not from {source.name}: {fault}", flush=True)
    raise InstallError(
        f"no source has a torch {version} that loads here. Provide a CPU wheel: "
        "`UV_FIND_LINKS=FOLDER make install`, or find-links in pip's configuration"
    )


def _try(uv: Uv, source: Source) -> str:
    """Why not, in one line. What torch needs and is not there comes with it."""
    options = ["--reinstall-package", "torch", *source.options]
    return uv.tries("--dry-run", *options, seconds=PROBE_SECONDS) or uv.tries(*options)


def _loads(uv: Uv, version: str) -> tuple[bool, str]:
    ready, build = uv.python_says(_BUILD, LOAD_SECONDS)
    if ready and build.split("+")[0].split()[0] != version:
        return False, f"{build}, not {version}"
    return ready, build
