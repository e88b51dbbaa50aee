//! Scripts in a layer on Linux: starts the layer's holder if there is none, and a keeper for each
//! script.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open};

use super::isolation::sandbox_support;
use super::launch::{self, HolderPlan, KeeperPlan, Plan, STAGES, START_STAGE};
use super::run::{ROOT_KEEPS, c_path, covers, folder, high, limits, overlay, setup, text};
use super::runner::Runner;
use super::script_end::{is_locked, read_report};
use super::script_values::{LayerPlaces, ScriptSpec};
use super::way_out::WayOut;
use super::{filter, landlock_rules};
use crate::error::{Error, Result};
use crate::proxy::Serving;
use crate::workspace::Workspace;

/// HOME inside a layer. It lies in the layer's own `/tmp`.
pub(crate) const LAYER_HOME: &str = "/tmp/.home";
/// A longer script is passed as a file, because the kernel limits the length of an argument.
const LONGEST_ARGUMENT: usize = 100 << 10;
/// How long a holder may take to end, or to start.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A script that was started.
#[derive(Debug)]
pub(crate) struct StartedScript {
    pub(crate) keeper: OwnedFd,
    /// The script ends when this pipe is closed; `None` for a job.
    pub(crate) owner: Option<OwnedFd>,
    /// The holder, if it was started with the script.
    pub(crate) holder: Option<OwnedFd>,
    /// Its proxy, if it may connect to hosts. It ends with the script.
    pub(crate) proxy: Option<Serving>,
}

impl Runner {
    /// Starts a script in a layer. The caller has the layer's lock. With `owner`, jobs end when that
    /// pipe closes.
    pub(crate) fn start_script(
        &self,
        workspace: &Workspace,
        places: &LayerPlaces,
        spec: &ScriptSpec<'_>,
        background: bool,
        owner: Option<&OwnedFd>,
    ) -> Result<StartedScript> {
        prepare_tmp(workspace, places)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.find_or_start_holder(workspace, places)?;
            // The holder may end just before it is joined. Then the loop tries again.
            if let Some(way_out) = WayOut::open(spec, &found.pidfd, joined_spaces())? {
                let started = self
                    .start_keeper(workspace, places, spec, background, owner, &found, &way_out)?;
                if let Some(started) = started {
                    let proxy = way_out.begin(spec, &started.keeper)?;
                    return Ok(StartedScript { holder: found.started, proxy, ..started });
                }
            }
            if Instant::now() >= until {
                return Err(sandbox("join", io::Error::other("the layer does not end")));
            }
            pause();
            let report = spec.job.join("report");
            File::create(&report).map_err(io_error("make", &report))?;
        }
    }

    fn find_or_start_holder(&self, workspace: &Workspace, places: &LayerPlaces) -> Result<Holder> {
        if !places.fifo.exists() {
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(rustix::fs::CWD, &places.fifo, rustix::fs::FileType::Fifo, mode, 0)
                .map_err(|errno| io_error("make", &places.fifo)(errno.into()))?;
        }
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = running_holder(places)? {
                return Ok(found);
            }
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
            let alive = rustix::fs::open(&places.holder, flags, Mode::RUSR | Mode::WUSR)
                .map_err(|errno| io_error("open", &places.holder)(errno.into()))?;
            match rustix::fs::flock(&alive, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return self.start_holder(workspace, places, alive),
                Err(Errno::WOULDBLOCK) if Instant::now() < until => pause(),
                Err(errno) => return Err(sandbox("join", errno.into())),
            }
        }
    }

    fn start_holder(
        &self,
        workspace: &Workspace,
        places: &LayerPlaces,
        alive: OwnedFd,
    ) -> Result<Holder> {
        let mut spaces = sandbox_support().1.spaces.clone();
        let needed = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET;
        if spaces.flags & needed != needed {
            return Err(Error::NoLayers);
        }
        // Every script makes a PID namespace of its own, and the kernel allows that only outside of
        // another one.
        spaces.flags &= !libc::CLONE_NEWPID;
        spaces.pid_max = None;
        let fifo = |flags| {
            rustix::fs::open(&places.fifo, flags | OFlags::CLOEXEC, Mode::empty())
                .map_err(|errno| io_error("open", &places.fifo)(errno.into()))
        };
        let users = fifo(OFlags::RDONLY | OFlags::NONBLOCK)?;
        let user = fifo(OFlags::WRONLY | OFlags::NONBLOCK)?;
        let (ready, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(setup)?;
        let plan = HolderPlan {
            spaces,
            overlay: overlay(workspace, &places.upper, &places.work)?,
            tmp: folder(&places.tmp)?,
            users: high(&users)?,
            alive: high(&alive)?,
            ready: high(&tell)?,
        };
        let (holder, pid) = launch::hold(&plan).map_err(|source| sandbox("fork", source))?;
        drop((plan, tell, users));
        let mut message = [0u8; 5];
        let told = File::from(ready).read_exact(&mut message);
        let failed = stage_of(message).filter(|_| message != [0; 5]);
        if let (Err(_), _) | (_, Some(_)) = (&told, &failed) {
            wait_for(&holder)?;
            return Err(match failed {
                Some((stage, source)) => Error::LayerRefused { stage, source },
                None => sandbox("layer", io::Error::other("the holder of the layer ended")),
            });
        }
        let mut file = File::from(alive);
        file.set_len(0)
            .and_then(|()| write!(file, "{pid}"))
            .map_err(io_error("write", &places.holder))?;
        let pidfd = holder.try_clone().map_err(setup)?;
        Ok(Holder { pidfd, user, started: Some(holder) })
    }

    /// Starts a keeper. `None` if the holder ended before it could be joined.
    #[expect(clippy::too_many_arguments, reason = "what one script needs")]
    fn start_keeper(
        &self,
        workspace: &Workspace,
        places: &LayerPlaces,
        spec: &ScriptSpec<'_>,
        background: bool,
        layer_owner: Option<&OwnedFd>,
        holder: &Holder,
        way_out: &WayOut,
    ) -> Result<Option<StartedScript>> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(setup);
        let (out, err, lifeline, owner) = (pipe()?, pipe()?, pipe()?, pipe()?);
        let (joined, told) = pipe()?;
        let file = |name: &str| -> Result<OwnedFd> {
            let path = spec.job.join(name);
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
            let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
                .map_err(|errno| io_error("open", &path)(errno.into()))?;
            high(&fd)
        };
        let alive = file("alive")?;
        rustix::fs::flock(&alive, FlockOperation::NonBlockingLockExclusive).map_err(setup)?;
        let report = file("report")?;
        let disk = rustix::fs::open(
            &places.upper,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(setup)?;
        let program = self.script_plan(
            workspace,
            places,
            spec,
            way_out.environment(spec),
            [&out.1, &err.1, &lifeline.0],
            report,
        )?;
        let plan = KeeperPlan {
            program,
            join: joined_spaces(),
            holder: high(&holder.pidfd)?,
            user: high(&holder.user)?,
            owner: match background {
                true => layer_owner.map(high).transpose()?,
                false => Some(high(&owner.0)?),
            },
            alive,
            outputs: [(high(&out.0)?, file("stdout")?), (high(&err.0)?, file("stderr")?)],
            lifeline: high(&lifeline.1)?,
            most_output: spec.most_output,
            time_ms: i64::try_from(spec.time.as_millis()).unwrap_or(i64::MAX),
            disk: high(&disk)?,
            most_disk: spec.most_disk,
            joined: high(&told)?,
        };
        let (keeper, pid) = launch::keep(&plan).map_err(|source| sandbox("fork", source))?;
        drop((plan, told));
        let mut byte = [0];
        if File::from(joined).read_exact(&mut byte).is_err() {
            wait_for(&keeper)?;
            return match read_report(spec.job) {
                Err(Error::Sandbox { stage: "join", .. }) | Ok(_) => Ok(None),
                Err(error) => Err(error),
            };
        }
        let path = spec.job.join("pid");
        std::fs::write(&path, pid.to_string()).map_err(io_error("write", &path))?;
        let owner = if background { None } else { Some(owner.1) };
        Ok(Some(StartedScript { keeper, owner, holder: None, proxy: None }))
    }

    fn script_plan(
        &self,
        workspace: &Workspace,
        places: &LayerPlaces,
        spec: &ScriptSpec<'_>,
        environment: Vec<(String, String)>,
        [stdout, stderr, lifeline]: [&OwnedFd; 3],
        report: OwnedFd,
    ) -> Result<Plan> {
        let (isolation, support) = sandbox_support();
        let bash = self.find(workspace, "bash")?;
        let mut argv = vec![text("bash")?];
        if spec.script.len() <= LONGEST_ARGUMENT {
            argv.extend([text("-c")?, text(spec.script)?]);
        } else {
            argv.push(text(&script_file(places, spec)?)?);
        }
        let envp = self
            .script_environment(Path::new(LAYER_HOME))
            .iter()
            .chain(&environment)
            .map(|(name, value)| text(&format!("{name}={value}")))
            .collect::<Result<_>>()?;
        let mut spaces = support.spaces.clone();
        // The user and network namespaces are the holder's.
        spaces.flags = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
        spaces.maps = None;
        let filters = if support.seccomp {
            let wanted =
                filter::Wanted { network: true, attributes: true, set_id: false, xattrs: false };
            filter::compile(wanted).map_err(|error| sandbox("seccomp", io::Error::other(error)))?
        } else {
            Vec::new()
        };
        let work = landlock_rules::in_layer(isolation.landlock);
        let (root, tmp) = (c_path(workspace.root())?, text("/tmp")?);
        let ruleset = match isolation.landlock {
            0 => None,
            _ => landlock_rules::system_ruleset(&self.system)
                .map_err(|source| sandbox("landlock", source))?,
        };
        // The layer may cover the state folder with its own `/tmp`, so the empty folder and file
        // for hidden paths do not come from there.
        let empty = (Path::new(""), Path::new("/dev/null"));
        let hidden = covers(workspace, spec.hidden.iter(), empty)?;
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(setup)?;
        let cwd = workspace.handle().try_clone_to_owned().map_err(setup)?;
        let cpu = spec.time.as_secs().saturating_mul(cores()).saturating_add(5);
        let mut limits = limits();
        limits.push((libc::RLIMIT_CPU, libc::rlimit { rlim_cur: cpu, rlim_max: cpu }));
        Ok(Plan {
            program: c_path(&bash)?,
            argv,
            envp,
            cwd,
            cwd_path: root.clone(),
            stdin: high(&null)?,
            stdout: high(stdout)?,
            stderr: high(stderr)?,
            lifeline: high(lifeline)?,
            report,
            spaces,
            tmp: tmp.clone(),
            writable: vec![tmp.clone(), root.clone()],
            pinned: Vec::new(),
            hidden,
            read_only: Vec::new(),
            ruleset: ruleset.as_ref().map(high).transpose()?,
            filters,
            limits,
            keep_capabilities: ROOT_KEEPS,
            layered: true,
            overlay: None,
            inside: vec![(root, work), (tmp, work)],
        })
    }
}

/// The namespaces of a holder that others join.
fn joined_spaces() -> i32 {
    sandbox_support().1.spaces.flags & !libc::CLONE_NEWPID
}

/// A running holder, and the handle of its FIFO that keeps it running.
struct Holder {
    pidfd: OwnedFd,
    user: OwnedFd,
    started: Option<OwnedFd>,
}

/// The holder of a layer, if it has one.
fn running_holder(places: &LayerPlaces) -> Result<Option<Holder>> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(user) = rustix::fs::open(&places.fifo, flags, Mode::empty()) else { return Ok(None) };
    if !is_locked(&places.holder) {
        return Ok(None);
    }
    let pid = std::fs::read_to_string(&places.holder).ok().and_then(|text| text.parse().ok());
    let Some(pid) = pid.and_then(Pid::from_raw) else { return Ok(None) };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(None) };
    // The number could belong to another process by now, unless the lock is still held.
    Ok(is_locked(&places.holder).then_some(Holder { pidfd, user, started: None }))
}

pub(super) fn stage_of(message: [u8; 5]) -> Option<(&'static str, io::Error)> {
    let [stage, value @ ..] = message;
    let name = STAGES.get(usize::from(stage)).copied().unwrap_or(START_STAGE);
    Some((name, io::Error::from_raw_os_error(i32::from_ne_bytes(value))))
}

/// Creates the folders that a script needs in the layer's own `/tmp`: HOME and, if the workspace
/// lies below `/tmp`, the place where the layer is mounted. A script may have put links there, so
/// none is followed.
fn prepare_tmp(workspace: &Workspace, places: &LayerPlaces) -> Result<()> {
    make_beneath(&places.tmp, Path::new(".home"))?;
    match workspace.root().strip_prefix("/tmp") {
        Ok(below) if below.as_os_str().is_empty() => Err(Error::Protected {
            path: "/tmp".to_owned(),
            why: "a workspace that is /tmp itself has no layers",
        }),
        Ok(below) => make_beneath(&places.tmp, below),
        Err(_) if Path::new("/tmp").starts_with(workspace.root()) => Err(Error::Protected {
            path: workspace.root().display().to_string(),
            why: "a workspace that contains /tmp has no layers",
        }),
        Err(_) => Ok(()),
    }
}

fn make_beneath(top: &Path, path: &Path) -> Result<()> {
    let fail = |errno: Errno| io_error("make", &top.join(path))(errno.into());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::open(top, flags, Mode::empty()).map_err(fail)?;
    for name in path {
        match rustix::fs::mkdirat(&here, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(fail(errno)),
        }
        here = rustix::fs::openat(&here, name, flags | OFlags::NOFOLLOW, Mode::empty())
            .map_err(fail)?;
    }
    Ok(())
}

/// Writes a long script into the layer's `/tmp`. Returns its name there.
fn script_file(places: &LayerPlaces, spec: &ScriptSpec<'_>) -> Result<String> {
    let id = spec.job.file_name().and_then(|name| name.to_str()).unwrap_or("script");
    let name = format!(".script-{id}");
    let path = places.tmp.join(&name);
    let made = File::options().write(true).create_new(true).open(&path);
    made.and_then(|mut file| file.write_all(spec.script.as_bytes()))
        .map_err(io_error("write", &path))?;
    Ok(format!("/tmp/{name}"))
}

fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64)
}

pub(super) fn wait_for(child: &OwnedFd) -> Result<()> {
    rustix::process::waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED)
        .map(drop)
        .map_err(setup)
}

/// Waits for a moment, where no signal tells when to look again.
pub(super) fn pause() {
    let moment = Timespec { tv_sec: 0, tv_nsec: 3_000_000 };
    // An interruption only makes the moment shorter.
    poll(&mut [], Some(&moment)).ok();
}

pub(super) fn sandbox(stage: &'static str, source: io::Error) -> Error {
    Error::Sandbox { stage, source }
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path: CString = CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default();
    move |source| Error::Io { action, path: path.to_string_lossy().into_owned(), source }
}
