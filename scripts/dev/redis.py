import shutil
import signal
import socket
from pathlib import Path

from dev.packages import debian
from dev.process import Launch

NAME = "redis"
PORTS = ["redis"]
STOP = signal.SIGTERM


def install() -> None:
    if not shutil.which("redis-server"):
        debian("redis-server")


def launch(home: Path, ports: dict) -> Launch:
    memory_only = ["--save", "", "--appendonly", "no"]
    return Launch(["redis-server", "--bind", "127.0.0.1", "--port", str(ports["redis"]), *memory_only])


def check_ready(home: Path, ports: dict) -> None:
    with socket.create_connection(("127.0.0.1", ports["redis"]), timeout=5) as connection:
        connection.sendall(b"PING\r\n")
        answer = connection.recv(64)
    if answer != b"+PONG\r\n":
        raise OSError(f"PING was answered with {answer!r}")


def env(ports: dict) -> dict:
    return {"ATELIER_TEST_REDIS_URL": f"redis://127.0.0.1:{ports['redis']}"}
