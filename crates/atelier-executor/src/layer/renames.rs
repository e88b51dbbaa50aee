//! Finds files that a layer has only renamed.

use std::os::fd::BorrowedFd;

use atelier_core::policy::layered::ChangeKind;
use rustix::fs::{FileType, Stat};

use super::Scan;
use crate::door::Entry;

/// Renames are looked for among so many added files.
const MOST_RENAMES: usize = 2000;
/// So many bytes are read for it at most.
const MOST_READ: u64 = 1 << 30;

/// Takes a file that is added for a deleted one of the same content under another name.
pub(super) fn find_renames(
    scan: &mut Scan,
    upper: BorrowedFd<'_>,
    lower: BorrowedFd<'_>,
) -> std::io::Result<()> {
    let is_file = |stat: &Option<Stat>| {
        stat.as_ref()
            .is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_size > 0)
    };
    let of_kind = |wanted: ChangeKind| {
        let changes = scan.changes.iter().enumerate();
        changes.filter(move |(_, change)| change.kind == wanted).map(|(at, _)| at)
    };
    let added: Vec<usize> =
        of_kind(ChangeKind::Added).filter(|at| is_file(&scan.changes[*at].upper)).collect();
    let deleted: Vec<usize> =
        of_kind(ChangeKind::Deleted).filter(|at| is_file(&scan.changes[*at].lower)).collect();
    if added.len() > MOST_RENAMES || deleted.len() > MOST_RENAMES {
        return Ok(());
    }
    let mut left = MOST_READ;
    let mut may_read = |stat: &Option<Stat>| {
        let size = stat.as_ref().map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(u64::MAX));
        let rest = left.checked_sub(size);
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    let mut old: Vec<Option<(usize, Entry)>> = Vec::new();
    for at in deleted {
        let size = scan.changes[at].lower.map(|stat| stat.st_size);
        let fits = |new: &usize| scan.changes[*new].upper.map(|stat| stat.st_size) == size;
        if added.iter().any(fits) && may_read(&scan.changes[at].lower) {
            // What cannot be read is not taken for a renamed file.
            let entry = Entry::at(lower, &scan.changes[at].path);
            old.extend(entry.ok().map(|entry| Some((at, entry))));
        }
    }
    let mut gone = Vec::new();
    for at in added {
        if old.iter().all(Option::is_none) {
            break;
        }
        let size = scan.changes[at].upper.map(|stat| stat.st_size);
        let fits = |old: &Option<(usize, Entry)>| {
            let old = old.as_ref().and_then(|(old, _)| scan.changes[*old].lower);
            old.map(|stat| stat.st_size) == size
        };
        if !old.iter().any(fits) || !may_read(&scan.changes[at].upper) {
            continue;
        }
        let Ok(new) = Entry::at(upper, &scan.changes[at].path) else { continue };
        let same = |old: &Option<(usize, Entry)>| {
            old.as_ref().is_some_and(|(_, old)| {
                old.checksum().is_some() && old.checksum() == new.checksum()
            })
        };
        let Some((from, _)) = old.iter_mut().find(|old| same(old)).and_then(Option::take) else {
            continue;
        };
        let from_change = scan.changes[from].clone();
        let change = &mut scan.changes[at];
        change.kind = ChangeKind::Renamed;
        change.from = Some(from_change.path);
        change.conflict |= from_change.conflict;
        gone.push(from);
    }
    gone.sort_unstable();
    for at in gone.into_iter().rev() {
        scan.changes.remove(at);
    }
    Ok(())
}
