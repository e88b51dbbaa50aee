//! `make bench-files`: conversation workspaces beside rclone, on the same S3 server, in turns in
//! one run.
//!
//! Takes the path of rclone. What is timed is from the first look at the folder to the last row on
//! disk; rclone keeps no rows, so this errs on its side.

#![expect(clippy::unwrap_used, reason = "a measurement fails by panicking")]
#![expect(clippy::print_stdout, reason = "its figures go there")]
#![expect(clippy::disallowed_methods, reason = "starts the peer, which is no tool call")]

use atelier_core::{Conversation, ProjectName, Tenant, UserId, WorkspaceKind};
use atelier_files::{ConversationWorkspace, Files, Settings};
use atelier_store::{Owned, Store};
use atelier_testkit::Bucket;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};
use uuid::Uuid;

struct Bench {
    files: Files,
    store: Store,
    owned: Owned,
    place: PathBuf,
    rclone: Rclone,
}

struct Rclone {
    binary: PathBuf,
    bucket: Bucket,
    flags: &'static [&'static str],
}

/// The measurements of one step, for us and for the peer.
#[derive(Default)]
struct Row {
    name: &'static str,
    ours: Vec<Duration>,
    peers: Vec<Duration>,
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let binary = PathBuf::from(arguments.next().expect("the path of rclone"));
    let quick = arguments.next().is_some_and(|flag| flag == "--quick");
    if cfg!(debug_assertions) {
        panic!("a debug build measures nothing: make bench-files");
    }
    drop(rustls::crypto::ring::default_provider().install_default());
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench-files");
    drop(fs::remove_dir_all(&place));
    fs::create_dir_all(&place).unwrap();
    let place = place.canonicalize().unwrap();
    let (small, large, rounds) = if quick { (500, 100 << 20, 1) } else { (5000, 1 << 30, 3) };
    for (title, flags) in [
        ("rclone as it comes", &[][..]),
        ("rclone with --transfers 64 --checkers 64", &["--transfers=64", "--checkers=64"][..]),
    ] {
        let bench = Bench::open(&place, binary.clone(), flags).await;
        let mut rows: Vec<Row> = Vec::new();
        for _ in 0..rounds {
            bench.many(&mut rows, small).await;
        }
        for _ in 0..rounds {
            bench.one(&mut rows, large).await;
        }
        print(title, small, large, &rows);
        bench.store.close().await;
    }
    println!("memory at its highest: {} MB", peak() >> 20);
    fs::remove_dir_all(&place).unwrap();
}

impl Bench {
    async fn open(place: &Path, binary: PathBuf, flags: &'static [&'static str]) -> Self {
        let bucket = Bucket::new();
        let data = place.join(Uuid::now_v7().to_string());
        fs::create_dir_all(&data).unwrap();
        let store = atelier_store::Settings {
            data: data.clone(),
            database_url: None,
            ..Default::default()
        };
        let store = Store::open(&store).await.unwrap();
        let (user, tenant): (UserId, Tenant) = (UserId(Uuid::now_v7()), "bench".parse().unwrap());
        store.ensure_user(user, &tenant).await.unwrap();
        let name = ProjectName::try_from("bench").unwrap();
        let kind = WorkspaceKind::Conversation;
        let project = store
            .create_project(user, tenant, name, kind, Default::default(), vec![])
            .await
            .unwrap();
        let owned = store.owned_by(user, project.id).await.unwrap();
        let settings = Settings {
            prefix: bucket.prefix.clone(),
            max_upload: 4 << 30,
            cache_bytes: 1 << 40,
            // One object a file, as rclone has.
            copies: false,
            ..Settings::default()
        };
        let files = Files::open(settings, Some(&bucket.url()), &data, store.clone()).await.unwrap();
        Self { files, store, owned, place: data, rclone: Rclone { binary, bucket, flags } }
    }

    async fn conversation(&self) -> (ConversationWorkspace, Conversation) {
        let conversation = self.store.create_conversation(&self.owned, None, true).await.unwrap();
        let (owned, conversation) =
            self.store.conversation(&self.owned, conversation.id).await.unwrap();
        (self.files.workspace(&owned), conversation)
    }

    async fn many(&self, rows: &mut Vec<Row>, count: usize) {
        let content = |folder: &Path| {
            for n in 0..count {
                let path = folder.join(format!("d{}/f{n}.bin", n % 50));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, noise(n as u64, 10_000)).unwrap();
            }
        };
        self.round(rows, ["many up", "many down", "many unchanged"], content).await;
    }

    async fn one(&self, rows: &mut Vec<Row>, size: usize) {
        // In pieces, so that the memory at its highest is not that of the measurement.
        let content = |folder: &Path| {
            let mut file = fs::File::create(folder.join("large.bin")).unwrap();
            for piece in 0..size >> 20 {
                file.write_all(&noise(piece as u64 + 1, 1 << 20)).unwrap();
            }
        };
        self.round(rows, ["one up", "one down", "one unchanged"], content).await;
    }

    /// Up, down into an empty folder, and once more with nothing to do; each by us and then by the
    /// peer.
    async fn round(&self, rows: &mut Vec<Row>, names: [&'static str; 3], content: impl Fn(&Path)) {
        let (workspace, conversation) = self.conversation().await;
        let run = workspace.sync_to_local(Duration::ZERO).await.unwrap();
        content(run.folder());
        let folder = run.folder().to_owned();
        let began = Instant::now();
        run.end().await.unwrap();
        let ours = began.elapsed();
        let (here, there) = (self.place.join("peer"), format!("peer-{}", conversation.id));
        fs::create_dir_all(&here).unwrap();
        content(&here);
        note(
            rows,
            names[0],
            ours,
            self.rclone.run("copy", here.to_str().unwrap(), &self.rclone.remote(&there)),
        );

        fs::remove_dir_all(&folder).unwrap();
        fs::remove_dir_all(&here).unwrap();
        let began = Instant::now();
        workspace.sync(Duration::ZERO).await.unwrap();
        let ours = began.elapsed();
        note(
            rows,
            names[1],
            ours,
            self.rclone.run("copy", &self.rclone.remote(&there), here.to_str().unwrap()),
        );

        let began = Instant::now();
        let report = workspace.sync(Duration::ZERO).await.unwrap();
        assert_eq!(report.fetched, 0);
        let ours = began.elapsed();
        note(
            rows,
            names[2],
            ours,
            self.rclone.run("sync", &self.rclone.remote(&there), here.to_str().unwrap()),
        );
        fs::remove_dir_all(&folder).unwrap();
        fs::remove_dir_all(&here).unwrap();
    }
}

impl Rclone {
    fn remote(&self, path: &str) -> String {
        format!("peer:{}/{}{path}", self.bucket.name, self.bucket.prefix)
    }

    fn run(&self, action: &str, from: &str, to: &str) -> Duration {
        let began = Instant::now();
        let done = Command::new(&self.binary)
            .args([
                action,
                from,
                to,
                "--config=/dev/null",
                "--checksum",
                "--fast-list",
                "--s3-no-check-bucket",
            ])
            .args(self.flags)
            .env("RCLONE_CONFIG_PEER_TYPE", "s3")
            .env("RCLONE_CONFIG_PEER_PROVIDER", "Other")
            .env("RCLONE_CONFIG_PEER_ENDPOINT", &self.bucket.endpoint)
            .env("RCLONE_CONFIG_PEER_ACCESS_KEY_ID", &self.bucket.access_key)
            .env("RCLONE_CONFIG_PEER_SECRET_ACCESS_KEY", &self.bucket.secret_key)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        began.elapsed()
    }
}

fn note(rows: &mut Vec<Row>, name: &'static str, ours: Duration, peers: Duration) {
    let at = rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
        rows.push(Row { name, ..Row::default() });
        rows.len() - 1
    });
    rows[at].ours.push(ours);
    rows[at].peers.push(peers);
}

fn print(title: &str, small: usize, large: usize, rows: &[Row]) {
    println!("\nbeside {title}; “many” is {small} × 10 KB, “one” is {} MB; medians\n", large >> 20);
    println!("{:<16}{:>10}{:>10}{:>8}", "", "atelier", "rclone", "ratio");
    for row in rows {
        let (ours, peers) = (median(&row.ours), median(&row.peers));
        println!("{:<16}{ours:>8.2} s{peers:>8.2} s{:>8.2}", row.name, ours / peers);
    }
}

fn median(times: &[Duration]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

/// Bytes that do not compress and are not alike.
fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// Resident memory at its highest, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}
