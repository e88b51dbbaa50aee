"""Where things lie, and as whom services run."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".services"


def cache() -> Path:
    """Downloads, kept between runs; CI points ATELIER_CACHE outside its clone."""
    folder = Path(os.environ.get("ATELIER_CACHE") or STATE / "cache").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def account():
    """Whom services run as: ourselves, or `nobody` when we are root (PostgreSQL refuses root)."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def drop_privileges() -> dict:
    """Arguments for subprocess that run a child as `account()`."""
    who = account()
    return {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []} if who else {}


def can_enter(folder: Path) -> bool:
    # Asked of the system as that account: mode bits alone miss ACLs and parent folders.
    return subprocess.run(["test", "-x", folder], **drop_privileges()).returncode == 0


def new_home(name: str) -> Path:
    """An empty folder that belongs to the service, in /tmp when its account cannot reach the checkout."""
    if can_enter(STATE):
        home = STATE / "run" / name
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True, mode=0o700)
    else:
        home = Path(tempfile.mkdtemp(prefix=f"atelier-{name}-", dir="/tmp"))
    if who := account():
        os.chown(home, who.pw_uid, who.pw_gid)
    return home
