//! A minimal HTTP/1.1 client. Requests are rendered once, and answers are read by their length. A
//! cheap generator leaves more processor time to the server on the same cores.

use anyhow::{Context, Result, bail, ensure};
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// How long to wait before a measurement fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

pub(crate) struct Answer<'c> {
    pub(crate) status: u16,
    pub(crate) body: &'c [u8],
}

struct Head {
    status: u16,
    /// The position at which the body starts.
    end: usize,
    length: Option<usize>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        let stream = timeout(PATIENCE, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(2048) })
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> Result<Answer<'_>> {
        let head = self.head(request).await?;
        let end = head.end + head.length.context("an answer without its length")?;
        while self.buffer.len() < end {
            self.fill().await?;
        }
        Ok(Answer { status: head.status, body: &self.buffer[head.end..end] })
    }

    /// Sends a request whose answer never ends. Returns its connection and the first bytes.
    pub(crate) async fn follow(mut self, request: &[u8]) -> Result<(TcpStream, Vec<u8>)> {
        let head = timeout(PATIENCE, self.head(request)).await??;
        ensure!(head.status == 200, "a stream was answered with {}", head.status);
        Ok((self.stream, self.buffer.split_off(head.end)))
    }

    async fn head(&mut self, request: &[u8]) -> Result<Head> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        loop {
            self.fill().await?;
            if let Some(head) = parse(&self.buffer)? {
                return Ok(head);
            }
        }
    }

    async fn fill(&mut self) -> Result<()> {
        let read = self.stream.read_buf(&mut self.buffer).await?;
        ensure!(read > 0, "the server hung up");
        Ok(())
    }
}

fn parse(bytes: &[u8]) -> Result<Option<Head>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&bytes[..end])?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let Some(Ok(status)) = status.map(str::parse) else {
        bail!("no HTTP: {text}");
    };
    let length = lines
        .filter_map(|line| line.split_once(": "))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.parse().ok());
    Ok(Some(Head { status, end: end + 4, length }))
}

/// A request as bytes, with a body if there is one.
pub(crate) fn request(method: &str, path: &str, token: &str, body: &str) -> Vec<u8> {
    let entity = match body.len() {
        0 => String::new(),
        length => format!("content-type: application/json\r\ncontent-length: {length}\r\n"),
    };
    format!(
        "{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer \
        {token}\r\n{entity}\r\n{body}"
    )
    .into_bytes()
}
