import shutil
import signal
import subprocess
from pathlib import Path

from dev.errors import SetupError
from dev.packages import debian
from dev.paths import drop_privileges
from dev.process import Launch

NAME = "postgres"
PORTS = ["sql"]
STOP = signal.SIGINT  # A fast shutdown, which ends sessions instead of waiting for them.
USER = "atelier"

# A test cluster, which `down` deletes. Without fsync a power failure can lose data, but a killed
# process cannot: acknowledged writes are in the kernel by then. Do not add synchronous_commit=off,
# which would lose acknowledged rows on kill -9; tests check that none are lost.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "400",  # Every test has its own pool.
    "unix_socket_directories": "",  # Debian's default folder belongs to its own clusters.
}


def install() -> None:
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
        raise SetupError(f"initdb failed:\n{done.stdout}")
    settings = SETTINGS | {"port": ports["sql"]}
    return Launch([_folder() / "postgres", "-D", data, *(f"--{key}={value}" for key, value in settings.items())])


def check_ready(home: Path, ports: dict) -> None:
    subprocess.run([_folder() / "psql", "-XAtc", "select 1", _url(ports)], check=True, capture_output=True, timeout=5)


def env(ports: dict) -> dict:
    # Tests that stop or freeze a server start one of their own.
    return {"ATELIER_TEST_POSTGRES_URL": _url(ports), "ATELIER_TEST_POSTGRES_PROGRAMS": str(_folder())}


def _url(ports: dict) -> str:
    return f"postgres://{USER}@127.0.0.1:{ports['sql']}/postgres"


def _folder():
    """The folder of the server's programs. Debian keeps them off PATH, in one folder per version."""
    debians = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    if newest := max(debians, key=lambda program: int(program.parts[-3]), default=None):
        return newest.parent
    on_path = shutil.which("postgres")
    return Path(on_path).parent if on_path and shutil.which("initdb") else None
