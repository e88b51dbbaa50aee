import shutil
import signal
import subprocess
from pathlib import Path

from dev.errors import Trouble
from dev.packages import debian
from dev.place import drop_privileges
from dev.process import Launch

NAME = "postgres"
PORTS = ["sql"]
STOP = signal.SIGINT  # "fast": ends sessions rather than waiting for them
USER = "atelier"

# A test cluster, thrown away by `down`. Without fsync it may be lost with the machine's power,
# never with a killed process: what was acknowledged is in the kernel by then. Do not add
# synchronous_commit=off here: that would lose acknowledged rows on kill -9, which tests look for.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "400",  # every test has a pool of its own
    "unix_socket_directories": "",  # Debian's default folder belongs to its own clusters
}


def obtain() -> None:
    if not _folder():
        debian("postgresql")


def launch(home: Path, ports: dict) -> Launch:
    data = home / "data"
    done = subprocess.run(
        [_folder() / "initdb", "--pgdata", data, "--username", USER, "--auth", "trust",
         "--encoding", "UTF8", "--locale", "C", "--no-sync"],
        cwd=home, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **drop_privileges(),
    )  # fmt: skip
    if done.returncode != 0:
        raise Trouble(f"initdb failed:\n{done.stdout}")
    settings = SETTINGS | {"port": ports["sql"]}
    return Launch([_folder() / "postgres", "-D", data, *(f"--{key}={value}" for key, value in settings.items())])


def ask(home: Path, ports: dict) -> None:
    subprocess.run([_folder() / "psql", "-XAtc", "select 1", _url(ports)], check=True, capture_output=True, timeout=5)


def env(ports: dict) -> dict:
    return {"ATELIER_TEST_POSTGRES_URL": _url(ports)}


def _url(ports: dict) -> str:
    return f"postgres://{USER}@127.0.0.1:{ports['sql']}/postgres"


def _folder():
    """Where the server's programs are. Debian keeps them off PATH, one folder a version."""
    debians = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    if newest := max(debians, key=lambda program: int(program.parts[-3]), default=None):
        return newest.parent
    on_path = shutil.which("postgres")
    return Path(on_path).parent if on_path and shutil.which("initdb") else None
