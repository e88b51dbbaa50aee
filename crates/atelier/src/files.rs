//! `atelier files`: a conversation's files from the command line.

mod remote;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use remote::{Remote, RemoteFile};
use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Lists, uploads and downloads the files of a conversation, and goes back to earlier versions.
///
/// The token is the one that `atelier login` stored for the server, unless given.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server's address
    #[arg(long, global = true, default_value = "http://127.0.0.1:7420", value_name = "URL")]
    server: String,
    /// Your token; without it, the one that `atelier login` stored
    #[arg(long, global = true, env = "ATELIER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List the files
    Ls {
        #[command(flatten)]
        conversation: Conversation,
    },
    /// Upload files
    Put {
        #[command(flatten)]
        conversation: Conversation,
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Where they go: a path for one file, a folder for several or with a slash at its end
        #[arg(long, value_name = "PATH")]
        to: Option<String>,
    },
    /// Download a file
    #[command(disable_version_flag = true)]
    Get {
        #[command(flatten)]
        conversation: Conversation,
        /// Its path or id
        file: String,
        /// Where to write it; `-` for standard output [default: its own name, here]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// An earlier version
        #[arg(long, alias = "version", value_name = "VERSION")]
        at: Option<i64>,
    },
    /// Delete files with all their versions
    Rm {
        #[command(flatten)]
        conversation: Conversation,
        /// Their paths or ids
        #[arg(required = true)]
        files: Vec<String>,
    },
    /// List the versions of a file
    History {
        #[command(flatten)]
        conversation: Conversation,
        /// Its path or id
        file: String,
    },
    /// Go back to an earlier version of a file
    #[command(disable_version_flag = true)]
    Restore {
        #[command(flatten)]
        conversation: Conversation,
        /// Its path or id
        file: String,
        #[arg(value_name = "VERSION")]
        to: i64,
    },
    /// Bring the conversation's folder on the server in step, and say what was done
    Sync {
        #[command(flatten)]
        conversation: Conversation,
        /// How long to wait for a run in the folder to end, in seconds
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=30))]
        wait: u8,
    },
}

#[derive(clap::Args)]
struct Conversation {
    /// The conversation, by id
    #[arg(long = "conversation", short = 'c', value_name = "ID")]
    id: uuid::Uuid,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(act(args))?;
    Ok(ExitCode::SUCCESS)
}

async fn act(args: Args) -> Result<()> {
    let connect = async |conversation: &Conversation| {
        Remote::connect(&args.server, args.token.clone(), conversation.id).await
    };
    match args.action {
        Action::Ls { conversation } => {
            let files = connect(&conversation).await?.list().await?;
            for file in &files {
                let presented = if file.is_presented { "*" } else { " " };
                say(&format!(
                    "{:>12} {:>4} {presented} {:<12} {}",
                    file.file_size, file.version, file.source, file.file_path
                ))?;
            }
            Ok(())
        }
        Action::Put { conversation, files, to } => {
            let remote = connect(&conversation).await?;
            let folder = files.len() > 1 || to.as_deref().is_some_and(|to| to.ends_with('/'));
            let mut failed = 0;
            for file in &files {
                match put(&remote, file, to.as_deref(), folder).await {
                    Ok(saved) => say(&format!("{} is version {}", saved.file_path, saved.version))?,
                    Err(error) if files.len() == 1 => return Err(error),
                    // The others are as good as they were.
                    Err(error) => {
                        failed += 1;
                        writeln!(std::io::stderr(), "{} was not sent: {error:#}", file.display())?;
                    }
                }
            }
            if failed > 0 {
                bail!("{failed} of {} files were not sent", files.len());
            }
            Ok(())
        }
        Action::Get { conversation, file, output, at } => {
            let remote = connect(&conversation).await?;
            let file = remote.find(&file).await?;
            let output =
                output.map_or_else(|| file_name(Path::new(&file.file_path)).map(PathBuf::from), Ok)?;
            let bar = bar(0, &file.file_path);
            remote.get(&file, at, &output, &bar).await?;
            bar.finish_and_clear();
            Ok(())
        }
        Action::Rm { conversation, files } => {
            let remote = connect(&conversation).await?;
            for file in &files {
                let file = remote.find(file).await?;
                remote.delete(&file).await?;
                say(&format!("deleted {}", file.file_path))?;
            }
            Ok(())
        }
        Action::History { conversation, file } => {
            let remote = connect(&conversation).await?;
            let file = remote.find(&file).await?;
            for version in remote.versions(&file).await? {
                say(&format!(
                    "{:>4} {} {:>12} {:<12} {}",
                    version.version,
                    version.created_at.format("%Y-%m-%d %H:%M:%S"),
                    version.file_size,
                    version.source.as_str(),
                    version.checksum
                ))?;
            }
            Ok(())
        }
        Action::Restore { conversation, file, to } => {
            let remote = connect(&conversation).await?;
            let file = remote.find(&file).await?;
            let restored: RemoteFile = remote.restore(&file, to).await?;
            say(&format!("{} is version {} now, as version {to} was", restored.file_path, restored.version))
        }
        Action::Sync { conversation, wait } => {
            let report = connect(&conversation).await?.sync(wait).await?;
            say(&serde_json::to_string_pretty(&report)?)
        }
    }
}

async fn put(remote: &Remote, file: &Path, to: Option<&str>, folder: bool) -> Result<RemoteFile> {
    let name = file_name(file)?;
    let path = match to {
        None => name.to_owned(),
        Some(to) if folder => format!("{}/{name}", to.trim_end_matches('/')),
        Some(to) => to.to_owned(),
    };
    let found = std::fs::metadata(file).with_context(|| file.display().to_string())?;
    // Opening a pipe would wait for somebody at its other end.
    if !found.is_file() {
        bail!("{} is no regular file", file.display());
    }
    let bar = bar(found.len(), name);
    let saved = remote.put(file, found.len(), &path, &bar).await;
    bar.finish_and_clear();
    saved
}

fn file_name(path: &Path) -> Result<&str> {
    match path.file_name().and_then(|name| name.to_str()) {
        Some(name) => Ok(name),
        None => bail!("{} has no name that can be kept", path.display()),
    }
}

/// On standard error, and only where somebody is looking.
fn bar(size: u64, name: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {bytes}/{total_bytes} [{bar:30}] {bytes_per_sec} {eta}");
    let bar = ProgressBar::new(size).with_message(name.to_owned());
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn say(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
