//! Differences between two versions of a text file.

use crate::{ConversationWorkspace, Error, Result};
use atelier_core::{FileId, TextEncoding};
use bytes::Bytes;
use similar::TextDiff;
use std::time::Duration;

/// Larger files are not compared.
const MAX: u64 = 4 << 20;

impl ConversationWorkspace {
    /// A unified diff between two versions. The default is the newest version and the one before
    /// it.
    pub async fn diff(&self, id: FileId, from: Option<i64>, to: Option<i64>) -> Result<String> {
        let file = self.file(id).await?;
        let to = to.unwrap_or(file.version);
        let from = from.unwrap_or(to.saturating_sub(1).max(1));
        let (old, new) = (self.read(id, Some(from)).await?, self.read(id, Some(to)).await?);
        let (old, new) = (old.bytes(MAX).await?, new.bytes(MAX).await?);
        let path = file.file_path;
        tokio::task::spawn_blocking(move || {
            let text = |bytes: Bytes| {
                let text = TextEncoding::decode(bytes.into()).map(|(text, _)| text);
                text.ok_or(Error::NotText("only text files can be compared"))
            };
            let (old, new) = (text(old)?, text(new)?);
            // After the timeout the diff is still correct, but not the shortest.
            let diff = TextDiff::configure().timeout(Duration::from_secs(2)).diff_lines(&old, &new);
            let (before, after) =
                (format!("{path} (version {from})"), format!("{path} (version {to})"));
            Ok(diff.unified_diff().header(&before, &after).to_string())
        })
        .await?
    }
}
