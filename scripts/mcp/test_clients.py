"""The six tools through two official clients, over standard input and HTTP, old and new protocol.

Expects ATELIER (the program) and MCP_TOOLS (the folder scripts/mcptools prints).
"""

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from world import Http, prepare

ATELIER = os.environ["ATELIER"]
TOOLS = Path(os.environ["MCP_TOOLS"])
HERE = Path(__file__).parent
CASES = json.loads((HERE / "cases.json").read_text())
EXTRA_CASES = json.loads((HERE / "extra_cases.json").read_text())
SIX = ["read_file", "write_file", "list_directory", "create_directory", "get_file_info", "search_files"]
SEVEN = ["edit_file", "append_file", "move_file", "delete_file", "read_multiple_files", "grep", "directory_tree"]

PYTHON = [TOOLS / "bin/python", HERE / "client.py"]
NODE = [TOOLS / "bin/node", HERE / "client.mjs", TOOLS]


def mismatch(case, answer, ws):
    """The reason why an answer does not match its case; None if it does."""
    if case.get("unless_root") and os.geteuid() == 0:
        return None
    if "raised" in answer:
        return f"raised {answer['raised']}"
    if answer["error"] != ("error" in case or case.get("failed", False)):
        return f"isError is {answer['error']}: {answer['text']!r}"
    want = case.get("text", case.get("error"))
    if want is not None and answer["text"] != want:
        return f"{answer['text']!r} instead of {want!r}"
    if "match" in case and not re.search(case["match"], answer["text"]):
        return f"{answer['text']!r} does not match {case['match']!r}"
    if "data" in case and answer["data"] != case["data"]:
        return f"data {answer['data']} instead of {case['data']}"
    if case["tool"] == "read_file" and answer["data"] is not None:
        return "the answer contains a second copy of the file"
    if "file" in case and (ws / case["file"][0]).read_text() != case["file"][1]:
        return f"{case['file'][0]} has other content"
    if "mode" in case and (ws / case["file"][0]).stat().st_mode & 0o777 != case["mode"]:
        return f"{case['file'][0]} has another mode"
    return None


class Clients(unittest.TestCase):
    """MC-01 MC-02 MC-03 MC-04 MC-05 MC-06 MC-07 MC-08: every case of cases.json carries its id."""

    def play(self, client, over, protocol, cases=CASES, flags=(), tools=SIX):
        with tempfile.TemporaryDirectory() as base:
            base = Path(base)
            ws = prepare(base)
            command = [ATELIER, "mcp", str(ws), *flags]
            server = Http(command) if over == "http" else None
            try:
                where = ["--http", server.url] if server else ["--stdio", *command]
                done = subprocess.run(
                    [*client, *where], input=json.dumps(cases), text=True, capture_output=True, timeout=60
                )
                self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            finally:
                if server:
                    server.close()
            played = json.loads(done.stdout)
            self.assertEqual(played["tools"], tools)
            if protocol:
                self.assertEqual(played["protocol"], protocol)
            for number, (case, answer) in enumerate(zip(cases, played["answers"], strict=True)):
                with self.subTest(f"{case['id']} #{number} {case['tool']} {case['args']}"):
                    self.assertIsNone(mismatch(case, answer, ws))
            self.assertEqual(os.listdir(base / "out"), ["secret.txt"])
            self.assertEqual((base / "out/secret.txt").read_text(), "SECRET-42")
            left = [name for _, _, names in os.walk(ws) for name in names if name.endswith(".tmp")]
            self.assertEqual(left, [], "temporary files are left behind")

    def test_python_client_on_stdio(self):
        self.play([*PYTHON, "legacy"], "stdio", "2025-11-25")

    def test_python_client_on_stdio_stateless(self):
        self.play([*PYTHON, "2026-07-28"], "stdio", "2026-07-28")

    def test_python_client_on_http_with_session(self):
        self.play([*PYTHON, "legacy"], "http", "2025-11-25")

    def test_python_client_on_http_stateless(self):
        self.play([*PYTHON, "2026-07-28"], "http", "2026-07-28")

    def test_typescript_client_on_stdio(self):
        self.play(NODE, "stdio", None)

    def test_typescript_client_on_http(self):
        self.play(NODE, "http", None)

    def test_extra_tools_on_stdio(self):
        self.play([*PYTHON, "2026-07-28"], "stdio", "2026-07-28", EXTRA_CASES, ["--extra-tools"], [*SIX, *SEVEN])

    def test_extra_tools_on_http(self):
        self.play(NODE, "http", None, EXTRA_CASES, ["--extra-tools"], [*SIX, *SEVEN])


if __name__ == "__main__":
    unittest.main()
