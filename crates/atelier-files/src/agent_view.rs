//! The files of a conversation as programs with an agent's or a client's token see them, by the
//! rules for agents of the conversation.

use crate::{ConversationWorkspace, Error, Result};
use atelier_core::{
    ConversationFile, FilePath,
    policy::{Access, Policy},
};
use atelier_executor::{IGNORE_FILE, IgnoreRules};
use std::sync::Arc;

/// The rules for what agents of a conversation may read.
pub(crate) struct AgentRules {
    policy: Arc<Policy>,
    ignored: Option<IgnoreRules>,
}

/// The largest `.atelierignore` that is read. The executor refuses larger ones as well.
const MAX_IGNORE: u64 = 1 << 20;

impl ConversationWorkspace {
    /// Restricts the workspace to what a program may see: files that `.atelierignore` names do not
    /// exist for it, and content that `policy` asks about is refused, because nobody can be asked.
    pub async fn for_programs(mut self, policy: Arc<Policy>) -> Result<Self> {
        let files = self.list().await?;
        let ignored = match files.iter().find(|file| file.file_path.as_str() == IGNORE_FILE) {
            Some(file) => {
                let text = self.read(file.file_id, None).await?.bytes(MAX_IGNORE).await?;
                Some(IgnoreRules::parse(&text)?)
            }
            None => None,
        };
        self.rules = Some(Arc::new(AgentRules { policy, ignored }));
        Ok(self)
    }

    /// Whether the file exists for the reader.
    pub(crate) fn shows(&self, file: &ConversationFile) -> bool {
        let ignored = self.rules.as_ref().and_then(|rules| rules.ignored.as_ref());
        !ignored.is_some_and(|ignored| ignored.hides(file.file_path.as_str()))
    }

    /// Fails if the reader may not have the content of the file.
    pub(crate) fn check_readable(&self, path: &FilePath) -> Result<()> {
        let Some(rules) = &self.rules else { return Ok(()) };
        let refusal = rules.policy.refuses_unasked("read_file", path.as_workspace(), Access::Read);
        refusal.map_or(Ok(()), |why| Err(Error::Refused(why)))
    }
}
