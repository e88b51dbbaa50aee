//! What `atelier files` asks of the server.

use anyhow::{Context, Result, bail};
use atelier_client::{Credentials, server_address};
use atelier_core::FileVersion;
use futures::{StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use reqwest::{Body, Method, RequestBuilder, Response, multipart};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{path::Path, time::Duration};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio_util::io::ReaderStream;
use uuid::Uuid;

/// Larger files go in parts, so that a line that breaks costs one part.
const WHOLE: u64 = 64 << 20;
const PART: u64 = 32 << 20;
/// How often a part is sent before we give up.
const TRIES: u32 = 5;

#[derive(Debug, Deserialize)]
pub(super) struct RemoteFile {
    pub(super) file_id: Uuid,
    pub(super) file_path: String,
    pub(super) file_size: i64,
    pub(super) version: i64,
    pub(super) source: String,
    pub(super) is_presented: bool,
}

#[derive(Deserialize)]
struct Files {
    files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct Versions {
    versions: Vec<FileVersion>,
}

#[derive(Deserialize)]
struct Upload {
    upload_id: Uuid,
}

pub(super) struct Remote {
    http: reqwest::Client,
    token: String,
    /// `{server}/api/tenants/{tenant}/workspace/{conversation}`
    base: String,
}

impl Remote {
    pub(super) async fn connect(server: &str, token: Option<String>, conversation: Uuid) -> Result<Self> {
        let server = server_address(server)?;
        let token = match token {
            Some(token) => token,
            None => Credentials::load()?.token(server).map(str::to_owned).with_context(|| {
                format!("no token for {server}: run `atelier login --server {server}`, or give --token")
            })?,
        };
        let http = reqwest::Client::builder()
            .user_agent(concat!("atelier-files/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        let me = http.get(format!("{server}/auth/me")).bearer_auth(&token).send().await;
        let me: Value = answer(me.with_context(|| format!("{server} does not answer"))?).await?;
        let tenant = me["tenant"].as_str().context("the server does not say whose the token is")?;
        let base = format!("{server}/api/tenants/{tenant}/workspace/{conversation}");
        Ok(Self { http, token, base })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.token)
    }

    async fn ask<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        answer(request.send().await?).await
    }

    pub(super) async fn list(&self) -> Result<Vec<RemoteFile>> {
        Ok(self.ask::<Files>(self.request(Method::GET, "")).await?.files)
    }

    /// A file by its path or its id.
    pub(super) async fn find(&self, wanted: &str) -> Result<RemoteFile> {
        let id: Option<Uuid> = wanted.parse().ok();
        let is_it = |file: &RemoteFile| file.file_path == wanted || Some(file.file_id) == id;
        let found = self.list().await?.into_iter().find(is_it);
        found.with_context(|| format!("there is no file {wanted} in this conversation"))
    }

    pub(super) async fn put(
        &self,
        file: &Path,
        size: u64,
        path: &str,
        bar: &ProgressBar,
    ) -> Result<RemoteFile> {
        if size > WHOLE {
            return self.put_in_parts(file, size, path, bar).await;
        }
        let content = tokio::fs::File::open(file).await.with_context(|| file.display().to_string())?;
        let shown = bar.clone();
        let body = ReaderStream::with_capacity(content, 256 << 10)
            .inspect_ok(move |chunk| shown.inc(chunk.len() as u64));
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or(path).to_owned();
        let part = multipart::Part::stream_with_length(Body::wrap_stream(body), size).file_name(name);
        let form = multipart::Form::new().text("path", path.to_owned()).part("file", part);
        let saved: Files = self.ask(self.request(Method::POST, "/files").multipart(form)).await?;
        saved.files.into_iter().next().context("the server saved nothing")
    }

    async fn put_in_parts(
        &self,
        file: &Path,
        size: u64,
        path: &str,
        bar: &ProgressBar,
    ) -> Result<RemoteFile> {
        let mut content = tokio::fs::File::open(file).await.with_context(|| file.display().to_string())?;
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or(path);
        let new = json!({"path": path, "size": size, "original_name": name});
        let upload: Upload = self.ask(self.request(Method::POST, "/uploads").json(&new)).await?;
        let place = format!("/uploads/{}", upload.upload_id);
        let sent = self.put_all_parts(&mut content, size, &place, bar).await;
        if sent.is_err() {
            // Nobody goes on with it: its parts need not wait until they expire.
            drop(self.request(Method::DELETE, &place).send().await);
        }
        sent
    }

    async fn put_all_parts(
        &self,
        content: &mut tokio::fs::File,
        size: u64,
        place: &str,
        bar: &ProgressBar,
    ) -> Result<RemoteFile> {
        for (number, start) in (1..).zip((0..size).step_by(PART as usize)) {
            let mut part = vec![0; PART.min(size - start) as usize];
            content.seek(std::io::SeekFrom::Start(start)).await?;
            content.read_exact(&mut part).await.context("the file changed while it was read")?;
            let part = bytes::Bytes::from(part);
            self.put_part(&format!("{place}/parts/{number}"), part.clone()).await?;
            bar.inc(part.len() as u64);
        }
        self.ask(self.request(Method::POST, &format!("{place}/complete"))).await
    }

    /// Sends a part until the server has it as it is here.
    async fn put_part(&self, path: &str, part: bytes::Bytes) -> Result<()> {
        let checksum: String = Sha256::digest(&part).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut wait = Duration::from_millis(500);
        for tried in 1.. {
            let sent = match self.request(Method::PUT, path).body(part.clone()).send().await {
                // It would be refused again.
                Ok(response) if response.status().is_client_error() => {
                    return checked(response).await.map(drop);
                }
                Ok(response) => answer::<Value>(response).await,
                Err(error) => Err(error.into()),
            };
            match sent {
                Ok(taken) if taken["checksum"] == checksum => return Ok(()),
                Ok(_) if tried == TRIES => bail!("the part arrives damaged"),
                Err(error) if tried == TRIES => return Err(error),
                _ => tokio::time::sleep(wait).await,
            }
            wait *= 2;
        }
        Ok(())
    }

    /// Checked on the way; what is there under the name is replaced only by the whole.
    pub(super) async fn get(
        &self,
        file: &RemoteFile,
        version: Option<i64>,
        output: &Path,
        bar: &ProgressBar,
    ) -> Result<()> {
        let version = version.map_or_else(String::new, |version| format!("/versions/{version}"));
        let path = format!("/files/{}{version}?verify=true", file.file_id);
        let response = checked(self.request(Method::GET, &path).send().await?).await?;
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
                let chunk = chunk.context("the download broke off, or the content is damaged")?;
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

    pub(super) async fn delete(&self, file: &RemoteFile) -> Result<()> {
        let request = self.request(Method::DELETE, &format!("/files/{}", file.file_id));
        checked(request.send().await?).await.map(drop)
    }

    pub(super) async fn versions(&self, file: &RemoteFile) -> Result<Vec<FileVersion>> {
        let request = self.request(Method::GET, &format!("/files/{}/versions", file.file_id));
        Ok(self.ask::<Versions>(request).await?.versions)
    }

    pub(super) async fn restore(&self, file: &RemoteFile, version: i64) -> Result<RemoteFile> {
        let request = self.request(Method::POST, &format!("/files/{}/restore", file.file_id));
        self.ask(request.json(&json!({"version": version}))).await
    }

    pub(super) async fn sync(&self, wait: u8) -> Result<Value> {
        self.ask(self.request(Method::POST, "/sync").json(&json!({"wait_seconds": wait}))).await
    }
}

/// The server's words where it refuses.
async fn checked(response: Response) -> Result<Response> {
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    let problem: Value = response.json().await.unwrap_or_default();
    match problem["detail"].as_str() {
        Some(detail) => bail!("{detail}"),
        None => bail!("the server says {status}"),
    }
}

async fn answer<T: DeserializeOwned>(response: Response) -> Result<T> {
    Ok(checked(response).await?.json().await?)
}
