//! Processes that are measured: how long they take to start and how much memory they use.

use crate::wire::{Connection, request};
use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

/// The beginning of the line that a server prints on standard output when it can be reached.
pub(crate) const GREETING: &str = "Atelier is listening on ";

/// A server that was started here. Dropping it ends the server.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Kept open, because the bare server stops when its input ends.
    _input: Option<ChildStdin>,
    _output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a server and waits until `/ready` answers. Also returns how long that took.
    pub(crate) async fn start(mut command: Command) -> Result<(Self, Duration)> {
        let began = Instant::now();
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut output = BufReader::new(child.stdout.take().context("no standard output")?);
        let mut line = String::new();
        // The first start prints other lines before.
        let url = loop {
            line.clear();
            ensure!(output.read_line(&mut line)? > 0, "it ended instead of listening");
            if let Some(url) = line.trim().strip_prefix(GREETING) {
                break url;
            }
        };
        let process =
            Self { address: address(url)?, _input: child.stdin.take(), _output: output, child };
        let mut connection = Connection::open(process.address).await?;
        let answer = connection.ask(&request("GET", "/ready", "", "")).await?;
        ensure!(answer.status < 300, "it is not ready: {}", answer.status);
        Ok((process, began.elapsed()))
    }

    pub(crate) fn memory(&self) -> Result<u64> {
        memory(self.child.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The server may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Resident memory of a process, in bytes.
pub(crate) fn memory(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kilobytes: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
        .context("no VmRSS")?
        .parse()?;
    Ok(kilobytes * 1024)
}

pub(crate) fn address(url: &str) -> Result<SocketAddr> {
    Ok(url.trim_start_matches("http://").parse()?)
}

/// Raises the limit of open files for this process and its children as far as possible. Returns the
/// limit.
pub(crate) fn raise_open_files() -> Result<usize> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(limit.current.map_or(usize::MAX, |files| files as usize))
}
