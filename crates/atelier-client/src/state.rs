//! What a connected folder keeps between runs: who it is to the server, how far it has read, its journal.
//! Outside the folder, so that nothing an agent writes is ever taken for it.

use crate::{
    credentials::replace_private,
    error::{Error, Result},
    local::short_hash,
};
use atelier_core::ClientId;
use serde::{Deserialize, Serialize};
use std::{
    fs::{DirBuilder, File},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use uuid::Uuid;

pub(crate) struct State {
    folder: PathBuf,
    pub(crate) client: ClientId,
    place: Mutex<Place>,
    /// Held as long as this process lives: two with one identity could run a call twice.
    _lock: File,
}

/// The last event that was dealt with.
#[derive(Default)]
struct Place {
    id: Option<String>,
    written: Option<Instant>,
}

/// Events may come by the thousand; the place in the stream is written this often.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Written once; the other fields are for the person who wonders what this folder is.
#[derive(Serialize, Deserialize)]
struct Identity {
    client_id: Uuid,
    root: String,
    server: String,
    project: String,
}

impl State {
    pub(crate) fn open(root: &Path, server: &str, project: &str) -> Result<Self> {
        let base = dirs::state_dir().or_else(dirs::data_local_dir).ok_or(Error::NoHome)?;
        let name = short_hash(&[root.as_os_str().as_encoded_bytes(), server.as_bytes(), project.as_bytes()]);
        let folder = base.join("atelier/clients").join(name);
        if folder.starts_with(root) {
            return Err(Error::StateInside { path: folder });
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(Error::io("create", &folder))?;
        let real = folder.canonicalize().map_err(Error::io("find", &folder))?;
        if real.starts_with(root) {
            return Err(Error::StateInside { path: real });
        }
        let lock = lock(&folder.join("lock"))?;
        let client = identity(&folder.join("client.json"), root, server, project)?;
        Ok(Self { folder, client, place: Mutex::default(), _lock: lock })
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.folder.join("journal.jsonl")
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where to go on in the stream. What is lost of it is found again by asking.
    pub(crate) fn cursor(&self) -> Option<String> {
        if let Some(id) = &self.place().id {
            return Some(id.clone());
        }
        let text = std::fs::read_to_string(self.folder.join("cursor")).ok()?;
        let id = text.strip_suffix('\n')?;
        (!id.is_empty() && id.bytes().all(|b| b.is_ascii_digit())).then(|| id.to_owned())
    }

    pub(crate) fn keep_cursor(&self, id: &str) {
        let mut place = self.place();
        place.id = Some(id.to_owned());
        if place.written.is_none_or(|written| written.elapsed() > WRITE_EVERY) {
            self.write_place(&mut place);
        }
    }

    /// Writes down what was not yet, at the end of a connection.
    pub(crate) fn save_cursor(&self) {
        self.write_place(&mut self.place());
    }

    fn write_place(&self, place: &mut Place) {
        let Some(id) = &place.id else { return };
        place.written = Some(Instant::now());
        if let Err(error) = std::fs::write(self.folder.join("cursor"), format!("{id}\n")) {
            tracing::debug!(%error, "the place in the stream is not kept");
        }
    }
}

fn lock(path: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).open(path).map_err(Error::io("open", path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::Busy),
        Err(std::fs::TryLockError::Error(error)) => Err(Error::io("lock", path)(error)),
    }
}

fn identity(path: &Path, root: &Path, server: &str, project: &str) -> Result<ClientId> {
    match std::fs::read(path) {
        Ok(bytes) => {
            let known: Identity = serde_json::from_slice(&bytes)
                .map_err(|error| Error::Damaged { path: path.to_owned(), why: error.to_string() })?;
            Ok(ClientId(known.client_id))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let identity = Identity {
                client_id: Uuid::new_v4(),
                root: root.display().to_string(),
                server: server.to_owned(),
                project: project.to_owned(),
            };
            let text = serde_json::to_vec_pretty(&identity)
                .map_err(|error| Error::Damaged { path: path.to_owned(), why: error.to_string() })?;
            replace_private(path, &text).map_err(Error::io("write", path))?;
            Ok(ClientId(identity.client_id))
        }
        Err(error) => Err(Error::io("read", path)(error)),
    }
}
