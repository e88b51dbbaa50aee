//! The real Qdrant that `make services` starts, and one for a single test that can be killed.

use crate::{PATIENCE, free_port, service};
use std::{
    net::Ipv4Addr,
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// The address of the shared Qdrant.
pub fn qdrant_url() -> String {
    service("ATELIER_TEST_QDRANT_URL", "Qdrant")
}

/// A Qdrant for one test, on free ports. Dropping it kills it and deletes its data.
pub struct Qdrant {
    data: TempDir,
    process: Child,
    http: u16,
    grpc: u16,
}

impl Qdrant {
    pub async fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let (http, grpc) = (free_port(), free_port());
        let process = launch(&data, http, grpc);
        let qdrant = Self { data, process, http, grpc };
        qdrant.ready().await;
        qdrant
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc)
    }

    /// Creates an empty collection as versions made it that had one collection for each agent.
    pub async fn create_collection(&self, name: &str, dimension: usize) {
        let made = crate::http()
            .put(format!("http://127.0.0.1:{}/collections/{name}", self.http))
            .json(&serde_json::json!({
                "vectors": {"size": dimension, "distance": "Cosine", "on_disk": true},
                "sparse_vectors": {"text": {"modifier": "idf"}},
            }))
            .send()
            .await
            .unwrap();
        assert_eq!(made.status(), 200);
    }

    /// Kills the process with `kill -9`.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts a killed Qdrant again with the same data and ports.
    pub async fn restart(&mut self) {
        self.process = launch(&self.data, self.http, self.grpc);
        self.ready().await;
    }

    async fn ready(&self) {
        let answers = async {
            loop {
                let grpc = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.grpc)).await;
                let http = crate::http()
                    .get(format!("http://127.0.0.1:{}/readyz", self.http))
                    .send()
                    .await;
                if grpc.is_ok() && http.is_ok_and(|answer| answer.status() == 200) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, answers).await.expect("Qdrant starts");
    }
}

impl Drop for Qdrant {
    fn drop(&mut self) {
        // The test may have killed it already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn launch(data: &TempDir, http: u16, grpc: u16) -> Child {
    let binary = service("ATELIER_TEST_QDRANT_BINARY", "Qdrant");
    Command::new(&binary)
        .arg("--disable-telemetry")
        .current_dir(data.path())
        .env("QDRANT__SERVICE__HOST", "127.0.0.1")
        .env("QDRANT__SERVICE__HTTP_PORT", http.to_string())
        .env("QDRANT__SERVICE__GRPC_PORT", grpc.to_string())
        .env("QDRANT__STORAGE__STORAGE_PATH", data.path().join("storage"))
        .env("QDRANT__STORAGE__SNAPSHOTS_PATH", data.path().join("snapshots"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{binary}: {error}"))
}
