"""Every package of a release installs, and what it installs answers the first message.

Expects DIST (the folder that scripts/dist made).
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DIST = Path(os.environ["DIST"])
ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r'(?m)^version = "(.+)"', (ROOT / "Cargo.toml").read_text())[1]


def run(*command, **options):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def package(pattern: str) -> Path:
    (path,) = DIST.glob(pattern)
    return path


def first_message(atelier, folder: Path) -> str:
    """Starts a server in a new folder, sends it a message as its owner, and returns what is printed."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "LOG_LEVEL": "warn"}
    command = [*atelier, "serve", "--data", str(folder / "data"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            url = next(line.rsplit(" ", 1)[1].strip() for line in server.stdout if "is listening on" in line)
            who = ["--data", str(folder / "data"), "--user", "owner"]
            token = subprocess.run([*atelier, "token", *who], env=env, text=True, capture_output=True, check=True).stdout
            env["ATELIER_TOKEN"] = token.strip()
            chat = [*atelier, "chat", "--server", url, "--project", "my-project", "--agent", "coder", "hello"]
            return run(*chat, env=env)
        finally:
            server.terminate()


class Packages(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def check(self, *atelier):
        self.assertEqual(run(*atelier, "--version").strip(), f"atelier {VERSION}")
        self.assertIn("minilm-l6-v2-int8 in", self.doctor(*atelier))
        self.assertIn("demo", first_message(atelier, self.folder))

    def doctor(self, *atelier) -> str:
        """What the program says about its memory: every package brings the weights of the embedder."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "ATELIER_LISTEN": "127.0.0.1:0"}
        command = [*atelier, "doctor", "--data", str(self.folder / "examined")]
        told = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        return next((line for line in told.splitlines() if " memory: " in line), told)

    def test_install_script(self):
        """DP-05"""
        env = {**os.environ, "ATELIER_DOWNLOAD": f"file://{DIST}", "ATELIER_BIN": str(self.folder / "bin")}
        told = run("sh", DIST / "install.sh", env=env)
        self.assertIn(f"Installed atelier {VERSION}", told)
        self.check(self.folder / "bin" / "atelier")

    def test_install_script_refuses_a_wrong_checksum(self):
        """DP-05"""
        copy = self.folder / "release"
        copy.mkdir()
        archive = package("*-linux.tar.gz")
        (copy / archive.name).write_bytes(b"something else")
        shutil.copy(DIST / "SHA256SUMS", copy)
        env = {**os.environ, "ATELIER_DOWNLOAD": f"file://{copy}", "ATELIER_BIN": str(self.folder / "bin")}
        done = subprocess.run(["sh", DIST / "install.sh"], env=env, text=True, capture_output=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the checksum", done.stderr)
        self.assertFalse((self.folder / "bin").exists())

    def test_debian_package(self):
        """DP-05"""
        deb = package("*.deb")
        self.assertEqual(run("dpkg-deb", "--field", deb, "Package", "Version"), f"Package: atelier\nVersion: {VERSION}\n")
        run("dpkg-deb", "--extract", deb, self.folder / "root")
        self.assertIn("ExecStart=/usr/bin/atelier", (self.folder / "root/usr/lib/systemd/system/atelier.service").read_text())
        self.check(self.folder / "root/usr/bin/atelier")

    def test_npm_package(self):
        """DP-05"""
        run("npm", "install", "--silent", "--no-audit", "--no-fund", "--offline", "--prefix", self.folder, package("atelier-npm-*.tgz"))
        self.check(self.folder / "node_modules/.bin/atelier")

    def test_python_wheel(self):
        """DP-05"""
        run(sys.executable, "-m", "venv", self.folder / "venv")
        run(self.folder / "venv/bin/pip", "install", "--quiet", "--no-index", package("*.whl"))
        self.check(self.folder / "venv/bin/atelier")

    def test_checksums_and_formula(self):
        """DP-05"""
        sums = dict(reversed(line.split("  ")) for line in (DIST / "SHA256SUMS").read_text().splitlines())
        self.assertEqual(set(sums), {file.name for file in DIST.iterdir()} - {"SHA256SUMS"})
        for name, expected in sums.items():
            self.assertEqual(hashlib.sha256((DIST / name).read_bytes()).hexdigest(), expected, name)
        formula = (DIST / "atelier.rb").read_text()
        archive = package("*-linux.tar.gz").name
        self.assertIn(f'sha256 "{sums[archive]}"', formula)
        self.assertIn(f"/v{VERSION}/{archive}", formula)
        self.assertNotIn("@", formula)
        if shutil.which("ruby"):
            run("ruby", "-c", DIST / "atelier.rb")

    @unittest.skipUnless(os.geteuid() == 0, "only root can change the root folder")
    def test_archive_runs_in_an_empty_root(self):
        """DP-05"""
        run("tar", "-xzf", package("*-linux.tar.gz"), "--strip-components=1", "-C", self.folder)
        program = self.folder / "atelier"
        libraries = subprocess.run(["ldd", program], text=True, capture_output=True).stdout
        # A release is linked statically; the debug program of a test is not.
        for library in re.findall(r"(/\S+) \(0x", libraries):
            target = self.folder / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
        self.assertEqual(run("chroot", self.folder, "/atelier", "--version").strip(), f"atelier {VERSION}")


if __name__ == "__main__":
    unittest.main()
