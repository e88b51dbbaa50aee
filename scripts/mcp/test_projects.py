"""`/mcp/projects/{p}` of `atelier serve`: official clients on one side, `atelier connect` on the other,
and a user who decides in between.
"""

import json
import subprocess
import unittest
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from served import BOTH, EveryClient, MountAccess, Served
from world import call, following, request


class Connected(Served):
    """A project and a folder that is connected to it."""

    def setUp(self):
        super().setUp()
        self.background = ThreadPoolExecutor(1)
        self.ws = Path(self.base.name) / "ws"
        self.ws.mkdir()
        (self.ws / "notes.txt").write_text("one\ntwo\n")
        self.project = self.rest("POST", "/my/projects", {"name": "shop"})["id"]
        self.start("connect", str(self.ws), "--server", self.url, "--project", "shop", "--no-approve", "--token", self.ann)
        self.until(lambda: self.rest("GET", f"/my/projects/{self.project}/clients")["clients"])

    def tearDown(self):
        self.background.shutdown()
        super().tearDown()

    def pending(self):
        return self.until(lambda: self.rest("GET", f"/my/projects/{self.project}/approvals")["approvals"])[0]

    def decide(self, how, body):
        approval = self.pending()
        return self.rest("POST", f"/my/projects/{self.project}/approvals/{approval['approval_id']}/{how}", body)

    @property
    def mount(self):
        return f"{self.url}/mcp/projects/{self.project}"


class Clients(EveryClient, Connected):
    CALLS = [
        {"tool": "read_file", "args": {"path": "notes.txt"}},
        {"tool": "write_file", "args": {"path": "new.txt", "content": "written"}, "progress": True},
        {"tool": "write_file", "args": {"path": "no.txt", "content": "never"}},
        {"tool": "execute_command", "args": {"command": "rm", "args": ["-rf", "/"]}},
        {"tool": "read_file", "args": {"path": "../outside"}},
    ]

    def play(self, client):
        """TL-06.2 TL-06.3 TL-06.5: reads run, writes wait for approval, rejections and denials come back."""
        agent = self.token("--user", "ann", "--role", "agent", "--project", self.project)
        playing = self.background.submit(
            subprocess.run, [*client, "--http", self.mount], input=json.dumps(self.CALLS), text=True, capture_output=True,
            timeout=60, env={**self.environment, "MCP_BEARER": agent},
        )
        shown = self.pending()
        self.assertEqual((shown["tool_name"], shown["risk_level"]), ("write_file", "MEDIUM"))
        self.assertFalse((self.ws / "new.txt").exists())
        # The host's own token must not decide.
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.rest("POST", f"/my/projects/{self.project}/approvals/{shown['approval_id']}/approve", {}, agent)
        self.assertEqual(refused.exception.code, 403)
        refused.exception.close()
        self.decide("approve", {})
        self.until(lambda: (self.ws / "new.txt").exists())
        self.until(lambda: self.pending()["approval_id"] != shown["approval_id"])
        self.decide("reject", {"reason": "not now"})
        done = playing.result()
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        played = json.loads(done.stdout)
        self.assertIn("execute_command", played["tools"])
        read, wrote, rejected, denied, outside = played["answers"]
        self.assertEqual((read["text"], read["error"]), ("one\ntwo\n", False))
        self.assertFalse(wrote["error"], wrote)
        self.assertEqual((self.ws / "new.txt").read_text(), "written")
        link = f"{self.url}/#/projects/{self.project}"
        self.assertTrue(any(link in message for message in wrote["progress"]), wrote["progress"])
        self.assertTrue(rejected["error"] and "not now" in rejected["text"], rejected)
        self.assertFalse((self.ws / "no.txt").exists())
        self.assertTrue(denied["error"] and denied["text"].startswith("Error: Command not allowed"), denied)
        self.assertTrue(outside["error"] and outside["text"].startswith("Error: Access denied"), outside)


class Access(MountAccess, Connected):
    def test_session_is_valid_for_its_project_only(self):
        """WS-09.2"""
        session = self.initialize()
        self.assertEqual(self.status(request(2, "tools/list", {}), session), 200)
        other = self.rest("POST", "/my/projects", {"name": "blog"})["id"]
        self.assertEqual(self.status(request(2, "tools/list", {}), session, url=f"{self.url}/mcp/projects/{other}"), 404)

    def waiting(self, session, number):
        params = {"name": "write_file", "arguments": {"path": "late.txt", "content": "x"}, "_meta": {"progressToken": "p"}}
        stream = self.post(request(number, "tools/call", params), session)
        messages = following(stream)
        last, message = next(messages)
        while message.get("method") != "notifications/progress" or "approval" not in message["params"]["message"]:
            last, message = next(messages)
        return stream, last

    def test_host_that_lost_its_connection_gets_the_result(self):
        """MC-08: the stream of a call resumes where it was interrupted."""
        session = self.initialize()
        for number, resumes_before_decision in [(2, True), (3, False)]:
            (self.ws / "late.txt").unlink(missing_ok=True)
            stream, last = self.waiting(session, number)
            stream.close()
            if not resumes_before_decision:
                self.decide("approve", {})
                calls = f"/my/projects/{self.project}/tools?status=completed"
                self.until(lambda: self.rest("GET", calls)["total"] == 2)
            headers = {"Authorization": f"Bearer {self.ann}", "Accept": "text/event-stream", "Last-Event-ID": last}
            asked = urllib.request.Request(self.mount, headers={**headers, **session})
            with urllib.request.urlopen(asked, timeout=20) as resumed:
                if resumes_before_decision:
                    self.decide("approve", {})
                answer = next(message for _, message in following(resumed) if message.get("id") == number)
            self.assertFalse(answer["result"].get("isError"), answer)
            self.assertEqual((self.ws / "late.txt").read_text(), "x")

    def test_cancelled_call_is_no_longer_pending(self):
        session = self.initialize()
        stream, _ = self.waiting(session, 3)
        told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}
        self.assertEqual(self.status(json.dumps(told).encode(), session), 202)
        calls = lambda: self.rest("GET", f"/my/projects/{self.project}/tools?status=cancelled")["tools"]
        self.assertEqual([made["tool_name"] for made in self.until(calls)], ["write_file"])
        stream.close()
        # Without a session, closing the connection cancels the call.
        plain = {"Accept": "application/json"}
        with self.assertRaises(TimeoutError):
            asked = urllib.request.Request(
                self.mount, call(4, "write_file", {"path": "late.txt", "content": "x"}),
                {**BOTH, **plain, "Authorization": f"Bearer {self.ann}"},
            )
            urllib.request.urlopen(asked, timeout=1)
        self.until(lambda: len(calls()) == 2)
        self.assertFalse((self.ws / "late.txt").exists())

    def test_revoked_token_ends_its_streams(self):
        token = self.token("--user", "ann")
        session = self.initialize(token)
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream", **session}
        listening = urllib.request.urlopen(urllib.request.Request(self.mount, headers=headers), timeout=20)
        self.rest("POST", "/auth/revoke", {"token": token})
        with listening:
            listening.read()


if __name__ == "__main__":
    unittest.main()
