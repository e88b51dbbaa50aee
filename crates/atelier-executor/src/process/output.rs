//! The output of a command. All of it is read; the beginning and the end are kept.

/// One output stream. Its memory stays within the limit, however much the command prints.
#[derive(Debug)]
pub(crate) struct Kept {
    head: Vec<u8>,
    /// Grows to twice the size that is kept before it is shortened, so that bytes are rarely moved.
    tail: Vec<u8>,
    limit: usize,
    seen: u64,
}

impl Kept {
    pub(crate) fn new(limit: usize) -> Self {
        Self { head: Vec::new(), tail: Vec::new(), limit, seen: 0 }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        let room = (self.limit / 2).saturating_sub(self.head.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(room);
        self.head.extend_from_slice(head);
        let keep = self.keep();
        self.tail.extend_from_slice(&rest[rest.len().saturating_sub(keep)..]);
        if self.tail.len() > keep * 2 {
            self.tail.drain(..self.tail.len() - keep);
        }
    }

    fn keep(&self) -> usize {
        self.limit - self.limit / 2
    }

    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// The text, at most `limit` bytes, with a mark where something is left out.
    pub(crate) fn text(mut self, limit: usize) -> (String, bool) {
        if (self.head.len() + self.tail.len()) as u64 == self.seen {
            self.head.extend_from_slice(&self.tail);
            let whole = String::from_utf8(self.head)
                .unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned());
            if whole.len() <= limit {
                return (whole, false);
            }
            // Replacement characters, or the share of the other stream, made the text too long.
            return (join(&whole, &whole, limit, None), true);
        }
        let tail = &self.tail[self.tail.len().saturating_sub(self.keep())..];
        let tail = &tail[tail.iter().take(3).take_while(|byte| is_continuation(**byte)).count()..];
        let head = String::from_utf8_lossy(complete(&self.head));
        let tail = String::from_utf8_lossy(tail);
        (join(&head, &tail, limit, Some(self.seen)), true)
    }
}

/// The first half of `head`, a mark, the last half of `tail`.
fn join(head: &str, tail: &str, limit: usize, seen: Option<u64>) -> String {
    let total = seen.unwrap_or(head.len() as u64);
    let mark = format!("\n… output cut: {total} bytes in total …\n");
    let half = limit.saturating_sub(mark.len()) / 2;
    let start = &head[..head.floor_char_boundary(half)];
    let end = &tail[tail.ceil_char_boundary(tail.len().saturating_sub(half))..];
    let mut text = String::with_capacity(limit);
    text.push_str(start);
    text.push_str(&mark[..mark.floor_char_boundary(limit - start.len() - end.len())]);
    text.push_str(end);
    text
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// The bytes without an incomplete character at the end.
fn complete(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    }
}

/// Both streams within one limit. The shorter one is kept whole if possible, and the longer one
/// gets the rest.
pub(crate) fn texts(stdout: Kept, stderr: Kept, limit: usize) -> (String, String, bool) {
    let lengths =
        [stdout.seen, stderr.seen].map(|seen| usize::try_from(seen).unwrap_or(usize::MAX));
    let short = lengths[0].min(lengths[1]).min(limit / 2);
    let share = |own: usize| if own <= limit / 2 { limit / 2 } else { limit - short };
    let (out, out_cut) = stdout.text(share(lengths[0]));
    let (err, err_cut) = stderr.text(share(lengths[1]).min(limit.saturating_sub(out.len())));
    (out, err, out_cut || err_cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(limit: usize, chunks: &[&[u8]]) -> Kept {
        let mut kept = Kept::new(limit);
        for chunk in chunks {
            kept.push(chunk);
        }
        kept
    }

    #[test]
    fn short_output_is_kept_as_it_is() {
        assert_eq!(fed(100, &[b"a", b"b\n"]).text(100), ("ab\n".to_owned(), false));
    }

    #[test]
    fn long_output_keeps_head_and_tail_within_the_limit() {
        let text = (0..10_000).map(|n| format!("{n}\n")).collect::<String>();
        let (cut, truncated) = fed(1000, &[text.as_bytes()]).text(1000);
        assert!(
            truncated && cut.len() <= 1000 && cut.contains("output cut: 48890 bytes"),
            "{}",
            cut.len()
        );
        assert!(cut.starts_with("0\n1\n") && cut.ends_with("9998\n9999\n"));
    }

    #[test]
    fn a_cut_never_splits_a_character_or_outgrows_the_limit() {
        for (limit, unit) in
            [(1001, "я".as_bytes()), (1000, "я".as_bytes()), (999, "日".as_bytes()), (500, &[0xff])]
        {
            let (text, truncated) = fed(limit, &vec![unit; 5000]).text(limit);
            assert!(truncated && text.len() <= limit, "{limit}: {}", text.len());
            assert_eq!(text.contains('\u{fffd}'), unit == [0xff]);
        }
    }

    #[test]
    fn both_streams_share_one_limit() {
        let flood = vec![b'x'; 5000];
        for (out, err) in [(&flood[..], &b"warning"[..]), (b"", &flood), (&flood, &flood)] {
            let (a, b, truncated) = texts(fed(1000, &[out]), fed(1000, &[err]), 1000);
            assert!(truncated && a.len() + b.len() <= 1000, "{} {}", a.len(), b.len());
            assert!(a.len() + b.len() >= 950);
        }
        let (_, warning, _) = texts(fed(1000, &[&flood]), fed(1000, &[b"warning"]), 1000);
        assert_eq!(warning, "warning");
    }
}
