"""Python environments and npm packages of pinned tools, installed into the cache once."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from .errors import SetupError
from .packages import debian
from .paths import cache


def installed(name: str, pins: list[Path], install: Callable[[Path], None]) -> Path:
    """The folder with the tools; `install` fills it if it is not complete yet."""
    # The name depends on everything that the folder is made from, so a change of pins or of Python makes a new one.
    inputs = b"".join(pin.read_bytes() for pin in pins) + sys.version.encode() + sys.base_prefix.encode()
    folder = cache() / f"{name}-{hashlib.sha256(inputs).hexdigest()[:16]}"
    complete = folder / "complete"
    if not complete.exists():
        print(f"installing {name}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        install(folder)
        complete.touch()
    return folder


def python(folder: Path, requirements: Path):
    """Makes a virtual environment with the given requirements."""
    try:
        call(sys.executable, "-m", "venv", folder)
    except SetupError:
        # Debian has part of the venv module in a separate package.
        if not shutil.which("apt-get"):
            raise
        debian("python3-venv")
        call(sys.executable, "-m", "venv", "--clear", folder)
    call(folder / "bin" / "pip", "install", "--quiet", "--requirement", requirements)


def node(folder: Path, pins: list[Path]):
    """Installs the npm packages of a package.json and its lock file."""
    if not shutil.which("npm"):
        debian("npm")
    for pin in pins:
        shutil.copy(pin, folder)
    call("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder)


def call(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise SetupError(f"`{' '.join(map(str, command))}` failed:\n{done.stdout[-2000:]}")
