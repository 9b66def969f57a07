"""What the plain machine takes from its host: the way to the network, and a wheel to offer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from install.pip_settings import pip_options

NETWORK = ("index-url", "trusted-host", "proxy", "timeout", "default-timeout", "cert")
"""pip's options that say how to reach an index; those that offer further wheels are left out"""
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
BUNDLE = Path("etc/ssl/certs/ca-certificates.crt")
TORCH_PYTHON = "3.11"
"""Debian's"""


def equip(machine: Path, wheel: Path | None) -> dict[str, str]:
    """Copies names, certificates and pip's settings; returns the user's environment."""
    for name in ("resolv.conf", "hosts"):
        shutil.copy(Path("/etc") / name, machine / "etc" / name)
    if (Path("/") / BUNDLE).exists():
        shutil.copy(Path("/") / BUNDLE, machine / BUNDLE)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.lower() in PROXIES or name in CERTIFICATES
    }
    options = {k: v for k, v in pip_options().items() if k in NETWORK}
    for file in {*(environment.get(name, "") for name in CERTIFICATES), options.get("cert", "")}:
        if file and Path(file).is_file():
            (machine / file.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, machine / file.lstrip("/"))
    if wheel is not None:
        options["find-links"] = f"/{wheel.parent.relative_to(machine)}"
    lines = [f"{name} = {' '.join(value.split())}" for name, value in options.items()]
    (machine / "etc/pip.conf").write_text("\n".join(["[global]", *lines, ""]))
    return environment


def torch_wheel(version: str, folder: Path) -> Path | None:
    """The CPU wheel that pip's settings of this host offer, fetched into `folder`."""
    # The environment that holds uv has pip as well.
    command = ["build/uv/bin/python", "-m", "pip", "download", "--quiet", "--no-deps"]
    only = ["--only-binary", ":all:", "--python-version", TORCH_PYTHON, "--dest", str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, *only, f"torch=={version}+cpu"], capture_output=True)
    return next(iter(folder.glob("torch-*.whl")), None)
