"""Three nodes with the settings of deploy/compose.yaml behind the proxy of deploy/Caddyfile, without containers.

Expects ATELIER (the program), caddy and psql on PATH, and the services of `make services`.
"""

import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request
import uuid
from pathlib import Path

import yaml

ATELIER = os.environ["ATELIER"]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
# How long a test waits for anything before it fails. It never says how long something should take.
PATIENCE = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(ask):
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if answer := ask():
                return answer
        except OSError:
            pass
        if time.monotonic() > end:
            raise AssertionError("it never happened")
        time.sleep(0.05)


def get(url, token=None):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        return response.status, response.read().decode()


class Cluster(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "keys").mkdir(mode=0o700)
        self.services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
        server = os.environ["ATELIER_TEST_POSTGRES_URL"]
        database = f"deploy_{uuid.uuid4().hex}"
        subprocess.run(["psql", "--quiet", server, "--command", f"CREATE DATABASE {database}"], check=True)
        # The addresses of the services here, instead of those in the network of Compose.
        self.here = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "LOG_LEVEL": "warn",
            "ATELIER_DATABASE_URL": re.sub(r"/[^/]*$", f"/{database}", server),
            "ATELIER_KEYS": str(self.folder / "keys"),
            "ATELIER_QDRANT_URL": os.environ["ATELIER_TEST_QDRANT_URL"], "ATELIER_MEMORY__QDRANT_API_KEY": "",
            "ATELIER_OBJECT_STORE": f"s3://{os.environ['ATELIER_TEST_S3_BUCKET']}",
            "AWS_ENDPOINT": os.environ["ATELIER_TEST_S3_ENDPOINT"],
            "AWS_ACCESS_KEY_ID": os.environ["ATELIER_TEST_S3_ACCESS_KEY"],
            "AWS_SECRET_ACCESS_KEY": os.environ["ATELIER_TEST_S3_SECRET_KEY"],
        }  # fmt: skip

    def start(self, *command, env):
        log = (self.folder / f"{uuid.uuid4().hex}.log").open("w")
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        self.addCleanup(log.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def node(self, name, proxy):
        given = self.services[name]["environment"]
        # Values that the user gives are empty; those that matter here are in `self.here`.
        env = {key: re.sub(r"\$\{[^}]*\}", "", value) for key, value in given.items()} | self.here
        port, metrics = free_port(), free_port()
        env |= {
            "ATELIER_DATA": str(self.folder / name), "ATELIER_LISTEN": f"127.0.0.1:{port}",
            "ATELIER_SERVER__METRICS_LISTEN": f"127.0.0.1:{metrics}", "ATELIER_SERVER__PUBLIC_URL": proxy,
        }  # fmt: skip
        process = self.start(ATELIER, *self.services[name]["command"], env=env)
        until(lambda: get(f"http://127.0.0.1:{port}/ready"))
        return process, port, metrics, env

    def test_any_node_serves_any_request(self):
        """DP-06"""
        proxy = f"http://127.0.0.1:{free_port()}"
        nodes = [self.node(name, proxy) for name in ["node1", "node2", "node3"]]
        upstreams = " ".join(f"127.0.0.1:{port}" for _, port, _, _ in nodes)
        caddy = {**self.here, "SITE": proxy, "NODES": upstreams, "XDG_DATA_HOME": str(self.folder)}
        config = ["--config", DEPLOY / "Caddyfile", "--adapter", "caddyfile"]
        self.start("caddy", "run", *config, env=caddy)
        until(lambda: get(f"{proxy}/ready"))

        env = nodes[0][3]
        token = subprocess.run([ATELIER, "token", "--user", "owner"], env=env, text=True, capture_output=True, check=True)
        token = token.stdout.strip()
        chat = [ATELIER, "chat", "--server", proxy, "--project", "my-project", "--agent", "coder", "hello"]
        said = subprocess.run(chat, env={**env, "ATELIER_TOKEN": token}, text=True, capture_output=True, timeout=PATIENCE)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("demo", said.stdout)

        def served(metrics):
            text = get(f"http://127.0.0.1:{metrics}/metrics")[1]
            return sum(float(line.split()[-1]) for line in text.splitlines()
                       if line.startswith("atelier_http_requests_total") and "/my/" in line)  # fmt: skip

        def all_served():
            self.assertEqual(get(f"{proxy}/my/projects", token)[0], 200)
            return all(served(metrics) for _, _, metrics, _ in nodes)

        until(all_served)
        # A node that stops is passed over, and nobody notices.
        nodes[0][0].send_signal(signal.SIGTERM)
        while nodes[0][0].poll() is None:
            self.assertEqual(get(f"{proxy}/my/projects", token)[0], 200)
        self.assertEqual(nodes[0][0].returncode, 0)
        for _ in range(20):
            self.assertEqual(get(f"{proxy}/my/projects", token)[0], 200)


if __name__ == "__main__":
    unittest.main()
