//! The store of before-images: files by their checksums.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;

use super::entry::checksum_of;
use super::{io_error, private_folder};
use crate::error::Result;

#[derive(Debug)]
pub(crate) struct Images {
    folder: PathBuf,
}

impl Images {
    pub(crate) fn open(folder: PathBuf) -> Result<Self> {
        private_folder(&folder)?;
        Ok(Self { folder })
    }

    fn path(&self, checksum: &str) -> PathBuf {
        let (head, _) = checksum.split_at_checked(2).unwrap_or(("", checksum));
        self.folder.join(head).join(checksum)
    }

    pub(crate) fn has(&self, checksum: &str) -> bool {
        self.path(checksum).exists()
    }

    /// Stores a copy of a file. Returns false if the file has another checksum by now.
    pub(crate) fn put(&self, checksum: &str, file: &mut File) -> Result<bool> {
        let path = self.path(checksum);
        if path.exists() {
            return Ok(true);
        }
        private_folder(path.parent().unwrap_or(&self.folder))?;
        let beside = path.with_extension(format!("{:08x}.new", rand::random::<u32>()));
        let mut copy = || -> io::Result<bool> {
            file.rewind()?;
            let mut to = File::options().read(true).write(true).create_new(true).open(&beside)?;
            io::copy(file, &mut to)?;
            to.flush()?;
            to.rewind()?;
            if checksum_of(&mut to)?.0 != checksum {
                std::fs::remove_file(&beside)?;
                return Ok(false);
            }
            std::fs::rename(&beside, &path)?;
            Ok(true)
        };
        let copied = copy();
        if copied.is_err() {
            // The first error is the one to report.
            std::fs::remove_file(&beside).ok();
        }
        copied.map_err(io_error("store", &path))
    }

    pub(crate) fn read(&self, checksum: &str) -> io::Result<File> {
        File::open(self.path(checksum))
    }

    /// The whole image, if it is at most `most` bytes.
    pub(crate) fn bytes(&self, checksum: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        self.read(checksum)?.take(most + 1).read_to_end(&mut bytes)?;
        Ok((bytes.len() as u64 <= most).then_some(bytes))
    }

    /// Removes all images but these.
    pub(crate) fn retain(&self, used: &HashSet<String>) -> io::Result<()> {
        for head in std::fs::read_dir(&self.folder)? {
            for image in std::fs::read_dir(head?.path())? {
                let image = image?;
                if image.file_name().to_str().is_none_or(|name| !used.contains(name)) {
                    std::fs::remove_file(image.path())?;
                }
            }
        }
        Ok(())
    }
}
