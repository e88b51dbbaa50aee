//! What a script prints, passed on while it runs. Its keeper writes it into files, so this reads on
//! where the last look ended.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::jobs::OUTPUTS;
use crate::cancel::Cancel;

/// The most bytes of one stream that one look passes on. Of more, the last ones are.
const MOST: u64 = 32 << 10;

/// The output files of a script, and how far they were read.
pub(super) struct Tail(Vec<(File, u64)>);

impl Tail {
    /// Without a listener, nothing is opened.
    pub(super) fn open(job: &Path, cancel: &Cancel) -> Self {
        let names = OUTPUTS.iter().filter(|_| cancel.has_listener());
        // What cannot be opened is not shown early. The result is read on its own.
        Self(names.filter_map(|name| Some((File::open(job.join(name)).ok()?, 0))).collect())
    }

    /// Passes on what was printed since the last look.
    pub(super) fn pass_on(&mut self, cancel: &Cancel) {
        for (file, read) in &mut self.0 {
            let Ok(size) = file.metadata().map(|found| found.len()) else { continue };
            let from = (*read).max(size.saturating_sub(MOST));
            let mut bytes = vec![0; usize::try_from(size.saturating_sub(from)).unwrap_or(0)];
            let Ok(count) = file.read_at(&mut bytes, from) else { continue };
            cancel.printed(&bytes[..count]);
            *read = from + count as u64;
        }
    }
}
