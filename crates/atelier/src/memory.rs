//! `atelier memory`: what an agent remembers, from a terminal.

use anyhow::{Context, Result, bail};
use atelier_client::{Credentials, server_address, visible};
use chrono::{DateTime, NaiveDate, NaiveTime, Utc};
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Map, Value, json};
use std::{
    fs::File,
    io::{IsTerminal, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// Interactions in one request of an import, and about how many bytes: the bar moves, and none takes too long.
const BATCH: usize = 200;
const BATCH_BYTES: usize = 8 << 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server's address
    #[arg(long, global = true, default_value = "http://127.0.0.1:7420", value_name = "URL")]
    server: String,
    /// The project, by id or name
    #[arg(long, global = true, default_value = "", value_name = "ID_OR_NAME", hide_default_value = true)]
    project: String,
    /// The agent, by id or name
    #[arg(long, global = true, default_value = "", value_name = "ID_OR_NAME", hide_default_value = true)]
    agent: String,
    /// Your token; without it, the one that `atelier login` stored for the server
    #[arg(long, global = true, env = "ATELIER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// How much it remembers, of what kind, and how successful that was
    Stats {
        /// Figures for each day or week, too
        #[arg(long, value_parser = ["day", "week"])]
        bucket: Option<String>,
        #[command(flatten)]
        time: Time,
    },
    /// Look for something
    Search {
        query: String,
        /// How many results
        #[arg(short, default_value_t = 10)]
        k: u32,
        /// Only these types (task_execution, tool_call, user_message, agent_response)
        #[arg(long = "type", value_name = "TYPE")]
        types: Vec<String>,
        /// Only what succeeded (true) or failed (false)
        #[arg(long)]
        success: Option<bool>,
        /// hybrid, dense or lexical
        #[arg(long, default_value = "hybrid")]
        mode: String,
        #[command(flatten)]
        time: Time,
    },
    /// Write everything, or a part, to a file or to standard output
    Export {
        /// The file; `-`, or none, for standard output
        file: Option<PathBuf>,
        /// With the vectors
        #[arg(long)]
        include_embeddings: bool,
        /// Only these types
        #[arg(long = "type", value_name = "TYPE")]
        types: Vec<String>,
        /// Only what succeeded (true) or failed (false)
        #[arg(long)]
        success: Option<bool>,
        #[command(flatten)]
        time: Time,
    },
    /// Read an export back, into the same agent or another; what is known already, by its id, is left alone
    Import {
        /// The file; `-` for standard input
        file: PathBuf,
    },
    /// Delete a part
    Prune {
        /// What is older than so many days
        #[arg(long)]
        days: Option<u32>,
        /// After that, the oldest of whatever kind, until only so many are left
        #[arg(long)]
        max_vectors: Option<u32>,
        /// What succeeded (true) or failed (false)
        #[arg(long)]
        success: Option<bool>,
        /// Of the former, only these types
        #[arg(long = "type", value_name = "TYPE")]
        types: Vec<String>,
        /// Only say how many it would be
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete everything
    Clear {
        /// Without this, nothing is deleted
        #[arg(long)]
        yes: bool,
    },
    /// Make the index anew from the facts: after another embedder was configured, or when in doubt
    Reindex,
}

/// A part of all time.
#[derive(clap::Args)]
struct Time {
    /// From this moment on, such as 2026-01-31T12:00:00Z or 2026-01-31
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<DateTime<Utc>>,
    /// Up to and with this moment
    #[arg(long, value_name = "TIME", value_parser = moment)]
    to: Option<DateTime<Utc>>,
}

/// A day begins at midnight in UTC.
fn moment(text: &str) -> Result<DateTime<Utc>, String> {
    let day = |text: &str| Some(text.parse::<NaiveDate>().ok()?.and_time(NaiveTime::MIN).and_utc());
    let moment = text.parse().ok().or_else(|| day(text));
    moment.ok_or_else(|| "write it like 2026-01-31T12:00:00Z or 2026-01-31".to_owned())
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

struct Agent {
    http: Client,
    url: String,
    token: String,
}

impl Agent {
    async fn find(args: &Args) -> Result<Self> {
        if args.project.is_empty() || args.agent.is_empty() {
            bail!("say whose memory: --project and --agent");
        }
        let server = server_address(&args.server)?;
        let token = match &args.token {
            Some(token) => token.clone(),
            None => Credentials::load()?
                .token(server)
                .with_context(|| {
                    format!("there is no token for {server}: run atelier login, or give --token")
                })?
                .to_owned(),
        };
        let http = Client::builder().connect_timeout(Duration::from_secs(10)).build()?;
        let mut found = Self { http, url: server.to_owned(), token };
        let list: Value = found.send(found.get("/my/projects?limit=1000")).await?.json().await?;
        let is_meant = |project: &&Value| {
            project["id"] == args.project.as_str() || project["name"] == args.project.as_str()
        };
        let project = list["projects"].as_array().into_iter().flatten().find(is_meant);
        let id = project.and_then(|project| project["id"].as_str());
        let id = id.with_context(|| format!("you have no project {}", args.project))?;
        let mut url = reqwest::Url::parse(server)?;
        url.path_segments_mut()
            .map_err(|()| anyhow::anyhow!("{server} is no address of a server"))?
            .extend(["my", "projects", id, "agents", &args.agent, "context"]);
        found.url = url.to_string();
        Ok(found)
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.http.get(format!("{}{path}", self.url))
    }

    fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.http.post(format!("{}{path}", self.url)).json(body)
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.bearer_auth(&self.token).send().await.context("the server does not answer")?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let problem: Value = response.json().await.unwrap_or(Value::Null);
        bail!("{}", problem["detail"].as_str().map_or_else(|| status.to_string(), visible))
    }

    async fn json(&self, request: RequestBuilder) -> Result<Value> {
        Ok(self.send(request).await?.json().await?)
    }
}

#[expect(clippy::print_stdout, reason = "answers are the point")]
async fn act(args: &Args) -> Result<()> {
    let agent = Agent::find(args).await?;
    match &args.command {
        Command::Stats { bucket, time } => {
            let bucket = bucket.iter().map(|bucket| ("bucket", bucket.clone()));
            let query: Vec<_> = bucket.chain(time.query()).collect();
            let stats = agent.json(agent.get("/stats").query(&query)).await?;
            println!("{}", serde_json::to_string_pretty(&stats)?);
        }
        Command::Search { query, k, types, success, mode, time } => {
            let body = json!({"query": query, "k": k, "types": types, "success": success, "mode": mode,
                "from": time.from, "to": time.to});
            let found = agent.json(agent.post("/search", &body)).await?;
            if let Some(why) = found["degraded"].as_str() {
                eprintln!("searched by words only: {}", visible(why));
            }
            let hits = found["results"].as_array().map_or(&[][..], Vec::as_slice);
            if hits.is_empty() {
                eprintln!("nothing found");
            }
            for hit in hits {
                let (score, text) =
                    (hit["score"].as_f64().unwrap_or(0.0), hit["text"].as_str().unwrap_or(""));
                let (kind, time) = (hit["interaction_type"].as_str(), hit["timestamp"].as_str());
                println!(
                    "{score:.3}  {}  {}\n       {}",
                    visible(kind.unwrap_or("")),
                    visible(time.unwrap_or("")),
                    one_line(text)
                );
            }
        }
        Command::Export { file, include_embeddings, types, success, time } => {
            let mut query = time.query();
            query.push(("include_embeddings", include_embeddings.to_string()));
            query.extend(success.map(|success| ("success", success.to_string())));
            if !types.is_empty() {
                query.push(("types", types.join(",")));
            }
            export(&agent, file.as_deref(), &query).await?;
        }
        Command::Import { file } => import(&agent, file).await?,
        Command::Prune { days: None, max_vectors: None, success: None, types, .. } if types.is_empty() => {
            bail!("say what is to go: --days, --max-vectors, --success or --type");
        }
        Command::Prune { days, max_vectors, success, types, dry_run } => {
            let body = json!({"days": days, "max_vectors": max_vectors, "success": success, "types": types,
                "dry_run": dry_run});
            let pruned = agent.json(agent.post("/prune", &body)).await?;
            let verb = if *dry_run { "would go" } else { "deleted" };
            println!("{} {verb}, {} left", pruned["deleted"], pruned["remaining"]);
        }
        Command::Clear { yes: false } => {
            let total = &agent.json(agent.get("/stats")).await?["total_vectors"];
            bail!("this deletes all {total} interactions for good: say --yes");
        }
        Command::Clear { yes: true } => {
            let cleared = agent.json(agent.http.delete(&agent.url)).await?;
            println!("{} deleted, {} left", cleared["deleted"], cleared["remaining"]);
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

/// A bar on a terminal, nothing elsewhere.
fn bar(total: u64, what: &'static str) -> ProgressBar {
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

/// Where an export goes.
enum Out {
    Standard(std::io::Stdout),
    /// A device, a pipe or a link: it stays what it is.
    Into(File),
    /// Nobody else's to read, and beside the file it will be until it is whole; gone if it never is.
    Draft(tempfile::NamedTempFile, PathBuf),
}

impl Out {
    fn open(file: Option<&Path>) -> Result<Self> {
        let Some(file) = file.filter(|file| *file != Path::new("-")) else {
            return Ok(Self::Standard(std::io::stdout()));
        };
        let failed = || format!("cannot write {}", file.display());
        if file.symlink_metadata().is_ok_and(|there| !there.is_file()) {
            return Ok(Self::Into(File::create(file).with_context(failed)?));
        }
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Self::Draft(tempfile::NamedTempFile::new_in(folder).with_context(failed)?, file.to_owned()))
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Standard(out) => out.write_all(bytes),
            Self::Into(file) => file.write_all(bytes),
            Self::Draft(draft, _) => draft.write_all(bytes),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Standard(mut out) => out.flush()?,
            Self::Into(mut file) => file.flush()?,
            Self::Draft(draft, file) => {
                let failed = || format!("cannot write {}", file.display());
                drop(draft.persist(&file).with_context(failed)?);
            }
        }
        Ok(())
    }
}

async fn export(agent: &Agent, file: Option<&Path>, query: &[(&str, String)]) -> Result<()> {
    let stats = agent.json(agent.get("/stats")).await?;
    let response = agent.send(agent.get("/export").query(query)).await?;
    let mut out = Out::open(file)?;
    let progress = bar(stats["total_vectors"].as_u64().unwrap_or(0), "export");
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.context("the export broke off")?;
        progress.inc(chunk.windows(19).filter(|window| *window == b"\"interaction_type\":").count() as u64);
        out.write(&chunk)?;
    }
    out.finish()?;
    progress.finish_and_clear();
    Ok(())
}

#[expect(clippy::print_stdout, reason = "answers are the point")]
async fn import(agent: &Agent, file: &Path) -> Result<()> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)?;
    } else {
        text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    let mut whole: Map<String, Value> = serde_json::from_str(&text).context("this is no export")?;
    let Some(Value::Array(entries)) = whole.remove("interactions") else {
        bail!("there are no interactions in it")
    };
    let progress = bar(entries.len() as u64, "import");
    let (mut imported, mut skipped, mut indexed) = (0, 0, true);
    let mut place = 0;
    while place < entries.len() {
        let batch = &entries[place..place + fitting(&entries[place..])];
        let answer = agent.json(agent.post("/import", &json!({"interactions": batch}))).await;
        let answer = answer.map_err(|error| {
            let named = renumbered(&error.to_string(), place);
            anyhow::anyhow!("{named} ({imported} were imported before, {skipped} known already)")
        })?;
        place += batch.len();
        imported += answer["imported"].as_u64().unwrap_or(0);
        skipped += answer["skipped"].as_u64().unwrap_or(0);
        indexed &= answer["indexed"] == true;
        progress.inc(batch.len() as u64);
    }
    progress.finish_and_clear();
    println!("{imported} imported, {skipped} known already");
    if !indexed {
        eprintln!(
            "the index or the embedder is slow or away: until it has caught up, they are found by their words"
        );
    }
    Ok(())
}

/// How many of the entries go in one request.
fn fitting(entries: &[Value]) -> usize {
    let mut bytes = 0;
    let fits = |entry: &&Value| {
        bytes += entry.to_string().len();
        bytes <= BATCH_BYTES
    };
    // One that is too large by itself is the server's to refuse.
    entries.iter().take(BATCH).take_while(fits).count().max(1)
}

/// What the server says about an entry of a request, with the entry's place in the whole file.
fn renumbered(problem: &str, first: usize) -> String {
    let place = problem.strip_prefix("interactions[").and_then(|rest| rest.split_once(']'));
    match place.and_then(|(place, rest)| Some((place.parse::<usize>().ok()?, rest))) {
        Some((place, rest)) => format!("interactions[{}]{rest}", first + place),
        None => problem.to_owned(),
    }
}

#[expect(clippy::print_stdout, reason = "answers are the point")]
async fn reindex(agent: &Agent) -> Result<()> {
    agent.send(agent.post("/reindex", &json!({}))).await?;
    let stats = agent.json(agent.get("/stats")).await?;
    let total = stats["total_vectors"].as_u64().unwrap_or(0);
    let progress = bar(total, "reindex");
    let mut stats = stats;
    while total > 0 && (stats["state"] != "live" || stats["waiting"].as_u64() != Some(0)) {
        tokio::time::sleep(Duration::from_millis(300)).await;
        stats = agent.json(agent.get("/stats")).await?;
        progress.set_position(total.saturating_sub(stats["waiting"].as_u64().unwrap_or(total)));
    }
    progress.finish_and_clear();
    println!("{total} interactions are indexed by {}", stats["embedder"].as_str().unwrap_or(""));
    Ok(())
}
