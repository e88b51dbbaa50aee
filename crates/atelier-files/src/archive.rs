//! Moves the content of archived conversations below a prefix of its own, so that a lifecycle rule
//! of the bucket can delete it. There are no readable copies there.

use crate::{
    ConversationWorkspace, Error, Result, content_store::ContentStore, copies::CONCURRENCY,
};
use atelier_core::ConversationStatus;
use futures::TryStreamExt;
use object_store::{ObjectStoreExt, path::Path as Key};

impl ConversationWorkspace {
    /// Moves the content to its place after the conversation was archived or taken back, in the
    /// background. If a move fails, the next sweep makes it.
    pub fn follow_status(&self) {
        let workspace = self.clone();
        self.files.tasks.spawn(async move {
            let conversation = workspace.conversation.id();
            let done = async {
                workspace.place_contents().await?;
                let files = workspace.files.store.files(&workspace.conversation).await?;
                workspace.files.store.mark_copies_stale(&workspace.conversation, files).await?;
                workspace.files.renew_copies(conversation).await
            };
            if let Err(error) = done.await {
                tracing::warn!(%error, %conversation, "cannot move the files of a conversation \
                    that was archived or taken back; will try again");
            }
        });
    }

    pub(crate) async fn is_archived(&self) -> Result<bool> {
        let found =
            self.files.store.conversation(self.conversation.owned(), self.conversation.id()).await;
        Ok(found?.1.status == ConversationStatus::Archived)
    }

    /// Moves each content that is not in the place for the conversation's status. Content that the
    /// object store has deleted keeps its old place, so that it is known to be expired.
    pub(crate) async fn place_contents(&self) -> Result<()> {
        let archived = self.is_archived().await?;
        let content = &self.files.content;
        let keys = self.files.store.blob_keys(&self.conversation).await?;
        let misplaced = keys.into_iter().filter(|(_, key)| content.is_archived(key) != archived);
        futures::stream::iter(misplaced.map(Ok))
            .try_for_each_concurrent(CONCURRENCY, |(checksum, old)| async move {
                let new = content.new_place(self.conversation.id(), &checksum, archived);
                match content.copy_content(&Key::from(old.as_str()), &new).await {
                    Ok(()) => {}
                    Err(Error::Objects(object_store::Error::NotFound { .. })) => return Ok(()),
                    Err(error) => return Err(error),
                }
                let new = new.to_string();
                self.files.store.content_moved(&self.conversation, checksum, old, new).await?;
                self.files.upkeep.notify_one();
                Ok::<_, Error>(())
            })
            .await
    }
}

impl ContentStore {
    /// Copies content as if it had just been stored, so that no sweep takes it for an old object
    /// without a row.
    async fn copy_content(&self, from: &Key, to: &Key) -> Result<()> {
        self.touch(from).await?;
        self.within(self.objects.copy(from, to)).await
    }
}
