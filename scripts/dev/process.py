"""Starts a service, waits until it answers, and stops it, across calls of scripts/services.

`.services/NAME.json` describes a running service. A process id can be reused, so the start time of the
process is stored with it, and no other process is ever signalled.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dev.errors import SetupError
from dev.paths import STATE, drop_privileges, new_home

START_SECONDS = 60
STOP_SECONDS = 20


@dataclass
class Running:
    pid: int
    born: str
    home: str
    ports: dict
    env: dict  # The variables by which tests find it: ATELIER_TEST_…


@dataclass
class Launch:
    """How to start a service; the result of an engine's `launch(home, ports)`."""

    command: list
    env: dict = field(default_factory=dict)


def find(engine):
    """The running service, or None. The files of a service that has died are removed."""
    file = _file(engine)
    if not file.exists():
        return None
    running = Running(**json.loads(file.read_text()))
    if _alive(running):
        return running
    _forget(engine, running)
    return None


def start(engine) -> Running:
    began = time.monotonic()
    home = new_home(engine.NAME)
    try:
        ports = dict(zip(engine.PORTS, _free_ports(len(engine.PORTS))))
        launch = engine.launch(home, ports)
        with _log(engine).open("wb") as log:
            child = subprocess.Popen(
                launch.command,
                cwd=home,
                # With its own HOME, a service does not touch the settings of the caller.
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(home)} | launch.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal must not stop services that interrupted tests still need.
                start_new_session=True,
                **drop_privileges(),
            )
        running = Running(child.pid, _born(child.pid), str(home), ports, engine.env(ports))
        _file(engine).write_text(json.dumps(asdict(running)))
        try:
            _wait_until_ready(engine, child, home, ports)
        except BaseException:
            _end(engine, running)
            raise
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        _file(engine).unlink(missing_ok=True)
        raise
    print(f"{engine.NAME}: up in {time.monotonic() - began:.1f} s (pid {child.pid}, {_ports(ports)})", flush=True)
    return running


def stop(engine) -> None:
    if running := find(engine):
        _end(engine, running)
        _forget(engine, running)
        print(f"{engine.NAME}: stopped", flush=True)


def describe(engine) -> str:
    running = find(engine)
    return f"running (pid {running.pid}, {_ports(running.ports)})" if running else "not running"


def _wait_until_ready(engine, child, home: Path, ports: dict) -> None:
    deadline = time.monotonic() + START_SECONDS
    answer = "no answer yet"
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise SetupError(f"{engine.NAME} ended while starting (code {child.returncode}); {_log_tail(engine)}")
        try:
            engine.check_ready(home, ports)
            return
        except (OSError, subprocess.SubprocessError) as error:
            answer = error
        time.sleep(0.1)
    raise SetupError(f"{engine.NAME} did not answer within {START_SECONDS} s ({answer}); {_log_tail(engine)}")


def _end(engine, running: Running) -> None:
    if _alive(running):
        os.kill(running.pid, engine.STOP)
    deadline = time.monotonic() + STOP_SECONDS
    while _alive(running):
        if time.monotonic() > deadline:
            print(f"{engine.NAME}: did not stop within {STOP_SECONDS} s; killed")
            # It leads its own process group, so this reaches only it and its children.
            os.killpg(running.pid, signal.SIGKILL)
            deadline += STOP_SECONDS
        time.sleep(0.05)


def _forget(engine, running: Running) -> None:
    shutil.rmtree(running.home, ignore_errors=True)
    _file(engine).unlink()


def _alive(running: Running) -> bool:
    born = _born(running.pid)
    return born is not None and born == running.born


def _born(pid: int):
    """The start time of a process in a unit of the system; None if the process has ended."""
    if Path("/proc/self/stat").exists():
        try:
            # The second field is the program's name in parentheses, which may contain spaces.
            state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            return None
        return None if state == "Z" else rest[18]
    ps = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True).stdout
    state, _, born = ps.strip().partition(" ")
    return None if state.startswith("Z") else born.strip() or None


def _free_ports(count: int) -> list[int]:
    # Below the range that systems use for outgoing connections, so that no other socket takes a port
    # before the service binds it.
    ports = []
    for port in random.sample(range(20000, 32768), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise SetupError("no free ports between 20000 and 32768 on 127.0.0.1")


def _log_tail(engine) -> str:
    lines = _log(engine).read_text(errors="replace").splitlines()[-15:]
    return f"the end of {_log(engine)}:\n" + "\n".join(f"  {line}" for line in lines)


def _ports(ports: dict) -> str:
    return ", ".join(f"{name} port {port}" for name, port in ports.items())


def _file(engine) -> Path:
    return STATE / f"{engine.NAME}.json"


def _log(engine) -> Path:
    return STATE / f"{engine.NAME}.log"
