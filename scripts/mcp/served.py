"""`atelier serve` on a free port, with its users and MCP hosts.

Expects ATELIER (the program) and MCP_TOOLS (the folder scripts/mcptools prints).
"""

import json
import os
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from world import INITIALIZE, PATIENCE, request, until

ATELIER = os.environ["ATELIER"]
TOOLS = Path(os.environ["MCP_TOOLS"])
HERE = Path(__file__).parent
PYTHON = [TOOLS / "bin/python", HERE / "client.py"]
NODE = [TOOLS / "bin/node", HERE / "client.mjs", TOOLS]
BOTH = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class Served(unittest.TestCase):
    """A server and its user Ann. Subclasses define `mount`, the URL for MCP hosts."""

    def setUp(self):
        self.base = tempfile.TemporaryDirectory()
        data = Path(self.base.name) / "data"
        data.mkdir(mode=0o700)
        home = Path(self.base.name) / "home"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("ATELIER_")}
        self.environment |= {"ATELIER_DATA": str(data), "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        self.processes = []
        server = self.start("serve", "--listen", "127.0.0.1:0", stdout=subprocess.PIPE)
        for line in server.stdout:
            if line.startswith("Atelier is listening on "):
                self.url = line.split(" on ")[1].strip()
                break
        self.drain(server.stdout)
        self.ann = self.token("--user", "ann")

    def tearDown(self):
        for process in reversed(self.processes):
            process.terminate()
            process.wait(PATIENCE)
            for pipe in [process.stdout, process.stderr]:
                if pipe:
                    pipe.close()
        self.base.cleanup()

    def start(self, *arguments, **pipes):
        process = subprocess.Popen(
            [ATELIER, *arguments], env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, **({"stdout": subprocess.DEVNULL} | pipes),
        )
        self.processes.append(process)
        return process

    @staticmethod
    def drain(pipe):
        threading.Thread(target=pipe.read, daemon=True).start()

    def token(self, *arguments):
        made = subprocess.run([ATELIER, "token", *arguments], env=self.environment, text=True, capture_output=True, check=True)
        return made.stdout.strip()

    def rest(self, method, path, body=None, token=None):
        headers = {"Authorization": f"Bearer {token or self.ann}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        asked = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(asked, timeout=PATIENCE) as response:
            return json.loads(response.read() or b"null")

    until = staticmethod(until)

    def post(self, message, headers=None, token=None, url=None):
        """The open response, so that a stream can be read as it arrives."""
        shown = {"Authorization": f"Bearer {token or self.ann}"} if token != "" else {}
        asked = urllib.request.Request(url or self.mount, message, {**BOTH, **shown, **(headers or {})})
        return urllib.request.urlopen(asked, timeout=PATIENCE)

    def status(self, *arguments, **named):
        try:
            with self.post(*arguments, **named) as response:
                response.read()
                return response.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def initialize(self, token=None):
        """Begins a session and returns the headers of its requests."""
        with self.post(request(1, "initialize", INITIALIZE), token=token) as response:
            session = {"Mcp-Session-Id": response.headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-06-18"}
            response.read()
        told = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
        self.assertEqual(self.status(told, session, token=token), 202)
        return session


class EveryClient:
    """Calls `play` with each of the official clients."""

    def test_python_client_with_session(self):
        self.play([*PYTHON, "legacy"])

    def test_python_client_stateless(self):
        self.play([*PYTHON, "2026-07-28"])

    def test_typescript_client(self):
        self.play(NODE)


class MountAccess:
    """Who may use `mount`."""

    def test_only_the_owner_and_their_agents_may_use_the_mount(self):
        """TL-07.1 WS-09.1: others cannot tell whether the mount exists."""
        ping = request(1, "ping", {})
        self.assertEqual(self.status(ping), 200)
        self.assertEqual(self.status(ping, url=f"{self.mount}/"), 200)
        self.assertEqual(self.status(ping, token=self.token("--user", "ann", "--role", "agent", "--project", self.project)), 200)
        self.assertEqual(self.status(ping, token=self.token("--user", "ann", "--role", "client", "--project", self.project)), 403)
        self.assertEqual(self.status(ping, token=""), 401)
        self.assertEqual(self.status(ping, token="garbage"), 401)
        self.assertEqual(self.status(ping, token=self.token("--user", "bob")), 404)
        self.assertEqual(self.status(ping, token=self.token("--user", "root", "--role", "admin")), 404)
        self.assertEqual(self.status(ping, headers={"Origin": "https://evil.example"}), 403)
