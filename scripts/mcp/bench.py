#!/usr/bin/env python3
"""Measures `atelier mcp` and other MCP file servers in one run and prints the ratios. `make bench-mcp` runs it.

Expects ATELIER and ECHO (optimised programs), MCP_TOOLS (the folder that scripts/mcptools prints) and RUSTFS
(the program of the crate rust-mcp-filesystem). With --quick it makes a fifth of the calls.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / ".."))
sys.dont_write_bytecode = True
from dev.paths import cache

TOOLS = Path(os.environ["MCP_TOOLS"])
SEARCH = ["search_all", "search_rare"]
# Operation, what the goal calls it, how many times the better peer's calls a second.
GOALS = [("read1k", "read 1 KB", 1.3), ("read1m", "read 1 MB", 1.3), ("write1k", "write 1 KB", 1.2), ("list1000", "list 1000", 1.5)]


def load(*arguments):
    subprocess.run([sys.executable, HERE / "mcp_load.py", *map(str, arguments)], check=True)


def measure(name, profile, ws, proto, command, out, extra):
    file = out / f"{name}.json"
    load("bench", "--name", name, "--profile", profile, "--ws", ws, "--proto", proto, "--out", file, *extra, "--stdio", *command)
    return json.loads(file.read_text())


def measure_http(name, ws, proto, out, extra):
    server = subprocess.Popen([os.environ["ATELIER"], "mcp", ws, "--http", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
    try:
        url = next(line.split("listening on ")[1].strip() for line in server.stderr if "listening on " in line)
        file = out / f"{name}.json"
        load("bench", "--name", name, "--profile", "spec", "--ws", ws, "--proto", proto, "--out", file, *extra, "--url", url, "--pid", server.pid)
        return json.loads(file.read_text())
    finally:
        server.terminate()
        server.wait()


def find(ws):
    """The best of five, as the servers' are: names only, the file system's cache warm."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run(["find", Path(ws) / "tree", "-name", "*.rs"], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - began)
    return min(times) * 1e3


def number(run, op, kind, what):
    return run["ops"].get(op, {}).get(kind, {}).get(what)


def main():
    extra = sys.argv[1:]
    ws = cache() / "mcp-bench-ws"
    print("building the workspace:", ws, flush=True)
    load("gen", ws)
    ours = [os.environ["ATELIER"], "mcp", ws]
    peers = {
        "official": ("ts", "2025-11-25", [TOOLS / "bin/node", TOOLS / "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js", ws]),
        "rust-fs": ("rustfs", "2025-11-25", [os.environ["RUSTFS"], "--allow-write", ws]),
    }
    with tempfile.TemporaryDirectory() as out:
        out = Path(out)
        runs = {"atelier": measure("atelier", "spec", ws, "2025-11-25", ours, out, extra)}
        for name, (profile, proto, command) in peers.items():
            runs[name] = measure(name, profile, ws, proto, command, out, extra)
        runs["sdk echo"] = measure("echo", "readonly", ws, "2025-11-25", [os.environ["ECHO"]], out, ["--ops", "read1k,read1m", *extra])
        runs["atelier-2026"] = measure("atelier-2026", "spec", ws, "2026-07-28", ours, out, ["--ops", "read1k,read1m,write1k,list1000", *extra])
        runs["atelier-http"] = measure_http("atelier-http", ws, "2026-07-28", out, extra)
    report(runs, find(ws), list(peers))


def report(runs, find_ms, peers):
    ours = runs["atelier"]
    print("\n| | " + " | ".join(runs) + " | ratio | aim |\n|" + " --- |" * (len(runs) + 3))
    for op, title, goal in GOALS:
        for kind, what, unit in [("seq", "per_s", "calls/s"), ("par16", "per_s", "calls/s, 16 at once"), ("seq", "cpu_ms", "ms CPU a call")]:
            values = {name: number(run, op, kind, what) for name, run in runs.items()}
            known = [values[peer] for peer in peers if values[peer]]
            if not known or not values["atelier"]:
                continue
            ratio = values["atelier"] / max(known) if what == "per_s" else min(known) / values["atelier"]
            cells = ["–" if value is None else f"{value:.0f}" if what == "per_s" else f"{value:.3f}" for value in values.values()]
            print(f"| {title}, {unit} | " + " | ".join(cells) + f" | **{ratio:.2f} ×** | ≥ {goal} × |")
    for op in [*SEARCH, "head200", "tail200"]:
        values = [number(run, op, "seq", "p50") for run in runs.values()]
        cells = ["–" if value is None else f"{value:.2f}" for value in values]
        mine = number(ours, op, "seq", "p50") or 0
        ratio, aim = (f"{mine / find_ms:.2f} × find ({find_ms:.0f} ms)", "≤ 1.5 × find") if op in SEARCH else (f"{mine:.2f} ms", "< 2 ms")
        print(f"| {op}, ms | " + " | ".join(cells) + f" | {ratio} | {aim} |")
    peak = [run["ops"].get("read200m", {}).get("mem", {}).get("VmHWM") for run in runs.values()]
    size = 200_000_000 / (1 << 20)
    mine = (peak[0] or 0) / size
    print("| read 200 MB, peak MB | " + " | ".join(str(value or "–") for value in peak) + f" | {mine:.2f} × the file | ≤ 2.5 × |")
    idle = [run.get("start", {}).get("rss_idle_mb") for run in runs.values()]
    print("| idle, MB | " + " | ".join(str(value or "–") for value in idle) + f" | {idle[0]} MB | ≤ 12 MB |")


if __name__ == "__main__":
    main()
