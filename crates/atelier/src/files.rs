//! `atelier files`: the files of a conversation from the command line.

mod remote;

use anyhow::{Context, Result, bail};
use atelier_core::{ConversationFile, RunId};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use remote::Remote;
use std::{
    ffi::OsString,
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    process::{ExitCode, ExitStatus},
    time::Duration,
};

/// List, upload and download the files of a conversation, and restore earlier versions
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server's address [default: that of the last `atelier login`, or http://127.0.0.1:7420]
    #[arg(long, global = true, value_name = "URL")]
    server: Option<String>,
    /// Your token [default: the token that `atelier login` stored for the server]
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
        /// The files to upload
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Target path for one file; target folder for several files, or if it ends with a slash
        #[arg(long, value_name = "PATH")]
        to: Option<String>,
    },
    /// Download a file
    #[command(disable_version_flag = true)]
    Get {
        #[command(flatten)]
        conversation: Conversation,
        /// The path or id of the file
        file: String,
        /// Where to write the file; `-` for standard output [default: its name, in the current
        /// folder]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// The version to download [default: the newest]
        #[arg(long, alias = "version", value_name = "VERSION")]
        at: Option<i64>,
    },
    /// Delete files and all their versions
    Rm {
        #[command(flatten)]
        conversation: Conversation,
        /// The paths or ids of the files
        #[arg(required = true)]
        files: Vec<String>,
    },
    /// List the versions of a file
    History {
        #[command(flatten)]
        conversation: Conversation,
        /// The path or id of the file
        file: String,
    },
    /// Make an earlier version of a file the newest one
    #[command(disable_version_flag = true)]
    Restore {
        #[command(flatten)]
        conversation: Conversation,
        /// The path or id of the file
        file: String,
        /// The version to restore
        #[arg(value_name = "VERSION")]
        to: i64,
    },
    /// Run a command in the conversation's folder, and store what it changes as versions
    ///
    /// The folder is on the server's machine, so this works only there. The command runs as you,
    /// without a sandbox.
    Run {
        #[command(flatten)]
        conversation: Conversation,
        /// How many seconds to wait for an agent that works in the folder
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=30))]
        wait: u8,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Sync the conversation's folder on the server, and print what changed
    Sync {
        #[command(flatten)]
        conversation: Conversation,
        /// How many seconds to wait for an agent that works in the folder
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=30))]
        wait: u8,
    },
}

#[derive(clap::Args)]
struct Conversation {
    /// The id of the conversation
    #[arg(long = "conversation", short = 'c', value_name = "ID")]
    id: uuid::Uuid,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(act(args))
}

async fn act(args: Args) -> Result<ExitCode> {
    let connect = async |conversation: &Conversation| {
        Remote::connect(args.server.as_deref(), args.token.clone(), conversation.id).await
    };
    match args.action {
        Action::Ls { conversation } => {
            let files = connect(&conversation).await?.list().await?;
            for file in &files {
                let presented = if file.is_presented { "*" } else { " " };
                print_line(&format!(
                    "{:>12} {:>4} {presented} {:<12} {}",
                    file.file_size,
                    file.version,
                    file.source.as_str(),
                    file.file_path
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
                    Ok(saved) => {
                        print_line(&format!(
                            "uploaded {} as version {}",
                            saved.file_path, saved.version
                        ))?;
                    }
                    Err(error) if files.len() == 1 => return Err(error),
                    // A failure must not stop the other uploads.
                    Err(error) => {
                        failed += 1;
                        writeln!(
                            std::io::stderr(),
                            "{} was not uploaded: {error:#}",
                            file.display()
                        )?;
                    }
                }
            }
            if failed > 0 {
                bail!("{failed} of {} files were not uploaded", files.len());
            }
            Ok(())
        }
        Action::Get { conversation, file, output, at } => {
            let remote = connect(&conversation).await?;
            let file = remote.find(&file).await?;
            let output = output.map_or_else(
                || file_name(Path::new(file.file_path.as_str())).map(PathBuf::from),
                Ok,
            )?;
            let bar = progress_bar(0, file.file_path.as_str());
            remote.get(&file, at, &output, &bar).await?;
            bar.finish_and_clear();
            Ok(())
        }
        Action::Rm { conversation, files } => {
            let remote = connect(&conversation).await?;
            for file in &files {
                let file = remote.find(file).await?;
                remote.delete(&file).await?;
                print_line(&format!("deleted {}", file.file_path))?;
            }
            Ok(())
        }
        Action::History { conversation, file } => {
            let remote = connect(&conversation).await?;
            let file = remote.find(&file).await?;
            for version in remote.versions(&file).await? {
                print_line(&format!(
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
            let restored = remote.restore(&file, to).await?;
            print_line(&format!(
                "restored version {to} of {} as version {}",
                restored.file_path, restored.version
            ))
        }
        Action::Run { conversation, wait, command } => {
            return outside_run(&connect(&conversation).await?, wait, command).await;
        }
        Action::Sync { conversation, wait } => {
            let report = connect(&conversation).await?.sync(wait).await?;
            print_line(&serde_json::to_string_pretty(&report)?)
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

/// How long the server keeps a run whose command it does not hear of, in seconds.
const RUN_LEASE: u32 = 120;

/// Runs a command in the conversation's folder and ends with its exit code.
async fn outside_run(remote: &Remote, wait: u8, command: Vec<OsString>) -> Result<ExitCode> {
    let run = remote.begin_run(wait, RUN_LEASE).await?;
    let folder = PathBuf::from(&run.workspace_path);
    let work = match folder.is_dir() {
        true => run_command(remote, run.run_id, &folder, command).await,
        false => Err(anyhow::anyhow!(
            "{} is on the server's machine: run this command there",
            folder.display()
        )),
    };
    // What the command changed is stored even if it failed.
    let report = remote.end_run(run.run_id).await?;
    let status = work?;
    print_line(&serde_json::to_string_pretty(&report)?)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

async fn run_command(
    remote: &Remote,
    run: RunId,
    folder: &Path,
    command: Vec<OsString>,
) -> Result<ExitStatus> {
    let (folder, shown) = (folder.to_owned(), command[0].to_string_lossy().into_owned());
    let mut work = tokio::task::spawn_blocking(move || {
        atelier_client::run_for_person(&command[0], &command[1..], &folder)
    });
    let mut renewals = tokio::time::interval(Duration::from_secs(u64::from(RUN_LEASE) / 4));
    loop {
        tokio::select! {
            ended = &mut work => {
                return ended?.with_context(|| format!("cannot run {shown}"));
            }
            _ = renewals.tick() => {
                if let Err(error) = remote.renew_run(run, RUN_LEASE).await {
                    writeln!(std::io::stderr(), "cannot renew the run: {error:#}")?;
                }
            }
        }
    }
}

async fn put(
    remote: &Remote,
    file: &Path,
    to: Option<&str>,
    folder: bool,
) -> Result<ConversationFile> {
    let name = file_name(file)?;
    let path = match to {
        None => name.to_owned(),
        Some(to) if folder => format!("{}/{name}", to.trim_end_matches('/')),
        Some(to) => to.to_owned(),
    };
    let found = std::fs::metadata(file).with_context(|| file.display().to_string())?;
    // Opening a pipe would wait for a writer.
    if !found.is_file() {
        bail!("{} is not a regular file", file.display());
    }
    let bar = progress_bar(found.len(), name);
    let saved = remote.put(file, found.len(), &path, &bar).await;
    bar.finish_and_clear();
    saved
}

fn file_name(path: &Path) -> Result<&str> {
    match path.file_name().and_then(|name| name.to_str()) {
        Some(name) => Ok(name),
        None => bail!("{} has no file name that can be used", path.display()),
    }
}

/// A progress bar on standard error, if it is a terminal.
fn progress_bar(size: u64, name: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(
        "{msg} {bytes}/{total_bytes} [{bar:30}] {bytes_per_sec} {eta}",
    );
    let bar = ProgressBar::new(size).with_message(name.to_owned());
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn print_line(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
