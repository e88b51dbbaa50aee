//! A seccomp program that refuses system calls to a command. The parent compiles it.
//!
//! It is a short list of refused calls and not a list of allowed ones, because compilers and
//! package managers need nearly every call. The refused calls would open a way around the rest of
//! the sandbox (namespaces, mounts, file handles by number, io_uring), reach debugging interfaces
//! of the kernel, or use the network.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// New namespaces would give back the capabilities that were dropped.
const NAMESPACES: [i32; 8] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    0x80, // CLONE_NEWTIME
];

const REFUSED: &[c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// Changes of attributes, which Landlock does not cover. They and `XATTRS` are refused where there is
/// no read-only mount.
const ATTRIBUTES: &[c_long] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    452, // fchmodat2
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];

/// Changes of extended attributes. In a layer they fail as on a file system that has none.
const XATTRS: &[c_long] = &[
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    463, // setxattrat
    466, // removexattrat
];

/// Calls that fail with ENOSYS, as on an older kernel, so that programs use their fallback. The
/// flags of clone3, the mode of openat2 and the requests of io_uring are in memory that a filter
/// cannot read.
const UNKNOWN: &[c_long] = &[
    libc::SYS_clone3,
    libc::SYS_openat2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// The operations that the filter has to allow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) network: bool,
    pub(super) attributes: bool,
    /// Whether files may get the set-user-ID and set-group-ID bits. git sets the latter on folders
    /// of shared repositories.
    pub(super) set_id: bool,
    /// Whether files may get extended attributes. In a layer they are refused, because overlayfs
    /// keeps its own records in them.
    pub(super) xattrs: bool,
}

pub(super) fn compile(wanted: Wanted) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let mut refused = Rules::new();
    for call in REFUSED {
        refuse(&mut refused, *call, Vec::new());
    }
    if !wanted.attributes {
        for call in ATTRIBUTES.iter().chain(XATTRS) {
            refuse(&mut refused, *call, Vec::new());
        }
    }
    for flag in NAMESPACES {
        let bit = flag as u64;
        let with_flag = || -> Result<_, seccompiler::BackendError> {
            SeccompRule::new(vec![argument(0, SeccompCmpOp::MaskedEq(bit), bit)?])
        };
        refuse(&mut refused, libc::SYS_unshare, vec![with_flag()?]);
        // In clone, the lowest byte is a signal number, and time namespaces cannot be requested.
        if flag != 0x80 {
            refuse(&mut refused, libc::SYS_clone, vec![with_flag()?]);
        }
    }
    if wanted.attributes && !wanted.set_id {
        set_id(&mut refused)?;
    }
    sockets(&mut refused, wanted.network)?;
    let mut unknown = Rules::new();
    for call in UNKNOWN {
        refuse(&mut unknown, *call, Vec::new());
    }
    let mut programs = vec![program(refused, libc::EPERM)?, program(unknown, libc::ENOSYS)?];
    if !wanted.xattrs {
        let mut unsupported = Rules::new();
        for call in XATTRS {
            refuse(&mut unsupported, *call, Vec::new());
        }
        programs.push(program(unsupported, libc::EOPNOTSUPP)?);
    }
    Ok(programs)
}

/// A set-user-ID program in the workspace would run with the rights of the connected user, for
/// everybody on the machine.
fn set_id(rules: &mut Rules) -> Result<(), seccompiler::BackendError> {
    // Each call with the index of its mode argument and, for calls that open files, of its flags
    // argument.
    let calls: &[(c_long, u8, Option<u8>)] = &[
        (libc::SYS_fchmod, 1, None),
        (libc::SYS_fchmodat, 2, None),
        (452, 2, None), // fchmodat2
        (libc::SYS_mknodat, 2, None),
        (libc::SYS_openat, 3, Some(2)),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_chmod, 1, None),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_mknod, 1, None),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_creat, 1, None),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, 2, Some(1)),
    ];
    for (call, mode, flags) in calls {
        for bit in [0o4000, 0o2000] {
            let mut conditions = vec![argument(*mode, SeccompCmpOp::MaskedEq(bit), bit)?];
            if let Some(flags) = flags {
                // Without O_CREAT the mode argument is not used and may have any value.
                let create = libc::O_CREAT as u64;
                conditions.push(argument(*flags, SeccompCmpOp::MaskedEq(create), create)?);
            }
            refuse(rules, *call, vec![SeccompRule::new(conditions)?]);
        }
    }
    Ok(())
}

/// Without network access no socket can be created at all, including UDP, raw, netlink and
/// Bluetooth sockets. With network access, internet sockets and those for name lookup are allowed.
/// Local services (Docker, D-Bus, the SSH agent) cannot be reached in either case.
fn sockets(rules: &mut Rules, network: bool) -> Result<(), seccompiler::BackendError> {
    if network {
        let family = |family: i32| argument(0, SeccompCmpOp::Ne, family as u64);
        let other =
            vec![family(libc::AF_INET)?, family(libc::AF_INET6)?, family(libc::AF_NETLINK)?];
        let netlink = vec![
            argument(0, SeccompCmpOp::Eq, libc::AF_NETLINK as u64)?,
            argument(2, SeccompCmpOp::Ne, libc::NETLINK_ROUTE as u64)?,
        ];
        refuse(rules, libc::SYS_socket, vec![SeccompRule::new(other)?, SeccompRule::new(netlink)?]);
    } else {
        refuse(rules, libc::SYS_socket, Vec::new());
    }
    // Socket pairs are like pipes between related processes. Datagram pairs are refused, because
    // they can send to any address.
    let datagram = argument(1, SeccompCmpOp::MaskedEq(0xf), libc::SOCK_DGRAM as u64)?;
    refuse(rules, libc::SYS_socketpair, vec![SeccompRule::new(vec![datagram])?]);
    Ok(())
}

fn argument(
    index: u8,
    op: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value)
}

fn refuse(rules: &mut Rules, call: c_long, conditions: Vec<SeccompRule>) {
    #[cfg(target_arch = "x86_64")]
    {
        // The x32 variant of a call has this bit in its number. Some kernels still support it.
        const X32: i64 = 0x4000_0000;
        rules.entry(call | X32).or_default().extend(conditions.iter().cloned());
    }
    rules.entry(call).or_default().extend(conditions);
}

fn program(rules: Rules, errno: i32) -> Result<BpfProgram, seccompiler::BackendError> {
    let refuse = SeccompAction::Errno(errno as u32);
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()
}
