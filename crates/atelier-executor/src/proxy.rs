//! The only way from a script's layer to the network: an HTTP proxy that lets connections to
//! approved hosts through.
//!
//! The network namespace of a layer has only a loopback device. The proxy listens there, on a
//! socket that was opened inside the namespace and handed out (`process::launch::listening`), but
//! it runs in this process, outside. Nothing is forwarded from the layer, so a script cannot
//! connect to the world except through the proxy.
//!
//! - `destination` decides where a connection may go, and connects to the address that it has
//!   checked.
//! - `head` reads requests strictly, so that the host that was checked is the host that is asked.
//! - `connection` serves one connection, `body` and `relay` move its bytes.
//! - `record` writes down every connection, for the result of the call.

#[cfg(target_os = "linux")]
mod body;
#[cfg(target_os = "linux")]
mod connection;
#[cfg(target_os = "linux")]
mod destination;
#[cfg(target_os = "linux")]
mod head;
pub(crate) mod record;
#[cfg(target_os = "linux")]
mod relay;
#[cfg(target_os = "linux")]
mod serving;

#[cfg(target_os = "linux")]
pub(crate) use destination::Destinations;
#[cfg(target_os = "linux")]
pub(crate) use serving::{Entrance, ProxyLimits, Serving};

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
