//! A form with files, taken as it comes: each file goes to the object store while the rest is still on its way.

use crate::{
    App,
    error::{Error, Result},
    guard::OwnFiles,
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

/// The parts of the form. `file` may be there several times.
#[derive(ToSchema)]
#[expect(dead_code, reason = "for the document only; the form is taken field by field")]
pub(super) struct UploadForm {
    #[schema(value_type = String, format = Binary)]
    file: Vec<u8>,
    /// Where it goes; the name it was sent with, unless given. One that ends with a slash, or comes with several
    /// files, is a folder. There may also be one for each file, in their order.
    path: Option<String>,
    /// What it is; one for all, or one for each.
    description: Option<String>,
}

/// The most files of one upload form.
const MAX_FILES: usize = 1000;
/// The longest text field of an upload form, in bytes.
const MAX_TEXT: usize = 8192;
/// The largest header of one part of an upload form, in bytes.
const MAX_HEAD: usize = 64 << 10;

struct Received {
    content: StoredContent,
    name: String,
}

/// Takes the whole form. What was stored of one that turns out to be wrong is removed again.
pub(super) async fn receive(
    app: &App,
    files: &OwnFiles,
    mut form: Form,
    expect: Expect,
) -> Result<Vec<NewFile>> {
    let (mut received, mut paths, mut descriptions) = (Vec::new(), Vec::new(), Vec::new());
    let taken = take(app, files, &mut form, &mut received, &mut paths, &mut descriptions).await;
    let checked = taken.and_then(|()| assign(&received, &paths, &descriptions));
    let places = match checked {
        Ok(places) => places,
        Err(error) => {
            files.workspace.discard(received.into_iter().map(|file| file.content)).await;
            return Err(error);
        }
    };
    if expect != Expect::Anything && received.len() > 1 {
        files.workspace.discard(received.into_iter().map(|file| file.content)).await;
        let why = "If-Match and If-None-Match are about one file, and there are several";
        return Err(Error::Invalid(why.into()));
    }
    let new = |(file, (path, description)): (Received, (FilePath, Option<String>))| NewFile {
        content: file.content,
        original_name: original_name(&file.name, &path),
        path,
        description,
        expect: expect.clone(),
    };
    Ok(received.into_iter().zip(places).map(new).collect())
}

async fn take(
    app: &App,
    files: &OwnFiles,
    form: &mut Form,
    received: &mut Vec<Received>,
    paths: &mut Vec<String>,
    descriptions: &mut Vec<String>,
) -> Result<()> {
    let patience = app.settings.request_timeout;
    loop {
        let field = tokio::time::timeout(patience, form.next_field()).await.map_err(|_| Error::Timeout)?;
        let Some(field) = field? else { return Ok(()) };
        match (field.name(), field.file_name().map(str::to_owned)) {
            (Some("path"), None) => paths.push(text(field, patience).await?),
            (Some("description"), None) => descriptions.push(text(field, patience).await?),
            (Some("file" | "files"), name) => {
                if received.len() == MAX_FILES {
                    return Err(Error::Invalid(format!("file: at most {MAX_FILES} in one request")));
                }
                let body = chunks(field, patience).boxed();
                let content = files.workspace.store(body, app.files.settings().max_upload).await?;
                received.push(Received { content, name: name.unwrap_or_default() });
            }
            (other, _) => {
                let name = other.unwrap_or_default().chars().take(100).collect::<String>();
                return Err(Error::Invalid(format!(
                    "{name:?}: a form has the fields file, path and description"
                )));
            }
        }
    }
}

/// A form as it comes, with bounds to what is between its files: the parser keeps all it reads until it has found
/// where a file begins.
pub(super) struct Form {
    parts: Multipart,
    between: Arc<Between>,
}

#[derive(Default)]
struct Between {
    /// Whether a part's content is being read, which may be as long as it likes.
    inside: AtomicBool,
    read: AtomicUsize,
    too_long: AtomicBool,
}

impl Form {
    pub(super) async fn of(request: Request) -> Result<Self> {
        let between = Arc::new(Between::default());
        let (head, body) = request.into_parts();
        let body = Body::from_stream(bounded(body.into_data_stream(), between.clone()));
        let parts = Multipart::from_request(Request::from_parts(head, body), &()).await;
        Ok(Self { parts: parts.map_err(|_| Error::NotForm)?, between })
    }

    async fn next_field(&mut self) -> Result<Option<Field<'_>>> {
        self.between.inside.store(false, Relaxed);
        self.between.read.store(0, Relaxed);
        let field =
            self.parts.next_field().await.map_err(|error| match self.between.too_long.load(Relaxed) {
                true => Error::Invalid(format!("file: more than {MAX_HEAD} bytes before its content begins")),
                false => broken(error),
            })?;
        self.between.inside.store(true, Relaxed);
        Ok(field)
    }
}

/// The parser takes all there is to be had, much of which may be content. So once it has enough for any header it has
/// to look at that first; if it asks again without having found one, there is none.
fn bounded(
    mut body: axum::body::BodyDataStream,
    between: Arc<Between>,
) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send + 'static {
    let mut looked = false;
    futures::stream::poll_fn(move |context| {
        let full = !between.inside.load(Relaxed) && between.read.load(Relaxed) > MAX_HEAD;
        if full && looked {
            between.too_long.store(true, Relaxed);
            return Poll::Ready(Some(Err(axum::Error::new("a part's header is too long"))));
        }
        looked = full;
        if full {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = body.poll_next_unpin(context);
        if let Poll::Ready(Some(Ok(bytes))) = &next {
            between.read.fetch_add(bytes.len(), Relaxed);
        }
        next
    })
}

async fn text(field: Field<'_>, patience: Duration) -> Result<String> {
    let name = field.name().unwrap_or_default().to_owned();
    let mut text = Vec::new();
    let mut body = std::pin::pin!(chunks(field, patience));
    while let Some(chunk) = body.next().await {
        text.extend_from_slice(&chunk?);
        if text.len() > MAX_TEXT {
            return Err(Error::Invalid(format!("{name}: must be at most {MAX_TEXT} bytes")));
        }
    }
    String::from_utf8(text).map_err(|_| Error::Invalid(format!("{name}: must be UTF-8")))
}

/// The bytes of a field, each piece within its time.
fn chunks(
    field: Field<'_>,
    patience: Duration,
) -> impl Stream<Item = atelier_files::Result<Bytes>> + Send + '_ {
    futures::stream::try_unfold(field, move |mut field| async move {
        let chunk = tokio::time::timeout(patience, field.chunk()).await;
        let chunk = chunk.map_err(|_| FilesError::Broken("it came too slowly".into()))?;
        let chunk = chunk.map_err(|error| FilesError::Broken(error.body_text()))?;
        Ok(chunk.map(|chunk| (chunk, field)))
    })
}

/// Where each file goes. Sizes were checked while they came; paths come second.
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
        return Err(Error::Invalid("path: give none, one, or one for each file".into()));
    }
    if !(descriptions.len() <= 1 || descriptions.len() == count) {
        return Err(Error::Invalid("description: give none, one, or one for each file".into()));
    }
    if descriptions.iter().any(|text| text.contains('\0')) {
        return Err(Error::Invalid("description: must not hold NUL".into()));
    }
    let described = |at: usize| {
        let text = if descriptions.len() == 1 { descriptions.first() } else { descriptions.get(at) };
        text.filter(|text| !text.is_empty()).cloned()
    };
    let place = |(at, file): (usize, &Received)| {
        let path = match paths {
            [] => FilePath::parse(&file.name)?,
            [folder] if count > 1 || folder.ends_with('/') || folder.is_empty() => {
                FilePath::in_folder(folder, last_name(&file.name))?
            }
            paths => FilePath::parse(&paths[at])?,
        };
        Ok::<_, FilePathError>((path, described(at)))
    };
    let places: Vec<_> = received.iter().enumerate().map(place).collect::<Result<_, _>>()?;
    let mut seen = std::collections::HashSet::new();
    match places.iter().find(|(path, _)| !seen.insert(path.clone())) {
        Some((path, _)) => Err(Error::Invalid(format!("{path}: is there twice"))),
        None => Ok(places),
    }
}

/// Some senders give the whole path of where a file was, in the manner of their system.
fn last_name(name: &str) -> &str {
    name.rsplit(['/', '\\']).next().unwrap_or(name)
}

/// What a file was called where it came from. Agents are told, so it is no longer than names are.
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

/// What the request expects of the file it changes.
pub(super) fn expectation(headers: &HeaderMap) -> Result<Expect> {
    let text = |name| headers.get(name).map(|value: &header::HeaderValue| value.to_str());
    match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (None, None) => Ok(Expect::Anything),
        (None, Some(Ok("*"))) => Ok(Expect::Absent),
        (Some(Ok(tags)), None) if tags.trim() == "*" => Ok(Expect::Present),
        (Some(Ok(tags)), None) => {
            let tag = |tag: &str| tag.trim().trim_start_matches("W/").trim_matches('"').to_ascii_lowercase();
            Ok(Expect::Checksum(tags.split(',').map(tag).collect()))
        }
        _ => Err(Error::Invalid("If-Match takes checksums or *, If-None-Match takes *; not both".into())),
    }
}
