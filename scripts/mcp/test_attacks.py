"""Attacks over both transports: nothing leaks, hangs or crashes, and every request is answered.

Expects ATELIER (the program). Runs the cases of path_attacks.json and some that fit into no table.
"""

import ctypes
import json
import os
import subprocess
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from world import INITIALIZE, PATIENCE, SECRET, Http, Stdio, call, memory_kb, request

ATELIER = os.environ["ATELIER"]
CORPUS = Path(__file__).parents[2] / "crates/atelier-core/tests/data/path_attacks.json"
# Limits of the agents' tools only: 100 MB per file, and hidden names left out of listings.
AGENT_TOOLS_ONLY = {"P127", "P141"}
TOOL = {"read": "read_file", "write": "write_file", "list": "list_directory", "create_dir": "create_directory",
        "info": "get_file_info", "search": "search_files"}


def world(base: Path):
    for folder in ["ws/src", "out", "home"]:
        (base / folder).mkdir(parents=True)
    (base / "out/secret.txt").write_text(SECRET)
    for name in ["notes.txt", "src/main.rs", "src/a.py", "main.c", "app.js", "s.py"]:
        (base / "ws" / name).write_text("plain\n")


def state(folder: Path):
    return {path.name: (path.stat().st_size, path.read_bytes()) for path in folder.iterdir() if path.is_file()}


class Attacks:
    """The attacks, which run once for each transport."""

    def setUp(self):
        self.base = tempfile.TemporaryDirectory()
        self.root = Path(self.base.name)
        world(self.root)
        self.ws, self.out = self.root / "ws", self.root / "out"
        self.server = self.transport([ATELIER, "mcp", str(self.ws)])
        self.number = 100

    def tearDown(self):
        # The server has survived and still answers.
        self.ask("list_directory", {"path": "."})
        self.server.close()
        if self.server.process.stderr:
            self.server.process.stderr.close()
        self.base.cleanup()

    def ask(self, tool, args):
        self.number += 1
        answer = self.server.ask(call(self.number, tool, args), self.number)
        self.assertNotIn(SECRET, json.dumps(answer))
        return answer

    def refused(self, tool, args):
        answer = self.ask(tool, args)
        self.assertTrue("error" in answer or answer["result"]["isError"], str(answer)[:500])
        return answer

    def text(self, tool, args):
        answer = self.ask(tool, args)
        self.assertFalse(answer["result"]["isError"], str(answer)[:500])
        return answer["result"]["content"][0]["text"]

    def test_corpus_of_path_attacks(self):
        """MC-07"""
        for case in json.loads(CORPUS.read_text()):
            if case["id"] in AGENT_TOOLS_ONLY or case["class"] == "race":
                continue
            with self.subTest(case["id"] + " " + case["why"]):
                self.corpus_case(case)

    def corpus_case(self, case):
        # Every case has its own folders and server, so that no case affects the next.
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
                answer = server.ask(call(7, TOOL[case["op"]], args), 7)
                text = json.dumps(answer)
                self.assertNotIn("SECRET", text)
                self.assertNotIn("root:", text)
                failed = "error" in answer or answer["result"]["isError"]
                self.assertEqual(failed, case["expect"] == "deny", text[:500])
                self.assertEqual(state(base / "out"), before)
                if case["expect"] == "allow" and case["op"] == "write":
                    back = server.ask(call(8, "read_file", {"path": path}), 8)
                    self.assertEqual(back["result"]["content"][0]["text"], case["content"])
                    listed = server.ask(call(9, "list_directory", {"path": "."}), 9)
                    self.assertIn(path, listed["result"]["structuredContent"]["files"])
                self.assertLess(memory_kb(server.pid), 200_000)
            finally:
                server.close()
                if server.process.stderr:
                    server.process.stderr.close()

    def test_link_swapped_in_while_reading_leads_nowhere(self):
        """MC-07: P071, a directory and a link to the outside swapped as fast as possible."""
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

    def test_special_files_are_refused(self):
        """MC-01: FIFOs and devices are neither opened nor read."""
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

    def test_huge_numbers_mean_all(self):
        """MC-01"""
        for number in [10**18, 2**63, 2**64 - 1, 1e300]:
            self.assertEqual(self.text("read_file", {"path": "notes.txt", "head": number}), "plain\n")
            self.assertEqual(self.text("read_file", {"path": "notes.txt", "tail": number}), "plain\n")
            self.text("search_files", {"path": ".", "pattern": "*", "max_results": number})
        self.refused("read_file", {"path": "notes.txt", "head": -1e300})
        self.assertLess(memory_kb(self.server.pid), 200_000)

    def test_bombs_are_refused(self):
        """MC-06 MC-07: braces that expand to millions, paths of 50,000 names, exponential patterns."""
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

    def test_malformed_messages_are_answered(self):
        """MC-08: with the id of the request if it can be found."""
        lone = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"\\ud800.txt","content":"x"}}}'
        raw = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"\xff\xfe"}}}'
        deep = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_file","arguments":' + b'{"a":' * 9000 + b"1" + b"}" * 9000 + b"}}"
        number = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"notes.txt","head":1e999}}}'
        shape = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":[1,2]}'
        unknown = b'{"jsonrpc":"2.0","id":%d,"method":"no/such"}'
        tool = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"no_such_tool"}}'
        for at, message in enumerate([lone, raw, deep, number, shape, unknown, tool]):
            with self.subTest(message[:120]):
                answer = self.server.ask(message % (500 + at), 500 + at)
                self.assertEqual(answer["id"], 500 + at)
                self.assertIn("error", answer)
        for message in [b"{", b"not json", b"[]", b"null", b'"x"']:
            answer = self.server.ask(message, None)
            self.assertIn(answer["error"]["code"], [-32700, -32600])
        self.assertEqual(sorted(os.listdir(self.ws)), ["app.js", "main.c", "notes.txt", "s.py", "src"])

    def test_more_parallel_calls_than_file_handles_are_all_answered(self):
        """MC-11"""
        handles, calls = 64, 300
        for at in range(calls):
            (self.ws / f"f{at}").write_text(f"{at}\n" * 20_000)
        server = self.transport([ATELIER, "mcp", str(self.ws)], max_open_files=handles)
        self.addCleanup(server.close)
        messages = {at: call(1000 + at, "read_file", {"path": f"f{at}"}) for at in range(calls)}
        if self.transport is Http:
            # A barrier lets all requests begin together.
            barrier = threading.Barrier(calls)
            def ask(at):
                barrier.wait()
                return server.ask(messages[at], 1000 + at)
            with ThreadPoolExecutor(calls) as threads:
                answers = list(threads.map(ask, messages))
        else:
            server.raw(b"\n".join(messages.values()))
            answers = [server.wait(1000 + at) for at in messages]
        texts = [answer["result"]["content"][0]["text"] for answer in answers]
        # Compared one by one, because a difference of the whole lists would take minutes to print.
        wrong = {at: text[:200] for at, text in enumerate(texts) if text != f"{at}\n" * 20_000}
        self.assertEqual(wrong, {})


class OnStdio(Attacks, unittest.TestCase):
    transport = Stdio

    def test_host_that_reads_no_logs_is_answered(self):
        """The server never waits for the host to read standard error."""
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
        self.assertTrue(answered.wait(PATIENCE), "the server waits for its logs to be read")
        server.stdin.close()
        server.wait(PATIENCE)


class OverHttp(Attacks, unittest.TestCase):
    transport = Http


if __name__ == "__main__":
    unittest.main()
