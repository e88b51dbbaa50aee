//! `atelier memory`: what an agent remembers, from the command line.

use anyhow::{Context, Result, bail};
use atelier_api::memory::{
    ContextChange, ContextHistory, ContextImported, ContextPrune, ContextRemoved, ContextResults,
    ContextSearch, ContextStats,
};
use atelier_client::{ApiClient, Error};
use atelier_core::{Interaction, InteractionId, InteractionType, SearchMode, visible::visible};
use chrono::{DateTime, NaiveDate, NaiveTime, SecondsFormat, Utc};
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reqwest::{Method, RequestBuilder};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::{
    fs::File,
    io::{IsTerminal, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// How many interactions one request of an import contains at most. Small requests keep the
/// progress bar moving.
const BATCH: usize = 200;
/// About how many bytes one request of an import contains at most.
const BATCH_BYTES: usize = 8 << 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server's address [default: that of the last `atelier login`, or http://127.0.0.1:7420]
    #[arg(long, global = true, value_name = "URL")]
    server: Option<String>,
    /// The project, by id or name
    #[arg(
        long,
        global = true,
        default_value = "",
        value_name = "ID_OR_NAME",
        hide_default_value = true
    )]
    project: String,
    /// The agent, by id or name
    #[arg(
        long,
        global = true,
        default_value = "",
        value_name = "ID_OR_NAME",
        hide_default_value = true
    )]
    agent: String,
    /// Your token [default: the token that `atelier login` stored for the server]
    #[arg(long, global = true, env = "ATELIER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show how many interactions of which types the agent remembers, and how many succeeded
    Stats {
        /// Also show the figures for each day or week
        #[arg(long, value_parser = ["day", "week"])]
        bucket: Option<String>,
        #[command(flatten)]
        time: Time,
    },
    /// Search the memory
    Search {
        /// What to look for
        query: String,
        /// The largest number of results
        #[arg(short, default_value_t = 10)]
        k: u32,
        /// Only interactions of this type: task_execution, tool_call, user_message or
        /// agent_response
        #[arg(long = "type", value_name = "TYPE")]
        types: Vec<InteractionType>,
        /// Only interactions that succeeded (true) or failed (false)
        #[arg(long)]
        success: Option<bool>,
        /// How to search: hybrid, dense (by meaning) or lexical (by words)
        #[arg(long, default_value = "hybrid", value_parser = search_mode)]
        mode: SearchMode,
        #[command(flatten)]
        time: Time,
    },
    /// Export interactions to a file or to standard output
    Export {
        /// The file [default: standard output]
        file: Option<PathBuf>,
        /// Include the vectors
        #[arg(long)]
        include_embeddings: bool,
        /// Only interactions of this type
        #[arg(long = "type", value_name = "TYPE")]
        types: Vec<InteractionType>,
        /// Only interactions that succeeded (true) or failed (false)
        #[arg(long)]
        success: Option<bool>,
        #[command(flatten)]
        time: Time,
    },
    /// Import an exported file into this agent; interactions whose ids are already there are
    /// skipped
    Import {
        /// The file; `-` for standard input
        file: PathBuf,
    },
    /// Correct the text of an interaction; the old text is kept in its history
    Edit {
        /// The id of the interaction, as `search` and `export` show it
        id: InteractionId,
        /// The new text
        text: String,
    },
    /// Show the texts that an interaction had before it was corrected
    History {
        /// The id of the interaction
        id: InteractionId,
    },
    /// Let the agent always know an interaction: it is in every prompt and is not pruned
    Pin {
        /// The id of the interaction
        id: InteractionId,
    },
    /// Undo `pin`
    Unpin {
        /// The id of the interaction
        id: InteractionId,
    },
    /// Delete some interactions
    Prune {
        /// Delete interactions that are older than this many days
        #[arg(long)]
        days: Option<u32>,
        /// Then delete the oldest interactions of all types until this many are left
        #[arg(long)]
        max_vectors: Option<u32>,
        /// Delete interactions that succeeded (true) or failed (false)
        #[arg(long)]
        success: Option<bool>,
        /// With --days or --success, delete only this type
        #[arg(long = "type", value_name = "TYPE")]
        types: Vec<InteractionType>,
        /// Delete nothing; only show how many interactions would be deleted
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete all interactions
    Clear {
        /// Confirm the deletion
        #[arg(long)]
        yes: bool,
    },
    /// Rebuild the search index, for example after the embedder was changed
    Reindex,
}

/// A period of time.
#[derive(clap::Args)]
struct Time {
    /// Only interactions from this time on, such as 2026-01-31T12:00:00Z or 2026-01-31
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<DateTime<Utc>>,
    /// Only interactions up to this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    to: Option<DateTime<Utc>>,
}

/// Parses a time, or a day that begins at midnight UTC.
fn moment(text: &str) -> Result<DateTime<Utc>, String> {
    let day = |text: &str| Some(text.parse::<NaiveDate>().ok()?.and_time(NaiveTime::MIN).and_utc());
    let moment = text.parse().ok().or_else(|| day(text));
    moment.ok_or_else(|| "use the form 2026-01-31T12:00:00Z or 2026-01-31".to_owned())
}

fn search_mode(text: &str) -> Result<SearchMode, String> {
    let mode = serde_json::from_value(text.into());
    mode.map_err(|_| "use hybrid, dense or lexical".to_owned())
}

impl Time {
    fn query(&self) -> Vec<(&'static str, String)> {
        let parts = [("from", self.from), ("to", self.to)];
        parts.into_iter().filter_map(|(name, time)| Some((name, time?.to_rfc3339()))).collect()
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(act(args))?;
    Ok(ExitCode::SUCCESS)
}

/// The memory of one agent.
struct AgentMemory {
    api: ApiClient,
    path: String,
}

impl AgentMemory {
    async fn open(args: &Args) -> Result<Self> {
        if args.project.is_empty() || args.agent.is_empty() {
            bail!("name the agent: --project and --agent are required");
        }
        let api = ApiClient::signed_in("memory", args.server.as_deref(), args.token.clone())?;
        let project = api.project(&args.project).await?.id.to_string();
        let path = encoded_path(&["my", "projects", &project, "agents", &args.agent, "context"])?;
        Ok(Self { api, path })
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.api.request(Method::GET, &format!("{}{path}", self.path))
    }

    fn post(&self, path: &str, body: &impl Serialize) -> RequestBuilder {
        self.api.request(Method::POST, &format!("{}{path}", self.path)).json(body)
    }

    async fn change(&self, id: InteractionId, change: &ContextChange) -> Result<Interaction> {
        let path = format!("{}/interactions/{id}", self.path);
        Ok(self.api.json(self.api.request(Method::PATCH, &path).json(change)).await?)
    }

    async fn stats(&self) -> Result<ContextStats> {
        Ok(self.api.json(self.get("/stats")).await?)
    }
}

/// A path whose segments may contain any characters.
fn encoded_path(segments: &[&str]) -> Result<String> {
    let mut url = reqwest::Url::parse("http://localhost/")?;
    if let Ok(mut path) = url.path_segments_mut() {
        path.clear().extend(segments);
    }
    Ok(url.path().to_owned())
}

#[expect(clippy::print_stdout, reason = "the command prints its result")]
async fn act(args: &Args) -> Result<()> {
    let agent = AgentMemory::open(args).await?;
    match &args.command {
        Command::Stats { bucket, time } => {
            let bucket = bucket.iter().map(|bucket| ("bucket", bucket.clone()));
            let query: Vec<_> = bucket.chain(time.query()).collect();
            let stats: ContextStats = agent.api.json(agent.get("/stats").query(&query)).await?;
            println!("{}", serde_json::to_string_pretty(&stats)?);
        }
        Command::Search { query, k, types, success, mode, time } => {
            let search = ContextSearch {
                query: query.clone(),
                k: *k,
                types: types.clone(),
                success: *success,
                from: time.from,
                to: time.to,
                task_id: None,
                session_id: None,
                mode: *mode,
                min_score: None,
                recency_days: None,
                unique: false,
            };
            let found: ContextResults = agent.api.json(agent.post("/search", &search)).await?;
            if let Some(why) = &found.degraded {
                eprintln!("searched by words only: {}", visible(why));
            }
            if found.results.is_empty() {
                eprintln!("nothing found");
            }
            for result in &found.results {
                let interaction = &result.interaction;
                println!(
                    "{:.3}  {}  {}  {}\n       {}",
                    result.score,
                    interaction.interaction_type.as_str(),
                    interaction.timestamp.to_rfc3339_opts(SecondsFormat::Millis, true),
                    interaction.id,
                    one_line(&interaction.text)
                );
            }
        }
        Command::Export { file, include_embeddings, types, success, time } => {
            let mut query = time.query();
            query.push(("include_embeddings", include_embeddings.to_string()));
            query.extend(success.map(|success| ("success", success.to_string())));
            if !types.is_empty() {
                let types: Vec<&str> = types.iter().map(|kind| kind.as_str()).collect();
                query.push(("types", types.join(",")));
            }
            export(&agent, file.as_deref(), &query).await?;
        }
        Command::Import { file } => import(&agent, file).await?,
        Command::Edit { id, text } => {
            let change = ContextChange { text: Some(text.clone()), pinned: None };
            let changed = agent.change(*id, &change).await?;
            println!("{}", visible(&changed.text));
        }
        Command::Pin { id } | Command::Unpin { id } => {
            let pinned = matches!(args.command, Command::Pin { .. });
            let change = ContextChange { text: None, pinned: Some(pinned) };
            let changed = agent.change(*id, &change).await?;
            let state = if changed.pinned { "pinned" } else { "not pinned" };
            println!("{state}: {}", one_line(&changed.text));
        }
        Command::History { id } => {
            let path = format!("/interactions/{id}/history");
            let history: ContextHistory = agent.api.json(agent.get(&path)).await?;
            if history.versions.is_empty() {
                eprintln!("it was never corrected");
            }
            for version in &history.versions {
                let until = version.replaced_at.to_rfc3339_opts(SecondsFormat::Millis, true);
                println!("until {until}\n       {}", one_line(&version.text));
            }
        }
        Command::Prune { days: None, max_vectors: None, success: None, types, .. }
            if types.is_empty() =>
        {
            bail!("say what to delete: --days, --max-vectors, --success or --type");
        }
        Command::Prune { days, max_vectors, success, types, dry_run } => {
            let prune = ContextPrune {
                days: *days,
                max_vectors: *max_vectors,
                success: *success,
                types: types.clone(),
                dry_run: *dry_run,
            };
            let pruned: ContextRemoved = agent.api.json(agent.post("/prune", &prune)).await?;
            let verb = if *dry_run { "would be deleted" } else { "deleted" };
            println!("{} {verb}, {} left", pruned.deleted, pruned.remaining);
        }
        Command::Clear { yes: false } => {
            let total = agent.stats().await?.total_vectors;
            bail!("this deletes all {total} interactions permanently: add --yes to confirm");
        }
        Command::Clear { yes: true } => {
            let request = agent.api.request(Method::DELETE, &agent.path);
            let cleared: ContextRemoved = agent.api.json(request).await?;
            println!("{} deleted, {} left", cleared.deleted, cleared.remaining);
        }
        Command::Reindex => reindex(&agent).await?,
    }
    Ok(())
}

fn one_line(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(160) {
        Some((end, _)) => format!("{}…", visible(&line[..end])),
        None => visible(&line),
    }
}

/// A progress bar on standard error, if it is a terminal.
fn progress_bar(total: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len}  {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}

/// The target of an export.
enum ExportTarget {
    Standard(std::io::Stdout),
    /// A device, a pipe or a link, which must not be replaced by a file.
    Special(File),
    /// A private temporary file beside the target. It replaces the target when the export is
    /// complete.
    Draft(tempfile::NamedTempFile, PathBuf),
}

impl ExportTarget {
    fn open(file: Option<&Path>) -> Result<Self> {
        let Some(file) = file.filter(|file| *file != Path::new("-")) else {
            return Ok(Self::Standard(std::io::stdout()));
        };
        let failed = || format!("cannot write {}", file.display());
        if file.symlink_metadata().is_ok_and(|there| !there.is_file()) {
            return Ok(Self::Special(File::create(file).with_context(failed)?));
        }
        let folder =
            file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Self::Draft(
            tempfile::NamedTempFile::new_in(folder).with_context(failed)?,
            file.to_owned(),
        ))
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Standard(out) => out.write_all(bytes),
            Self::Special(file) => file.write_all(bytes),
            Self::Draft(draft, _) => draft.write_all(bytes),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Standard(mut out) => out.flush()?,
            Self::Special(mut file) => file.flush()?,
            Self::Draft(draft, file) => {
                let failed = || format!("cannot write {}", file.display());
                drop(draft.persist(&file).with_context(failed)?);
            }
        }
        Ok(())
    }
}

async fn export(agent: &AgentMemory, file: Option<&Path>, query: &[(&str, String)]) -> Result<()> {
    let total = agent.stats().await?.total_vectors;
    let response = agent.api.send(agent.get("/export").query(query)).await?;
    let mut out = ExportTarget::open(file)?;
    let progress = progress_bar(total, "export");
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.context("the export was interrupted")?;
        progress
            .inc(chunk.windows(19).filter(|window| *window == b"\"interaction_type\":").count()
                as u64);
        out.write(&chunk)?;
    }
    out.finish()?;
    progress.finish_and_clear();
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the command prints its result")]
async fn import(agent: &AgentMemory, file: &Path) -> Result<()> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)?;
    } else {
        text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
    }
    let mut whole: Map<String, Value> =
        serde_json::from_str(&text).context("the file is not an export")?;
    let Some(Value::Array(entries)) = whole.remove("interactions") else {
        bail!("the file contains no interactions")
    };
    let progress = progress_bar(entries.len() as u64, "import");
    let (mut imported, mut skipped, mut indexed) = (0, 0, true);
    let mut position = 0;
    while position < entries.len() {
        let batch = &entries[position..position + batch_size(&entries[position..])];
        let request = agent.post("/import", &json!({"interactions": batch}));
        let answer: ContextImported = agent.api.json(request).await.map_err(|error| {
            let problem = match error {
                Error::Refused(problem) => renumbered(&problem.detail, position),
                other => format!("{:#}", anyhow::Error::from(other)),
            };
            anyhow::anyhow!(
                "{problem} ({imported} were imported before, {skipped} were already there)"
            )
        })?;
        position += batch.len();
        imported += answer.imported;
        skipped += answer.skipped;
        indexed &= answer.indexed;
        progress.inc(batch.len() as u64);
    }
    progress.finish_and_clear();
    println!("{imported} imported, {skipped} already there");
    if !indexed {
        eprintln!(
            "the index or the embedder is slow or unavailable: until it has caught up, only a \
             search by words finds them"
        );
    }
    Ok(())
}

/// How many of the entries fit into one request.
fn batch_size(entries: &[Value]) -> usize {
    let mut bytes = 0;
    let fits = |entry: &&Value| {
        bytes += entry.to_string().len();
        bytes <= BATCH_BYTES
    };
    // An entry that is too large is sent alone, and the server refuses it.
    entries.iter().take(BATCH).take_while(fits).count().max(1)
}

/// Replaces the position of an entry in a request by its position in the file.
fn renumbered(problem: &str, first: usize) -> String {
    let entry = problem.strip_prefix("interactions[").and_then(|rest| rest.split_once(']'));
    match entry.and_then(|(number, rest)| Some((number.parse::<usize>().ok()?, rest))) {
        Some((number, rest)) => format!("interactions[{}]{rest}", first + number),
        None => problem.to_owned(),
    }
}

#[expect(clippy::print_stdout, reason = "the command prints its result")]
async fn reindex(agent: &AgentMemory) -> Result<()> {
    agent.api.send(agent.post("/reindex", &json!({}))).await?;
    let mut stats = agent.stats().await?;
    let total = stats.total_vectors;
    let progress = progress_bar(total, "reindex");
    while total > 0 && !stats.is_up_to_date() {
        tokio::time::sleep(Duration::from_millis(300)).await;
        stats = agent.stats().await?;
        progress.set_position(total.saturating_sub(stats.waiting));
    }
    progress.finish_and_clear();
    println!("{total} interactions are indexed with the embedder {}", stats.embedder);
    Ok(())
}
