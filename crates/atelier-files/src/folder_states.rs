//! Remembers the state of conversations' folders, so that the cost of reading a file depends on the
//! file and not on the size of the conversation.
//!
//! A folder is current if no file of its conversation has changed since it was synced. Its files
//! are trusted by their stamps. If a state is not known here, a sync finds it out.

use atelier_core::{ConversationId, FilePath};
use atelier_executor::{Stamp, Workspace as Folder};
use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

#[derive(Default)]
pub(crate) struct FolderStates {
    states: Mutex<HashMap<ConversationId, FolderState>>,
    /// Files that uploads have put into folders, whether or not the folders are current.
    placed: Mutex<HashMap<(ConversationId, FilePath), Stamp>>,
}

struct FolderState {
    /// The folder that was synced. Another one may be at its path by now.
    folder: Arc<Folder>,
    /// How often the conversation's files had changed when the folder was synced.
    generation: i64,
    stamps: HashMap<FilePath, Stamp>,
    used: Instant,
}

/// How many files the states of all folders describe. The folders that were not used for the
/// longest time are forgotten first.
const MAX_FILES: usize = 200_000;
/// How many folders are known. Each takes a file handle.
const MAX_FOLDERS: usize = 128;
/// How many placed files are remembered.
const MAX_PLACED: usize = 10_000;

impl FolderStates {
    pub(crate) fn set(
        &self,
        conversation: ConversationId,
        folder: Arc<Folder>,
        generation: i64,
        stamps: HashMap<FilePath, Stamp>,
    ) {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let used = Instant::now();
        states.insert(conversation, FolderState { folder, generation, stamps, used });
        let mut files: usize = states.values().map(|state| state.stamps.len()).sum();
        while (files > MAX_FILES || states.len() > MAX_FOLDERS) && states.len() > 1 {
            let oldest = states.iter().min_by_key(|(_, state)| state.used).map(|(id, _)| *id);
            let Some(oldest) = oldest.and_then(|id| states.remove(&id)) else { break };
            files -= oldest.stamps.len();
        }
    }

    pub(crate) fn forget(&self, conversation: ConversationId) {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).remove(&conversation);
    }

    /// Takes over a change that was made in the folder as well, if it is the first change since the
    /// folder was current.
    pub(crate) fn advance(
        &self,
        conversation: ConversationId,
        generation: i64,
        change: impl FnOnce(&mut HashMap<FilePath, Stamp>),
    ) {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = states.get_mut(&conversation)
            && state.generation == generation - 1
        {
            change(&mut state.stamps);
            state.generation = generation;
        }
    }

    /// The generation of the files that the folder was last known to have.
    pub(crate) fn generation(&self, conversation: ConversationId) -> Option<i64> {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.get(&conversation).map(|state| state.generation)
    }

    /// Notes that an upload has put a file into the folder.
    pub(crate) fn note_placed(&self, conversation: ConversationId, path: FilePath, stamp: Stamp) {
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        if placed.len() >= MAX_PLACED {
            placed.clear();
        }
        placed.insert((conversation, path), stamp);
    }

    /// Whether this process or a sync has put exactly this file into the folder. Anything else may
    /// be a change that somebody made, which must not be lost.
    pub(crate) fn is_ours(
        &self,
        conversation: ConversationId,
        path: &FilePath,
        found: Stamp,
    ) -> bool {
        let placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        if placed.get(&(conversation, path.clone())) == Some(&found) {
            return true;
        }
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let state = states.get(&conversation);
        state.and_then(|state| state.stamps.get(path)) == Some(&found)
    }

    /// Whether the folder has the files of this generation and the touched file is the one that was
    /// synced. Blocks.
    pub(crate) fn is_current(
        &self,
        path: &Path,
        conversation: ConversationId,
        generation: i64,
        touched: Option<&FilePath>,
    ) -> bool {
        let (folder, expected) = {
            let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(state) = states.get_mut(&conversation) else { return false };
            if state.generation != generation {
                return false;
            }
            state.used = Instant::now();
            let expected = touched.map(|path| (path, state.stamps.get(path).copied()));
            (state.folder.clone(), expected)
        };
        if !folder.is_at(path) {
            return false;
        }
        let Some((path, expected)) = expected else { return true };
        match (expected, folder.open_leaf(path.as_workspace())) {
            (Some(expected), Ok((_, found))) => expected == found,
            (None, Err(_)) => true,
            (Some(_), Err(_)) | (None, Ok(_)) => false,
        }
    }
}
