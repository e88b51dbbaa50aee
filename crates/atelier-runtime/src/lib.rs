//! What runs in a server for its projects: worker spaces, the gate, and agents at work.
//!
//! A [`WorkerSpace`] is also the right to act on its project, because [`Spaces::enter`] gives it
//! only to the project's owner.

mod agents;
mod budgets;
mod gate;
mod health;
mod key_cipher;
mod model_keys;
mod node_health;
mod own_files;
mod requests;
mod secret;
mod settings;
mod space;
mod spaces;
mod work;

pub use agents::LoadedAgent;
pub use budgets::Budgets;
pub use gate::{CallUsage, Decision, Gate, GateSettings, Machine};
pub use health::{Health, Part, Status};
pub use model_keys::{ModelKeys, ProviderEdit};
pub use node_health::NodeHealth;
pub use own_files::{FoundConversation, OwnFiles, OwnFilesRun, OwnFolder, only_reads};
pub use requests::TrackedRequest;
pub use secret::{check_value, open_secret};
pub use settings::{Settings, StarterAgent, WorkerSpaceSettings};
pub use space::{CacheReport, Report, WorkerSpace};
pub use spaces::Spaces;
pub use work::{
    AgentServices, Bus, DefaultBudgets, PlannerSettings, ProjectSettings, QueueReport,
    WorkSettings, check_tools,
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] atelier_store::Error),
    #[error(transparent)]
    Invalid(#[from] atelier_core::Invalid),
    #[error("{waiting} requests of this project are already waiting")]
    Busy { waiting: usize },
    #[error(transparent)]
    Refused(#[from] atelier_core::gate::Refusal),
    #[error(transparent)]
    Memory(atelier_memory::Error),
    #[error("{limit} tool calls are open already: wait until some are decided and done")]
    TooManyOpenCalls { limit: u32 },
    #[error(
        "your tool calls and their results take {limit} bytes, which is the most that is stored: \
         delete projects that you do not need, or wait until old calls are removed"
    )]
    CallStorageFull { limit: u64 },
    #[error("the worker space was closed")]
    SpaceClosed,
}

impl From<atelier_memory::Error> for Error {
    fn from(error: atelier_memory::Error) -> Self {
        match error {
            atelier_memory::Error::Store(error) => Error::Store(error),
            other => Error::Memory(other),
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
