//! `atelier backup` and `atelier restore`: everything that a server keeps, in one place.
//!
//! A backup holds a snapshot of the database, the objects that its rows refer to, the keys, and a
//! list of all of them with checksums. The list is written last, so a backup without one did not
//! finish. The index of memories is not in it: it is made from the database.

use crate::config::{Config, Flags};
use anyhow::{Context, Result, bail, ensure};
use atelier_files::{ObjectContent, Objects};
use atelier_store::{SNAPSHOT_FILE, Store, TableContent};
use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

const MANIFEST: &str = "manifest.json";
/// The form of backups that this version writes and reads.
const FORMAT: u32 = 1;
/// The files with keys: tokens are signed with one, and the keys of models are encrypted with the
/// other.
const KEYS: [&str; 2] = ["secret.key", "models.key"];
/// How many objects are copied at the same time.
const AT_A_TIME: usize = 16;

#[derive(clap::Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    flags: Flags,
    /// Where to write the backup: a new folder, a new file that ends in .tar, or the URL of a
    /// bucket (s3://…, gs://…, az://…)
    #[arg(value_name = "TO")]
    to: String,
}

#[derive(clap::Args)]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    flags: Flags,
    /// The backup: a folder, a .tar file, or the URL of a bucket
    #[arg(value_name = "FROM")]
    from: String,
    /// Only check that the backup is complete and undamaged
    #[arg(long)]
    check: bool,
}

/// What a backup holds.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    /// The version of Atelier that wrote the backup.
    version: String,
    created_at: DateTime<Utc>,
    /// The database that was backed up: `sqlite` or `postgres`.
    database: String,
    tables: Vec<TableContent>,
    /// Every file of the backup except the manifest.
    files: Vec<BackedUp>,
    /// Objects that were deleted, with their rows, while the backup was made.
    deleted_meanwhile: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct BackedUp {
    name: String,
    size: u64,
    sha256: String,
}

impl BackedUp {
    fn new(name: String, content: ObjectContent) -> Self {
        Self { name, size: content.size, sha256: content.checksum }
    }
}

pub(crate) fn backup(args: &BackupArgs) -> Result<ExitCode> {
    let config = Config::load(args.flags.config.as_deref(), &args.flags)?;
    keep_private();
    tokio::runtime::Runtime::new()?.block_on(write(&config, &args.to))
}

pub(crate) fn restore(args: &RestoreArgs) -> Result<ExitCode> {
    let config = Config::load(args.flags.config.as_deref(), &args.flags)?;
    keep_private();
    tokio::runtime::Runtime::new()?.block_on(read(&config, &args.from, args.check))
}

/// Makes new files readable for this user only, because a backup holds keys.
fn keep_private() {
    #[cfg(unix)]
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

/// A backup that is being written or read.
struct BackupLocation {
    objects: Objects,
    /// The folder into which a .tar file was unpacked, or from which one is packed.
    unpacked: Option<tempfile::TempDir>,
}

fn is_archive(place: &str) -> bool {
    Path::new(place).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("tar"))
        && !place.contains("://")
}

impl BackupLocation {
    fn at(url_or_folder: &str) -> Result<Self> {
        let objects = if url_or_folder.contains("://") {
            Objects::at(url_or_folder)
        } else {
            Objects::at(&folder_url(Path::new(url_or_folder))?)
        };
        Ok(Self { objects: objects.context("cannot use the backup's location")?, unpacked: None })
    }

    fn temporary() -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
        let objects = Objects::at(&folder_url(folder.path())?)?;
        Ok(Self { objects, unpacked: Some(folder) })
    }
}

fn folder_url(folder: &Path) -> Result<String> {
    let folder = std::path::absolute(folder)?;
    match url::Url::from_directory_path(&folder) {
        Ok(url) => Ok(url.into()),
        Err(()) => bail!("{} is not a folder that can be used", folder.display()),
    }
}

async fn write(config: &Config, to: &str) -> Result<ExitCode> {
    let place = if is_archive(to) {
        ensure!(!Path::new(to).exists(), "{to} already exists; choose another name");
        BackupLocation::temporary()?
    } else {
        let place = BackupLocation::at(to)?;
        ensure!(!place.objects.has_any("").await?, "{to} is not empty; choose an empty place");
        place
    };
    let manifest = write_all(config, &place.objects).await?;
    if let Some(folder) = &place.unpacked {
        pack(folder.path(), Path::new(to))?;
        check(&unpack(Path::new(to))?.objects).await?;
    } else {
        check(&place.objects).await?;
    }
    let rows: u64 = manifest.tables.iter().map(|table| table.rows).sum();
    let bytes: u64 = manifest.files.iter().map(|file| file.size).sum();
    report(&format!(
        "The backup is in {}: {rows} rows, {} files, {bytes} bytes. It was read back and is \
         undamaged.\nIt holds the keys of the server: keep it where only you can read it.\n",
        atelier_store::masked_place(to),
        manifest.files.len()
    ));
    Ok(ExitCode::SUCCESS)
}

async fn write_all(config: &Config, target: &Objects) -> Result<Manifest> {
    let staging = tempfile::tempdir().context("cannot create a temporary folder")?;
    let bar = progress_bar("database");
    let tables = Store::write_snapshot(&config.store(), staging.path(), &|table, rows| {
        bar.set_message(format!("database: {table}"));
        bar.set_position(rows);
    })
    .await
    .context("cannot copy the database")?;
    let snapshot = staging.path().join(SNAPSHOT_FILE);
    let mut files =
        vec![BackedUp::new(SNAPSHOT_FILE.into(), target.upload(&snapshot, SNAPSHOT_FILE).await?)];
    for name in KEYS {
        let path = config.keys().join(name);
        if path.exists() {
            let name = format!("keys/{name}");
            let content = target.upload(&path, &name).await;
            let content = content.with_context(|| format!("cannot copy {}", path.display()))?;
            files.push(BackedUp::new(name, content));
        }
    }
    let (objects, deleted_meanwhile) = copy_objects(config, staging.path(), target, &bar).await?;
    files.extend(objects);
    bar.finish_and_clear();
    let database = if config.database_url.is_some() { "postgres" } else { "sqlite" };
    let manifest = Manifest {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").into(),
        created_at: Utc::now(),
        database: database.into(),
        tables,
        files,
        deleted_meanwhile,
    };
    target.write(MANIFEST, serde_json::to_vec_pretty(&manifest)?.into()).await?;
    Ok(manifest)
}

/// Copies the objects that the snapshot's rows refer to. Returns them, and those that were deleted
/// since the snapshot.
async fn copy_objects(
    config: &Config,
    snapshot: &Path,
    target: &Objects,
    bar: &ProgressBar,
) -> Result<(Vec<BackedUp>, Vec<String>)> {
    let source = server_objects(config)?;
    let objects = Store::objects_of_snapshot(snapshot).await?;
    bar.set_message("files of conversations");
    bar.set_length(objects.len() as u64);
    bar.set_position(0);
    let copies = stream::iter(objects).map(|object| {
        let source = &source;
        async move {
            let name = format!("objects/{}", object.key);
            let copied = source.copy(&object.key, target, &name).await?;
            if let Some(content) = &copied
                && content.checksum != object.checksum
            {
                eprintln!(
                    "atelier: {} is damaged in the object store; the backup has it as it is",
                    object.key
                );
            }
            bar.inc(1);
            Ok::<_, anyhow::Error>((object.key, copied.map(|it| BackedUp::new(name, it))))
        }
    });
    let copies: Vec<(String, Option<BackedUp>)> =
        copies.buffer_unordered(AT_A_TIME).try_collect().await?;
    let (mut found, mut gone) = (Vec::new(), Vec::new());
    for (key, copy) in copies {
        match copy {
            Some(copy) => found.push(copy),
            None => gone.push(key),
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    if !gone.is_empty() {
        let count = gone.len();
        eprintln!(
            "atelier: {count} objects were not there: their files were deleted meanwhile, or the \
             object store has lost them"
        );
    }
    Ok((found, gone))
}

/// The object store that the server uses.
pub(crate) fn server_objects(config: &Config) -> Result<Objects> {
    Objects::open(config.object_store.as_deref(), &config.data, &config.files)
        .context("cannot use the object store for conversations' files")
}

async fn manifest_of(source: &Objects) -> Result<Manifest> {
    let Some(manifest) = source.read(MANIFEST).await? else {
        bail!("there is no backup, or it was not finished: it has no {MANIFEST}");
    };
    let manifest: Manifest = serde_json::from_slice(&manifest)
        .with_context(|| format!("the backup's {MANIFEST} cannot be read"))?;
    ensure!(
        manifest.format == FORMAT,
        "the backup has format {}, this version of Atelier reads format {FORMAT}: use version {}",
        manifest.format,
        manifest.version
    );
    Ok(manifest)
}

/// Reads the whole backup and compares it with its manifest.
async fn check(source: &Objects) -> Result<Manifest> {
    let manifest = manifest_of(source).await?;
    let bar = progress_bar("checking");
    bar.set_length(manifest.files.len() as u64);
    let checks = stream::iter(&manifest.files).map(|file| {
        let bar = &bar;
        async move {
            let content = source.content(&file.name).await?;
            let Some(content) = content else { bail!("{} is missing in the backup", file.name) };
            let found = BackedUp::new(file.name.clone(), content);
            ensure!(found == *file, "{} is damaged in the backup", file.name);
            bar.inc(1);
            Ok(())
        }
    });
    checks.buffer_unordered(AT_A_TIME).try_collect::<()>().await?;
    bar.finish_and_clear();
    Ok(manifest)
}

async fn read(config: &Config, from: &str, only_check: bool) -> Result<ExitCode> {
    let place = if is_archive(from) { unpack(Path::new(from))? } else { BackupLocation::at(from)? };
    let manifest = check(&place.objects).await?;
    let staging = tempfile::tempdir().context("cannot create a temporary folder")?;
    place.objects.download(SNAPSHOT_FILE, &staging.path().join(SNAPSHOT_FILE)).await?;
    let tables = Store::read_snapshot(staging.path()).await?;
    ensure!(tables == manifest.tables, "the database in the backup is damaged");
    if only_check {
        report(&format!(
            "The backup of {} is complete and undamaged.\n",
            manifest.created_at.format("%Y-%m-%d %H:%M UTC")
        ));
        return Ok(ExitCode::SUCCESS);
    }
    crate::serve::create_private(&config.data)?;
    let _lock = refuse_if_in_use(config).await?;
    restore_keys(config, &place.objects, &manifest).await?;
    restore_objects(config, &place.objects, &manifest).await?;
    // The database comes last: without it, no server takes the rest for complete.
    let bar = progress_bar("database");
    Store::load_snapshot(staging.path(), &config.store(), &|table, rows| {
        bar.set_message(format!("database: {table}"));
        bar.set_position(rows);
    })
    .await
    .context("cannot restore the database")?;
    bar.finish_and_clear();
    let rows: u64 = manifest.tables.iter().map(|table| table.rows).sum();
    report(&format!(
        "Restored the backup of {}: {rows} rows and {} files.\nStart the server with `atelier \
         serve`. It builds the index of memories again in the background.\n",
        manifest.created_at.format("%Y-%m-%d %H:%M UTC"),
        manifest.files.len()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Refuses to go on while a server uses the database. Returns the lock on the data folder.
pub(crate) async fn refuse_if_in_use(config: &Config) -> Result<Option<std::fs::File>> {
    if config.database_url.is_none() {
        return crate::serve::lock(&config.data).map(Some);
    }
    if matches!(Store::examine(&config.store()).await?, atelier_store::Schema::Missing) {
        return Ok(None);
    }
    let nodes = Store::nodes_using(&config.store()).await?;
    ensure!(nodes == 0, "{nodes} servers use this database: stop them first");
    Ok(None)
}

async fn restore_keys(config: &Config, source: &Objects, manifest: &Manifest) -> Result<()> {
    crate::serve::create_private(config.keys())?;
    for file in &manifest.files {
        let Some(name) = file.name.strip_prefix("keys/").filter(|name| KEYS.contains(name)) else {
            continue;
        };
        let (path, content) = (config.keys().join(name), source.read(&file.name).await?);
        let content = content.with_context(|| format!("{name} is missing in the backup"))?;
        match std::fs::read(&path) {
            Ok(there) if there == content => {}
            Ok(_) => bail!(
                "{} is another key: move it away, or restore into another data folder",
                path.display()
            ),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                std::fs::write(&path, &content)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        }
    }
    Ok(())
}

async fn restore_objects(config: &Config, source: &Objects, manifest: &Manifest) -> Result<()> {
    let target = server_objects(config)?;
    let bar = progress_bar("files of conversations");
    bar.set_length(manifest.files.len() as u64);
    let copies = stream::iter(&manifest.files).map(|file| {
        let (target, bar) = (&target, &bar);
        async move {
            bar.inc(1);
            let Some(key) = file.name.strip_prefix("objects/") else { return Ok(()) };
            copy_once(source, &file.name, target, key, file.size).await
        }
    });
    copies.buffer_unordered(AT_A_TIME).try_collect::<()>().await?;
    bar.finish_and_clear();
    Ok(())
}

/// Copies an object unless the target has it. Keys are never used twice, so an object of the same
/// size is the same object, and a copy that was interrupted can be started again.
pub(crate) async fn copy_once(
    source: &Objects,
    from: &str,
    target: &Objects,
    to: &str,
    size: u64,
) -> Result<()> {
    if target.size(to).await? == Some(size) {
        return Ok(());
    }
    let copied = source.copy(from, target, to).await?;
    ensure!(copied.is_some(), "{from} is missing");
    Ok(())
}

fn pack(folder: &Path, to: &Path) -> Result<()> {
    let partial = PathBuf::from(format!("{}.partial", to.display()));
    let file = std::fs::File::create(&partial)
        .with_context(|| format!("cannot write {}", partial.display()))?;
    let mut archive = tar::Builder::new(file);
    archive.mode(tar::HeaderMode::Deterministic);
    archive.append_dir_all(".", folder)?;
    archive.into_inner()?.sync_all()?;
    std::fs::rename(&partial, to).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(())
}

fn unpack(from: &Path) -> Result<BackupLocation> {
    let file =
        std::fs::File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
    let place = BackupLocation::temporary()?;
    if let Some(folder) = &place.unpacked {
        let mut archive = tar::Archive::new(file);
        // Paths that lead out of the folder are left out by `unpack`.
        archive
            .unpack(folder.path())
            .with_context(|| format!("{} is not an archive, or it is damaged", from.display()))?;
    }
    Ok(place)
}

pub(crate) fn progress_bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{msg} {pos}/{len} {wide_bar}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}

pub(crate) fn report(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(%error, "cannot print to standard output");
    }
}
