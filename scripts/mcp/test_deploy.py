"""The files in deploy/: they are valid, have the required names, and start the program.

Expects ATELIER (the program). Runs on the Python of scripts/mcptools, which has PyYAML.
"""

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import yaml

from world import INITIALIZE, PATIENCE, Http, call, request

ATELIER = os.environ["ATELIER"]
DEPLOY = Path(__file__).parents[2] / "deploy"


def documents(name):
    return {doc["kind"]: doc for doc in yaml.safe_load_all((DEPLOY / name).read_text())}


class Deploy(unittest.TestCase):
    def test_language_operator_manifests(self):
        """MC-10"""
        found = documents("kubernetes/language-operator.yaml")
        self.assertEqual(list(found), ["LanguageTool", "PersistentVolumeClaim", "LanguageAgent"])
        tool, claim = found["LanguageTool"]["spec"], found["PersistentVolumeClaim"]
        self.assertEqual((tool["deploymentMode"], tool["port"], tool["type"]), ("service", 80, "mcp"))
        self.assertEqual(tool["volumes"][0]["mountPath"], "/workspace")
        self.assertEqual(tool["volumes"][0]["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"])
        self.assertEqual(claim["spec"]["accessModes"], ["ReadWriteMany"])
        self.assertEqual(found["LanguageAgent"]["spec"]["tools"], [found["LanguageTool"]["metadata"]["name"]])

    def test_containers_run_without_root_on_a_read_only_root(self):
        """MC-10"""
        pod = documents("kubernetes/workspace.yaml")["Deployment"]["spec"]["template"]["spec"]
        self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
        self.assertIs(pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"], True)
        service = yaml.safe_load((DEPLOY / "compose.mcp.yaml").read_text())["services"]["workspace"]
        self.assertIs(service["read_only"], True)
        recipe = (DEPLOY / "Containerfile").read_text()
        self.assertRegex(recipe, r"(?m)^FROM scratch$")
        self.assertRegex(recipe, r"(?m)^USER 65532:65532$")

    def test_program_accepts_the_arguments_of_the_manifests(self):
        """MC-10: started that way, it answers under all names of a Service and no others."""
        container = documents("kubernetes/workspace.yaml")["Deployment"]["spec"]["template"]["spec"]["containers"][0]
        compose = yaml.safe_load((DEPLOY / "compose.mcp.yaml").read_text())["services"]["workspace"]
        recipe = re.search(r'(?m)^CMD \[(.*)\]$', (DEPLOY / "Containerfile").read_text())[1]
        self.assertEqual(compose["command"], yaml.safe_load(f"[{recipe}]"))
        self.assertEqual(container["args"][:4], compose["command"])
        with tempfile.TemporaryDirectory() as ws:
            (Path(ws) / "notes.txt").write_text("x")
            server = Http([ATELIER, "mcp", ws, *container["args"][4:]], listen="0.0.0.0:0")
            read = call(1, "read_file", {"path": "notes.txt"})
            service = ["workspace", "workspace.any.svc", "workspace.any.svc.cluster.local:80", "localhost"]
            for host in service:
                self.assertEqual(server.post(read, {"Host": host})[0], 200, host)
                own = {"Host": host, "Origin": f"http://{host}"}
                self.assertEqual(server.post(read, own)[0], 200, own)
            foreign = {"Host": "workspace", "Origin": "http://evil.example"}
            self.assertEqual(server.post(read, foreign)[0], 403)
            status, answer, _ = server.post(read, {"Host": "workspace.evil.example"})
            self.assertEqual(status, 403)
            self.assertIn(b"ATELIER_MCP_ALLOWED_HOSTS", answer)
            server.close()
            log = [json.loads(line) for line in server.log() if line.startswith("{")]
            told = [(line["level"], line.get("host")) for line in log if "--allowed-host" in line["message"]]
            self.assertEqual(told, [("INFO", "workspace.evil.example")])
            told = [line["origin"] for line in log if "--allowed-origin" in line["message"]]
            self.assertEqual(told, ['"http://evil.example"'])

    def test_every_tool_call_is_one_line_in_the_log(self):
        """MC-10: without the contents of files, whatever the level."""
        secret = "TOP-SECRET-CONTENT"
        calls = [
            call(1, "write_file", {"path": "a.txt", "content": secret}),
            call(2, "read_file", {"path": "a.txt"}),
            call(3, "read_file", {"path": "none.txt"}),
            call(4, "move_file", {"source": "a.txt", "destination": "b.txt"}),
            call(5, "write_file", {"path": "c.txt", "content": {"not": secret}}),
            call(6, "no_tool", {"path": secret}),
        ]
        expected = [
            ("write_file", "a.txt", "ok", len(secret) + 5),
            ("read_file", "a.txt", "ok", 5),
            ("read_file", "none.txt", "error", 8),
            ("move_file", "a.txt, b.txt", "ok", 10),
            ("write_file", "c.txt", "error", len(secret) + 5),
            ("no_tool", "", "failed", len(secret)),
        ]
        for level in ["info", "debug", "trace"]:
            with self.subTest(level), tempfile.TemporaryDirectory() as ws:
                server = Http(["env", f"LOG_LEVEL={level}", ATELIER, "mcp", ws, "--extra-tools"])
                for number, message in enumerate(calls, 1):
                    server.ask(message, number)
                server.close()
                log = server.log()
                self.assertNotIn(secret, "\n".join(log))
                lines = [json.loads(line) for line in log if '"tool call"' in line]
                found = [(line["tool"], line["path"], line["outcome"], line["bytes_in"]) for line in lines]
                self.assertEqual(found, expected)
                self.assertEqual(lines[1]["bytes_out"], len(secret))
                self.assertTrue(all(line["ms"] > 0 for line in lines))
                # The same over standard input, also for messages that cannot be parsed.
                hello, invalid = request(0, "initialize", INITIALIZE), request(9, "tools/call", secret)
                run = subprocess.run(
                    [ATELIER, "mcp", ws, "--extra-tools"], input=b"\n".join([hello, *calls, invalid, b""]),
                    env={**os.environ, "LOG_LEVEL": level}, capture_output=True, timeout=PATIENCE,
                )
                self.assertEqual(run.stderr.count(b'"tool call"'), len(calls))
                self.assertNotIn(secret.encode(), run.stderr)

    def test_log_level_is_respected(self):
        """MC-10: logs go to standard error, and an invalid level is refused."""
        with tempfile.TemporaryDirectory() as ws:
            run = lambda level: subprocess.run(
                [ATELIER, "mcp", ws], input=b"no JSON\n", env={**os.environ, "LOG_LEVEL": level},
                capture_output=True, timeout=PATIENCE,
            )
            quiet, loud = run("error"), run("debug")
            self.assertEqual(quiet.stdout, loud.stdout)
            self.assertEqual(quiet.stderr, b"")
            self.assertIn(b"DEBUG", loud.stderr)
            self.assertNotEqual(run("chatty=nonsense=").returncode, 0)


if __name__ == "__main__":
    unittest.main()
