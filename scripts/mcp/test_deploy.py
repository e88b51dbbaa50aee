"""The files in deploy/: they are valid, have the required names, and start the program.

Expects ATELIER (the program). Runs on the Python of scripts/mcptools, which has PyYAML.
"""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import yaml

from world import PATIENCE, Http, call, request

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
        service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["workspace"]
        self.assertIs(service["read_only"], True)
        recipe = (DEPLOY / "Containerfile").read_text()
        self.assertRegex(recipe, r"(?m)^FROM scratch$")
        self.assertRegex(recipe, r"(?m)^USER 65532:65532$")

    def test_program_accepts_the_arguments_of_the_manifests(self):
        """MC-10: started that way, it answers under the service's name and no other."""
        container = documents("kubernetes/workspace.yaml")["Deployment"]["spec"]["template"]["spec"]["containers"][0]
        compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["workspace"]
        recipe = re.search(r'(?m)^CMD \[(.*)\]$', (DEPLOY / "Containerfile").read_text())[1]
        self.assertEqual(compose["command"], yaml.safe_load(f"[{recipe}]"))
        self.assertEqual(container["args"][:4], compose["command"])
        hosts = next(entry["value"] for entry in container["env"] if entry["name"] == "ATELIER_MCP_ALLOWED_HOSTS")
        with tempfile.TemporaryDirectory() as ws:
            (Path(ws) / "notes.txt").write_text("x")
            env = ["env", f"ATELIER_MCP_ALLOWED_HOSTS={hosts}", "LOG_LEVEL=debug"]
            server = Http([*env, ATELIER, "mcp", ws, *container["args"][4:]])
            try:
                read = call(1, "read_file", {"path": "notes.txt"})
                for host in ["workspace", "workspace.default.svc.cluster.local", "localhost"]:
                    self.assertEqual(server.post(read, {"Host": host})[0], 200)
                self.assertEqual(server.post(read, {"Host": "workspace.other.svc"})[0], 403)
            finally:
                server.close()
                server.process.stderr.close()

    def test_log_level_is_respected(self):
        """MC-10: logs go to standard error, and an invalid level is refused."""
        with tempfile.TemporaryDirectory() as ws:
            run = lambda level: subprocess.run(
                [ATELIER, "mcp", ws], input=request(1, "ping", {}) + b"\n", env={**os.environ, "LOG_LEVEL": level},
                capture_output=True, timeout=PATIENCE,
            )
            quiet, loud = run("error"), run("debug")
            self.assertEqual(quiet.stdout, loud.stdout)
            self.assertEqual(quiet.stderr, b"")
            self.assertIn(b"DEBUG", loud.stderr)
            self.assertNotEqual(run("chatty=nonsense=").returncode, 0)


if __name__ == "__main__":
    unittest.main()
