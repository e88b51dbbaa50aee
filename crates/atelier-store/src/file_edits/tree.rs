//! A conversation's files while they are edited.

use crate::{
    Error, Result, Tx,
    db::sql,
    files::{COLUMNS, read_file},
};
use atelier_core::{ConversationFile, ConversationId, FileId, FilePath};
use std::collections::HashMap;

/// The files of a conversation in the middle of a transaction: read once for hundreds of edits.
pub(super) struct Tree {
    pub(super) files: HashMap<FilePath, ConversationFile>,
    paths: HashMap<FileId, FilePath>,
    /// How many files each folder holds, at any depth.
    folders: HashMap<String, usize>,
}

impl Tree {
    pub(super) async fn load(tx: &mut Tx, conversation: ConversationId) -> Result<Self> {
        let mut tree =
            Self { files: HashMap::new(), paths: HashMap::new(), folders: HashMap::new() };
        let text = format!(
            "SELECT {COLUMNS} FROM conversation_files WHERE conversation_id = $1 AND status = \
                 'active'"
        );
        let rows = sql(text).bind(conversation.0).fetch_all(&mut tx.conn).await?;
        for row in rows {
            tree.put(read_file(row)?);
        }
        Ok(tree)
    }

    pub(super) fn by_id(&self, id: FileId) -> Option<&ConversationFile> {
        self.files.get(self.paths.get(&id)?)
    }

    pub(super) fn put(&mut self, file: ConversationFile) {
        self.remove(file.file_id);
        for folder in file.file_path.folders() {
            *self.folders.entry(folder.to_owned()).or_default() += 1;
        }
        self.paths.insert(file.file_id, file.file_path.clone());
        self.files.insert(file.file_path.clone(), file);
    }

    pub(super) fn remove(&mut self, id: FileId) {
        let Some(path) = self.paths.remove(&id) else { return };
        self.files.remove(&path);
        for folder in path.folders() {
            if let Some(count) = self.folders.get_mut(folder) {
                *count -= 1;
                if *count == 0 {
                    self.folders.remove(folder);
                }
            }
        }
    }

    /// Checks that a file can be at this path: it is not a folder, and none of its folders is a
    /// file.
    pub(super) fn check_room(&self, path: &FilePath, mover: Option<FileId>) -> Result<()> {
        let other = |file: &ConversationFile| Some(file.file_id) != mover;
        // A file may move to the path of its own folder if it is the only file in that folder.
        let own = mover
            .and_then(|id| self.paths.get(&id))
            .map_or(0, |from| from.folders().filter(|folder| *folder == path.as_str()).count());
        if self.folders.get(path.as_str()).is_some_and(|count| *count > own) {
            return Err(Error::PathTaken(path.to_string()));
        }
        let in_the_way = path.folders().find(|folder| {
            FilePath::parse(folder).ok().and_then(|it| self.files.get(&it)).is_some_and(other)
        });
        in_the_way.map_or(Ok(()), |folder| Err(Error::PathTaken(folder.to_owned())))
    }
}
