"""The folders of services and downloads, and the account that services run as."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".services"


def cache() -> Path:
    """The folder for downloads, which are kept between runs. CI sets ATELIER_CACHE to one outside its clone."""
    folder = Path(os.environ.get("ATELIER_CACHE") or STATE / "cache").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def account():
    """The account of services: `nobody` if this script runs as root, because PostgreSQL refuses root; otherwise None."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def drop_privileges() -> dict:
    """The arguments that make subprocess run a child as `account()`."""
    user = account()
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}


def can_enter(folder: Path) -> bool:
    # Tried as that account, because mode bits alone say nothing about ACLs and parent folders.
    return subprocess.run(["test", "-x", folder], **drop_privileges()).returncode == 0


def new_home(name: str) -> Path:
    """Creates an empty folder for the service, in /tmp if its account cannot reach the checkout."""
    if can_enter(STATE):
        home = STATE / "run" / name
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True, mode=0o700)
    else:
        home = Path(tempfile.mkdtemp(prefix=f"atelier-{name}-", dir="/tmp"))
    if user := account():
        os.chown(home, user.pw_uid, user.pw_gid)
    return home
