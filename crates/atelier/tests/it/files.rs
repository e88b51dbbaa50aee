//! Conversation workspaces over HTTP, on a disk and on a real S3 server.

mod cli;
mod crash;
mod hostile;
mod names;
mod reading;
mod runs;
mod strangers;
mod uploads;
mod walk;

use crate::build;
use atelier_testkit::{Backend, Bucket, Builder, Server, User};
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Objects {
    Disk,
    S3,
}

/// A server with the given object store.
fn on(backend: Backend, objects: Objects) -> Builder {
    match objects {
        Objects::Disk => build(backend),
        Objects::S3 => {
            let bucket = Bucket::new();
            build(backend).with("OBJECT_STORE", bucket.url()).with("FILES__PREFIX", bucket.prefix)
        }
    }
}

/// Ann with her own conversation.
struct ConversationSetup {
    server: Server,
    ann: User,
    /// `/api/tenants/{tenant}/workspace/{conversation}`
    path: String,
}

impl ConversationSetup {
    async fn new(backend: Backend, objects: Objects) -> Self {
        Self::with(on(backend, objects)).await
    }

    async fn with(builder: Builder) -> Self {
        let server = builder.start().await;
        let ann = server.user("ann");
        let path = ann.workspace().await;
        Self { server, ann, path }
    }

    fn conversation(&self) -> &str {
        self.path.rsplit('/').next().unwrap()
    }

    fn tenant_path(&self) -> String {
        format!("/api/tenants/default/conversations/{}", self.conversation())
    }

    /// The folder of the conversation in the cache.
    fn folder(&self) -> std::path::PathBuf {
        self.server.data().join("workspaces").join(self.conversation())
    }

    async fn upload(&self, name: &str, content: impl Into<Vec<u8>>) -> Value {
        self.ann.upload(&self.path, name, content).await.expect(201)["files"][0].clone()
    }

    /// The path of a file from an answer.
    fn file(&self, file: &Value) -> String {
        format!("{}/files/{}", self.path, file["file_id"].as_str().unwrap())
    }

    async fn get(&self, file: &Value) -> Vec<u8> {
        let (status, _, body) = self.ann.download(&self.file(file)).await;
        assert_eq!(status, 200);
        body.unwrap()
    }

    async fn info(&self) -> Value {
        self.ann.get(&self.path).await.expect(200)
    }
}
