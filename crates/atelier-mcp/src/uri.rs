//! `file:///workspace/…`: the URIs of resources.

use std::fmt::Write;

/// The beginning of every resource's URI, with a slash at its end.
pub(crate) fn base(root_name: &str) -> String {
    let name = root_name.trim_matches('/');
    if name.is_empty() { "file:///".to_owned() } else { format!("file:///{}/", encode(name)) }
}

pub(crate) fn of(root_name: &str, path: &str) -> String {
    base(root_name) + &encode(path)
}

/// The path that a URI stands for, relative to the root; `None` if the URI does not belong to this
/// root.
pub(crate) fn path(root_name: &str, uri: &str) -> Option<String> {
    let rest = uri.strip_prefix("file://")?;
    let rest = rest.strip_prefix("localhost").unwrap_or(rest);
    let decoded = decode(rest.strip_prefix('/')?)?;
    let name = root_name.trim_matches('/');
    let below = match name {
        "" => &*decoded,
        name => match decoded.strip_prefix(name)? {
            "" => "",
            rest => rest.strip_prefix('/')?,
        },
    };
    Some(if below.is_empty() { ".".to_owned() } else { below.to_owned() })
}

fn encode(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/!$&'()*+,;=:@".contains(&byte) {
            out.push(byte as char);
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
            let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_mean_each_other() {
        for text in ["notes.txt", "a b/ф.txt", "100%/#?.md", "한글"] {
            assert_eq!(path("/workspace", &of("/workspace", text)).as_deref(), Some(text));
        }
        assert_eq!(of("/workspace", "a b#"), "file:///workspace/a%20b%23");
        assert_eq!(path("/workspace", "file:///workspace").as_deref(), Some("."));
        assert_eq!(path("/workspace", "file:///workspace-evil/x"), None);
        assert_eq!(path("/workspace", "file:///etc/passwd"), None);
        assert_eq!(path("/workspace", "http://workspace/x"), None);
        assert_eq!(path("/workspace", "file:///workspace/%ff"), None);
        assert_eq!(path("/workspace", "file:///workspace/%2"), None);
        // The check of the path itself refuses `..`.
        assert_eq!(path("/workspace", "file:///workspace/%2e%2e/x").as_deref(), Some("../x"));
    }
}
