"""`/mcp/conversations/{c}` of `atelier serve`: official clients on a conversation's own files."""

import json
import subprocess
import unittest

from served import EveryClient, MountAccess, Served
from world import request

SIX = ["read_file", "write_file", "list_directory", "create_directory", "get_file_info", "search_files"]


class Conversation(Served):
    def setUp(self):
        super().setUp()
        self.conversation = self.begin()

    def begin(self):
        return self.rest("POST", "/api/tenants/default/conversations", {})["id"]

    @property
    def project(self):
        return self.rest("GET", f"/api/tenants/default/conversations/{self.conversation}")["project_id"]

    @property
    def mount(self):
        return f"{self.url}/mcp/conversations/{self.conversation}"

    def files(self):
        files = self.rest("GET", f"/api/tenants/default/workspace/{self.conversation}")["files"]
        return sorted((file["file_path"], file["source"], file["version"]) for file in files)

    def switch(self, enabled):
        path = f"/api/tenants/default/conversations/{self.conversation}"
        self.rest("PATCH", path, {"workspace_enabled": enabled})


class Clients(EveryClient, Conversation):
    CALLS = [
        {"tool": "write_file", "args": {"path": "out/a.txt", "content": "one\ntwo\n"}},
        {"tool": "write_file", "args": {"path": "out/a.txt", "content": "three\nfour\n"}},
        {"tool": "read_file", "args": {"path": "out/a.txt", "head": 1}},
        {"tool": "list_directory", "args": {"path": "out"}},
        {"tool": "search_files", "args": {"path": ".", "pattern": "**/*.txt"}},
        {"tool": "read_file", "args": {"path": "../../data"}},
        {"tool": "write_file", "args": {"path": "x.exe", "content": "MZ"}},
    ]

    def ask(self, client, calls):
        agent = self.token("--user", "ann", "--role", "agent", "--project", self.project)
        played = subprocess.run(
            [*client, "--http", self.mount], input=json.dumps(calls), text=True, capture_output=True, timeout=60,
            env={**self.environment, "MCP_BEARER": agent},
        )
        self.assertEqual(played.returncode, 0, played.stderr[-3000:])
        return json.loads(played.stdout)

    def play(self, client):
        """FS-03 FS-05 FS-15: the six tools work on versioned files until the workspace is disabled."""
        played = self.ask(client, self.CALLS)
        self.assertEqual(played["tools"][:6], SIX)
        self.assertLessEqual({"edit_file", "delete_file", "present_files", "begin_run", "end_run"}, set(played["tools"]))
        first, second, head, listed, found, outside, program = played["answers"]
        self.assertEqual((first["text"], first["error"]), ("Successfully wrote 8 bytes to out/a.txt", False))
        self.assertEqual((second["text"], second["error"]), ("Successfully wrote 11 bytes to out/a.txt", False))
        self.assertEqual((head["text"].strip(), head["error"]), ("three", False))
        self.assertEqual(listed["data"]["files"], ["a.txt"])
        self.assertEqual(found["data"]["files"], ["out/a.txt"])
        self.assertTrue(outside["error"] and outside["text"].startswith("Error: Access denied"), outside)
        self.assertTrue(program["error"] and program["text"].startswith("Error: Failed to write file"), program)
        [(path, _, version)] = self.files()
        self.assertEqual((path, version), ("out/a.txt", 2))
        self.switch(False)
        [off] = self.ask(client, self.CALLS[:1])["answers"]
        self.assertEqual((off["text"], off["error"]), ("Error: the workspace of this conversation is switched off", True))
        self.switch(True)
        self.assertEqual([file[2] for file in self.files()], [2])


class Access(MountAccess, Conversation):
    def test_session_is_valid_for_its_conversation_only(self):
        """WS-09.2"""
        session = self.initialize()
        self.assertEqual(self.status(request(2, "tools/list", {}), session), 200)
        self.conversation = self.begin()
        self.assertEqual(self.status(request(2, "tools/list", {}), session), 404)


if __name__ == "__main__":
    unittest.main()
