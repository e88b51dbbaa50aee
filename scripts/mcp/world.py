"""A test workspace, `atelier mcp` serving it over pipes or HTTP, and helpers to talk to it."""

import json
import os
import resource
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

SECRET = "SECRET-42"
# How long a test waits for anything before it fails. It never says how long something should take.
PATIENCE = 30


def prepare(base: Path) -> Path:
    """Creates the files that cases.json refers to and returns the root of the workspace."""
    ws, out = base / "ws", base / "out"
    for folder in ["sub", "listing/b-dir", "odd", "tree/a", "tree/b/deep"]:
        (ws / folder).mkdir(parents=True)
    out.mkdir()
    (out / "secret.txt").write_text(SECRET)
    files = {
        "notes.txt": "one\ntwo\nthree\n", "unended.txt": "first\nlast", "empty.txt": "", "secret.txt": "mine",
        "sub/target.txt": "old", "listing/a.txt": "", "listing/c.txt": "", "listing/.hidden": "",
        "odd/x\n[FILE] fake": "", "tree/top.json": "", "tree/a/metrics.json": "", "tree/b/deep/out.json": "",
        "tree/.hidden.txt": "", "kb.bin": "x" * 1260, "tool.sh": "echo 1\n",
    }
    for name, text in files.items():
        (ws / name).write_text(text)
        (ws / name).chmod(0o644)
    (ws / "latin1.txt").write_bytes(b"caf\xe9\n")
    (ws / "secret.txt").chmod(0o000)
    (ws / "tool.sh").chmod(0o755)
    for folder, _, _ in os.walk(ws):
        os.chmod(folder, 0o755)
    os.utime(ws / "kb.bin", (1762540200, 1762540200))
    (ws / "inside-link.txt").symlink_to("sub/target.txt")
    (ws / "listing/link-to-dir").symlink_to("b-dir")
    (ws / "listing/link-out").symlink_to(out)
    (ws / "leak.txt").symlink_to(out / "secret.txt")
    (ws / "leak-dir").symlink_to(out)
    return ws


class Stdio:
    """The server on pipes, without a client library, so that tests can also send invalid messages."""

    def __init__(self, command, max_open_files=None):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=limit_open_files(max_open_files),
        )
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.pid = self.process.pid
        self.answers, self.notifications, self.arrived = {}, {}, threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        self.send(1, "initialize", INITIALIZE)
        self.wait(1)

    def _listen(self):
        for line in self.process.stdout:
            message = json.loads(line)
            with self.arrived:
                if "method" in message and "id" not in message:
                    self.notifications[message["method"]] = message
                else:
                    self.answers[message.get("id")] = message
                self.arrived.notify_all()

    def raw(self, message: bytes):
        self.process.stdin.write(message + b"\n")
        self.process.stdin.flush()

    def send(self, number, method, params):
        self.raw(request(number, method, params))

    def notification(self, method):
        """The newest notification of this method."""
        with self.arrived:
            if not self.arrived.wait_for(lambda: method in self.notifications, PATIENCE):
                raise AssertionError(f"there was no {method}")
            return self.notifications.pop(method)

    def wait(self, number):
        """The answer to a request."""
        with self.arrived:
            if not self.arrived.wait_for(lambda: number in self.answers, PATIENCE):
                raise AssertionError(f"request {number} was not answered")
            return self.answers.pop(number)

    def ask(self, message: bytes, number):
        self.raw(message)
        return self.wait(number)

    def close(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)


class Http:
    """The server on a free loopback port. Requests have no session, like those of curl."""

    def __init__(self, command, max_open_files=None, listen="127.0.0.1:0"):
        self.process = subprocess.Popen(
            [*command, "--http", listen], stderr=subprocess.PIPE, text=True,
            preexec_fn=limit_open_files(max_open_files),
        )
        self.pid = self.process.pid
        for line in self.process.stderr:
            if "listening on " in line:
                self.url = line.split("listening on ")[1].strip().replace("0.0.0.0", "127.0.0.1")
                break
        else:
            raise AssertionError("the server did not start")
        self._lines = []
        self._reader = threading.Thread(target=lambda: self._lines.extend(self.process.stderr), daemon=True)
        self._reader.start()

    def ask(self, message: bytes, number):
        return json.loads(self.post(message)[1])

    def post(self, message: bytes, headers=None):
        headers = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url, message, headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return response.status, response.read(), response.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read(), error.headers
        except (TimeoutError, socket.timeout):
            raise AssertionError("a request was not answered") from None

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE)

    def log(self):
        """The lines that the server logged until it was closed."""
        self._reader.join(PATIENCE)
        return self._lines


INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}


def request(number, method, params) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def call(number, tool, args) -> bytes:
    return request(number, "tools/call", {"name": tool, "arguments": args})


def following(stream):
    """The (id, message) pairs of an event stream, as they arrive."""
    number, message = None, None
    for line in stream:
        if line.startswith(b"id: "):
            number = line[4:].strip().decode()
        elif line.startswith(b"data: {"):
            message = json.loads(line[6:])
        elif not line.strip() and message is not None:
            yield number, message
            message = None


def memory_kb(pid, what="VmHWM") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1])
    raise AssertionError(f"no {what}")


def limit_open_files(count):
    """For `preexec_fn`: the child process may have this many files open, sockets included."""
    return (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))) if count else None


def until(ask):
    """Asks until the answer is true, and returns it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if answer := ask():
            return answer
        time.sleep(0.02)
    raise AssertionError("it never happened")


def cpu_ticks(pid) -> int:
    """The processor time that a process has used, in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[11]) + int(fields[12])


def is_idle(pid) -> bool:
    """Whether a process uses no processor time for a second."""
    before = cpu_ticks(pid)
    time.sleep(1)
    return cpu_ticks(pid) == before
