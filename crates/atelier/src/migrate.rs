//! `atelier migrate`: moves everything from one database to another, of either kind.

use crate::{
    backup::{copy_once, progress_bar, refuse_if_in_use, report, server_objects},
    config::{Config, Flags},
};
use anyhow::{Context, Result, bail};
use atelier_files::Objects;
use atelier_store::Store;
use futures::{StreamExt, TryStreamExt, stream};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,
    /// The database to move: sqlite:///DATA-FOLDER or postgres://… [default: the configured one]
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// The empty database to move to: postgres://… or sqlite:///DATA-FOLDER
    #[arg(long, value_name = "URL")]
    to: String,
    /// Also copy the files of conversations to this object store: file:///…, s3://…, gs://…, az://…
    #[arg(long, value_name = "URL")]
    objects_to: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(args.flags.config.as_deref(), &args.flags)?;
    tokio::runtime::Runtime::new()?.block_on(migrate(config, args))
}

/// The configuration with another database.
fn with_database(config: &Config, url: &str) -> Result<Config> {
    let mut config = config.clone();
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        config.database_url = Some(url.to_owned());
    } else if let Some(path) = url.strip_prefix("sqlite://") {
        let path = Path::new(path);
        let is_file = path.extension().is_some_and(|ending| ending == "db");
        let folder = if is_file { path.parent().map(Path::to_owned) } else { Some(path.into()) };
        config.data = folder.unwrap_or_else(|| PathBuf::from("."));
        config.database_url = None;
    } else {
        bail!("{} is not a database: use postgres://… or sqlite:///FOLDER", masked(url));
    }
    Ok(config)
}

fn masked(url: &str) -> String {
    atelier_store::masked_place(url)
}

async fn migrate(config: Config, args: &Args) -> Result<ExitCode> {
    let source = match &args.from {
        Some(url) => with_database(&config, url)?,
        None => config.clone(),
    };
    let target = with_database(&config, &args.to)?;
    // Whatever a server wrote after the snapshot would be lost.
    let _source_lock = refuse_if_in_use(&source).await?;
    crate::serve::create_private(&target.data)?;
    let staging = tempfile::tempdir().context("cannot create a temporary folder")?;
    let bar = progress_bar("reading the database");
    let progress = |table: &str, rows: u64| {
        bar.set_message(format!("database: {table}"));
        bar.set_position(rows);
    };
    let tables = Store::write_snapshot(&source.store(), staging.path(), &progress)
        .await
        .context("cannot read the database")?;
    bar.finish_and_clear();
    let objects = match &args.objects_to {
        Some(url) => copy_objects(&source, staging.path(), url).await?,
        None => 0,
    };
    let _target_lock = refuse_if_in_use(&target).await?;
    let bar = progress_bar("writing the database");
    let progress = |table: &str, rows: u64| {
        bar.set_message(format!("database: {table}"));
        bar.set_position(rows);
    };
    Store::load_snapshot(staging.path(), &target.store(), &progress)
        .await
        .context("cannot write the database")?;
    bar.finish_and_clear();
    let rows: u64 = tables.iter().map(|table| table.rows).sum();
    let mut text = format!(
        "Moved {rows} rows in {} tables to {}. Every row was read back and compared.\n",
        tables.len(),
        masked(&args.to)
    );
    let variable =
        if target.database_url.is_some() { "ATELIER_DATABASE_URL" } else { "ATELIER_DATA" };
    text += &format!("Start the server with {variable} set to the new database");
    match &args.objects_to {
        Some(url) => {
            text += &format!(
                ", and ATELIER_OBJECT_STORE set to {}. {objects} objects were copied.\n",
                masked(url)
            );
        }
        None => text += ". Files of conversations stay in the object store that they are in.\n",
    }
    text += "The index of memories is built again in the background. The old database is as it \
             was.\n";
    report(&text);
    Ok(ExitCode::SUCCESS)
}

/// Copies the objects that the snapshot's rows refer to. Those that are there already are not
/// copied again, so that an interrupted migration goes on where it was.
async fn copy_objects(config: &Config, snapshot: &Path, to: &str) -> Result<usize> {
    let (source, target) = (server_objects(config)?, Objects::at(to)?);
    let objects = Store::objects_of_snapshot(snapshot).await?;
    let count = objects.len();
    let bar = progress_bar("files of conversations");
    bar.set_length(count as u64);
    let copies = stream::iter(objects).map(|object| {
        let (source, target, bar) = (&source, &target, &bar);
        async move {
            let size = u64::try_from(object.size)?;
            copy_once(source, &object.key, target, &object.key, size).await?;
            bar.inc(1);
            Ok::<(), anyhow::Error>(())
        }
    });
    copies.buffer_unordered(16).try_collect::<()>().await?;
    bar.finish_and_clear();
    Ok(count)
}
