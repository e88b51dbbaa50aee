//! The Landlock ruleset of one command: what it may read, run and write.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, Scope,
};
use rustix::fs::{Mode, OFlags};

use super::Access;
use super::toolchain::Toolchains;

/// Programs and libraries.
const RUNNABLE: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];

/// Only parts of `/etc`, because it contains password hashes and private keys, which root can read.
const READABLE: &[&str] = &[
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/debian_version",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/lsb-release",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/terminfo",
    "/etc/timezone",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
];

const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// The newest Landlock ABI that this code knows. The crate leaves out rights that the kernel does
/// not support.
const NEWEST: ABI = ABI::V7;

/// The rules that are the same for all commands of a workspace. Their paths are opened once.
#[derive(Debug)]
pub(super) struct System(Vec<(OwnedFd, BitFlags<AccessFs>)>);

impl System {
    pub(super) fn open(toolchains: &Toolchains) -> Self {
        let look = AccessFs::ReadFile | AccessFs::ReadDir;
        let run = look | AccessFs::Execute;
        let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        let all = [
            (paths(RUNNABLE), run),
            (toolchains.folders.clone(), run),
            (paths(READABLE), look),
            (paths(DEVICES), device),
        ];
        let mut rules = Vec::new();
        for (list, access) in all {
            // A path that this system does not have needs no rule.
            rules.extend(list.iter().filter_map(|path| Some((open(path)?, access))));
        }
        Self(rules)
    }
}

fn open(path: &Path) -> Option<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// The folders that belong to one run.
pub(super) struct Folders<'a> {
    /// `None` if the command has a layer in its place.
    pub(super) workspace: Option<BorrowedFd<'a>>,
    pub(super) home: &'a Path,
    pub(super) tmp: &'a Path,
}

/// Everything below a folder that a script may do in its layer, as the kernel's number. The folder
/// is opened inside the sandbox, where the layer is.
pub(super) fn in_layer(abi: u8) -> u64 {
    let special = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
    let known = match abi {
        0 => ABI::Unsupported,
        1 => ABI::V1,
        2 => ABI::V2,
        3 => ABI::V3,
        4 => ABI::V4,
        _ => ABI::V5,
    };
    (AccessFs::from_all(known) & !special).bits()
}

/// The rules for what is the same for all commands, without any folder of the workspace.
pub(super) fn system_ruleset(system: &System) -> io::Result<Option<OwnedFd>> {
    let build = || -> Result<RulesetCreated, landlock::RulesetError> {
        let mut rules = Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))?
            .scope(Scope::from_all(NEWEST))?
            .create()?;
        for (fd, access) in &system.0 {
            rules = rules.add_rule(PathBeneath::new(fd.as_fd(), *access))?;
        }
        Ok(rules)
    };
    build().map(Into::into).map_err(io::Error::other)
}

/// The ruleset; `None` if the kernel has no Landlock.
pub(super) fn ruleset(
    system: &System,
    folders: &Folders<'_>,
    access: Access,
) -> io::Result<Option<OwnedFd>> {
    let look = AccessFs::ReadFile | AccessFs::ReadDir;
    let special = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
    let work = AccessFs::from_all(NEWEST) & !special;
    let build = || -> Result<RulesetCreated, landlock::RulesetError> {
        let mut rules = Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))?
            .scope(Scope::from_all(NEWEST))?
            .create()?;
        for (fd, access) in &system.0 {
            rules = rules.add_rule(PathBeneath::new(fd.as_fd(), *access))?;
        }
        let (workspace, home) = match access {
            // A read-only command cannot run programs from the workspace.
            Access::ReadOnly => (look, look),
            Access::Workspace => (work, work),
        };
        if let Some(folder) = folders.workspace {
            rules = rules.add_rule(PathBeneath::new(folder, workspace))?;
        }
        for (path, access) in [(folders.home, home), (folders.tmp, work)] {
            if let Some(fd) = open(path) {
                rules = rules.add_rule(PathBeneath::new(fd, access))?;
            }
        }
        Ok(rules)
    };
    build().map(Into::into).map_err(io::Error::other)
}
