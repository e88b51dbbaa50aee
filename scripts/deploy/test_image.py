"""The image of deploy/Containerfile: its last stage is built with buildah, unpacked, and run as a pod would run it.

Expects ATELIER (the program). The stages before compile the same sources again, so they are left out. Building and
running needs root and namespaces.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

from dev.packages import debian_program

ATELIER = os.environ["ATELIER"]
HERE = Path(__file__).resolve().parent
RECIPE = HERE.parents[1] / "deploy" / "Containerfile"


def run(*command, **options):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def compiled(out: Path):
    """What the first stages leave in /out, made from the program that is tested."""
    out.mkdir()
    run("strip", "--strip-debug", "-o", out / "atelier", ATELIER)
    for folder in ["workspace", "data", "keys"]:
        (out / folder).mkdir()
        os.chown(out / folder, 65532, 65532)
    # The recipe links statically. A program that is not needs its libraries beside it.
    for library in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", ATELIER], text=True, capture_output=True).stdout):
        target = out / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)


def build(work: Path) -> Path:
    """Builds the last stage as an OCI image and returns its layout."""
    (work / "build").mkdir()
    compiled(work / "build" / "out")
    run(HERE.parent / "minilm", "--into", work / "weights" / "out")
    (work / "Containerfile").write_text(re.search(r"(?ms)^FROM scratch.*", RECIPE.read_text())[0])
    (work / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    buildah = debian_program("buildah", "usr/bin/buildah", "libgpgme11", "libassuan0")
    libraries = buildah.parents[1] / "lib" / "x86_64-linux-gnu"
    env = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    storage = [f"--root={work}/storage", f"--runroot={work}/run", "--storage-driver=vfs"]
    policy = f"--signature-policy={work}/policy.json"
    contexts = [f"--build-context={stage}={work}/{stage}" for stage in ["build", "weights"]]
    run(buildah, *storage, "build", "--isolation=chroot", policy, *contexts, "--format=oci", "--layers=false",
        "-f", work / "Containerfile", "-t", "atelier", work, env=env)  # fmt: skip
    run(buildah, *storage, "push", policy, "atelier", f"oci:{work}/layout:latest", env=env)
    return work / "layout"


def unpack(layout: Path, root: Path) -> dict:
    """Unpacks the image and returns its configuration."""
    blob = lambda descriptor: layout / "blobs" / descriptor["digest"].replace(":", "/")
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(entry).read_text())
    for layer in manifest["layers"]:
        with tarfile.open(blob(layer)) as archive:
            archive.extractall(root, numeric_owner=True, filter="fully_trusted")
    return json.loads(blob(manifest["config"]).read_text())


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("apt-get"), "building an image needs root and Debian's buildah")
class Image(unittest.TestCase):
    def test_image_runs_as_a_pod_runs_it(self):
        """MC-10: without root, on port 80, on a read-only root, and under all names of its Service."""
        with tempfile.TemporaryDirectory() as work:
            work = Path(work)
            root, volume = work / "root", work / "volume"
            config = unpack(build(work), root)["config"]
            self.assertEqual(config["User"], "65532:65532")
            self.assertEqual(set(config["Volumes"]), {"/workspace", "/data"})
            self.assertEqual(set(config["ExposedPorts"]), {"80/tcp", "7420/tcp"})
            self.assertTrue((root / "minilm/model.safetensors").exists())
            # What kubelet mounts, for a tool in the namespace `research`.
            (root / "etc").mkdir(exist_ok=True)
            (root / "etc/resolv.conf").write_text("search research.svc.cluster.local svc.cluster.local cluster.local\n")
            shutil.copytree(root / "workspace", volume)
            os.chown(volume, 65532, 65532)
            (volume / "notes.txt").write_text("kept")
            command = config["Entrypoint"] + config["Cmd"]
            pod = ["unshare", "--net", "--mount", sys.executable, HERE / "pod.py", root, volume, *command]
            answers = json.loads(run(*pod).splitlines()[-1])
            names = ["workspace", "workspace.research", "workspace.research.svc", "workspace.research.svc.cluster.local"]
            for name in names:
                self.assertEqual(answers[name], [200, "kept"], name)
            self.assertEqual(answers["workspace.evil"][0], 403)
            self.assertEqual(answers["health"][0], 200)
            self.assertEqual(answers["written"], 65532)
            self.assertEqual(answers["exit"], 0)


if __name__ == "__main__":
    unittest.main()
