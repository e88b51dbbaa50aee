//! A service that misbehaves: a proxy in front of the real service that does harm on request.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Harm {
    /// Passes everything on unchanged.
    None,
    /// Answers 503 to everything.
    Unavailable,
    /// Closes every connection as soon as data arrives.
    Reset,
    /// Answers one byte per second.
    Dribble,
    /// Flips a bit in each answer.
    Corrupt,
    /// Drops everything, as a cut network does: connections stay open and nothing arrives.
    Silence,
    /// Delays every piece by 300 milliseconds.
    Slow,
}

const ALL: [Harm; 7] = [
    Harm::None,
    Harm::Unavailable,
    Harm::Reset,
    Harm::Dribble,
    Harm::Corrupt,
    Harm::Silence,
    Harm::Slow,
];
const DELAY: Duration = Duration::from_millis(300);

/// Dropping it ends the proxy and every connection through it.
pub struct Hostile {
    address: SocketAddr,
    harm: Arc<AtomicU8>,
    accepting: JoinHandle<()>,
}

impl Hostile {
    /// Starts a proxy in front of `http://host:port`.
    pub async fn before(endpoint: &str) -> Self {
        Self::before_address(endpoint.strip_prefix("http://").unwrap().trim_end_matches('/')).await
    }

    /// Starts a proxy in front of `host:port`.
    pub async fn before_address(target: &str) -> Self {
        let target = target.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let harm = Arc::new(AtomicU8::new(Harm::None as u8));
        let shared = harm.clone();
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (target, harm) = (target.clone(), shared.clone());
                // Connections are expected to fail here.
                connections.spawn(async move { drop(pass(client, &target, &harm).await) });
            }
        });
        Self { address, harm, accepting }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address of the proxy, as `host:port`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn set(&self, harm: Harm) {
        self.harm.store(harm as u8, Ordering::SeqCst);
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Keeps a connection open whose data was dropped, until the network is back. Then it is closed,
/// because the rest of its data would make no sense.
async fn silence(now: &impl Fn() -> Harm) -> std::io::Result<()> {
    while now() == Harm::Silence {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Passes one connection on and applies the current harm at every step.
async fn pass(mut client: TcpStream, target: &str, harm: &AtomicU8) -> std::io::Result<()> {
    let now = || ALL[usize::from(harm.load(Ordering::SeqCst))];
    let mut server = TcpStream::connect(target).await?;
    let (mut asked, mut answered) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let read = read?;
                match now() {
                    _ if read == 0 => return Ok(()),
                    Harm::Unavailable => {
                        let refusal = b"HTTP/1.1 503 Slow Down\r\ncontent-length: \
                            0\r\nconnection: close\r\n\r\n";
                        client.write_all(refusal).await?;
                        // The rest of the request is read, so that the refusal is not lost in a
                        // connection reset.
                        let drain = async { while client.read(&mut asked).await? > 0 {} std::io::Result::Ok(()) };
                        drop(tokio::time::timeout(Duration::from_secs(1), drain).await);
                        return Ok(());
                    }
                    Harm::Reset => return client.set_zero_linger(),
                    Harm::Silence => return silence(&now).await,
                    _ => server.write_all(&asked[..read]).await?,
                }
            }
            read = server.read(&mut answered) => {
                let read = read?;
                match now() {
                    _ if read == 0 => return Ok(()),
                    Harm::Reset => return client.set_zero_linger(),
                    Harm::Dribble => {
                        for byte in &answered[..read] {
                            client.write_all(&[*byte]).await?;
                            tokio::time::sleep(Duration::from_secs(1)).await;
                        }
                    }
                    Harm::Corrupt => {
                        // The head stays intact, because a broken answer is a different harm than a
                        // wrong one.
                        let head = answered[..read].windows(4).position(|four| four == b"\r\n\r\n");
                        let body = head.map_or(0, |at| at + 4);
                        if let Some(byte) = answered[body..read].last_mut() {
                            *byte ^= 1;
                        }
                        client.write_all(&answered[..read]).await?;
                    }
                    Harm::Silence => return silence(&now).await,
                    Harm::Slow => {
                        tokio::time::sleep(DELAY).await;
                        client.write_all(&answered[..read]).await?;
                    }
                    Harm::None | Harm::Unavailable => client.write_all(&answered[..read]).await?,
                }
            }
        }
    }
}
