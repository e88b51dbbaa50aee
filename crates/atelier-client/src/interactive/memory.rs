//! The state that a session leaves for the next one in the same folder: the project, the last
//! conversation, and the history of messages. Its file is outside the folder, and only this user can
//! read it.

use crate::{
    credentials::replace_private,
    error::{Error, Result},
    local_workspace::short_hash,
};
use atelier_core::{ConversationId, ProjectId};
use serde::{Deserialize, Serialize};
use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

pub(super) struct FolderMemory {
    path: PathBuf,
    kept: Kept,
}

#[derive(Default, Serialize, Deserialize)]
struct Kept {
    project: Option<ProjectId>,
    conversation: Option<ConversationId>,
    #[serde(default)]
    history: Vec<String>,
}

/// How many messages are remembered, and how long they may be.
const MAX_HISTORY: usize = 500;
const MAX_ENTRY: usize = 10_000;

impl FolderMemory {
    pub(super) fn open(dir: &Path, server: &str) -> Result<Self> {
        let base = dirs::state_dir().or_else(dirs::data_local_dir).ok_or(Error::NoHome)?;
        let folder = base.join("atelier/folders");
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(Error::io("create", &folder))?;
        let root = dir.canonicalize().map_err(Error::io("find", dir))?;
        let name = short_hash(&[root.as_os_str().as_encoded_bytes(), server.as_bytes()]);
        let path = folder.join(format!("{name}.json"));
        // What cannot be read is only a convenience, and is written anew.
        let kept = std::fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Ok(Self { path, kept: kept.unwrap_or_default() })
    }

    pub(super) fn project(&self) -> Option<String> {
        self.kept.project.map(|project| project.to_string())
    }

    /// The last conversation in this folder, if it was in this project.
    pub(super) fn conversation(&self, project: ProjectId) -> Option<String> {
        let id = self.kept.conversation.filter(|_| self.kept.project == Some(project));
        id.map(|id| id.to_string())
    }

    pub(super) fn history(&self) -> Vec<String> {
        self.kept.history.clone()
    }

    pub(super) fn add_to_history(&mut self, text: &str) {
        if text.len() <= MAX_ENTRY && self.kept.history.last().is_none_or(|last| last != text) {
            self.kept.history.push(text.to_owned());
            let extra = self.kept.history.len().saturating_sub(MAX_HISTORY);
            self.kept.history.drain(..extra);
            self.write();
        }
    }

    pub(super) fn keep(&mut self, project: ProjectId, conversation: ConversationId) {
        (self.kept.project, self.kept.conversation) = (Some(project), Some(conversation));
        self.write();
    }

    fn write(&self) {
        let text = serde_json::to_vec(&self.kept)
            .unwrap_or_else(|error| unreachable!("it is valid JSON: {error}"));
        if let Err(error) = replace_private(&self.path, &text) {
            tracing::debug!(%error, "cannot remember the folder");
        }
    }
}
