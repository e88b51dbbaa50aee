//! A form with files, read while it arrives: each file goes to the object store before the next one
//! is read.

use crate::{
    App,
    access::OwnFiles,
    error::{Error, Result},
};
use atelier_core::{FilePath, file::FilePathError};
use atelier_files::{Error as FilesError, NewFile, StoredContent};
use atelier_store::Expect;
use axum::{
    body::{Body, Bytes},
    extract::{
        FromRequest, Request,
        multipart::{Field, Multipart, MultipartError},
    },
    http::{HeaderMap, StatusCode, header},
};
use futures::{Stream, StreamExt};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};
use utoipa::ToSchema;

/// The fields of the form. `file` may occur several times.
#[derive(ToSchema)]
#[expect(
    dead_code,
    reason = "describes the form in the OpenAPI document; the form is read field by field"
)]
pub(super) struct UploadForm {
    #[schema(value_type = String, format = Binary)]
    file: Vec<u8>,
    /// Where the file goes. The default is the name that it was sent with. A path that ends with a
    /// slash, or one path for several files, is a folder. There may also be one path for each file,
    /// in the same order.
    path: Option<String>,
    /// A description: one for all files, or one for each file.
    description: Option<String>,
}

/// The most files of one upload form.
const MAX_FILES: usize = 1000;
/// The longest text field of an upload form, in bytes.
const MAX_TEXT: usize = 8192;
/// The most bytes before the content of one part of an upload form: the end of the previous part,
/// and its own header.
const MAX_PART_HEAD: usize = 64 << 10;

struct Received {
    content: StoredContent,
    name: String,
}

/// Reads the whole form. If the form turns out to be wrong, the content that was already stored is
/// removed.
pub(super) async fn receive(
    app: &App,
    files: &OwnFiles,
    mut form: Form,
    expect: Expect,
) -> Result<Vec<NewFile>> {
    let (mut received, mut paths, mut descriptions) = (Vec::new(), Vec::new(), Vec::new());
    let read =
        read_fields(app, files, &mut form, &mut received, &mut paths, &mut descriptions).await;
    let checked = read.and_then(|()| assign(&received, &paths, &descriptions));
    let targets = match checked {
        Ok(targets) => targets,
        Err(error) => {
            files.workspace.discard(received.into_iter().map(|file| file.content)).await;
            return Err(error);
        }
    };
    if expect != Expect::Anything && received.len() > 1 {
        files.workspace.discard(received.into_iter().map(|file| file.content)).await;
        let why = "If-Match and If-None-Match are only allowed with a single file";
        return Err(Error::Invalid(why.into()));
    }
    let new = |(file, (path, description)): (Received, (FilePath, Option<String>))| NewFile {
        content: file.content,
        original_name: original_name(&file.name, &path),
        path,
        description,
        expect: expect.clone(),
    };
    Ok(received.into_iter().zip(targets).map(new).collect())
}

async fn read_fields(
    app: &App,
    files: &OwnFiles,
    form: &mut Form,
    received: &mut Vec<Received>,
    paths: &mut Vec<String>,
    descriptions: &mut Vec<String>,
) -> Result<()> {
    let timeout = app.settings.request_timeout;
    loop {
        let field =
            tokio::time::timeout(timeout, form.next_field()).await.map_err(|_| Error::Timeout)?;
        let Some(field) = field? else { return Ok(()) };
        match (field.name(), field.file_name().map(str::to_owned)) {
            (Some("path"), None) => paths.push(text(field, timeout).await?),
            (Some("description"), None) => descriptions.push(text(field, timeout).await?),
            (Some("file" | "files"), name) => {
                if received.len() == MAX_FILES {
                    return Err(Error::Invalid(format!(
                        "file: must occur at most {MAX_FILES} times in one request"
                    )));
                }
                let body = chunks(field, timeout).boxed();
                let content = files.workspace.store(body, app.files.settings().max_upload).await?;
                received.push(Received { content, name: name.unwrap_or_default() });
            }
            (other, _) => {
                let name = other.unwrap_or_default().chars().take(100).collect::<String>();
                return Err(Error::Invalid(format!(
                    "{name:?}: the form has only the fields file, path and description"
                )));
            }
        }
    }
}

/// A form that is still arriving. What is between its files is limited, because the parser keeps
/// all that it reads until it has found where a file begins.
pub(super) struct Form {
    parts: Multipart,
    progress: Arc<Progress>,
}

#[derive(Default)]
struct Progress {
    /// Whether the content of a part is being read. Content has no limit here.
    in_content: AtomicBool,
    /// How many bytes were read since the content of the last part.
    read: AtomicUsize,
    too_long: AtomicBool,
}

impl Form {
    pub(super) async fn read(request: Request) -> Result<Self> {
        let progress = Arc::new(Progress::default());
        let (head, body) = request.into_parts();
        let body = Body::from_stream(bounded(body.into_data_stream(), progress.clone()));
        let parts = Multipart::from_request(Request::from_parts(head, body), &()).await;
        Ok(Self { parts: parts.map_err(|_| Error::NotForm)?, progress })
    }

    async fn next_field(&mut self) -> Result<Option<Field<'_>>> {
        self.progress.in_content.store(false, Relaxed);
        self.progress.read.store(0, Relaxed);
        let field = self.parts.next_field().await.map_err(|error| {
            match self.progress.too_long.load(Relaxed) {
                true => Error::Invalid(format!(
                    "file: more than {MAX_PART_HEAD} bytes before its content begins"
                )),
                false => broken(error),
            }
        })?;
        self.progress.in_content.store(true, Relaxed);
        Ok(field)
    }
}

/// Limits what the parser reads before the content of a part. The parser reads all that is
/// available, and much of that may be content already. So once it has enough bytes for any header,
/// it must parse them first; if it then asks for more without having found the header, the header
/// is too long.
fn bounded(
    mut body: axum::body::BodyDataStream,
    progress: Arc<Progress>,
) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send + 'static {
    let mut paused = false;
    futures::stream::poll_fn(move |context| {
        let full =
            !progress.in_content.load(Relaxed) && progress.read.load(Relaxed) > MAX_PART_HEAD;
        if full && paused {
            progress.too_long.store(true, Relaxed);
            return Poll::Ready(Some(Err(axum::Error::new("a part's header is too long"))));
        }
        paused = full;
        if full {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = body.poll_next_unpin(context);
        if let Poll::Ready(Some(Ok(bytes))) = &next {
            progress.read.fetch_add(bytes.len(), Relaxed);
        }
        next
    })
}

async fn text(field: Field<'_>, timeout: Duration) -> Result<String> {
    let name = field.name().unwrap_or_default().to_owned();
    let mut text = Vec::new();
    let mut body = std::pin::pin!(chunks(field, timeout));
    while let Some(chunk) = body.next().await {
        text.extend_from_slice(&chunk?);
        if text.len() > MAX_TEXT {
            return Err(Error::Invalid(format!("{name}: must be at most {MAX_TEXT} bytes")));
        }
    }
    String::from_utf8(text).map_err(|_| Error::Invalid(format!("{name}: must be UTF-8")))
}

/// The bytes of a field. Each chunk must arrive within the timeout.
fn chunks(
    field: Field<'_>,
    timeout: Duration,
) -> impl Stream<Item = atelier_files::Result<Bytes>> + Send + '_ {
    futures::stream::try_unfold(field, move |mut field| async move {
        let chunk = tokio::time::timeout(timeout, field.chunk()).await;
        let chunk = chunk.map_err(|_| FilesError::Broken("it arrived too slowly".into()))?;
        let chunk = chunk.map_err(|error| FilesError::Broken(error.body_text()))?;
        Ok(chunk.map(|chunk| (chunk, field)))
    })
}

/// The path and description of each file. Sizes were checked while the files arrived; paths are
/// checked second.
fn assign(
    received: &[Received],
    paths: &[String],
    descriptions: &[String],
) -> Result<Vec<(FilePath, Option<String>)>> {
    if received.is_empty() {
        return Err(Error::Invalid("file: is missing".into()));
    }
    let count = received.len();
    if !(paths.len() <= 1 || paths.len() == count) {
        return Err(Error::Invalid(
            "path: must occur not at all, once, or once for each file".into(),
        ));
    }
    if !(descriptions.len() <= 1 || descriptions.len() == count) {
        return Err(Error::Invalid(
            "description: must occur not at all, once, or once for each file".into(),
        ));
    }
    if descriptions.iter().any(|text| text.contains('\0')) {
        return Err(Error::Invalid("description: must not contain NUL".into()));
    }
    let description = |at: usize| {
        let text =
            if descriptions.len() == 1 { descriptions.first() } else { descriptions.get(at) };
        text.filter(|text| !text.is_empty()).cloned()
    };
    let target = |(at, file): (usize, &Received)| {
        let path = match paths {
            [] => FilePath::parse(&file.name)?,
            [folder] if count > 1 || folder.ends_with('/') || folder.is_empty() => {
                FilePath::in_folder(folder, last_name(&file.name))?
            }
            paths => FilePath::parse(&paths[at])?,
        };
        Ok::<_, FilePathError>((path, description(at)))
    };
    let targets: Vec<_> = received.iter().enumerate().map(target).collect::<Result<_, _>>()?;
    let mut seen = std::collections::HashSet::new();
    match targets.iter().find(|(path, _)| !seen.insert(path.clone())) {
        Some((path, _)) => Err(Error::Invalid(format!("{path}: occurs twice"))),
        None => Ok(targets),
    }
}

/// Some senders give the whole path that a file had, in the syntax of their operating system.
fn last_name(name: &str) -> &str {
    name.rsplit(['/', '\\']).next().unwrap_or(name)
}

/// The name that a file had where it came from. Agents see it, so it is no longer than a file name
/// can be.
pub(super) fn original_name(sent: &str, path: &FilePath) -> String {
    let name = last_name(sent);
    let name = &name[..name.floor_char_boundary(255)];
    if name.is_empty() { path.file_name().to_owned() } else { name.to_owned() }
}

fn broken(error: MultipartError) -> Error {
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Error::Invalid(error.body_text()),
        _ => FilesError::Broken(error.body_text()).into(),
    }
}

/// What the request expects of the file that it changes.
pub(super) fn expectation(headers: &HeaderMap) -> Result<Expect> {
    let text = |name| headers.get(name).map(|value: &header::HeaderValue| value.to_str());
    match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (None, None) => Ok(Expect::Anything),
        (None, Some(Ok("*"))) => Ok(Expect::Absent),
        (Some(Ok(tags)), None) if tags.trim() == "*" => Ok(Expect::Present),
        (Some(Ok(tags)), None) => {
            let tag = |tag: &str| {
                tag.trim().trim_start_matches("W/").trim_matches('"').to_ascii_lowercase()
            };
            Ok(Expect::Checksum(tags.split(',').map(tag).collect()))
        }
        _ => Err(Error::Invalid(
            "If-Match must be checksums or *, If-None-Match must be *, and not both may be given"
                .into(),
        )),
    }
}
