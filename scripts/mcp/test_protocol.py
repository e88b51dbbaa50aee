"""The protocol without a client library: plain curl requests, every revision, headers, sessions,
resources, progress and shutdown.

Expects ATELIER (the program) and MCP_TOOLS (the folder scripts/mcptools prints).
"""

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

from world import (
    INITIALIZE,
    PATIENCE,
    Http,
    Stdio,
    call,
    following,
    is_idle,
    memory_kb,
    prepare,
    request,
    until,
)

ATELIER = os.environ["ATELIER"]
REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
}
BOTH = {"Accept": "application/json, text/event-stream"}


def events(body: bytes):
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]


def cancelled(number) -> bytes:
    """The notification that the host no longer waits for a request."""
    params = {"requestId": number}
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).encode()


class Served(unittest.TestCase):
    flags = []

    def setUp(self):
        self.base = tempfile.TemporaryDirectory()
        self.ws = prepare(Path(self.base.name))
        self.server = Http([ATELIER, "mcp", str(self.ws), *self.flags])

    def tearDown(self):
        self.server.close()
        self.server.process.stderr.close()
        self.base.cleanup()

    def curl(self, data, *headers):
        done = subprocess.run(
            ["curl", "-s", "-X", "POST", self.server.url, "-H", "Content-Type: application/json", *headers, "-d", data],
            capture_output=True, text=True, timeout=PATIENCE, check=True,
        )
        return json.loads(done.stdout)


class Curl(Served):
    def test_curl_needs_no_session_and_no_accept_header(self):
        """MC-08"""
        for headers in [[], ["-H", "Accept:"]]:
            first = self.curl(
                '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"test","version":"1.0"}}}',
                *headers,
            )
            self.assertEqual(first["id"], 1)
            self.assertEqual(first["result"]["protocolVersion"], "2024-11-05")
            server = first["result"]["serverInfo"]
            self.assertEqual((server["name"], server["version"]), ("workspace-tool", "1.0.0"))
            self.assertEqual(first["result"]["capabilities"]["tools"], {})
            listed = self.curl('{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}', *headers)
            self.assertEqual(len(listed["result"]["tools"]), 6)
            read = self.curl(
                '{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"README.md"}}}',
                *headers,
            )
            text = [{"type": "text", "text": "Error: File not found: README.md"}]
            self.assertEqual(read, {"jsonrpc": "2.0", "id": 3, "result": {"content": text, "isError": True}})
            listing = self.curl(
                '{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"list_directory","arguments":{"path":"."}}}',
                *headers,
            )
            self.assertTrue(listing["result"]["content"][0]["text"].startswith("Contents of .:\n\n[DIR] listing\n"))
            self.assertFalse(listing["result"]["isError"])

    def test_health_reports_service_and_version(self):
        """MC-09"""
        with urllib.request.urlopen(self.server.url.replace("/mcp", "/health")) as response:
            health = json.load(response)
        self.assertEqual(sorted(health), ["service", "status", "version"])
        self.assertEqual((health["status"], health["service"]), ("ok", "workspace-tool"))
        self.assertRegex(health["version"], r"^\d+\.\d+\.\d+$")

    def test_schemas_refuse_unknown_arguments(self):
        """MC-08: annotations and strict schemas."""
        tools = {tool["name"]: tool for tool in self.curl('{"jsonrpc":"2.0","id":2,"method":"tools/list"}')["result"]["tools"]}
        for tool in tools.values():
            self.assertIs(tool["inputSchema"]["additionalProperties"], False)
            self.assertIs(tool["annotations"]["openWorldHint"], False)
        hints = {name: tool["annotations"]["readOnlyHint"] for name, tool in tools.items()}
        self.assertEqual([name for name, only in hints.items() if not only], ["write_file", "create_directory"])
        self.assertEqual(
            [name for name, tool in tools.items() if "outputSchema" in tool],
            ["list_directory", "get_file_info", "search_files"],
        )


class Revisions(Served):
    def test_every_older_revision_has_sessions(self):
        """MC-08: handshake, session, version header, DELETE."""
        for revision in REVISIONS:
            with self.subTest(revision):
                status, body, headers = self.server.post(
                    request(1, "initialize", {**INITIALIZE, "protocolVersion": revision}), BOTH
                )
                self.assertEqual(events(body)[0]["result"]["protocolVersion"], revision)
                session = {**BOTH, "Mcp-Session-Id": headers["Mcp-Session-Id"], "MCP-Protocol-Version": revision}
                initialized = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
                self.assertEqual(self.server.post(initialized, session)[0], 202)
                _, body, _ = self.server.post(call(2, "read_file", {"path": "notes.txt"}), session)
                self.assertEqual(events(body)[-1]["result"]["content"][0]["text"], "one\ntwo\nthree\n")
                ended = urllib.request.Request(self.server.url, headers=session, method="DELETE")
                with urllib.request.urlopen(ended) as response:
                    self.assertLess(response.status, 300)
                self.assertEqual(self.server.post(request(3, "tools/list", {}), session)[0], 404)

    def test_newest_revision_is_stateless(self):
        """MC-08: discovery, per-request metadata, headers that must agree, caching hints."""
        def ask(number, method, params, **headers):
            headers = {**BOTH, "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, **headers}
            status, body, _ = self.server.post(request(number, method, {**params, "_meta": MODERN}), headers)
            return status, json.loads(body)

        status, found = ask(1, "server/discover", {})
        self.assertEqual(status, 200)
        self.assertEqual(set(found["result"]["supportedVersions"]), {*REVISIONS, "2026-07-28"})
        _, listed = ask(2, "tools/list", {})
        self.assertEqual((listed["result"]["cacheScope"], listed["result"]["resultType"]), ("public", "complete"))
        self.assertGreater(listed["result"]["ttlMs"], 0)
        read = {"name": "read_file", "arguments": {"path": "notes.txt"}}
        _, answer = ask(3, "tools/call", read, **{"Mcp-Name": "read_file"})
        self.assertEqual(answer["result"]["content"][0]["text"], "one\ntwo\nthree\n")
        status, answer = ask(4, "tools/call", read, **{"Mcp-Name": "write_file"})
        self.assertEqual((status, answer["error"]["code"], answer["id"]), (400, -32020, 4))
        status, answer = ask(5, "prompts/list", {})
        self.assertEqual(answer["error"]["code"], -32601)

    def test_foreign_hosts_and_origins_are_refused(self):
        """MC-08"""
        ping = request(1, "ping", {})
        for headers, allowed in [
            ({}, True),
            ({"Host": "localhost:9"}, True),
            ({"Host": "evil.example"}, False),
            ({"Origin": "http://localhost:3000"}, True),
            ({"Origin": "https://evil.example"}, False),
            ({"Origin": "null"}, False),
        ]:
            with self.subTest(headers):
                status = self.server.post(ping, headers)[0]
                self.assertEqual(status, 200 if allowed else 403)


class Answered(unittest.TestCase):
    """Every request is answered, however it is written."""

    def setUp(self):
        self.base = tempfile.TemporaryDirectory()
        self.command = [ATELIER, "mcp", self.base.name, "--max-file-size", "1KB"]

    def tearDown(self):
        self.base.cleanup()

    def test_invalid_ids_are_refused(self):
        for start in [Stdio, Http]:
            server = start(self.command)
            for number in ["1.5", "99999999999999999999999", "null", "true", "{}", "[1]"]:
                message = '{"jsonrpc":"2.0","id":%s,"method":"tools/list","params":{}}' % number
                answer = server.ask(message.encode(), None)
                self.assertEqual((answer["error"]["code"], answer.get("id")), (-32600, None), number)
            batch = server.ask(b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None)
            self.assertEqual((batch["error"]["code"], "batches" in batch["error"]["message"]), (-32600, True))
            self.close(server)

    def test_invalid_parameters_are_refused(self):
        for start in [Stdio, Http]:
            server = start(self.command)
            for number, params in enumerate([{"name": "read_file", "arguments": [1]}, {"arguments": {}}, {}], 10):
                answer = server.ask(request(number, "tools/call", params), number)
                self.assertEqual(answer["error"]["code"], -32602, params)
                self.assertIn("tools/call", answer["error"]["message"])
            self.assertEqual(server.ask(request(20, "no/such", {}), 20)["error"]["code"], -32601)
            self.close(server)

    def test_message_that_is_too_long_is_refused(self):
        server = Stdio(self.command)
        answer = server.ask(call(7, "write_file", {"path": "a", "content": "x" * (2 << 20)}), 7)
        self.assertEqual((answer["error"]["code"], "longer than" in answer["error"]["message"]), (-32600, True))
        self.assertEqual(server.ask(request(8, "ping", {}), 8)["result"], {})
        self.close(server)

    def test_last_line_without_a_newline_is_answered(self):
        done = subprocess.run(self.command, input=request(5, "ping", {}), capture_output=True, timeout=PATIENCE, check=True)
        self.assertEqual(json.loads(done.stdout), {"jsonrpc": "2.0", "id": 5, "result": {}})

    def test_id_that_is_used_twice_is_answered_twice(self):
        told = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
        listing = call(5, "list_directory", {"path": "."})
        lines = b"\n".join([request(1, "initialize", INITIALIZE), told, listing, listing, b""])
        done = subprocess.run(self.command, input=lines, capture_output=True, timeout=PATIENCE, check=True)
        answers = [json.loads(line)["id"] for line in done.stdout.splitlines()]
        self.assertEqual(answers.count(5), 2, done.stdout)

    @staticmethod
    def close(server):
        server.close()
        for pipe in [server.process.stdout, server.process.stderr]:
            if pipe:
                pipe.close()


class Hidden(unittest.TestCase):
    def test_hosts_cannot_change_the_ignore_file(self):
        with tempfile.TemporaryDirectory() as base:
            ws = Path(base)
            (ws / ".atelierignore").write_text("secret*\n")
            (ws / "secret.txt").write_text("s")
            (ws / "plain.txt").write_text("p")
            (ws / "link").symlink_to(".atelierignore")
            server = Http([ATELIER, "mcp", base, "--extra-tools"])
            for tool, args in [
                ("write_file", {"path": ".atelierignore", "content": ""}),
                ("write_file", {"path": "link", "content": ""}),
                ("append_file", {"path": ".AtelierIgnore", "content": "!secret*\n"}),
                ("edit_file", {"path": "link", "edits": [{"old_text": "secret", "new_text": "x"}]}),
                ("move_file", {"source": ".atelierignore", "destination": "x"}),
                ("move_file", {"source": "plain.txt", "destination": ".atelierignore"}),
                ("delete_file", {"path": ".atelierignore"}),
                ("read_file", {"path": "secret.txt"}),
            ]:
                answer = server.ask(call(3, tool, args), 3)
                self.assertTrue(answer["result"]["isError"], f"{tool} {args}: {answer}")
            self.assertEqual((ws / ".atelierignore").read_text(), "secret*\n")
            server.close()
            server.process.stderr.close()


class Guarded(Served):
    flags = ["--token", "s3cret", "--allowed-host", "workspace.default.svc.cluster.local", "--read-only",
             "--max-file-size", "1KB", "--root-name", "/data"]

    def test_token_guards_everything_but_the_health_check(self):
        """MC-10"""
        ping = request(1, "ping", {})
        self.assertEqual(self.server.post(ping)[0], 401)
        self.assertEqual(self.server.post(ping, {"Authorization": "Bearer wrong"})[0], 401)
        right = {"Authorization": "Bearer s3cret"}
        self.assertEqual(self.server.post(ping, right)[0], 200)
        inside = {**right, "Host": "workspace.default.svc.cluster.local"}
        self.assertEqual(self.server.post(ping, inside)[0], 200)
        with urllib.request.urlopen(self.server.url.replace("/mcp", "/health")) as response:
            self.assertEqual(response.status, 200)

    def test_flags_restrict_the_tools(self):
        """MC-01 MC-02 MC-07: read-only, a small maximum file size, and another root name."""
        def ask(tool, args):
            return json.loads(self.server.post(call(1, tool, args), {"Authorization": "Bearer s3cret"})[1])
        self.assertEqual(ask("write_file", {"path": "x", "content": ""})["error"]["code"], -32602)
        self.assertFalse((self.ws / "x").exists())
        text = lambda answer: answer["result"]["content"][0]["text"]
        self.assertEqual(text(ask("read_file", {"path": "kb.bin"})), "Error: File too large (1260 bytes, the limit is 1024): kb.bin")
        self.assertEqual(text(ask("read_file", {"path": "/data/notes.txt", "head": 1})), "one\n")
        self.assertEqual(text(ask("read_file", {"path": "/workspace/notes.txt"})), "Error: Access denied. Path must be within /data")


class Resources(Served):
    def test_resources_are_listed_in_pages_and_read(self):
        """MC-08"""
        for number in range(1100):
            (self.ws / f"many{number:04}").write_text("")
        seen, cursor = [], None
        while True:
            page = json.loads(self.server.post(request(1, "resources/list", {"cursor": cursor} if cursor else {}))[1])["result"]
            seen += [resource["uri"] for resource in page["resources"]]
            cursor = page.get("nextCursor")
            if not cursor:
                break
        self.assertEqual(len(seen), len(set(seen)))
        self.assertIn("file:///workspace/many1099", seen)
        self.assertIn("file:///workspace/tree/b/deep/out.json", seen)
        self.assertFalse([uri for uri in seen if "leak" in uri or "hidden" in uri])
        read = lambda uri: json.loads(self.server.post(request(2, "resources/read", {"uri": uri}))[1])
        self.assertEqual(read("file:///workspace/notes.txt")["result"]["contents"][0]["text"], "one\ntwo\nthree\n")
        self.assertEqual(read("file:///workspace/latin1.txt")["result"]["contents"][0]["blob"], "Y2Fm6Qo=")
        for uri in ["file:///etc/passwd", "file:///workspace/../out/secret.txt", "file:///workspace/%2e%2e/out/secret.txt",
                    "file:///workspace/leak.txt", "file:///workspace/nope", "http://workspace/notes.txt"]:
            self.assertEqual(read(uri)["error"]["code"], -32002, uri)
        self.assertEqual(json.loads(self.server.post(request(3, "resources/list", {"cursor": "x"}))[1])["error"]["code"], -32602)

    def test_subscribers_are_notified_of_changes(self):
        """MC-08: subscriptions of the older and of the newest revision."""
        uri = "file:///workspace/notes.txt"
        old = Stdio([ATELIER, "mcp", str(self.ws)])
        old.send(2, "resources/subscribe", {"uri": uri})
        old.wait(2)
        listen = {"_meta": MODERN, "notifications": {"resourcesListChanged": True, "resourceSubscriptions": [uri]}}
        headers = {**BOTH, "Content-Type": "application/json", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"}
        stream = urllib.request.urlopen(
            urllib.request.Request(self.server.url, request(7, "subscriptions/listen", listen), headers), timeout=PATIENCE
        )
        notifications = (message for _, message in following(stream))
        self.assertEqual(next(notifications)["method"], "notifications/subscriptions/acknowledged")
        # The watch begins after the acknowledgement, so write until a notification arrives.
        stop = threading.Event()
        def write():
            while not stop.wait(0.2):
                self.server.post(call(1, "write_file", {"path": "notes.txt", "content": str(time.time())}))
        writer = threading.Thread(target=write)
        writer.start()
        try:
            updated = "notifications/resources/updated"
            modern = next(message for message in notifications if message["method"] == updated)
            subscription = {"io.modelcontextprotocol/subscriptionId": 7}
            self.assertEqual(modern["params"], {"uri": uri, "_meta": subscription})
            notified = {"jsonrpc": "2.0", "method": updated, "params": {"uri": uri}}
            self.assertEqual(old.notification(updated), notified)
        finally:
            stop.set()
            writer.join()
            stream.close()
            old.close()


class Together(Served):
    def test_readers_see_one_whole_version_while_others_write(self):
        """MC-11"""
        versions = {letter * 200_000 for letter in "abcd"}
        (self.ws / "shared.txt").write_text("a" * 200_000)
        stop, wrong = threading.Event(), []
        def write(letter):
            while not stop.is_set():
                self.server.post(call(1, "write_file", {"path": "shared.txt", "content": letter * 200_000}))
        def read():
            for _ in range(40):
                answer = json.loads(self.server.post(call(1, "read_file", {"path": "shared.txt"}))[1])
                if answer["result"]["content"][0]["text"] not in versions:
                    wrong.append(answer)
        writers = [threading.Thread(target=write, args=letter) for letter in "bcd"]
        readers = [threading.Thread(target=read) for _ in range(6)]
        for thread in writers + readers:
            thread.start()
        for thread in readers:
            thread.join()
        stop.set()
        for thread in writers:
            thread.join()
        self.assertEqual(wrong, [])

    def test_idle_server_uses_little_memory(self):
        """MC-10: small enough to run beside every agent."""
        # The resident part of an unoptimised program file says nothing about the program.
        what = "VmHWM" if "/release/" in ATELIER else "RssAnon"
        self.assertLess(memory_kb(self.server.pid, what), 12_000)


class Long(unittest.TestCase):
    def test_server_answers_after_many_cancelled_searches(self):
        """MC-06"""
        with tempfile.TemporaryDirectory() as base:
            ws = Path(base)
            # A search must not open this FIFO, because nobody ever writes to it.
            os.mkfifo(ws / "pipe")
            for top in range(40):
                for name in range(250):
                    (ws / f"d{top}/s{name}").mkdir(parents=True)
            server = Stdio([ATELIER, "mcp", base])
            number = 10
            params = {"name": "search_files", "arguments": {"path": ".", "pattern": "**/nothing"}, "_meta": {"progressToken": "p"}}
            for _ in range(30):
                server.send(number, "tools/call", params)
                server.raw(cancelled(number))
                number += 1
            server.send(5, "ping", {})
            self.assertEqual(server.wait(5)["result"], {})
            server.send(6, "tools/call", params)
            self.assertFalse(server.wait(6)["result"]["isError"])
            server.close()


class Slow(Served):
    """A search that takes far longer than any test: thousands of names of one large file."""

    flags = ["--extra-tools"]
    GREP = {"name": "grep", "arguments": {"path": "slow", "pattern": "x[a-z]*nothing"}, "_meta": {"progressToken": "p"}}

    def setUp(self):
        super().setUp()
        slow = self.ws / "slow"
        slow.mkdir()
        (slow / "0").write_text("all work and no play makes a dull text\n" * 1_000_000)
        for number in range(1, 10_000):
            os.link(slow / "0", slow / str(number))

    def make_short(self):
        """Lets searches that are under way finish: all names now refer to an empty file."""
        os.truncate(self.ws / "slow/0", 0)

    def open(self, message, headers):
        asked = urllib.request.Request(self.server.url, message, {**BOTH, "Content-Type": "application/json", **headers})
        return urllib.request.urlopen(asked, timeout=PATIENCE)

    def progress(self, message):
        self.assertEqual((message["method"], message["params"]["progressToken"]), ("notifications/progress", "p"))
        self.assertRegex(message["params"]["message"], r" in \d+\.\d s$|^working for ")
        return message["params"]["progress"]

    def test_cancelled_search_stops_on_stdio(self):
        """MC-06: progress is reported until the host cancels; then the search stops unanswered."""
        server = Stdio([ATELIER, "mcp", str(self.ws), "--extra-tools"])
        server.send(2, "tools/call", self.GREP)
        first = self.progress(server.notification("notifications/progress"))
        self.assertGreater(self.progress(server.notification("notifications/progress")), first)
        self.assertFalse(is_idle(server.pid), "the search is not under way")
        server.raw(cancelled(2))
        until(lambda: is_idle(server.pid))
        self.assertNotIn(2, server.answers, "a cancelled request was answered")
        server.send(3, "ping", {})
        self.assertEqual(server.wait(3)["result"], {})
        server.close()

    def test_search_stops_when_the_host_hangs_up(self):
        """MC-06 MC-08: a long answer becomes a stream, and closing the stream stops the search."""
        modern = {**self.GREP, "_meta": {**MODERN, "progressToken": "p"}}
        headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "grep"}
        for params, more in [(self.GREP, {}), (modern, headers)]:
            with self.open(request(2, "tools/call", params), more) as stream:
                self.assertEqual(stream.headers["Content-Type"], "text/event-stream")
                self.progress(next(following(stream))[1])
                self.assertFalse(is_idle(self.server.pid), "the search is not under way")
            until(lambda: is_idle(self.server.pid))
            self.assertEqual(self.server.post(request(3, "ping", {}))[0], 200)

    def test_graceful_stop_answers_the_call_that_is_under_way(self):
        """MC-09: a server that is told to stop accepts nothing new, answers, and exits with success."""
        with self.open(request(2, "tools/call", self.GREP), {}) as stream:
            messages = (message for _, message in following(stream))
            self.progress(next(messages))
            self.server.process.send_signal(signal.SIGTERM)
            until(self.refuses_connections)
            self.assertIsNone(self.server.process.poll(), "the server left its call unanswered")
            self.make_short()
            answer = next(message for message in messages if message.get("id") == 2)
        text = "No matches found for pattern 'x[a-z]*nothing' in slow"
        self.assertEqual(answer["result"]["content"], [{"type": "text", "text": text}])
        self.assertEqual(self.server.process.wait(PATIENCE), 0)

    def refuses_connections(self):
        host, port = urllib.parse.urlsplit(self.server.url).netloc.split(":")
        try:
            socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError:
            return True
        return False

    def test_interrupted_stream_resumes_where_it_was(self):
        """MC-08: `Last-Event-ID` returns a host of the older revisions to the call it waits for."""
        _, _, headers = self.server.post(request(1, "initialize", INITIALIZE), BOTH)
        session = {"Mcp-Session-Id": headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-06-18"}
        told = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
        self.assertEqual(self.server.post(told, {**BOTH, **session})[0], 202)
        with self.open(request(2, "tools/call", self.GREP), session) as stream:
            last, message = next(following(stream))
            seen = self.progress(message)
        back = {**session, "Accept": "text/event-stream", "Last-Event-ID": last}
        with urllib.request.urlopen(urllib.request.Request(self.server.url, headers=back), timeout=PATIENCE) as resumed:
            # The SDK repeats the last event, which does no harm; newer ones have to follow.
            newer = (self.progress(message) for _, message in following(resumed))
            self.assertGreater(next(progress for progress in newer if progress != seen), seen)
        self.assertEqual(self.server.post(cancelled(2), {**BOTH, **session})[0], 202)


if __name__ == "__main__":
    unittest.main()
