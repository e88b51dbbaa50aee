//! Where people reach the server, and what it prints at its start.

use atelier_server::Listening;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// Where people reach the server.
pub(crate) struct Entrance {
    /// What the server listens on.
    bound: SocketAddr,
    /// The addresses as URLs. Links have the first one.
    urls: Vec<String>,
    /// The configured address for links.
    public: Option<String>,
    tls: bool,
}

impl Entrance {
    pub(crate) fn new(listening: &Listening, public_url: Option<&str>) -> io::Result<Self> {
        let (bound, tls) = (listening.address()?, listening.has_tls());
        let scheme = if tls { "https" } else { "http" };
        let url = |address: SocketAddr| format!("{scheme}://{address}");
        let public = public_url.map(|url| url.trim_end_matches('/').to_owned());
        Ok(Self { bound, urls: reachable(bound).into_iter().map(url).collect(), public, tls })
    }

    pub(crate) fn url(&self) -> &str {
        self.urls.first().map_or("", String::as_str)
    }

    /// The addresses for links, the best one first.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.public.clone().map_or_else(|| self.urls.clone(), |public| vec![public])
    }

    /// Whether others on the network can read what passes. Behind a proxy with TLS, people use the
    /// proxy's address.
    fn is_exposed(&self) -> bool {
        let proxied = self.public.as_ref().is_some_and(|url| url.starts_with("https://"));
        !self.bound.ip().is_loopback() && !self.tls && !proxied
    }

    /// What the server prints at its start: the address, how to get a token and, at the very first
    /// start, a sign-in link. The link goes to standard output and not to the log, where others
    /// might find it.
    ///
    /// The address comes last, so that a program that waits for it has the rest as well.
    pub(crate) fn start_text(&self, sign_in: Option<&str>, token_command: Option<&str>) -> String {
        let url = self.url();
        let base = self.public.as_deref().unwrap_or(url);
        let mut text = String::new();
        if self.is_exposed() {
            let (bound, port) = (self.bound, self.bound.port());
            text += &format!(
                "\n  Warning: the server listens on {bound} without TLS. Others on the network \
                 can read\n  tokens and files, and act as you. Use --tls-cert and --tls-key; or \
                 let a proxy with TLS\n  forward to --listen 127.0.0.1:{port}, and set \
                 server.public_url to the proxy's address.\n"
            );
        }
        if let Some(code) = sign_in {
            text += &format!(
                "\n  Open this link to sign in. It works once, within a day:\n    \
                 {base}/#sign-in={code}\n"
            );
            if let (None, Some([_, others @ ..])) = (&self.public, self.urls.get(..))
                && !others.is_empty()
            {
                text += &format!("  Other addresses of this machine: {}\n", others.join(" "));
            }
            text += "\n  Your first project has four agents. Its page says how to give agents \
                     access to a folder.\n\n";
        }
        if let Some(command) = token_command {
            text += &format!(
                "  To get a token for the console or for `atelier login`, run:\n    {command}\n\n"
            );
        }
        text + &format!("Atelier is listening on {url}\n")
    }
}

/// The addresses under which others reach a server that listens on `address`. A server that listens
/// on all addresses is reached under those of the machine's network interfaces, because nobody can
/// open `0.0.0.0`.
fn reachable(address: SocketAddr) -> Vec<SocketAddr> {
    if !address.ip().is_unspecified() {
        return vec![address];
    }
    let mut found = of_this_machine();
    // `::` also accepts IPv4, `0.0.0.0` does not accept IPv6.
    found.retain(|ip| ip.is_ipv4() || address.is_ipv6());
    if found.is_empty() {
        found.push(if address.is_ipv4() {
            Ipv4Addr::LOCALHOST.into()
        } else {
            Ipv6Addr::LOCALHOST.into()
        });
    }
    found.into_iter().map(|ip| SocketAddr::new(ip, address.port())).collect()
}

/// The addresses of the network interfaces, without those that only this machine can use.
#[cfg(target_os = "linux")]
fn of_this_machine() -> Vec<IpAddr> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let v4 = local_ipv4(&read("/proc/net/fib_trie")).into_iter().map(IpAddr::from);
    let v6 = global_ipv6(&read("/proc/net/if_inet6")).into_iter().map(IpAddr::from);
    let mut found: Vec<IpAddr> = v4.chain(v6).collect();
    found.dedup();
    found
}

/// The addresses that this machine sends from. Nothing is sent: connecting a UDP socket only
/// chooses the route.
#[cfg(not(target_os = "linux"))]
fn of_this_machine() -> Vec<IpAddr> {
    use std::net::UdpSocket;
    let from = |bind: &str, to: &str| {
        let socket = UdpSocket::bind(bind).and_then(|socket| socket.connect(to).map(|()| socket));
        socket.and_then(|socket| socket.local_addr()).ok().map(|address| address.ip())
    };
    // Addresses that are reserved for documentation.
    let found = [from("0.0.0.0:0", "192.0.2.1:9"), from("[::]:0", "[2001:db8::1]:9")];
    found.into_iter().flatten().filter(|ip| !ip.is_loopback()).collect()
}

/// The addresses in the kernel's table of IPv4 routes: each is a line of its own before a line that
/// says `host LOCAL`.
#[cfg(target_os = "linux")]
fn local_ipv4(table: &str) -> Vec<Ipv4Addr> {
    let (mut last, mut found) = (None, Vec::new());
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["|--", address] => last = address.parse::<Ipv4Addr>().ok(),
            ["/32", "host", "LOCAL"] => {
                found.extend(last.filter(|ip| !ip.is_loopback() && !found.contains(ip)));
            }
            _ => {}
        }
    }
    found
}

/// The IPv6 addresses with global scope: 32 hexadecimal digits, and `00` in the fourth column.
#[cfg(target_os = "linux")]
fn global_ipv6(table: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let global = words.get(3) == Some(&"00");
        u128::from_str_radix(words.first().filter(|_| global)?, 16).ok().map(Ipv6Addr::from)
    };
    table.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_is_reached_under_itself() {
        let address: SocketAddr = "192.0.2.7:7420".parse().unwrap();
        assert_eq!(reachable(address), [address]);
    }

    #[test]
    fn all_addresses_are_reached_under_real_ones() {
        for all in ["0.0.0.0:7420", "[::]:7420"] {
            let found = reachable(all.parse().unwrap());
            assert!(!found.is_empty());
            assert!(
                found
                    .iter()
                    .all(|address| !address.ip().is_unspecified() && address.port() == 7420)
            );
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn kernel_tables_are_read() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        \
                     /0 universe UNICAST\n        |-- 10.0.2.0\n           /24 link UNICAST\n  \
                     |-- 10.0.2.15\n           /32 host LOCAL\n        |-- 10.0.2.255\n     \
                     /32 link BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n\
                     Local:\n        |-- 10.0.2.15\n           /32 host LOCAL\n";
        assert_eq!(local_ipv4(table), ["10.0.2.15".parse::<Ipv4Addr>().unwrap()]);
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     20010db8000000000000000000000002 02 40 00 80     eth0\n\
                     fe800000000000000000000000000002 02 40 20 80     eth0\n";
        assert_eq!(global_ipv6(table), ["2001:db8::2".parse::<Ipv6Addr>().unwrap()]);
    }
}
