//! Decides where a script's connections may go.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use atelier_core::policy::hosts::{is_local_address, is_local_host};

/// How many addresses of a host are tried.
const MOST_ADDRESSES: usize = 4;

/// Looks up the addresses of a name.
type Resolve = Box<dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync>;

/// The hosts that a person approved for a script.
pub(crate) struct Destinations {
    names: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
    resolve: Resolve,
}

impl std::fmt::Debug for Destinations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.names).entries(&self.addresses).finish()
    }
}

impl Destinations {
    /// The hosts as the call's canonical parameters have them: names and addresses.
    pub(crate) fn new(hosts: &[String]) -> Self {
        Self::resolved_by(hosts, Box::new(look_up))
    }

    pub(super) fn resolved_by(hosts: &[String], resolve: Resolve) -> Self {
        let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        for host in hosts {
            match host.parse::<IpAddr>() {
                Ok(ip) => addresses.insert(ip.to_canonical()),
                Err(_) => names.insert(host.clone()),
            };
        }
        Self { names, addresses, resolve }
    }

    /// The addresses to connect to, all of which were checked, or the reason why there are none.
    /// The name is looked up once, so that it cannot lead elsewhere when the connection is made.
    pub(super) fn check(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            let ip = ip.to_canonical();
            if !self.addresses.contains(&ip) {
                return Err(format!("{ip} is not among the hosts that were approved."));
            }
            self.check_address(host, ip)?;
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        if !self.names.contains(host) {
            return Err(format!("{host} is not among the hosts that were approved."));
        }
        let found =
            (self.resolve)(host).map_err(|error| format!("{host} has no address: {error}"))?;
        let found: Vec<IpAddr> = found.into_iter().map(|ip| ip.to_canonical()).collect();
        if found.is_empty() {
            return Err(format!("{host} has no address."));
        }
        found.iter().try_for_each(|ip| self.check_address(host, *ip))?;
        let mut checked: Vec<SocketAddr> =
            found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        checked.dedup();
        checked.truncate(MOST_ADDRESSES);
        Ok(checked)
    }

    /// A person who approves `packages.example` means a host on the internet. If that name leads to
    /// this machine or its own network, it is refused, unless the address itself was approved.
    /// Names that are local by themselves may lead there, because the person was asked about them
    /// as such.
    fn check_address(&self, host: &str, ip: IpAddr) -> Result<(), String> {
        if is_local_host(host) {
            return Ok(());
        }
        let local = is_local_address(ip);
        if local && self.addresses.contains(&ip) {
            return Ok(());
        }
        if local {
            return Err(format!(
                "{host} leads to {ip}, which belongs to this machine or its own network. That \
                 address has to be approved by itself."
            ));
        }
        if is_own_address(ip) {
            return Err(format!(
                "{host} leads to {ip}, which is this machine. Its own services are approved as \
                 localhost."
            ));
        }
        Ok(())
    }

    /// Connects to the first checked address that answers.
    pub(super) fn connect(checked: &[SocketAddr], time: Duration) -> io::Result<TcpStream> {
        let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in checked {
            match TcpStream::connect_timeout(address, time) {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// The hosts, for the message to a script that asks for another one.
    pub(super) fn in_words(&self) -> String {
        let addresses = self.addresses.iter().map(IpAddr::to_string);
        self.names.iter().cloned().chain(addresses).collect::<Vec<_>>().join(", ")
    }
}

fn look_up(host: &str) -> io::Result<Vec<IpAddr>> {
    Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

/// Whether an address belongs to this machine, even if it is public: a socket can be bound only to
/// such an address. A service that listens on all addresses may trust every caller on the machine.
fn is_own_address(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}
