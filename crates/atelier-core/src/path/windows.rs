//! The rules of Windows for names: drives, streams, devices, and endings that it drops.

use super::{PathError, Platform, Roots, names};

/// Whether the text begins with a drive such as `C:`.
pub(super) fn is_drive(raw: &str) -> bool {
    matches!(raw.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic())
}

/// Whether the text begins with the root of a drive, `C:\` or `C:/`. On no system is this an
/// ordinary name.
pub(super) fn is_rooted_drive(raw: &str) -> bool {
    is_drive(raw) && matches!(raw.as_bytes().get(2), Some(b'\\' | b'/'))
}

/// Refuses a path that Windows would read differently than it is written. The separators are `/`.
pub(super) fn refuse(slashed: &str, roots: &Roots) -> Result<(), PathError> {
    // `//server/share` and `//?/C:/…` lead to another drive.
    if slashed.starts_with("//") || (is_drive(slashed) && !is_rooted_drive(slashed)) {
        return Err(roots.outside());
    }
    let rest = if is_rooted_drive(slashed) { &slashed[2..] } else { slashed };
    for name in names(rest, Platform::Windows).filter(|name| *name != "..") {
        let reserved = name.contains(['<', '>', ':', '"', '|', '?', '*'])
            || name.ends_with(['.', ' '])
            || is_device(name);
        if reserved {
            return Err(PathError::Reserved(name.to_owned()));
        }
    }
    Ok(())
}

/// Whether Windows reads the name as a device, such as `NUL` or `COM1`.
fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name).trim_end();
    let numbered = |prefix: &str| {
        stem.get(..3).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
            && matches!(
                &stem[3..],
                "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9" | "¹" | "²" | "³"
            )
    };
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
        .iter()
        .any(|device| stem.eq_ignore_ascii_case(device))
        || numbered("com")
        || numbered("lpt")
}
