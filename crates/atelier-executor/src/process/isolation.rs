//! What this machine can enforce, found out by trying rather than by version numbers.

use std::ffi::CString;
use std::sync::OnceLock;

use serde::Serialize;

/// What holds a command in. Part of every result, and shown before anything runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Isolation {
    /// Landlock's ABI: reads limited to system folders and the workspace, writes to the workspace. 0: not available.
    pub landlock: u8,
    /// Everything outside is mounted read-only, and files can be hidden.
    pub mounts: bool,
    pub network: NetworkWall,
    pub processes: ProcessWall,
    /// How many processes a command may have; `None` when nothing stops a fork bomb but the timeout.
    pub process_limit: Option<u32>,
    /// Namespaces are made inside a user namespace, without being root.
    pub user_namespace: bool,
}

/// What stands between a command and the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkWall {
    NamespaceAndSeccomp,
    Namespace,
    Seccomp,
    None,
}

/// How a process tree is ended whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessWall {
    /// The kernel ends everything in the namespace with its first process.
    PidNamespace,
    /// A supervising parent collects and kills; a process that kills the supervisor first could get away.
    Supervisor,
    /// Only the process group is ended.
    Group,
}

impl Isolation {
    /// Tried once per process.
    pub fn detect() -> Self {
        walls().0.clone()
    }

    /// LOW commands run unasked only where "no write, no network" is enforced rather than hoped for.
    /// Landlock before ABI 3 lets files be truncated.
    pub fn enforces_read_only(&self) -> bool {
        (self.landlock >= 3 || (self.landlock >= 1 && self.mounts)) && self.network != NetworkWall::None
    }

    /// Nothing at all: other systems.
    pub fn none() -> Self {
        Self {
            landlock: 0,
            mounts: false,
            network: NetworkWall::None,
            processes: ProcessWall::Group,
            process_limit: None,
            user_namespace: false,
        }
    }
}

impl std::fmt::Display for Isolation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.landlock {
            0 => write!(f, "files: not limited (no Landlock)")?,
            abi => write!(f, "files: Landlock {abi}")?,
        }
        let mounts = if self.mounts { " and read-only mounts" } else { "" };
        let network = match self.network {
            NetworkWall::NamespaceAndSeccomp => "namespace and seccomp",
            NetworkWall::Namespace => "namespace",
            NetworkWall::Seccomp => "seccomp",
            NetworkWall::None => "not limited",
        };
        let processes = match self.processes {
            ProcessWall::PidNamespace => "pid namespace",
            ProcessWall::Supervisor => "supervisor",
            ProcessWall::Group => "process group",
        };
        write!(f, "{mounts}; network: {network}; processes: {processes}")?;
        match self.process_limit {
            Some(limit) => write!(f, ", at most {limit}"),
            None => write!(f, ", not limited in number"),
        }
    }
}

/// The system's side of an isolation: what a launch passes to the kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct Walls {
    #[cfg(target_os = "linux")]
    pub(super) spaces: super::launch::Spaces,
    pub(super) seccomp: bool,
}

pub(super) fn walls() -> &'static (Isolation, Walls) {
    static DETECTED: OnceLock<(Isolation, Walls)> = OnceLock::new();
    DETECTED.get_or_init(detect)
}

/// Enough for any build, few enough to leave the machine usable.
pub(super) const MAX_PROCESSES: u32 = 512;

#[cfg(target_os = "linux")]
fn detect() -> (Isolation, Walls) {
    use super::launch::{landlock_abi, seccomp_available};
    let seccomp = seccomp_available() && cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
    let spaces = find_spaces();
    let has = |flag| spaces.flags & flag != 0;
    let root = rustix::process::getuid().is_root();
    let isolation = Isolation {
        landlock: landlock_abi(),
        mounts: has(libc::CLONE_NEWNS),
        network: match (has(libc::CLONE_NEWNET), seccomp) {
            (true, true) => NetworkWall::NamespaceAndSeccomp,
            (true, false) => NetworkWall::Namespace,
            (false, true) => NetworkWall::Seccomp,
            (false, false) => NetworkWall::None,
        },
        processes: if has(libc::CLONE_NEWPID) { ProcessWall::PidNamespace } else { ProcessWall::Supervisor },
        // The kernel counts an ordinary user's processes, but never root's.
        process_limit: (spaces.pid_max.is_some() || !root).then_some(MAX_PROCESSES),
        user_namespace: spaces.maps.is_some(),
    };
    (isolation, Walls { spaces, seccomp })
}

/// The most that works here: with or without a user namespace, with or without a fresh /proc, per-namespace
/// process numbers (Linux 6.14), or mounts.
#[cfg(target_os = "linux")]
fn find_spaces() -> super::launch::Spaces {
    use super::launch::{Spaces, probe};
    let base = libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let map = |id: u32| CString::new(format!("{id} {id} 1")).unwrap_or_default();
    // Numbers below 300 are used once only, so the first 300 do not count.
    let pid_max = CString::new(format!("{}", 300 + MAX_PROCESSES)).ok();
    for user in [false, true] {
        let maps = user.then(|| (map(uid), map(gid)));
        let user = if user { libc::CLONE_NEWUSER } else { 0 };
        for (mounts, fresh_proc) in [(libc::CLONE_NEWNS, true), (libc::CLONE_NEWNS, false), (0, false)] {
            for pid_max in [pid_max.clone(), None] {
                let spaces = Spaces { flags: base | user | mounts, maps: maps.clone(), fresh_proc, pid_max };
                if probe(&spaces) {
                    return spaces;
                }
            }
        }
    }
    Spaces::default()
}

#[cfg(not(target_os = "linux"))]
fn detect() -> (Isolation, Walls) {
    (Isolation::none(), Walls::default())
}
