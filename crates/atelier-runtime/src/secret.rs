//! The server's own secrets: files of random bytes in its data directory.

use atelier_store::KeyCheck;
use rand::RngCore;
use sha2::{Digest, Sha256};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
};
use uuid::Uuid;

const BYTES: usize = 32;

/// Reads the secret `file` of a data directory, and creates it if it does not exist. `loss` says
/// what a new secret makes invalid.
pub fn open_secret(data: &Path, file: &str, loss: &str) -> io::Result<Vec<u8>> {
    let path = data.join(file);
    if !path.exists() {
        create(data, file)?;
    }
    let mut secret = Vec::new();
    File::open(&path)?.read_to_end(&mut secret)?;
    if secret.len() < BYTES {
        let problem = format!(
            "{} is shorter than {BYTES} bytes: remove it to create a new one ({loss})",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(secret)
}

/// The check value of a secret, which tells two secrets apart and does not reveal them.
pub fn check_value(data: &Path, file: &'static str) -> io::Result<KeyCheck> {
    let mut secret = Vec::new();
    File::open(data.join(file))?.read_to_end(&mut secret)?;
    let hash = Sha256::new_with_prefix("atelier key check")
        .chain_update(file)
        .chain_update([0])
        .chain_update(secret)
        .finalize();
    Ok(KeyCheck { name: file, value: hash[..16].to_vec() })
}

/// Writes the secret under a temporary name and then links it, so that nobody reads an incomplete
/// secret and two processes that start at the same time use the same one.
fn create(data: &Path, file: &str) -> io::Result<()> {
    let mut secret = [0; BYTES];
    rand::rng().fill_bytes(&mut secret);
    let draft = data.join(format!(".{file}.{}", Uuid::now_v7()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut written = options.open(&draft)?;
    written.write_all(&secret)?;
    written.sync_all()?;
    let linked = std::fs::hard_link(&draft, data.join(file));
    std::fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
