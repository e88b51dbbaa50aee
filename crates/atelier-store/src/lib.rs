//! The source of truth: everything that Atelier stores, and every event, on SQLite or PostgreSQL.
//!
//! Reads use a connection of their own. Writes go through one writer, which groups them into
//! commits, numbers their events, and answers when they are on disk.
//!
//! The modules are layers. A module uses modules of lower layers, and of its own layer only where
//! the rules of one resource need another:
//!
//! ```text
//! agents  clients  conversations  file_*  gate  interactions  messages  nodes  plans  projects  tasks …
//!    │      what can be done with each resource; most of `impl Store`
//!    ▼
//! decision_context   auto_interactions      what several resources need of another
//!    ▼
//! writer             groups, savepoints, commits; knows no resource (`scripts/check-invariants`)
//!    ▼
//! pending  read_cache         rows that a group still has to write, rows that it has read
//!    ▼
//! rows/*   events   feed      SQL of single rows; numbering and delivery of events
//!    ▼
//! access   db                 the right to act on a project; one body of queries for two databases
//! ```

mod access;
mod agents;
mod ask_again;
mod auto_interactions;
mod budgets;
mod clients;
mod cluster_keys;
mod collections;
mod conversations;
mod corrections;
mod db;
mod decision_context;
mod events;
mod feed;
mod file_edits;
mod file_leases;
mod file_upkeep;
mod file_uploads;
mod files;
mod gate;
mod identity;
mod interactions;
mod memory_cleanup;
mod messages;
mod migrate;
mod model_providers;
mod nodes;
mod outbox;
mod pending;
mod plans;
mod projects;
mod read_cache;
mod request_keys;
mod rows;
mod sessions;
mod snapshot;
mod tasks;
mod text_search;
mod trouble;
mod usage;
mod writer;

pub use access::{Owned, OwnedAgent, OwnedConversation, ProjectOwner};
pub use agents::{AgentChanges, AgentRef};
pub use budgets::{BudgetOwner, StoredBudget};
pub use clients::{CLIENT_LEASE, Disconnect};
pub use cluster_keys::KeyCheck;
pub use collections::{Collection, FormerPart, Fullness, NewVectors};
pub use conversations::ConversationChanges;
pub use corrections::InteractionChange;
pub use db::{Settings, masked, masked_place};
pub use events::{Cursor, Retention, Scope, StoredEvent};
pub use feed::{Delta, DeltaReceiver, DeltaSender, Subscription, Wakeup, WakeupReceiver, Wakeups};
pub use file_edits::{
    Author, Blob, ContentKind, Edit, Edited, EditedFiles, Expect, FileChanges, WorkspaceStorage,
};
pub use file_leases::Fence;
pub use file_upkeep::StaleCopy;
pub use file_uploads::{Part, Upload};
pub use gate::Decided;
pub use identity::SignIn;
pub use interactions::{Bucket, InteractionPage, Removal, Totals};
pub use messages::{AcceptedMessage, MessageIds, UserMessage};
pub use migrate::Schema;
pub use model_providers::{ModelProvider, ModelScope};
pub use nodes::{LostTask, LostTaskOutcome};
pub use outbox::{IndexChange, StoredVector};
pub use plans::AssignedTask;
pub use projects::NewAgent;
pub use rows::{interactions::AddedInteractions, request_keys::RequestKey};
pub use sessions::{Revocations, Session};
pub use snapshot::{ObjectRef, Progress, SNAPSHOT_FILE, TableContent};
pub use tasks::{
    AbandonedUsage, PROJECT_LIMIT, Parked, QueueState, StoppedTask, TaskAnswer, TaskLease,
};
pub use trouble::{Load, Trouble};
pub use usage::{UsageColumn, UsageFilter, UsageRow};

use atelier_core::{PlanStatus, TaskId, TaskStatus};
use db::Db;
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use writer::Tx;

/// A cheap handle to the database, its writer and its feeds.
#[derive(Clone)]
pub struct Store {
    db: Db,
    writer: writer::Writer,
    feeds: Arc<feed::Feeds>,
    /// Whether it is known that no interaction of an older version is left to clean.
    memory_is_clean: Arc<AtomicBool>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not found")]
    NotFound,
    #[error("the name is taken")]
    NameTaken,
    #[error("this user belongs to another tenant")]
    OtherTenant,
    #[error(
        "a machine with this id is connected with another token: disconnect it, or wait until it has \
         been silent for 30 seconds"
    )]
    ClientTaken,
    #[error(
        "the database has schema {found}, this version of Atelier knows schema {known} at most: \
         it was last used by a newer version; run that one, or restore an older backup"
    )]
    Newer { found: i64, known: i64 },
    #[error(
        "the database has schema {found} and this version of Atelier has schema {known}: use the \
         version that the servers run"
    )]
    OtherSchema { found: i64, known: i64 },
    #[error("there is no database of Atelier yet")]
    NoDatabase,
    #[error("{0} is not empty: nothing was changed; choose an empty one")]
    NotEmpty(String),
    #[error("cannot read or write a file: {0}")]
    Io(#[from] std::io::Error),
    #[error("cannot open the database at {place}")]
    Open { place: String, source: sqlx::Error },
    #[error("Redis: {0}")]
    Redis(String),
    #[error("cannot migrate the database")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    #[error("the database refused: {0}")]
    Sql(#[source] sqlx::Error),
    #[error("a stored row is invalid: {0}")]
    Corrupt(String),
    /// The group commit failed, and with it every write of the group.
    #[error("the commit failed: {0}")]
    Commit(Arc<sqlx::Error>),
    #[error("the reader is too far behind: its next events were removed")]
    Overtaken,
    /// Another writer changed the file, or created one that should not exist.
    #[error("the file is not what the request expects")]
    Precondition,
    #[error("{0} is in the way: a path is a file or a folder, not both")]
    PathTaken(String),
    #[error("there is a file at {0} already")]
    FileThere(String),
    /// Equal content was removed in the meantime, so it has to be stored again.
    #[error("the content is not stored any more")]
    BlobGone,
    #[error("somebody else works in this conversation's folder now")]
    LeaseLost,
    #[error("{waiting} tasks are waiting there already")]
    QueueFull { waiting: i64 },
    #[error("the conversation is archived: nothing more happens in it")]
    Archived,
    #[error("the agent was deleted")]
    AgentDeleted,
    /// The lease was lost: another node runs the task, or it has ended.
    #[error("the task is not this node's any more")]
    TaskLost,
    #[error(
        "the agent is at work on this task: ask again when the task waits for something or has ended"
    )]
    TaskAtWork,
    #[error("the task is {}", .0.as_str())]
    TaskSettled(TaskStatus),
    #[error("the plan is {}", .0.as_str())]
    PlanSettled(PlanStatus),
    #[error("the plan was never approved: nothing of it may run")]
    PlanNotApproved,
    #[error("task {0}, which it depends on, did not succeed: resume that first")]
    DependencyUnfinished(TaskId),
    #[error(
        "this Idempotency-Key was used for another request: use a new key for each new request"
    )]
    KeyReused,
    /// The embedded database is not readable as a whole.
    #[error("the database file is damaged: {0}")]
    Damaged(String),
    /// The write was given up before it was begun.
    #[error("the database is busy: nothing was changed; try again")]
    NotBegun,
    #[error("the store is shutting down")]
    Closed,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Store {
    /// Opens the database, migrating it if it is older.
    pub async fn open(settings: &Settings) -> Result<Self> {
        let db = Db::open(settings).await?;
        migrate::run(&db).await?;
        let feeds = feed::Feeds::start(&db, settings.redis_url.as_deref()).await?;
        let writer = writer::Writer::start(&db, feeds.clone());
        Ok(Self { db, writer, feeds, memory_is_clean: Arc::default() })
    }

    /// The name of the database engine.
    pub fn kind(&self) -> &'static str {
        self.db.kind()
    }

    pub fn wakeups(&self) -> Wakeups {
        self.feeds.wakeups()
    }

    /// Whether Redis carries the messages between the nodes; `None` if it is not configured. While
    /// it does not work, PostgreSQL carries them.
    pub fn redis_works(&self) -> Option<bool> {
        self.feeds.redis_works()
    }

    /// Whether a Redis answers at `url`.
    pub async fn ping_redis(url: &str) -> Result<()> {
        feed::redis::ping(url).await
    }

    /// Waits for the writes that were submitted, then closes every connection.
    pub async fn close(&self) {
        let close = async {
            self.writer.close().await;
            self.db.close().await;
        };
        // A database that has stopped answering must not keep the program from ending.
        if tokio::time::timeout(Duration::from_secs(10), close).await.is_err() {
            tracing::warn!("the database did not close its connections in time");
        }
    }
}
