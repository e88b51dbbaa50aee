//! One suite for every place that content can be kept in: a disk and a real S3 server, on both
//! databases.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod runs;
mod upkeep;
mod versions;

use atelier_core::{
    ConversationFile, FilePath, FileSource, ProjectName, Tenant, UserId, WorkspaceKind,
};
use atelier_files::{ConversationWorkspace, Error, Files, NewFile, Settings, SweepReport};
use atelier_store::{
    Author, Error as StoreError, Expect, FileChanges, Owned, OwnedConversation, Store,
};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Bucket, Database,
};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use rstest::rstest;
use rstest_reuse::{self, *};
use std::{fs, path::Path, time::Duration};
use uuid::Uuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Objects {
    Disk,
    S3,
}
use Objects::{Disk, S3};

#[template]
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn everywhere(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
}

struct World {
    files: Files,
    store: Store,
    owned: Owned,
    conversation: OwnedConversation,
    bucket: Option<Bucket>,
    data: tempfile::TempDir,
    _database: Option<Database>,
}

async fn new_conversation(store: &Store, owned: &Owned) -> OwnedConversation {
    let conversation = store.create_conversation(owned, None, true).await.unwrap();
    store.conversation(owned, conversation.id).await.unwrap().0
}

impl World {
    async fn new(backend: Backend, objects: Objects) -> Self {
        Self::with(backend, objects, Settings::default()).await
    }

    async fn with(backend: Backend, objects: Objects, settings: Settings) -> Self {
        // The first caller wins; all of them mean the same.
        drop(rustls::crypto::ring::default_provider().install_default());
        let data = tempfile::tempdir().unwrap();
        let database = match backend {
            Sqlite => None,
            Postgres => Some(Database::create().await),
        };
        let database_url = database.as_ref().map(Database::url);
        let opened = atelier_store::Settings {
            data: data.path().to_owned(),
            database_url,
            ..Default::default()
        };
        let store = Store::open(&opened).await.unwrap();
        let (user, tenant): (UserId, Tenant) = (UserId(Uuid::now_v7()), "acme".parse().unwrap());
        store.ensure_user(user, &tenant).await.unwrap();
        let name = ProjectName::try_from("default").unwrap();
        let kind = WorkspaceKind::Conversation;
        let project = store
            .create_project(user, tenant, name, kind, Default::default(), vec![])
            .await
            .unwrap();
        let owned = store.owned_by(user, project.id).await.unwrap();
        let conversation = new_conversation(&store, &owned).await;
        let bucket = (objects == S3).then(Bucket::new);
        let prefix =
            bucket.as_ref().map_or(settings.prefix.clone(), |bucket| bucket.prefix.clone());
        let url = bucket.as_ref().map(Bucket::url);
        let settings = Settings { prefix, ..settings };
        let files =
            Files::open(settings, url.as_deref(), data.path(), store.clone()).await.unwrap();
        Self { files, store, owned, conversation, bucket, data, _database: database }
    }

    /// Makes the manifest say that the files in the folder are as the last sync left them.
    fn trust_stamps(&self) {
        use std::os::unix::fs::MetadataExt;
        let manifests = self.folder().parent().unwrap().join(".manifests");
        let path = manifests.join(format!("{}.json", self.conversation.id()));
        let mut manifest: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for (name, entry) in manifest["files"].as_object_mut().unwrap() {
            let found = fs::metadata(self.folder().join(name)).unwrap();
            entry["stamp"] = serde_json::json!({
                "size": found.len(),
                "modified": found.mtime() * 1_000_000_000 + found.mtime_nsec(),
                "changed": found.ctime() * 1_000_000_000 + found.ctime_nsec(),
                "inode": found.ino(),
            });
        }
        manifest["taken"] = (i64::MAX / 2).into();
        fs::write(&path, serde_json::to_vec(&manifest).unwrap()).unwrap();
    }

    fn workspace(&self) -> ConversationWorkspace {
        self.files.workspace(&self.conversation)
    }

    fn author(&self) -> Author {
        Author::Person(self.owned.owner)
    }

    async fn put(&self, path: &str, content: impl Into<Bytes>) -> ConversationFile {
        self.try_put(path, content, Expect::Anything).await.unwrap()
    }

    async fn try_put(
        &self,
        path: &str,
        content: impl Into<Bytes>,
        expect: Expect,
    ) -> Result<ConversationFile, Error> {
        let body = futures::stream::iter([Ok(content.into())]).boxed();
        let content = self.workspace().store(body, 100 << 20).await?;
        let path = FilePath::parse(path)?;
        let original_name = path.file_name().to_owned();
        let file = NewFile { content, path, original_name, description: None, expect };
        Ok(self.workspace().save(self.author(), vec![file]).await?.remove(0))
    }

    async fn get(&self, file: &ConversationFile, version: Option<i64>) -> Result<Vec<u8>, Error> {
        let reading = self.workspace().read(file.file_id, version).await?;
        let pieces: Vec<Bytes> = reading.whole(true).await?.try_collect().await?;
        Ok(pieces.concat())
    }

    /// The conversation's folder in the cache.
    fn folder(&self) -> std::path::PathBuf {
        self.data.path().join("workspaces").join(self.conversation.id().to_string())
    }

    /// The object store itself.
    fn objects(&self) -> Box<dyn object_store::ObjectStore> {
        match &self.bucket {
            None => {
                let top = self.data.path().join("objects");
                Box::new(object_store::local::LocalFileSystem::new_with_prefix(top).unwrap())
            }
            Some(bucket) => Box::new(
                object_store::aws::AmazonS3Builder::new()
                    .with_bucket_name(&bucket.name)
                    .with_endpoint(&bucket.endpoint)
                    .with_access_key_id(&bucket.access_key)
                    .with_secret_access_key(&bucket.secret_key)
                    .with_allow_http(true)
                    .build()
                    .unwrap(),
            ),
        }
    }

    async fn remove(&self, key: &str) {
        use object_store::ObjectStoreExt as _;
        self.objects().delete(&key.into()).await.unwrap();
    }

    /// Every key of the conversation, as the object store itself lists them.
    async fn keys(&self) -> Vec<String> {
        let store = self.objects();
        let top =
            self.bucket.as_ref().map_or("workspaces", |bucket| bucket.prefix.trim_end_matches('/'));
        let prefix = object_store::path::Path::from(top);
        let listed: Vec<_> = store.list(Some(&prefix)).try_collect().await.unwrap();
        let mut keys: Vec<String> = listed
            .into_iter()
            .map(|object| object.location.to_string())
            .filter(|key| key.contains(&self.conversation.id().to_string()))
            .collect();
        keys.sort();
        keys
    }

    async fn contents(&self) -> usize {
        self.keys().await.iter().filter(|key| key.contains(".blobs/")).count()
    }
}
