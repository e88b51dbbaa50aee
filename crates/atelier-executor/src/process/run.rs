//! Starts one command on Linux, from its plan to its outcome.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{Mode, OFlags};

use super::isolation::{MAX_PROCESSES, sandbox_support};
use super::launch::{self, Overlay, Plan, Resource};
use super::output::texts;
use super::runner::Runner;
use super::running::Pipes;
use super::{Access, CommandLayer, CommandSpec, Ending, Outcome, filter, landlock_rules};
use crate::beneath;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::workspace::{Workspace, relative};

/// CHOWN, DAC_OVERRIDE, FOWNER and FSETID: root can still work on files of other users, inside the
/// sandbox.
pub(super) const ROOT_KEEPS: u64 = 0b1_1011;

impl Runner {
    pub(super) fn start(
        &self,
        workspace: &Workspace,
        spec: &CommandSpec,
        layer: Option<&CommandLayer>,
        mut environment: Vec<(String, String)>,
        cancel: &Cancel,
    ) -> Result<Outcome> {
        let (isolation, _) = sandbox_support();
        let started = Instant::now();
        let tmp = self.temporary()?;
        self.lend(spec, tmp.path())?;
        environment.push(("TMPDIR".to_owned(), tmp.path().display().to_string()));
        let pipes = Pipes::new().map_err(setup)?;
        let plan = self.plan(workspace, spec, layer, &environment, tmp.path(), &pipes)?;
        let supervisor =
            launch::launch(&plan).map_err(|source| Error::Sandbox { stage: "fork", source })?;
        // The children have their own copies. Ours would keep the pipes open for ever.
        drop(plan);
        let mut running = pipes.into_running(supervisor, spec.output_limit);
        let stopped = running.drain(started + spec.timeout, cancel).map_err(setup)?;
        let ending = match (running.report()?, stopped) {
            (_, Some(stopped)) => stopped,
            (Some(status), None) => ending(status),
            (None, None) => Ending::Killed(libc::SIGKILL),
        };
        let (stdout_bytes, stderr_bytes) = (running.stdout.kept.seen(), running.stderr.kept.seen());
        let (stdout, stderr, truncated) =
            texts(running.stdout.kept, running.stderr.kept, spec.output_limit);
        Ok(Outcome {
            ending,
            stdout,
            stderr,
            truncated,
            stdout_bytes,
            stderr_bytes,
            elapsed: started.elapsed(),
            isolation: isolation.clone(),
            access: spec.access,
            network: spec.network,
        })
    }

    fn plan(
        &self,
        workspace: &Workspace,
        spec: &CommandSpec,
        layer: Option<&CommandLayer>,
        environment: &[(String, String)],
        tmp: &Path,
        pipes: &Pipes,
    ) -> Result<Plan> {
        let (isolation, sandbox_support) = sandbox_support();
        let program = self.find(workspace, &spec.program)?;
        let shown = spec.cwd.as_str();
        if workspace.ignored()?.hides(relative(&spec.cwd), true) {
            return Err(Error::NotFound { path: shown.to_owned() });
        }
        let cwd = beneath::open(workspace.handle(), relative(&spec.cwd), beneath::DIRECTORY)
            .map_err(|errno| Error::from_os(errno, "enter", shown))?;
        let mut argv = vec![text(&spec.program)?];
        for arg in &spec.args {
            argv.push(text(arg)?);
        }
        let envp = environment
            .iter()
            .map(|(name, value)| text(&format!("{name}={value}")))
            .collect::<Result<_>>()?;
        let mut spaces = sandbox_support.spaces.clone();
        if spec.network {
            spaces.flags &= !libc::CLONE_NEWNET;
        }
        let mut writable = vec![c_path(tmp)?];
        if spec.access == Access::Workspace {
            writable.push(c_path(&self.home)?);
            writable.push(c_path(workspace.root())?);
        }
        let filters = if sandbox_support.seccomp {
            let attributes = isolation.mounts || spec.access == Access::Workspace;
            let set_id = spec.program == "git";
            filter::compile(filter::Wanted {
                network: spec.network,
                attributes,
                set_id,
                // Those of a layer would change how it is read.
                xattrs: layer.is_none(),
            })
            .map_err(|error| Error::Sandbox { stage: "seccomp", source: io::Error::other(error) })?
        } else {
            Vec::new()
        };
        let (overlay, inside) = match layer {
            None => (None, Vec::new()),
            Some(CommandLayer { upper, work }) => {
                let rights = landlock_rules::in_layer(isolation.landlock);
                (Some(overlay(workspace, upper, work)?), vec![(c_path(workspace.root())?, rights)])
            }
        };
        // What lies below a layer is closed to the command.
        let open = overlay.is_none().then(|| workspace.handle());
        let folders = landlock_rules::Folders { workspace: open, home: &self.home, tmp };
        let ruleset = match isolation.landlock {
            0 => None,
            _ => landlock_rules::ruleset(&self.system, &folders, spec.access)
                .map_err(|source| Error::Sandbox { stage: "landlock", source })?,
        };
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(setup)?;
        Ok(Plan {
            program: c_path(&program)?,
            argv,
            envp,
            cwd,
            cwd_path: c_path(&workspace.root().join(relative(&spec.cwd)))?,
            stdin: high(&null)?,
            stdout: high(&pipes.stdout.1)?,
            stderr: high(&pipes.stderr.1)?,
            lifeline: high(&pipes.lifeline.0)?,
            report: high(&pipes.report.1)?,
            spaces,
            tmp: c_path(tmp)?,
            writable,
            pinned: match spec.access {
                Access::ReadOnly => Vec::new(),
                Access::Workspace => pinned(workspace, spec.hidden.iter().chain(&spec.in_place))?,
            },
            hidden: covers(
                workspace,
                spec.hidden.iter().chain(&spec.hooks),
                (&self.empty_dir, &self.empty_file),
            )?,
            read_only: match spec.access {
                Access::ReadOnly => Vec::new(),
                Access::Workspace => {
                    let path = |path| c_path(&workspace.root().join(path));
                    spec.read_only.iter().map(path).collect::<Result<_>>()?
                }
            },
            ruleset: ruleset.as_ref().map(high).transpose()?,
            filters,
            limits: limits(),
            keep_capabilities: ROOT_KEEPS,
            layered: overlay.is_some(),
            overlay,
            inside,
        })
    }
}

/// A layer over the workspace that has its changes in these folders.
pub(super) fn overlay(workspace: &Workspace, upper: &Path, work: &Path) -> Result<Overlay> {
    let lower = workspace.handle().try_clone_to_owned().map_err(setup)?;
    let lower = (high(&lower)?, c_path(workspace.root())?);
    let folders = [lower, folder(upper)?, folder(work)?];
    let at = |index: usize| format!("/proc/self/fd/{}", folders[index].0.as_raw_fd());
    let options = format!("lowerdir={},upperdir={},workdir={},userxattr", at(0), at(1), at(2));
    Ok(Overlay { folders, options: text(&options)?, root: c_path(workspace.root())? })
}

/// A handle of a folder, and its path.
pub(super) fn folder(path: &Path) -> Result<(OwnedFd, CString)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| Error::Io {
        action: "open",
        path: path.display().to_string(),
        source: errno.into(),
    })?;
    Ok((high(&fd)?, c_path(path)?))
}

/// The mount for each hidden path: an empty folder over a folder, an empty file over a file.
pub(super) fn covers<'p>(
    workspace: &Workspace,
    paths: impl Iterator<Item = &'p PathBuf>,
    (empty_dir, empty_file): (&Path, &Path),
) -> Result<Vec<(CString, CString)>> {
    if !sandbox_support().0.mounts {
        return Ok(Vec::new());
    }
    let mut covers = Vec::new();
    for path in paths {
        let Ok(fd) = beneath::open(workspace.handle(), path, OFlags::PATH) else { continue };
        let is_dir = rustix::fs::fstat(&fd)
            .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
        let cover = c_path(if is_dir { empty_dir } else { empty_file })?;
        covers.push((cover, c_path(&workspace.root().join(path))?));
    }
    Ok(covers)
}

/// The folders that contain these paths, outer folders first. They must not be moved: under another
/// path, a hidden file would become visible, and a repository could be replaced by another one.
fn pinned<'p>(
    workspace: &Workspace,
    paths: impl Iterator<Item = &'p PathBuf>,
) -> Result<Vec<CString>> {
    if !sandbox_support().0.mounts {
        return Ok(Vec::new());
    }
    let above =
        paths.flat_map(|path| path.ancestors().skip(1)).filter(|dir| !dir.as_os_str().is_empty());
    let folders: BTreeSet<&Path> = above.collect();
    folders.into_iter().map(|dir| c_path(&workspace.root().join(dir))).collect()
}

pub(super) fn setup(error: impl Into<io::Error>) -> Error {
    Error::Sandbox { stage: "pipes", source: error.into() }
}

pub(super) fn text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::NulArgument)
}

pub(super) fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::NulArgument)
}

/// A copy of the handle with a number above those that the children rearrange.
pub(super) fn high(fd: &OwnedFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 10).map_err(setup)
}

pub(super) fn limits() -> Vec<(Resource, libc::rlimit)> {
    const GIB: u64 = 1 << 30;
    let at_most = |resource: Resource, value: u64| {
        let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
        (resource, limit)
    };
    vec![
        at_most(libc::RLIMIT_CORE, 0),
        at_most(libc::RLIMIT_FSIZE, 4 * GIB),
        at_most(libc::RLIMIT_NOFILE, 4096),
        // Not RLIMIT_AS, because node and Go reserve far more memory than they use. RLIMIT_DATA
        // counts writable memory.
        at_most(libc::RLIMIT_DATA, 8 * GIB),
        at_most(libc::RLIMIT_NPROC, u64::from(MAX_PROCESSES) + others()),
    ]
}

/// How many processes the user already has. Outside our own user namespace, the limit counts all of
/// them.
fn others() -> u64 {
    let own = rustix::process::getuid();
    // The limit never applies to root, so nothing needs to be counted.
    if sandbox_support().0.user_namespace || own.is_root() {
        return 0;
    }
    let mine = |entry: io::Result<std::fs::DirEntry>| -> Option<u64> {
        use std::os::unix::fs::MetadataExt;
        let entry = entry.ok()?;
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        if entry.metadata().ok()?.uid() != own.as_raw() {
            return None;
        }
        // Threads count as processes.
        Some(std::fs::read_dir(entry.path().join("task")).map_or(1, |tasks| tasks.count() as u64))
    };
    std::fs::read_dir("/proc").map_or(0, |entries| entries.filter_map(mine).sum())
}

pub(super) fn ending(status: i32) -> Ending {
    if libc::WIFEXITED(status) {
        Ending::Exited(libc::WEXITSTATUS(status))
    } else {
        Ending::Killed(libc::WTERMSIG(status))
    }
}
