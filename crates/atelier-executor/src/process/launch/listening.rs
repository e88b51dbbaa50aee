//! Opens a socket that listens inside the network namespace of a layer, and hands it out. Its
//! connections come from the layer, but the process that accepts them is outside.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, bind, listen, recvmsg, sendmsg,
    socket_with, socketpair,
};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::*;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 128;

/// The result of opening the socket: the socket, or the stage that failed.
pub(in crate::process) type Listening = Result<TcpListener, (&'static str, io::Error)>;

/// Opens a socket on a free port of the loopback device in the namespaces of `holder`.
pub(in crate::process) fn listen_in(holder: &OwnedFd, join: c_int) -> Listening {
    let failed = |source: io::Error| ("loopback", source);
    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
    let pair = socketpair(AddressFamily::UNIX, kind, flags, None);
    let (ours, theirs) = pair.map_err(|errno| failed(errno.into()))?;
    let join = join & (libc::CLONE_NEWUSER | libc::CLONE_NEWNET);
    let started = start(0, || {
        let message = match open(holder, join) {
            Ok(socket) => hand_out(&theirs, &socket),
            Err(failed) => Err(failed),
        };
        if let Err((stage, errno)) = message {
            tell(theirs.as_raw_fd(), stage, errno);
        }
        // SAFETY: ends this child.
        unsafe { libc::_exit(0) }
    });
    drop(theirs);
    let (child, _) = started.map_err(failed)?;
    let received = receive(&ours);
    waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED)
        .map_err(|errno| failed(errno.into()))?;
    received
}

fn open(holder: &OwnedFd, join: c_int) -> Stage<OwnedFd> {
    let stage = |errno: rustix::io::Errno| (LOOPBACK, errno.raw_os_error());
    // SAFETY: plain numbers.
    check(JOIN, c_long::from(unsafe { libc::setns(holder.as_raw_fd(), join) }))?;
    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::STREAM);
    let socket = socket_with(AddressFamily::INET, kind, flags, None).map_err(stage)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).map_err(stage)?;
    listen(&socket, BACKLOG).map_err(stage)?;
    Ok(socket)
}

/// Sends a handle to the parent. Nothing here allocates.
fn hand_out(to: &OwnedFd, socket: &OwnedFd) -> Stage<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut handles = SendAncillaryBuffer::new(&mut space);
    let handle = [socket.as_fd()];
    handles.push(SendAncillaryMessage::ScmRights(&handle));
    let done = [io::IoSlice::new(&[STATUS, 0, 0, 0, 0])];
    sendmsg(to, &done, &mut handles, SendFlags::NOSIGNAL)
        .map(drop)
        .map_err(|errno| (LOOPBACK, errno.raw_os_error()))
}

fn receive(from: &OwnedFd) -> Listening {
    let failed = |source: io::Error| (STAGES[usize::from(LOOPBACK)], source);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut handles = RecvAncillaryBuffer::new(&mut space);
    let mut message = [0u8; 5];
    let mut into = [io::IoSliceMut::new(&mut message)];
    recvmsg(from, &mut into, &mut handles, RecvFlags::CMSG_CLOEXEC)
        .map_err(|errno| failed(errno.into()))?;
    let rights = handles.drain().find_map(|it| match it {
        RecvAncillaryMessage::ScmRights(mut handles) => handles.next(),
        _ => None,
    });
    if let Some(socket) = rights {
        return Ok(TcpListener::from(socket));
    }
    let [stage, value @ ..] = message;
    let stage = STAGES.get(usize::from(stage)).copied().filter(|_| stage != STATUS);
    let source = io::Error::from_raw_os_error(i32::from_ne_bytes(value));
    Err((stage.unwrap_or(START_STAGE), source))
}
