//! Finds out what this machine can enforce. It tries, instead of comparing version numbers.

use std::ffi::CString;
use std::sync::OnceLock;

use atelier_core::isolation::{Isolation, NetworkIsolation, ProcessIsolation};

/// The isolation that this machine can enforce, determined once per process.
pub fn detect_isolation() -> Isolation {
    sandbox_support().0.clone()
}

/// The settings that a launch passes to the kernel for an isolation.
#[derive(Debug, Clone, Default)]
pub(super) struct SandboxSupport {
    #[cfg(target_os = "linux")]
    pub(super) spaces: super::launch::Spaces,
    pub(super) seccomp: bool,
}

pub(super) fn sandbox_support() -> &'static (Isolation, SandboxSupport) {
    static DETECTED: OnceLock<(Isolation, SandboxSupport)> = OnceLock::new();
    DETECTED.get_or_init(detect)
}

/// The most processes of one command: enough for any build, and few enough to keep the machine
/// usable.
pub(super) const MAX_PROCESSES: u32 = 512;

#[cfg(target_os = "linux")]
fn detect() -> (Isolation, SandboxSupport) {
    use super::launch::{landlock_abi, seccomp_available};
    let seccomp = seccomp_available() && cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
    let spaces = find_spaces();
    let has = |flag| spaces.flags & flag != 0;
    let root = rustix::process::getuid().is_root();
    let isolation = Isolation {
        landlock: landlock_abi(),
        mounts: has(libc::CLONE_NEWNS),
        network: match (has(libc::CLONE_NEWNET), seccomp) {
            (true, true) => NetworkIsolation::NamespaceAndSeccomp,
            (true, false) => NetworkIsolation::Namespace,
            (false, true) => NetworkIsolation::Seccomp,
            (false, false) => NetworkIsolation::None,
        },
        processes: if has(libc::CLONE_NEWPID) {
            ProcessIsolation::PidNamespace
        } else {
            ProcessIsolation::Supervisor
        },
        // The kernel counts the processes of ordinary users, but not those of root.
        process_limit: (spaces.pid_max.is_some() || !root).then_some(MAX_PROCESSES),
        user_namespace: spaces.maps.is_some(),
    };
    (isolation, SandboxSupport { spaces, seccomp })
}

/// The strongest combination that works here: with or without a user namespace, a fresh /proc,
/// process numbers per namespace (Linux 6.14), and mounts.
#[cfg(target_os = "linux")]
fn find_spaces() -> super::launch::Spaces {
    use super::launch::{Spaces, probe};
    let base = libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let map = |id: u32| CString::new(format!("{id} {id} 1")).unwrap_or_default();
    // Numbers below 300 are used only once, so the first 300 do not count.
    let pid_max = CString::new(format!("{}", 300 + MAX_PROCESSES)).ok();
    for user in [false, true] {
        let maps = user.then(|| (map(uid), map(gid)));
        let user = if user { libc::CLONE_NEWUSER } else { 0 };
        for (mounts, fresh_proc) in
            [(libc::CLONE_NEWNS, true), (libc::CLONE_NEWNS, false), (0, false)]
        {
            for pid_max in [pid_max.clone(), None] {
                let spaces =
                    Spaces { flags: base | user | mounts, maps: maps.clone(), fresh_proc, pid_max };
                if probe(&spaces) {
                    return spaces;
                }
            }
        }
    }
    Spaces::default()
}

#[cfg(not(target_os = "linux"))]
fn detect() -> (Isolation, SandboxSupport) {
    (Isolation::none(), SandboxSupport::default())
}
