"""Runs the command of an image as a pod does, and asks it under several names.

Usage, in new network and mount namespaces: pod.py ROOT VOLUME COMMAND…
Prints the answers as JSON in the last line.
"""

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def main(root, volume, *command):
    loopback_up()
    # Engines set this for containers, as deploy/kubernetes/workspace.yaml does.
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    for arguments in (
        ["--make-rprivate", "/"], ["--bind", root, root], ["-o", "remount,ro,bind", root],
        ["--bind", volume, f"{root}/workspace"],
    ):  # fmt: skip
        subprocess.run(["mount", *arguments], check=True)
    process = subprocess.Popen([sys.executable, __file__, "--inside", root, *command])
    try:
        answers = {"health": wait(lambda: get("/health"))}
        for name in ["workspace", "workspace.research", "workspace.research.svc",
                     "workspace.research.svc.cluster.local", "workspace.evil"]:  # fmt: skip
            answers[name] = call(name, "read_file", {"path": "notes.txt"})
        call("workspace", "write_file", {"path": "made.txt", "content": "x"})
        answers["written"] = (Path(volume) / "made.txt").stat().st_uid
        process.terminate()
        answers["exit"] = process.wait(30)
    finally:
        process.kill()
    print(json.dumps(answers))


def inside(root, *command):
    """Becomes the program of the image, without root and without capabilities."""
    os.chroot(root)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(65532, 65532, 65532)
    os.setresuid(65532, 65532, 65532)
    os.execve(command[0], command, {"LOG_LEVEL": "info"})


def loopback_up():
    with socket.socket() as any_socket:
        up = struct.pack("16sh", b"lo", 0x1 | 0x40)
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS: IFF_UP, IFF_RUNNING


def get(path):
    with urllib.request.urlopen(f"http://127.0.0.1{path}", timeout=10) as response:
        return [response.status, response.read().decode()]


def call(host, tool, arguments):
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    headers = {"Content-Type": "application/json", "Host": host}
    request = urllib.request.Request("http://127.0.0.1/mcp", json.dumps(message).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return [response.status, json.load(response)["result"]["content"][0]["text"]]
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]


def wait(ask):
    end = time.monotonic() + 30
    while True:
        try:
            return ask()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        inside(*sys.argv[2:])
    main(*sys.argv[1:])
