//! Describes the entry at a path, for a person who decides whether it may be moved or deleted.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use atelier_core::TextEncoding;
use atelier_core::path::WorkspacePath;
use rustix::fs::FileType;

use crate::error::{Error, Result};
use crate::read::{Part, checksum};
use crate::walk::{Kind, Names};
use crate::workspace::{Workspace, look, relative};

/// A file, folder or link as it is now. Links are not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub kind: Kind,
    /// The size in bytes; for a folder, the number of its entries.
    pub size: u64,
    /// The content of a text file.
    pub text: Option<String>,
    /// Names in a folder that agents can see, in order. Folders end in `/`.
    pub entries: Vec<String>,
    /// The target of a link.
    pub target: Option<String>,
    /// The checksum of a file, or a digest of the description of anything else. It changes when the
    /// entry changes.
    pub checksum: String,
}

impl Workspace {
    /// Describes what would be moved or deleted at a path.
    pub fn describe_entry(&self, path: &WorkspacePath) -> Result<Described> {
        let shown = path.as_str();
        let (dir, name) = self.parent_for_writing(path, false)?;
        let stat = look(dir.as_fd(), &name, shown)?
            .ok_or_else(|| Error::NotFound { path: shown.to_owned() })?;
        let kind = Kind::from(FileType::from_raw_mode(stat.st_mode));
        if path.demands_directory() && kind != Kind::Directory {
            return Err(Error::NotADirectory { path: shown.to_owned() });
        }
        if self.ignored()?.hides(relative(path), kind == Kind::Directory) {
            return Err(Error::NotFound { path: shown.to_owned() });
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let plain = Described {
            kind,
            size,
            text: None,
            entries: Vec::new(),
            target: None,
            checksum: String::new(),
        };
        match kind {
            Kind::File => match self.read(path, Part::Whole) {
                Ok(content) => Ok(Described {
                    size: content.size,
                    checksum: content.checksum,
                    text: TextEncoding::decode(content.bytes).map(|(text, _)| text),
                    ..plain
                }),
                // The content cannot be read, so only what the file system reports about the file
                // is shown.
                Err(Error::TooLarge { .. } | Error::Permission { .. }) => {
                    let stamp =
                        format!("{size} {} {} {}", stat.st_ino, stat.st_mtime, stat.st_mtime_nsec);
                    Ok(Described { checksum: checksum(stamp.as_bytes()), ..plain })
                }
                Err(error) => Err(error),
            },
            Kind::Directory => self.describe_folder(path, plain),
            Kind::Symlink => {
                let target = rustix::fs::readlinkat(dir.as_fd(), &name, Vec::new())
                    .map_err(|errno| Error::from_os(errno, "read the link", shown))?;
                let checksum = checksum(target.as_bytes());
                Ok(Described {
                    target: Some(target.to_string_lossy().into_owned()),
                    checksum,
                    ..plain
                })
            }
            Kind::Other => {
                Ok(Described { checksum: checksum(&stat.st_ino.to_be_bytes()), ..plain })
            }
        }
    }

    fn describe_folder(&self, path: &WorkspacePath, plain: Described) -> Result<Described> {
        let fail = |errno| Error::from_os(errno, "list", path.as_str());
        let (ignored, here) = (self.ignored()?, relative(path));
        let mut names = Vec::new();
        Names::open(self.handle(), here)
            .and_then(|mut listing| {
                listing.each(|name, kind| {
                    names.push((name.to_owned(), kind == Kind::Directory));
                    Ok(())
                })
            })
            .map_err(fail)?;
        names.sort();
        // Names hold no NUL, so two different lists never give the same bytes.
        let mut list = Vec::new();
        for (name, is_dir) in &names {
            list.extend_from_slice(name.as_bytes());
            list.extend([0, u8::from(*is_dir)]);
        }
        let visible =
            names.iter().filter(|(name, is_dir)| !ignored.hides_entry(&here.join(name), *is_dir));
        let entries: Vec<String> = visible
            .map(|(name, is_dir)| {
                format!("{}{}", name.to_string_lossy(), if *is_dir { "/" } else { "" })
            })
            .collect();
        Ok(Described { size: names.len() as u64, entries, checksum: checksum(&list), ..plain })
    }
}
