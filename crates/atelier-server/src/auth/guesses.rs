//! How often one address may send wrong one-time codes.
//!
//! A code has 128 random bits, so nobody finds one. The limit keeps strangers from making the
//! database look for as many as they like.

use axum::{extract::ConnectInfo, http::Extensions};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Wrong codes from one address within [`PERIOD`].
const MANY: u32 = 60;
const PERIOD: Duration = Duration::from_secs(60);
/// When more addresses than this are known, those without a recent wrong code are removed.
const ADDRESSES: usize = 10_000;

/// The wrong codes of a short time, by address.
#[derive(Default)]
pub(crate) struct Guesses(Mutex<HashMap<IpAddr, (Instant, u32)>>);

impl Guesses {
    /// Whether the sender of a request may try a code.
    pub(crate) fn may_try(&self, request: &Extensions) -> bool {
        let wrong = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = wrong.get(&sender(request));
        count.is_none_or(|(since, count)| since.elapsed() >= PERIOD || *count < MANY)
    }

    /// The sender of a request has tried a wrong code.
    pub(crate) fn record(&self, request: &Extensions) {
        let mut wrong = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.len() > ADDRESSES {
            wrong.retain(|_, (since, _)| since.elapsed() < PERIOD);
        }
        let entry = wrong.entry(sender(request)).or_insert_with(|| (Instant::now(), 0));
        if entry.0.elapsed() >= PERIOD {
            *entry = (Instant::now(), 0);
        }
        entry.1 += 1;
    }
}

/// The address of the sender. A network of IPv6 counts as one, because one host has all of its
/// addresses.
fn sender(request: &Extensions) -> IpAddr {
    let peer = request.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
    match peer {
        Some(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_none() => {
            Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into()
        }
        other => other.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    }
}
