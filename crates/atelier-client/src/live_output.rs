//! What a command prints, sent to the server while the command runs: in whole lines, masked, a few
//! times a second, and not without end. The result of the call does not depend on it.

use crate::{calls::CallRunner, dispatched_call::DispatchedCall};
use atelier_api::tools::PrintedReport;
use atelier_core::{mask::masked, remembered::may_show_secrets};
use atelier_executor::Cancel;
use std::{
    borrow::Cow,
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, task::JoinHandle};

/// How often output is sent.
const INTERVAL: Duration = Duration::from_millis(250);
/// The most bytes that wait to be sent. Of more, the last ones are sent.
const MOST_WAITING: usize = 16 << 10;
/// The most bytes that are sent of one call.
const MOST_SENT: usize = 1 << 20;
/// The most bytes that the server takes at once. Masks can be longer than what they mask.
const MOST_AT_ONCE: usize = 30 << 10;
/// A line without an end is sent when it is this long.
const LONGEST_LINE: usize = 4 << 10;

const LEFT_OUT: &str = "… some output is left out here …\n";
const ENOUGH: &str = "… the result has the rest …\n";
const KEY: &str = "[masked: private key]\n";

/// Bytes that a command has printed and that are not sent yet.
#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    left_out: bool,
}

#[derive(Default)]
struct Printed {
    waiting: Mutex<Waiting>,
    more: Notify,
}

impl Printed {
    fn push(&self, bytes: &[u8]) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.bytes.extend_from_slice(bytes);
        let over = waiting.bytes.len().saturating_sub(MOST_WAITING);
        if over > 0 {
            waiting.bytes.drain(..over);
            waiting.left_out = true;
        }
        drop(waiting);
        self.more.notify_one();
    }

    fn take(&self) -> Waiting {
        mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl CallRunner {
    /// Sends what the call prints until it is aborted. `None` for a call that may show secrets.
    pub(crate) fn send_output(
        self: &Arc<Self>,
        call: &DispatchedCall,
        cancel: &Cancel,
    ) -> Option<JoinHandle<()>> {
        if may_show_secrets(call.class.findings.iter().map(String::as_str), &call.tool_params) {
            return None;
        }
        let printed = Arc::new(Printed::default());
        let listener = printed.clone();
        cancel.on_output(move |bytes| listener.push(bytes));
        let (client, (id, attempt)) = (self.clone(), call.key());
        Some(tokio::spawn(async move {
            let (mut lines, mut sent) = (Lines::default(), 0);
            while sent < MOST_SENT {
                printed.more.notified().await;
                tokio::time::sleep(INTERVAL).await;
                let Waiting { bytes, left_out } = printed.take();
                let mut text = lines.complete(&bytes, left_out);
                if text.is_empty() {
                    continue;
                }
                text.truncate(text.floor_char_boundary(MOST_AT_ONCE));
                sent += text.len();
                if sent >= MOST_SENT {
                    text.push_str(ENOUGH);
                }
                let report = PrintedReport { client_id: client.machine.client, attempt, text };
                match client.machine.send_printed(id, &report).await {
                    Ok(()) => {}
                    // What was lost on the way is in the result.
                    Err(error) if error.is_temporary() => {}
                    // An older server does not know this, or the call was settled.
                    Err(error) => {
                        tracing::debug!(%error, "the server takes no output of a running call");
                        return;
                    }
                }
            }
        }))
    }
}

/// Cuts output into lines and masks them.
#[derive(Default)]
struct Lines {
    /// The beginning of a line whose end has not come yet.
    rest: Vec<u8>,
    /// Whether the last lines were within a private key.
    in_key: bool,
}

impl Lines {
    /// The lines that are complete now, masked.
    fn complete(&mut self, bytes: &[u8], left_out: bool) -> String {
        if left_out {
            self.rest.clear();
        }
        self.rest.extend_from_slice(bytes);
        let end = match self.rest.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')) {
            Some(end) => end + 1,
            None if self.rest.len() > LONGEST_LINE => self.rest.len(),
            None => return String::new(),
        };
        let rest = self.rest.split_off(end);
        let lines = mem::replace(&mut self.rest, rest);
        let text = String::from_utf8_lossy(&lines);
        let text = self.without_keys(&text);
        let mark = if left_out { LEFT_OUT } else { "" };
        format!("{mark}{}", masked(&text))
    }

    /// The text without the lines of private keys, which may be spread over several texts.
    fn without_keys<'t>(&mut self, text: &'t str) -> Cow<'t, str> {
        if !self.in_key && !text.contains("PRIVATE KEY") {
            return Cow::Borrowed(text);
        }
        let mut kept = String::new();
        for line in text.split_inclusive('\n') {
            let begins = line.contains("-----BEGIN") && line.contains("PRIVATE KEY");
            let ends = line.contains("-----END");
            if begins && !self.in_key {
                kept.push_str(KEY);
            }
            if !begins && !self.in_key {
                kept.push_str(line);
            }
            self.in_key = (self.in_key || begins) && !ends;
        }
        Cow::Owned(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::{LEFT_OUT, LONGEST_LINE, Lines, MOST_WAITING, Printed};

    #[test]
    fn whole_lines_are_sent() {
        let mut lines = Lines::default();
        assert_eq!(lines.complete(b"one\ntw", false), "one\n");
        assert_eq!(lines.complete(b"o", false), "");
        assert_eq!(lines.complete(b"\n10%\r20%\r3", false), "two\n10%\r20%\r");
        let long = vec![b'x'; LONGEST_LINE];
        assert_eq!(lines.complete(&long, false).len(), LONGEST_LINE + 1);
        assert_eq!(lines.complete("по-русски\n".as_bytes(), false), "по-русски\n");
        lines.complete(b"half a line", false);
        assert_eq!(lines.complete(b"after\n", true), format!("{LEFT_OUT}after\n"));
    }

    #[test]
    fn keys_are_masked_even_across_texts() {
        let token = ["ghp", "_0123456789abcdefghijABCDEFGHIJ012345"].concat();
        let mut lines = Lines::default();
        let line = format!("token: {token}\n");
        let (first, second) = line.split_at(20);
        assert_eq!(lines.complete(first.as_bytes(), false), "");
        let shown = lines.complete(second.as_bytes(), false);
        assert!(shown.contains("[masked: ") && !shown.contains("0123456789"), "{shown}");
        let begin = ["-----BEGIN RSA", " PRIVATE KEY-----\nMIIEow\n"].concat();
        let mut shown = lines.complete(begin.as_bytes(), false);
        shown += &lines.complete(b"AoGBAJ4f\n", false);
        let end = ["AoG\n-----END RSA", " PRIVATE KEY-----\nafter\n"].concat();
        shown += &lines.complete(end.as_bytes(), false);
        assert_eq!(shown, "[masked: private key]\nafter\n");
    }

    #[test]
    fn a_flood_keeps_its_end() {
        let printed = Printed::default();
        for n in 0..10_000 {
            printed.push(format!("{n}\n").as_bytes());
        }
        let waiting = printed.take();
        assert!(waiting.left_out && waiting.bytes.len() <= MOST_WAITING);
        assert!(waiting.bytes.ends_with(b"9999\n"));
        assert!(printed.take().bytes.is_empty());
    }
}
