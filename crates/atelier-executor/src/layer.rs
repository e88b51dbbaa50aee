//! Layers: copy-on-write views of a workspace in which scripts run.
//!
//! A layer is kept in the state folder, outside the workspace. The kernel shows the workspace
//! through it (an overlay mount): what a script changes lands in the layer's upper folder, and the
//! workspace stays as it is. [`crate::door`] is the only way from a layer into the workspace.
//!
//! - `age` drops layers that nobody uses any more.
//! - `scan` finds out what a layer has changed, `bases` what the files were like before.
//! - `shell` runs scripts and keeps their output, for `jobs` to read.
//! - `command` runs an approved command in a layer of its own.
//! - `landing` turns changes into a set for the door, `difference` shows them.

mod age;
mod bases;
mod command;
mod difference;
#[cfg(target_os = "linux")]
mod guard;
#[cfg(not(target_os = "linux"))]
#[path = "layer/no_guard.rs"]
mod guard;
mod jobs;
mod landing;
mod landing_links;
mod renames;
mod scan;
mod shell;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};

pub use age::AgingLayer;
pub(crate) use command::Landed;
pub(crate) use difference::{ThreeWay, difference, three_ways};
pub(crate) use guard::{Hides, Protected};
pub(crate) use jobs::JobState;
pub(crate) use landing::Pending;
pub(crate) use scan::{Change, Scan};
pub(crate) use shell::{Shell, ShellRun};

use crate::cancel::Cancel;
use crate::door::{Door, Keeping, hex, io_error, lock_folder, private_folder, replace_file};
use crate::error::{Error, Result};
use crate::process::{LayerPlaces, collect, is_locked, sweep, wait_for_holder};
use crate::process::{Runner, RunnerOptions};
use crate::workspace::{Options, Workspace};
use sha2::{Digest, Sha256};

/// Settings of the layers of a workspace.
#[derive(Debug, Clone)]
pub struct LayerOptions {
    /// Whether jobs go on when this process ends. Otherwise they end with it.
    pub detached: bool,
    /// The most bytes that a layer may hold.
    pub max_bytes: u64,
    /// The most files that a layer may hold.
    pub max_files: u64,
    /// For how many days a layer is kept that nobody uses.
    pub keep_days: u32,
    /// How much of a script's output an answer has, in bytes. The rest is read with `job_output`.
    pub output_limit: usize,
    /// How much of each output of a script is kept, in bytes.
    pub kept_output: u64,
    /// How much is kept for undoing, in bytes and days.
    pub undo_bytes: u64,
    pub undo_days: u32,
}

impl Default for LayerOptions {
    fn default() -> Self {
        Self {
            detached: false,
            max_bytes: 10 << 30,
            max_files: 1_000_000,
            keep_days: 30,
            output_limit: 20_000,
            kept_output: 64 << 20,
            undo_bytes: 2 << 30,
            undo_days: 30,
        }
    }
}

/// The layers of one workspace.
#[derive(Debug)]
pub struct Layers {
    folder: PathBuf,
    /// The fresh layers of commands that run.
    commands: PathBuf,
    pub(crate) door: Door,
    pub(crate) options: LayerOptions,
    /// A pipe that closes when this process ends, for holders to watch.
    owner: Option<(OwnedFd, OwnedFd)>,
    /// Children of this process that nobody waits for.
    children: Mutex<Vec<OwnedFd>>,
}

impl Layers {
    /// Opens the layers of a workspace. Everything is kept below `state_dir`, which must be outside
    /// the workspace.
    pub fn open(state_dir: &Path, workspace: &Workspace, options: LayerOptions) -> Result<Self> {
        private_folder(state_dir)?;
        let state = state_dir.canonicalize().map_err(io_error("find", state_dir))?;
        if state.starts_with(workspace.root()) {
            let why = "the state folder of layers must be outside the workspace";
            return Err(Error::Protected { path: state.display().to_string(), why });
        }
        let folder = state.join("layers");
        private_folder(&folder)?;
        let commands = state.join("commands");
        private_folder(&commands)?;
        sweep(&commands);
        let keeping = Keeping { bytes: options.undo_bytes, days: options.undo_days };
        let door = Door::open(state.join("changes"), keeping)?;
        let owner = match options.detached {
            true => None,
            false => {
                let flags = rustix::pipe::PipeFlags::CLOEXEC;
                let pipe = rustix::pipe::pipe_with(flags);
                Some(pipe.map_err(|errno| io_error("open", &folder)(errno.into()))?)
            }
        };
        door.recover(workspace)?;
        let layers = Self { folder, commands, door, options, owner, children: Mutex::default() };
        layers.finish_landings(workspace)?;
        Ok(layers)
    }

    /// Takes out of the layers what a process had landed before it was killed. Left there, it would
    /// look like a change as soon as the landing is undone.
    fn finish_landings(&self, workspace: &Workspace) -> Result<()> {
        for entry in std::fs::read_dir(&self.folder).map_err(io_error("list", &self.folder))? {
            let folder = entry.map_err(io_error("list", &self.folder))?.path();
            let layer = Layer { layers: self, folder };
            if !layer.landed_paths()?.is_empty() {
                let lock = layer.lock()?;
                // A layer in use may not be changed from outside; its next script does it.
                if !layer.is_mounted() {
                    layer.drop_landed(workspace, &lock)?;
                }
            }
        }
        Ok(())
    }

    /// The layer with this key. It is made when something needs it.
    pub(crate) fn layer(&self, key: &str) -> Result<Layer<'_>> {
        let folder = self.folder.join(folder_name(key));
        for part in ["upper", "work", "tmp", "jobs"] {
            private_folder(&folder.join(part))?;
        }
        let name = folder.join("key");
        if !name.exists() {
            replace_file(&name, key.as_bytes(), false)?;
        }
        Ok(Layer { layers: self, folder })
    }

    /// Ends all jobs of a layer and removes it, and all layers beneath it. What has landed stays.
    pub fn end(&self, key: &str) -> Result<()> {
        let beneath = format!("{}-", folder_name(key));
        for entry in std::fs::read_dir(&self.folder).map_err(io_error("list", &self.folder))? {
            let entry = entry.map_err(io_error("list", &self.folder))?;
            if entry.file_name().to_string_lossy().starts_with(&beneath) {
                self.end_layer(&Layer { layers: self, folder: entry.path() })?;
            }
        }
        self.end_layer(&self.layer(key)?)
    }

    fn end_layer(&self, layer: &Layer<'_>) -> Result<()> {
        layer.stop_all()?;
        let lock = layer.lock()?;
        layer.remove_all()?;
        std::fs::remove_dir_all(&layer.folder).map_err(io_error("remove", &layer.folder))?;
        drop(lock);
        Ok(())
    }

    /// Keeps a child until it has ended.
    fn adopt(&self, children: impl IntoIterator<Item = OwnedFd>) {
        let mut known = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|child| !collect(child));
        known.extend(children);
    }

    fn owner(&self) -> Option<&OwnedFd> {
        self.owner.as_ref().map(|(reader, _)| reader)
    }
}

/// The folder of the layer with this key. The parts of a key, between `/`, make it a layer beneath
/// that of the parts before.
fn folder_name(key: &str) -> String {
    let part = |part: &str| hex(&Sha256::digest(part.as_bytes()))[..16].to_owned();
    key.split('/').map(part).collect::<Vec<_>>().join("-")
}

/// One layer.
#[derive(Debug)]
pub(crate) struct Layer<'a> {
    layers: &'a Layers,
    folder: PathBuf,
}

/// Held while a layer is looked at as a whole, or changed from outside.
pub(crate) struct LayerLock(File);

impl Layer<'_> {
    pub(crate) fn lock(&self) -> Result<LayerLock> {
        Ok(LayerLock(lock_folder(&self.folder)?))
    }

    /// Whether jobs go on when this process has ended.
    pub(crate) fn jobs_outlive_us(&self) -> bool {
        self.layers.options.detached
    }

    fn places(&self) -> LayerPlaces {
        let at = |name: &str| self.folder.join(name);
        LayerPlaces {
            upper: at("upper"),
            work: at("work"),
            tmp: at("tmp"),
            fifo: at("users"),
            holder: at("holder"),
        }
    }

    /// Whether scripts run in the layer, so that the kernel has it mounted. The caller has the lock,
    /// so that no further script begins.
    fn is_mounted(&self) -> bool {
        // After the last script, the holder takes a moment to end.
        is_locked(&self.folder.join("holder"))
            && (self.has_running_jobs() || !wait_for_holder(&self.places()))
    }

    /// The folder that has what the layer changed.
    fn upper(&self) -> Result<OwnedFd> {
        let path = self.folder.join("upper");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|errno| io_error("open", &path)(errno.into()))
    }

    /// Empties the layer. Its jobs must have ended.
    fn remove_all(&self) -> Result<()> {
        for part in ["upper", "work", "tmp", "bases"] {
            let path = self.folder.join(part);
            remove_tree(&path)?;
            private_folder(&path)?;
        }
        self.forget_bases()
    }
}

impl LayerLock {
    /// Says that the lock is needed until here.
    pub(crate) fn release(self) {
        drop(self.0);
    }
}

/// Removes a folder that scripts have written, whatever permissions they gave it.
fn remove_tree(path: &Path) -> Result<()> {
    let removed = std::fs::remove_dir_all(path).or_else(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            crate::process::open_up(path).and_then(|()| std::fs::remove_dir_all(path))
        }
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    });
    removed.map_err(io_error("remove", path))
}

/// Finds out by trying whether this machine allows layers.
pub fn detect_layers() -> Result<()> {
    let base = std::env::temp_dir().join(format!("atelier-{:016x}", rand::random::<u64>()));
    let tried = try_layer(&base);
    remove_tree(&base)?;
    tried
}

fn try_layer(base: &Path) -> Result<()> {
    let (root, state) = (base.join("workspace"), base.join("state"));
    private_folder(&root)?;
    let workspace = Workspace::open(&root, Options { durable: false, ..Options::default() })?;
    let options = RunnerOptions { state_dir: state.clone(), ..RunnerOptions::default() };
    let runner = Runner::new(&workspace, options)?;
    let layers = Layers::open(&state, &workspace, LayerOptions::default())?;
    let time = Some(std::time::Duration::from_secs(10));
    let protected = Protected {
        hidden: Vec::new(),
        folders: Vec::new(),
        since: std::time::SystemTime::now(),
        hides: Box::new(|_, _| None),
    };
    let shell = Shell { script: "echo x > x", time, background: false, protected, hosts: &[] };
    let cancel = Cancel::new().map_err(io_error("open", base))?;
    let ran = layers.layer("doctor")?.shell(&runner, &workspace, shell, &cancel)?;
    layers.end("doctor")?;
    match (ran.scan.changes.len(), root.join("x").exists()) {
        (1, false) => Ok(()),
        _ => Err(Error::NoLayers),
    }
}
