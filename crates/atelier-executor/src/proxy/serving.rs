//! Accepts connections of a script while it runs, and ends them with it.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::connection;
use super::destination::Destinations;
use super::record::{Connection, Record};

/// The user name that goes with the password; a proxy's password needs one.
const USER: &str = "atelier";
/// How long the end of a script waits until its connections are recorded. A connection whose host
/// is being looked up cannot be interrupted.
const END: Duration = Duration::from_secs(1);

/// The limits of one script's use of the network.
#[derive(Debug, Clone)]
pub(crate) struct ProxyLimits {
    /// The most connections at a time. Others wait.
    pub(crate) at_once: usize,
    /// The most connections in all.
    pub(crate) in_all: u64,
    /// The most bytes in both directions together.
    pub(crate) bytes: u64,
    /// How long a host may take to accept a connection.
    pub(crate) connect: Duration,
    /// How long a script may take to say what it wants.
    pub(crate) head: Duration,
    /// How long a connection may be silent.
    pub(crate) idle: Duration,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            at_once: 64,
            in_all: 10_000,
            bytes: 16 << 30,
            connect: Duration::from_secs(15),
            head: Duration::from_secs(15),
            idle: Duration::from_secs(300),
        }
    }
}

/// The socket at which a script finds the proxy. It listens on the loopback device of the layer.
#[derive(Debug)]
pub(crate) struct Entrance {
    listener: TcpListener,
    port: u16,
    /// Other scripts in the same layer reach the socket too, but were not approved for these hosts.
    password: String,
}

impl Entrance {
    pub(crate) fn new(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port, password: format!("{:032x}", rand::random::<u128>()) })
    }

    /// The variables by which programs find the proxy. The layer's own localhost is reached without
    /// it, unless that name of this machine was approved.
    pub(crate) fn environment(&self, hosts: &[String]) -> Vec<(String, String)> {
        let url = self.url();
        let mut own: Vec<&str> = vec!["localhost", "127.0.0.1", "::1"];
        own.retain(|own| !hosts.iter().any(|host| host == own));
        let own = own.join(",");
        let proxies = [
            "HTTP_PROXY",
            "http_proxy",
            "HTTPS_PROXY",
            "https_proxy",
            "ALL_PROXY",
            "all_proxy",
            "npm_config_proxy",
            "npm_config_https_proxy",
            "PIP_PROXY",
        ];
        let proxies = proxies.map(|name| (name.to_owned(), url.clone()));
        let direct = ["NO_PROXY", "no_proxy"].map(|name| (name.to_owned(), own.clone()));
        // Node uses the variables only if it is told to, and git sends the password at once.
        let hints = [("NODE_USE_ENV_PROXY", "1"), ("GIT_HTTP_PROXY_AUTHMETHOD", "basic")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        proxies.into_iter().chain(direct).chain(hints).collect()
    }

    pub(super) fn url(&self) -> String {
        format!("http://{USER}:{}@127.0.0.1:{}", self.password, self.port)
    }
}

/// A proxy that serves one script.
#[derive(Debug)]
pub(crate) struct Serving {
    thread: JoinHandle<()>,
}

impl Serving {
    /// Serves until `script`, a handle to a process, has ended.
    pub(crate) fn begin(
        entrance: Entrance,
        destinations: Destinations,
        limits: ProxyLimits,
        record: Record,
        script: OwnedFd,
    ) -> io::Result<Self> {
        let (woken, wake) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let credentials = STANDARD.encode(format!("{USER}:{}", entrance.password));
        let shared = Arc::new(Shared {
            destinations,
            limits,
            record,
            credentials,
            moved: AtomicU64::new(0),
            state: Mutex::default(),
            closed: Condvar::new(),
            wake,
        });
        let listener = entrance.listener;
        let thread = std::thread::Builder::new().name("proxy".to_owned()).spawn(move || {
            if let Err(error) = accept_all(&shared, &listener, &script, &woken) {
                tracing::warn!(%error, "the proxy of a script ended");
            }
            drop(listener);
            shared.end_all();
        })?;
        Ok(Self { thread })
    }

    /// Waits until the script has ended and its connections are written down.
    pub(crate) fn finish(self) {
        if self.thread.join().is_err() {
            tracing::warn!("the proxy of a script panicked");
        }
    }
}

/// The state that all connections of a script share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) destinations: Destinations,
    pub(super) limits: ProxyLimits,
    pub(super) record: Record,
    /// The credentials that a script sends to show that the proxy serves it.
    pub(super) credentials: String,
    /// How many bytes went through, in all connections.
    pub(super) moved: AtomicU64,
    state: Mutex<State>,
    closed: Condvar,
    /// Wakes the accepting thread when there is room again.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    /// Both sides of each open connection, to end it with the script.
    open: HashMap<u64, Vec<TcpStream>>,
    accepted: u64,
    ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to serve a connection in a thread of its own.
    fn admit(self: &Arc<Self>, stream: TcpStream) -> io::Result<()> {
        let mut state = self.state();
        state.accepted += 1;
        let id = state.accepted;
        if id > self.limits.in_all {
            drop(state);
            if id == self.limits.in_all + 1 {
                let why = format!("A script makes at most {} connections.", self.limits.in_all);
                self.record.write(&Connection::refused("", 0, why));
            }
            return Ok(());
        }
        state.open.insert(id, vec![stream.try_clone()?]);
        drop(state);
        let slot = ConnectionSlot { shared: Arc::clone(self), id };
        let serve = move || connection::serve(&slot, &stream);
        std::thread::Builder::new().name("proxied".to_owned()).spawn(serve).map(drop)
    }

    /// Ends all connections, and waits for them.
    fn end_all(&self) {
        let mut state = self.state();
        state.ended = true;
        for stream in state.open.values().flatten() {
            // It is fine if the other side has just closed the connection.
            stream.shutdown(Shutdown::Both).ok();
        }
        let waited = self.closed.wait_timeout_while(state, END, |state| !state.open.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// The place of one connection among those that are open. It is given back when this is dropped.
pub(super) struct ConnectionSlot {
    pub(super) shared: Arc<Shared>,
    id: u64,
}

impl ConnectionSlot {
    /// Adds the side of the host, so that it ends with the script. Fails if the script has ended.
    pub(super) fn add(&self, stream: &TcpStream) -> io::Result<()> {
        let mut state = self.shared.state();
        if state.ended {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let stream = stream.try_clone()?;
        state.open.entry(self.id).or_default().push(stream);
        Ok(())
    }

    pub(super) fn script_has_ended(&self) -> bool {
        self.shared.state().ended
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.shared.state().open.remove(&self.id);
        self.shared.closed.notify_all();
        // A full pipe wakes as well.
        rustix::io::write(&self.shared.wake, b"w").ok();
    }
}

/// Accepts connections until the script has ended.
fn accept_all(
    shared: &Arc<Shared>,
    listener: &TcpListener,
    script: &OwnedFd,
    woken: &OwnedFd,
) -> io::Result<()> {
    loop {
        let has_room = shared.state().open.len() < shared.limits.at_once;
        let mut handles =
            vec![PollFd::new(script, PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
        if has_room {
            handles.push(PollFd::new(listener, PollFlags::IN));
        }
        match poll(&mut handles, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if !handles[0].revents().is_empty() {
            return Ok(());
        }
        if !handles[1].revents().is_empty() {
            // Nothing to read means that another look is due anyway.
            rustix::io::read(woken, &mut [0u8; 256]).ok();
        }
        if !has_room {
            continue;
        }
        match listener.accept() {
            Ok((stream, _)) => shared.admit(stream)?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The other side may give up before it is accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
}
