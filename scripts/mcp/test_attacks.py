"""Attacks over both transports: nothing leaks, nothing hangs, nothing crashes, everything is answered.

Expects ATELIER (the program). The cases of path_attacks.json, and what does not fit into a table.
"""

import ctypes
import json
import os
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from world import INITIALIZE, SECRET, Http, Stdio, call, memory_kb, request

ATELIER = os.environ["ATELIER"]
CORPUS = Path(__file__).parents[2] / "crates/atelier-core/tests/data/path_attacks.json"
# These bind agents' tools and not this one: 100 MB a file, and hidden names left out of listings.
NOT_OURS = {"P127", "P141"}
TOOL = {"read": "read_file", "write": "write_file", "list": "list_directory", "create_dir": "create_directory",
        "info": "get_file_info", "search": "search_files"}
SECOND = 1.0


def world(base: Path):
    for folder in ["ws/src", "out", "home"]:
        (base / folder).mkdir(parents=True)
    (base / "out/secret.txt").write_text(SECRET)
    for name in ["notes.txt", "src/main.rs", "src/a.py", "main.c", "app.js", "s.py"]:
        (base / "ws" / name).write_text("plain\n")


def state(folder: Path):
    return {path.name: (path.stat().st_size, path.read_bytes()) for path in folder.iterdir() if path.is_file()}


class Attacks:
    """Once for every transport."""

    def setUp(self):
        self.base = tempfile.TemporaryDirectory()
        self.root = Path(self.base.name)
        world(self.root)
        self.ws, self.out = self.root / "ws", self.root / "out"
        self.server = self.transport([ATELIER, "mcp", str(self.ws)])
        self.number = 100

    def tearDown(self):
        # Still alive, still answering.
        self.ask("list_directory", {"path": "."})
        self.server.close()
        if self.server.process.stderr:
            self.server.process.stderr.close()
        self.base.cleanup()

    def ask(self, tool, args, seconds=SECOND):
        self.number += 1
        began = time.monotonic()
        answer = self.server.ask(call(self.number, tool, args), self.number, seconds + 4)
        took = time.monotonic() - began
        self.assertLess(took, seconds, f"{tool} took {took:.2f} s")
        self.assertNotIn(SECRET, json.dumps(answer))
        return answer

    def refused(self, tool, args, seconds=SECOND):
        answer = self.ask(tool, args, seconds)
        self.assertTrue("error" in answer or answer["result"]["isError"], str(answer)[:500])
        return answer

    def text(self, tool, args, seconds=SECOND):
        answer = self.ask(tool, args, seconds)
        self.assertFalse(answer["result"]["isError"], str(answer)[:500])
        return answer["result"]["content"][0]["text"]

    def test_the_corpus(self):
        """MC-07"""
        for case in json.loads(CORPUS.read_text()):
            if case["id"] in NOT_OURS or case["class"] == "race":
                continue
            with self.subTest(case["id"] + " " + case["why"]):
                self.corpus_case(case)

    def corpus_case(self, case):
        # Every case in a world of its own, below the one server: moved aside, so that nothing of it stays.
        with tempfile.TemporaryDirectory() as base:
            base = Path(base)
            world(base)
            env = {**os.environ, "BASE": str(base), "WS": str(base / "ws"), "OUT": str(base / "out"), "HOME": str(base / "home")}
            for line in case["setup"]:
                done = subprocess.run(["bash", "-c", line], cwd=base / "ws", env=env, capture_output=True, text=True)
                if done.returncode != 0 and "mknod" in line and os.geteuid() != 0:
                    return
                self.assertEqual(done.returncode, 0, done.stderr)
            path = case["path"]
            if case["class"] != "literal":
                for name in ["WS", "OUT"]:
                    if path.startswith(f"${name}"):
                        path = env[name] + path[len(name) + 1:]
            args = {"path": path}
            if case["op"] == "write":
                args["content"] = case["content"]
            if case["op"] == "search":
                args["pattern"] = case["pattern"]
            before = state(base / "out")
            server = self.transport([ATELIER, "mcp", str(base / "ws")])
            try:
                began = time.monotonic()
                answer = server.ask(call(7, TOOL[case["op"]], args), 7, 5)
                self.assertLess(time.monotonic() - began, SECOND)
                said = json.dumps(answer)
                self.assertNotIn("SECRET", said)
                self.assertNotIn("root:", said)
                failed = "error" in answer or answer["result"]["isError"]
                self.assertEqual(failed, case["expect"] == "deny", said[:500])
                self.assertEqual(state(base / "out"), before)
                if case["expect"] == "allow" and case["op"] == "write":
                    back = server.ask(call(8, "read_file", {"path": path}), 8, 5)
                    self.assertEqual(back["result"]["content"][0]["text"], case["content"])
                    listed = server.ask(call(9, "list_directory", {"path": "."}), 9, 5)
                    self.assertIn(path, listed["result"]["structuredContent"]["files"])
                self.assertLess(memory_kb(server.pid), 200_000)
            finally:
                server.close()
                if server.process.stderr:
                    server.process.stderr.close()

    def test_a_link_swapped_in_while_reading(self):
        """MC-07: P071, a directory and a link to the outside exchanged as fast as the system can."""
        (self.ws / "real").mkdir()
        (self.ws / "real/secret.txt").write_text("harmless")
        (self.ws / "flip").symlink_to(self.out)
        libc = ctypes.CDLL(None, use_errno=True)
        one, other = str(self.ws / "flip").encode(), str(self.ws / "real").encode()
        stop, swaps = threading.Event(), [0]
        def swap():
            while not stop.is_set():
                libc.renameat2(-100, one, -100, other, 2)
                swaps[0] += 1
        thread = threading.Thread(target=swap)
        thread.start()
        harmless = 0
        try:
            for _ in range(1500):
                answer = self.ask("read_file", {"path": "flip/secret.txt"})
                harmless += "harmless" in json.dumps(answer)
                self.ask("get_file_info", {"path": "flip/secret.txt"})
                self.ask("write_file", {"path": "flip/w.txt", "content": "x"})
        finally:
            stop.set()
            thread.join()
        self.assertGreater(swaps[0], 100)
        self.assertGreater(harmless, 0)
        self.assertEqual(os.listdir(self.out), ["secret.txt"])

    def test_what_is_no_file(self):
        """MC-01: FIFOs, devices and sockets are neither waited for nor read."""
        os.mkfifo(self.ws / "pipe")
        (self.ws / "zero").symlink_to("/dev/zero")
        for _ in range(20):
            self.assertEqual(self.refused("read_file", {"path": "pipe"})["result"]["content"][0]["text"], "Error: Not a file: pipe")
        self.refused("read_file", {"path": "pipe", "head": 1})
        self.refused("read_file", {"path": "zero"})
        self.refused("write_file", {"path": "pipe", "content": "x"})
        self.assertIn("Type: other", self.text("get_file_info", {"path": "pipe"}))
        self.assertIn("[FILE] pipe", self.text("list_directory", {"path": "."}))

    def test_hard_links_are_replaced_not_written_through(self):
        """MC-02"""
        os.link(self.out / "secret.txt", self.ws / "hard.txt")
        self.text("write_file", {"path": "hard.txt", "content": "x"})
        self.assertEqual((self.out / "secret.txt").read_text(), SECRET)
        self.assertEqual((self.ws / "hard.txt").read_text(), "x")

    def test_huge_numbers(self):
        """MC-01: they mean "all", and cost nothing."""
        for number in [10**18, 2**63, 2**64 - 1, 1e300]:
            self.assertEqual(self.text("read_file", {"path": "notes.txt", "head": number}), "plain\n")
            self.assertEqual(self.text("read_file", {"path": "notes.txt", "tail": number}), "plain\n")
            self.text("search_files", {"path": ".", "pattern": "*", "max_results": number})
        self.refused("read_file", {"path": "notes.txt", "head": -1e300})
        self.assertLess(memory_kb(self.server.pid), 200_000)

    def test_bombs(self):
        """MC-06 MC-07: braces that stand for millions, paths of 50,000 names, patterns without end."""
        self.refused("search_files", {"path": ".", "pattern": "{a,b}" * 24})
        self.refused("search_files", {"path": ".", "pattern": "{" * 5000})
        self.refused("search_files", {"path": ".", "pattern": "a/" * 50_000})
        self.ask("search_files", {"path": ".", "pattern": "*a" * 500 + "b"})
        self.ask("search_files", {"path": ".", "pattern": "**/" * 100 + "*"})
        for tool in ["read_file", "list_directory", "create_directory", "get_file_info"]:
            self.refused(tool, {"path": "d/" * 50_000})
            self.refused(tool, {"path": "../" * 50_000})
        self.refused("write_file", {"path": "d/" * 50_000 + "f", "content": ""})
        self.assertLess(memory_kb(self.server.pid), 200_000)

    def test_what_is_no_message(self):
        """MC-08: every request is answered, with its own id where it can be found."""
        lone = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"\\ud800.txt","content":"x"}}}'
        raw = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"\xff\xfe"}}}'
        deep = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_file","arguments":' + b'{"a":' * 9000 + b"1" + b"}" * 9000 + b"}}"
        number = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"notes.txt","head":1e999}}}'
        shape = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":[1,2]}'
        nobody = b'{"jsonrpc":"2.0","id":%d,"method":"no/such"}'
        tool = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"no_such_tool"}}'
        for at, message in enumerate([lone, raw, deep, number, shape, nobody, tool]):
            with self.subTest(message[:120]):
                began = time.monotonic()
                answer = self.server.ask(message % (500 + at), 500 + at, 5)
                self.assertLess(time.monotonic() - began, SECOND)
                self.assertEqual(answer["id"], 500 + at)
                self.assertIn("error", answer)
        for message in [b"{", b"not json", b"[]", b"null", b'"x"']:
            answer = self.server.ask(message, None, 5)
            self.assertIn(answer["error"]["code"], [-32700, -32600])
        self.assertEqual(sorted(os.listdir(self.ws)), ["app.js", "main.c", "notes.txt", "s.py", "src"])

    def test_many_at_once(self):
        """MC-11: more calls than there are file handles to hold open."""
        for at in range(300):
            (self.ws / f"f{at}").write_text(str(at))
        wrong = []
        def some(worker):
            for at in range(worker, 300, 20):
                if self.transport is Http:
                    answer = self.server.ask(call(1000 + at, "read_file", {"path": f"f{at}"}), 1000 + at, 10)
                else:
                    self.server.send(1000 + at, "tools/call", {"name": "read_file", "arguments": {"path": f"f{at}"}})
                    answer = self.server.wait(1000 + at, 10)
                if answer["result"]["content"][0]["text"] != str(at):
                    wrong.append(answer)
        workers = [threading.Thread(target=some, args=[worker]) for worker in range(20)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(wrong, [])


class OnStdio(Attacks, unittest.TestCase):
    transport = Stdio

    def test_a_host_that_reads_no_logs(self):
        """A host may leave standard error alone: nothing waits for it."""
        server = subprocess.Popen(
            [ATELIER, "mcp", str(self.ws)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | {"LOG_LEVEL": "debug"},
        )
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.stderr.close)
        answered = threading.Event()
        def read():
            for line in server.stdout:
                if json.loads(line).get("id") == 3000:
                    answered.set()
        threading.Thread(target=read, daemon=True).start()
        server.stdin.write(request(1, "initialize", INITIALIZE) + b"\n")
        for number in range(2, 3001):
            server.stdin.write(call(number, "read_file", {"path": "missing"}) + b"\n")
        server.stdin.flush()
        self.assertTrue(answered.wait(30), "the server waits for somebody to read its logs")
        server.stdin.close()
        server.wait(10)


class OverHttp(Attacks, unittest.TestCase):
    transport = Http


if __name__ == "__main__":
    unittest.main()
