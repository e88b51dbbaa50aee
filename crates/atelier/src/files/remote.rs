//! The requests of `atelier files`.

use anyhow::{Context, Result, bail};
use atelier_api::files::{
    BegunRun, RestoreRequest, RunLease, RunRequest, SyncRequest, Upload, UploadPart, UploadRequest,
    UploadedFiles, VersionList, WorkspaceInfo,
};
use atelier_client::{ApiClient, Error};
use atelier_core::{ConversationFile, FileId, FileVersion, RunId};
use futures::{StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use reqwest::{Body, Method, RequestBuilder, multipart};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{path::Path, time::Duration};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio_util::io::ReaderStream;
use uuid::Uuid;

/// Larger files are sent in parts, so that a lost connection costs only one part.
const MAX_WHOLE: u64 = 64 << 20;
const PART: u64 = 32 << 20;
/// How often a part is sent before the upload fails.
const TRIES: u32 = 5;

pub(super) struct Remote {
    api: ApiClient,
    /// `/api/tenants/{tenant}/workspace/{conversation}`
    base: String,
}

impl Remote {
    pub(super) async fn connect(
        server: Option<&str>,
        token: Option<String>,
        conversation: Uuid,
    ) -> Result<Self> {
        let api = ApiClient::signed_in("files", server, token)?;
        let tenant = api.me().await?.tenant;
        Ok(Self { api, base: format!("/api/tenants/{tenant}/workspace/{conversation}") })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.api.request(method, &format!("{}{path}", self.base))
    }

    pub(super) async fn list(&self) -> Result<Vec<ConversationFile>> {
        Ok(self.api.json::<WorkspaceInfo>(self.request(Method::GET, "")).await?.files)
    }

    /// A file by its path or its id.
    pub(super) async fn find(&self, wanted: &str) -> Result<ConversationFile> {
        let id: Option<FileId> = wanted.parse().ok();
        let is_it =
            |file: &ConversationFile| file.file_path.as_str() == wanted || Some(file.file_id) == id;
        let found = self.list().await?.into_iter().find(is_it);
        found.with_context(|| format!("this conversation has no file {wanted}"))
    }

    pub(super) async fn put(
        &self,
        file: &Path,
        size: u64,
        path: &str,
        bar: &ProgressBar,
    ) -> Result<ConversationFile> {
        if size > MAX_WHOLE {
            return self.put_in_parts(file, size, path, bar).await;
        }
        let content =
            tokio::fs::File::open(file).await.with_context(|| file.display().to_string())?;
        let shown = bar.clone();
        let body = ReaderStream::with_capacity(content, 256 << 10)
            .inspect_ok(move |chunk| shown.inc(chunk.len() as u64));
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or(path).to_owned();
        let part =
            multipart::Part::stream_with_length(Body::wrap_stream(body), size).file_name(name);
        let form = multipart::Form::new().text("path", path.to_owned()).part("file", part);
        let saved: UploadedFiles =
            self.api.json(self.request(Method::POST, "/files").multipart(form)).await?;
        saved.files.into_iter().next().context("the server saved no file")
    }

    async fn put_in_parts(
        &self,
        file: &Path,
        size: u64,
        path: &str,
        bar: &ProgressBar,
    ) -> Result<ConversationFile> {
        let mut content =
            tokio::fs::File::open(file).await.with_context(|| file.display().to_string())?;
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or(path);
        let new = UploadRequest {
            path: path.to_owned(),
            original_name: Some(name.to_owned()),
            description: None,
            size,
        };
        let upload: Upload =
            self.api.json(self.request(Method::POST, "/uploads").json(&new)).await?;
        let upload_path = format!("/uploads/{}", upload.upload_id);
        let sent = self.put_all_parts(&mut content, size, &upload_path, bar).await;
        if sent.is_err() {
            // Nobody continues this upload, so its parts are removed before they expire.
            drop(self.api.send(self.request(Method::DELETE, &upload_path)).await);
        }
        sent
    }

    async fn put_all_parts(
        &self,
        content: &mut tokio::fs::File,
        size: u64,
        upload_path: &str,
        bar: &ProgressBar,
    ) -> Result<ConversationFile> {
        for (number, start) in (1..).zip((0..size).step_by(PART as usize)) {
            let mut part = vec![0; PART.min(size - start) as usize];
            content.seek(std::io::SeekFrom::Start(start)).await?;
            content.read_exact(&mut part).await.context("the file changed while it was read")?;
            let part = bytes::Bytes::from(part);
            self.put_part(&format!("{upload_path}/parts/{number}"), part.clone()).await?;
            bar.inc(part.len() as u64);
        }
        Ok(self.api.json(self.request(Method::POST, &format!("{upload_path}/complete"))).await?)
    }

    /// Sends a part until the server has it with the right checksum.
    async fn put_part(&self, path: &str, part: bytes::Bytes) -> Result<()> {
        let checksum: String =
            Sha256::digest(&part).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut wait = Duration::from_millis(500);
        for tried in 1.. {
            let request = self.request(Method::PUT, path).body(part.clone());
            match self.api.json::<UploadPart>(request).await {
                Ok(stored) if stored.checksum == checksum => return Ok(()),
                Ok(_) if tried == TRIES => {
                    bail!("a part of the file arrived damaged {TRIES} times")
                }
                Err(error) if tried == TRIES || !is_worth_retrying(&error) => {
                    return Err(error.into());
                }
                _ => tokio::time::sleep(wait).await,
            }
            wait *= 2;
        }
        Ok(())
    }

    /// Downloads a file and checks its content. An existing file is replaced only by the complete
    /// download.
    pub(super) async fn get(
        &self,
        file: &ConversationFile,
        version: Option<i64>,
        output: &Path,
        bar: &ProgressBar,
    ) -> Result<()> {
        let version = version.map_or_else(String::new, |version| format!("/versions/{version}"));
        let path = format!("/files/{}{version}?verify=true", file.file_id);
        let response = self.api.send(self.request(Method::GET, &path)).await?;
        bar.set_length(response.content_length().unwrap_or_default());
        let mut body = response.bytes_stream();
        if output == Path::new("-") {
            let mut out = tokio::io::stdout();
            while let Some(chunk) = body.next().await {
                out.write_all(&chunk?).await?;
            }
            return Ok(out.flush().await?);
        }
        let draft = output.with_file_name(format!(".{}.part", Uuid::now_v7().simple()));
        let written = async {
            let mut out = tokio::fs::File::create_new(&draft).await?;
            while let Some(chunk) = body.next().await {
                let chunk =
                    chunk.context("the download was interrupted, or the content is damaged")?;
                out.write_all(&chunk).await?;
                bar.inc(chunk.len() as u64);
            }
            out.sync_all().await?;
            anyhow::Ok(tokio::fs::rename(&draft, output).await?)
        };
        let written = written.await;
        if written.is_err() {
            drop(tokio::fs::remove_file(&draft).await);
        }
        written.with_context(|| output.display().to_string())
    }

    pub(super) async fn delete(&self, file: &ConversationFile) -> Result<()> {
        let request = self.request(Method::DELETE, &format!("/files/{}", file.file_id));
        self.api.send(request).await?;
        Ok(())
    }

    pub(super) async fn versions(&self, file: &ConversationFile) -> Result<Vec<FileVersion>> {
        let request = self.request(Method::GET, &format!("/files/{}/versions", file.file_id));
        Ok(self.api.json::<VersionList>(request).await?.versions)
    }

    pub(super) async fn restore(
        &self,
        file: &ConversationFile,
        version: i64,
    ) -> Result<ConversationFile> {
        let request = self.request(Method::POST, &format!("/files/{}/restore", file.file_id));
        Ok(self.api.json(request.json(&RestoreRequest { version })).await?)
    }

    pub(super) async fn begin_run(&self, wait: u8, lease: u32) -> Result<BegunRun> {
        let request = RunRequest { wait_seconds: wait, lease_seconds: lease };
        Ok(self.api.json(self.request(Method::POST, "/runs").json(&request)).await?)
    }

    pub(super) async fn renew_run(&self, run: RunId, lease: u32) -> Result<()> {
        let path = format!("/runs/{run}/renew");
        let request = self.request(Method::POST, &path).json(&RunLease { lease_seconds: lease });
        self.api.send(request).await?;
        Ok(())
    }

    pub(super) async fn end_run(&self, run: RunId) -> Result<Value> {
        Ok(self.api.json(self.request(Method::POST, &format!("/runs/{run}/end"))).await?)
    }

    pub(super) async fn sync(&self, wait: u8) -> Result<Value> {
        let request = self.request(Method::POST, "/sync").json(&SyncRequest { wait_seconds: wait });
        Ok(self.api.json(request).await?)
    }
}

/// Whether the same part may be accepted later. The server would refuse it again for any other
/// reason.
fn is_worth_retrying(error: &Error) -> bool {
    match error.status() {
        Some(status) => status >= 500,
        None => error.is_temporary(),
    }
}
