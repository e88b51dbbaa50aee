//! Ends a script when a protected file appears in the workspace after the script was started.
//!
//! The protected files of a workspace are hidden from a script when the script starts. From then on,
//! a thread watches the folders of the workspace for new ones. Scripts change only their layer, which
//! is in another folder, so a file that appears in the workspace was not made by a script.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use crate::beneath;
use crate::process::FolderStamp;
use crate::repositories::GIT_DIR;
use crate::walk::{Kind, Names};

/// Tells what must be hidden if there is an entry at this path.
pub(crate) type Hides = Box<dyn Fn(&Path, Kind) -> Option<PathBuf> + Send>;

/// What a script must not see, and where that was looked for.
pub(crate) struct Protected {
    /// Paths below the root that are hidden from the script.
    pub(crate) hidden: Vec<PathBuf>,
    /// The folders that were looked into.
    pub(crate) folders: Vec<PathBuf>,
    /// When that began.
    pub(crate) since: SystemTime,
    /// What must be hidden if there is an entry at this path: the entry itself, or what the link
    /// leads to.
    pub(crate) hides: Hides,
}

/// More folders than this are not watched.
const MOST_FOLDERS: usize = 50_000;

/// So many folders are begun with before somebody looks whether the script still runs.
const AT_ONCE: usize = 64;

const WATCHED: WatchFlags =
    WatchFlags::CREATE.union(WatchFlags::MOVED_TO).union(WatchFlags::ONLYDIR);

struct Guard {
    root: OwnedFd,
    keeper: OwnedFd,
    protected: Protected,
    events: OwnedFd,
    /// The folders by the numbers of their watches. One that was moved keeps its number.
    watched: HashMap<i32, PathBuf>,
}

/// Watches until the script has ended. Without a thread or watches the script goes on: it sees no
/// more than what appears meanwhile.
pub(super) fn guard(root: OwnedFd, keeper: OwnedFd, mut protected: Protected) {
    let Ok(events) = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) else {
        tracing::warn!("cannot watch the workspace for new secret files");
        return;
    };
    protected.hidden.sort_unstable();
    let guard = Guard { root, keeper, protected, events, watched: HashMap::new() };
    let thread = std::thread::Builder::new().name("guard".to_owned());
    if let Err(error) = thread.spawn(move || guard.run()) {
        tracing::warn!(%error, "cannot watch the workspace for new secret files");
    }
}

impl Guard {
    fn run(mut self) {
        let folders = std::mem::take(&mut self.protected.folders);
        let known: HashSet<&Path> = folders.iter().map(PathBuf::as_path).collect();
        for some in folders.chunks(AT_ONCE) {
            if self.has_ended(Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                return;
            }
            if some.iter().any(|dir| self.watch(dir) && self.look_into(dir, &known)) {
                return self.end_script();
            }
        }
        while !self.has_ended(None) {
            match self.read_events() {
                Ok(false) => {}
                // What was missed may have been a protected file.
                Ok(true) | Err(_) => return self.end_script(),
            }
        }
    }

    /// Waits for events. Returns whether the script has ended.
    fn has_ended(&self, time: Option<&Timespec>) -> bool {
        let mut handles =
            [PollFd::new(&self.keeper, PollFlags::IN), PollFd::new(&self.events, PollFlags::IN)];
        match poll(&mut handles, time) {
            Ok(_) | Err(Errno::INTR) => !handles[0].revents().is_empty(),
            Err(_) => true,
        }
    }

    /// Watches a folder. Returns whether it may have changed since the script was prepared.
    fn watch(&mut self, dir: &Path) -> bool {
        if self.watched.len() >= MOST_FOLDERS {
            return false;
        }
        // Gone or closed to us: then it is closed to the script, too.
        let Ok(fd) = beneath::open(self.root.as_fd(), dir, beneath::LISTING) else { return false };
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        match add_watch(&self.events, path, WATCHED) {
            Ok(number) => drop(self.watched.insert(number, dir.to_owned())),
            Err(errno) => {
                tracing::warn!(%errno, "cannot watch a folder for new secret files");
                return false;
            }
        }
        rustix::fs::fstat(&fd)
            .is_ok_and(|stat| FolderStamp::of(&stat).is_newer(self.protected.since))
    }

    /// Whether there is a protected file in the folder that the script sees, or below it in a folder
    /// that is not known.
    fn look_into(&mut self, dir: &Path, known: &HashSet<&Path>) -> bool {
        let mut todo = vec![dir.to_owned()];
        while let Some(dir) = todo.pop() {
            let Ok(mut names) = Names::open(self.root.as_fd(), &dir) else { continue };
            let mut found = Vec::new();
            // A folder that cannot be read to its end cannot be read by the script either.
            let _read = names.each(|name, kind| {
                found.push((dir.join(name), kind));
                Ok(())
            });
            for (path, kind) in found {
                if self.is_seen(&path, kind) {
                    return true;
                }
                if kind == Kind::Directory && !is_git(&path) && !known.contains(path.as_path()) {
                    self.watch(&path);
                    todo.push(path);
                }
            }
        }
        false
    }

    /// Whether the path is protected and not hidden.
    fn is_seen(&self, path: &Path, kind: Kind) -> bool {
        let is_hidden = |path: &Path| {
            let hidden = &self.protected.hidden;
            path.ancestors().any(|at| hidden.binary_search_by(|it| it.as_path().cmp(at)).is_ok())
        };
        !is_hidden(path) && (self.protected.hides)(path, kind).is_some_and(|path| !is_hidden(&path))
    }

    /// Reads what has happened. Returns whether a protected file has appeared.
    fn read_events(&mut self) -> Result<bool, Errno> {
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut new = Vec::new();
        {
            let mut reader = Reader::new(&self.events, &mut buffer);
            loop {
                let event = match reader.next() {
                    Ok(event) => event,
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    Err(errno) => return Err(errno),
                };
                if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                    return Err(Errno::OVERFLOW);
                }
                let Some(name) = event.file_name() else { continue };
                let Some(dir) = self.watched.get(&event.wd()) else { continue };
                let is_dir = event.events().contains(ReadFlags::ISDIR);
                new.push((dir.join(OsStr::from_bytes(name.to_bytes())), is_dir));
            }
        }
        for (path, is_dir) in new {
            let kind = match is_dir {
                true => Kind::Directory,
                false if self.is_link(&path) => Kind::Symlink,
                false => Kind::File,
            };
            if self.is_seen(&path, kind) {
                return Ok(true);
            }
            if is_dir && !is_git(&path) {
                self.watch(&path);
                if self.look_into(&path, &HashSet::new()) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn is_link(&self, path: &Path) -> bool {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::statat(&self.root, path, flags).is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Symlink
        })
    }

    /// The keeper kills the script at once, and writes down why.
    fn end_script(&self) {
        if let Err(errno) = pidfd_send_signal(&self.keeper, Signal::USR1) {
            tracing::warn!(%errno, "cannot end a script that sees a new secret file");
        }
    }
}

/// Whether only git reads what is in the folder.
fn is_git(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.eq_ignore_ascii_case(GIT_DIR))
}
