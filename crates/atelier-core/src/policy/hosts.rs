//! Hosts that a script may connect to: how they are written, and which of them are this machine or
//! its own network. Services there trust their neighbours, so they are asked about as HIGH.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The most hosts that one script may connect to.
const MOST_HOSTS: usize = 32;

/// Names of this machine and of private networks end like this.
const LOCAL_ENDINGS: [&str; 7] =
    ["localhost", "local", "internal", "lan", "home", "intranet", "corp"];

/// Whether a host, as `network` names it, is this machine or in the network that it is in.
pub fn is_local_host(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(ip) => is_local_address(ip),
        Err(_) => {
            let ending = host.rsplit('.').next().unwrap_or(host);
            !host.contains('.') || LOCAL_ENDINGS.contains(&ending)
        }
    }
}

/// Whether an address is this machine's, in the network that it is in, or no address of a single
/// host in the internet at all.
pub fn is_local_address(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_local_v4(ip),
        IpAddr::V6(ip) => is_local_v6(ip),
    }
}

fn is_local_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_broadcast()
        || ip.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (18..20).contains(&b))
}

fn is_local_v6(ip: Ipv6Addr) -> bool {
    let parts = ip.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_local_v4(Ipv4Addr::new(a, b, c, d))
    };
    let carries_local_v4 = match parts {
        // IPv4 addresses in IPv6, as old systems and translators between the two write them.
        [0, 0, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        // 6to4.
        [0x2002, high, low, ..] => v4(high, low),
        _ => false,
    };
    carries_local_v4
        || ip.is_loopback()
        || ip.is_unspecified()
        || ip.is_multicast()
        || ip.is_unique_local()
        || ip.is_unicast_link_local()
        // Site-local addresses, translators of the own network, and Teredo.
        || parts[0] & 0xffc0 == 0xfec0
        || parts[..3] == [0x64, 0xff9b, 1]
        || parts[..2] == [0x2001, 0]
}

/// Checks host names. They come back in lower case, in order and once each.
pub(crate) fn host_names(given: &[String]) -> Result<Vec<String>, String> {
    let hosts = given.iter().map(|raw| host_name(raw)).collect::<Result<BTreeSet<_>, _>>()?;
    match hosts.len() > MOST_HOSTS {
        true => Err(format!("a script may connect to at most {MOST_HOSTS} hosts")),
        false => Ok(hosts.into_iter().collect()),
    }
}

fn host_name(raw: &str) -> Result<String, String> {
    let wrong = || {
        format!("{raw:?} is no host: give names such as pypi.org, without scheme, port and path")
    };
    let host = raw.strip_suffix('.').unwrap_or(raw).to_ascii_lowercase();
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(ip.to_string());
    }
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // Some programs read `127.1` and `0x7f000001` as addresses, so a name never ends in a number.
    let ending = host.rsplit('.').next().unwrap_or_default();
    let is_number = ending.bytes().all(|b| b.is_ascii_digit()) || ending.starts_with("0x");
    match host.len() <= 253 && host.split('.').all(is_label) && !is_number {
        true => Ok(host),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_machine_and_its_network_are_local() {
        for local in [
            "127.0.0.1",
            "127.255.0.9",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001::1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd12:3456::1",
            "ff02::1",
        ] {
            assert!(is_local_address(local.parse().unwrap()), "{local}");
        }
        for other in [
            "8.8.8.8",
            "1.1.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "192.0.2.1",
            "198.51.100.1",
            "2606:4700::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::",
        ] {
            assert!(!is_local_address(other.parse().unwrap()), "{other}");
        }
    }
}
