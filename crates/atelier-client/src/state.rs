//! The state of a connected folder between two starts: its client id, its cursor in the event
//! stream, its journal. The state is outside the folder, so that agents cannot change it.

use crate::{
    credentials::replace_private,
    error::{Error, Result},
    local_workspace::short_hash,
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
    cursor_state: Mutex<CursorState>,
    /// Held while this process lives. Two processes with the same client id could run a call twice.
    _lock: File,
}

/// The id of the last event that was handled.
#[derive(Default)]
struct CursorState {
    id: Option<String>,
    written: Option<Instant>,
}

/// How often the cursor is written. There may be thousands of events.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Written once. The fields besides `client_id` tell people what this folder is.
#[derive(Serialize, Deserialize)]
struct Identity {
    client_id: Uuid,
    root: String,
    server: String,
    project: String,
}

impl State {
    fn folder(root: &Path, server: &str, project: &str) -> Result<PathBuf> {
        let base = dirs::state_dir().or_else(dirs::data_local_dir).ok_or(Error::NoHome)?;
        let name = short_hash(&[
            root.as_os_str().as_encoded_bytes(),
            server.as_bytes(),
            project.as_bytes(),
        ]);
        Ok(base.join("atelier/clients").join(name))
    }

    /// Whether the folder was ever connected to the project.
    pub(crate) fn exists(root: &Path, server: &str, project: &str) -> Result<bool> {
        Ok(Self::folder(root, server, project)?.join("client.json").exists())
    }

    pub(crate) fn open(root: &Path, server: &str, project: &str) -> Result<Self> {
        let folder = Self::folder(root, server, project)?;
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
        Ok(Self { folder, client, cursor_state: Mutex::default(), _lock: lock })
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.folder.join("journal.jsonl")
    }

    fn cursor_state(&self) -> MutexGuard<'_, CursorState> {
        self.cursor_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where to resume the event stream. If the cursor is outdated, the client asks for the current
    /// state.
    pub(crate) fn cursor(&self) -> Option<String> {
        if let Some(id) = &self.cursor_state().id {
            return Some(id.clone());
        }
        let text = std::fs::read_to_string(self.folder.join("cursor")).ok()?;
        let id = text.strip_suffix('\n')?;
        (!id.is_empty() && id.bytes().all(|b| b.is_ascii_digit())).then(|| id.to_owned())
    }

    pub(crate) fn keep_cursor(&self, id: &str) {
        let mut state = self.cursor_state();
        state.id = Some(id.to_owned());
        if state.written.is_none_or(|written| written.elapsed() > WRITE_EVERY) {
            self.write_cursor(&mut state);
        }
    }

    /// Writes the cursor at the end of a connection.
    pub(crate) fn save_cursor(&self) {
        self.write_cursor(&mut self.cursor_state());
    }

    fn write_cursor(&self, state: &mut CursorState) {
        let Some(id) = &state.id else { return };
        state.written = Some(Instant::now());
        if let Err(error) = std::fs::write(self.folder.join("cursor"), format!("{id}\n")) {
            tracing::debug!(%error, "cannot write the cursor");
        }
    }
}

fn lock(path: &Path) -> Result<File> {
    let file =
        File::options().create(true).append(true).open(path).map_err(Error::io("open", path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::Busy),
        Err(std::fs::TryLockError::Error(error)) => Err(Error::io("lock", path)(error)),
    }
}

fn identity(path: &Path, root: &Path, server: &str, project: &str) -> Result<ClientId> {
    match std::fs::read(path) {
        Ok(bytes) => {
            let known: Identity = serde_json::from_slice(&bytes).map_err(|error| {
                Error::Damaged { path: path.to_owned(), why: error.to_string() }
            })?;
            Ok(ClientId(known.client_id))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let identity = Identity {
                client_id: Uuid::new_v4(),
                root: root.display().to_string(),
                server: server.to_owned(),
                project: project.to_owned(),
            };
            let text = serde_json::to_vec_pretty(&identity).map_err(|error| Error::Damaged {
                path: path.to_owned(),
                why: error.to_string(),
            })?;
            replace_private(path, &text).map_err(Error::io("write", path))?;
            Ok(ClientId(identity.client_id))
        }
        Err(error) => Err(Error::io("read", path)(error)),
    }
}
