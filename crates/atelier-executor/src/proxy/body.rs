//! Passes on the body of a request, exactly as long as its head says.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use super::head::Framing;
use super::relay::{Direction, Input, Meter, write};

/// The longest line before a chunk: a number in hexadecimal.
const LONGEST_SIZE: usize = 16;
const MOST_TRAILERS: usize = 8 << 10;

/// Passes on one body. Bytes after the body are not read, because there is one request for each
/// connection.
pub(super) fn pass_body(
    script: &mut Input<'_>,
    host: &TcpStream,
    body: Framing,
    time: Duration,
    meter: &Meter<'_>,
) -> io::Result<()> {
    match body {
        Framing::Length(length) => exactly(script, host, length, meter),
        Framing::Chunked => chunks(script, host, time, meter),
    }
}

fn exactly(
    script: &mut Input<'_>,
    host: &TcpStream,
    length: u64,
    meter: &Meter<'_>,
) -> io::Result<()> {
    match script.copy(host, length, Direction::Sent, meter)? {
        copied if copied == length => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Reads each chunk and writes it anew, so that both sides agree where it ends.
fn chunks(
    script: &mut Input<'_>,
    host: &TcpStream,
    time: Duration,
    meter: &Meter<'_>,
) -> io::Result<()> {
    let line = |script: &mut Input<'_>, most| -> io::Result<Vec<u8>> {
        let line = script.until(b"\r\n", most, time)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(line[..line.len() - 2].to_vec())
    };
    loop {
        let size = line(script, LONGEST_SIZE)?;
        let digits =
            (1..=LONGEST_SIZE).contains(&size.len()) && size.iter().all(u8::is_ascii_hexdigit);
        let size = std::str::from_utf8(&size).ok().filter(|_| digits);
        let size = size.and_then(|text| u64::from_str_radix(text, 16).ok());
        let size = size.ok_or(io::ErrorKind::InvalidData)?;
        if size == 0 {
            break;
        }
        write(host, format!("{size:x}\r\n").as_bytes(), Direction::Sent, meter)?;
        exactly(script, host, size, meter)?;
        if !line(script, 2)?.is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        write(host, b"\r\n", Direction::Sent, meter)?;
    }
    // Trailers are headers that come late. Nobody needs them, so they end here.
    let mut trailers = 0;
    loop {
        let trailer = line(script, MOST_TRAILERS)?;
        trailers += trailer.len();
        match (trailer.is_empty(), trailers > MOST_TRAILERS) {
            (true, _) => break,
            (_, true) => return Err(io::ErrorKind::InvalidData.into()),
            _ => {}
        }
    }
    write(host, b"0\r\n\r\n", Direction::Sent, meter)
}
