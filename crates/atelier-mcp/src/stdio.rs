//! One JSON message per line, on standard input and output.
//!
//! This is our own transport for two reasons. The SDK's transport drops lines that it cannot parse,
//! and their senders wait for ever. It also stops at the end of the input, while answers are still
//! being computed.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::ServerHandler;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, RequestId, ServerJsonRpcMessage,
};
use rmcp::service::{RoleServer, ServerInitializeError, serve_server_with_ct};
use rmcp::transport::{StdioReader, StdioWriter, Transport, stdio_pipes};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::jsonrpc;

/// How long answers may take after the host has closed the input.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// Serves until the host closes our input or `stop` is cancelled.
pub async fn serve(
    handler: impl ServerHandler,
    max_line: usize,
    stop: CancellationToken,
) -> Result<(), ServerInitializeError> {
    match serve_server_with_ct(handler, Lines::new(max_line), stop).await {
        Ok(running) => {
            if let Err(error) = running.waiting().await {
                tracing::error!(%error, "the server's loop failed");
            }
            Ok(())
        }
        // The host, or this server, closed the connection before the handshake.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

struct Lines {
    input: BufReader<StdioReader>,
    line: Vec<u8>,
    max_line: usize,
    /// Whether the rest of a line that was too long is being skipped.
    skipping: bool,
    /// Whether only the beginning of the line was kept.
    too_long: bool,
    ended: bool,
    opened: bool,
    output: Arc<AsyncMutex<StdioWriter>>,
    waiting: Arc<Waiting>,
}

/// Requests that are not answered yet.
#[derive(Default)]
struct Waiting {
    ids: Mutex<HashSet<RequestId>>,
    changed: Notify,
}

impl Waiting {
    fn add(&self, id: RequestId) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    fn has(&self, id: &RequestId) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    fn remove(&self, id: &RequestId) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        self.changed.notify_waiters();
    }

    async fn none(&self) {
        loop {
            let changed = self.changed.notified();
            if self.ids.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                return;
            }
            changed.await;
        }
    }
}

impl Lines {
    fn new(max_line: usize) -> Self {
        let (input, output) = stdio_pipes();
        Self {
            input: BufReader::with_capacity(64 << 10, input),
            line: Vec::new(),
            max_line,
            skipping: false,
            too_long: false,
            ended: false,
            opened: false,
            output: Arc::new(AsyncMutex::new(output)),
            waiting: Arc::default(),
        }
    }

    /// Reads the next whole line into `self.line`. If the future is dropped, the next call
    /// continues: every byte that was taken from the input is stored here before the next await.
    async fn next_line(&mut self) -> io::Result<bool> {
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                // The last line may lack its line break.
                return Ok(!self.line.is_empty());
            }
            let newline = available.iter().position(|byte| *byte == b'\n');
            let taken = newline.unwrap_or(available.len());
            if !self.skipping {
                self.line.extend_from_slice(&available[..taken]);
            }
            self.input.consume(taken + usize::from(newline.is_some()));
            if self.line.len() > self.max_line {
                tracing::warn!(
                    limit = self.max_line,
                    "a message is longer than the limit and was refused"
                );
                // The beginning of the line is enough to answer it.
                self.line.truncate(4096);
                self.skipping = newline.is_none();
                self.too_long = true;
                return Ok(true);
            }
            if newline.is_some() && !std::mem::take(&mut self.skipping) {
                return Ok(true);
            }
        }
    }

    async fn answer(&self, message: &ServerJsonRpcMessage) -> io::Result<()> {
        write(&self.output, message).await
    }

    /// Parses a message. Returns an error that answers the message, or `None` if it needs no
    /// answer.
    fn read(
        &mut self,
        line: &[u8],
    ) -> Result<Option<ClientJsonRpcMessage>, Box<ServerJsonRpcMessage>> {
        if std::mem::take(&mut self.too_long) {
            let limit = self.max_line;
            return Err(Box::new(jsonrpc::refusal(
                line,
                format!("it is longer than {limit} bytes"),
            )));
        }
        match serde_json::from_slice::<ClientJsonRpcMessage>(line) {
            Ok(ClientJsonRpcMessage::Request(request)) if self.waiting.has(&request.id) => {
                let why = "its id is already used by a request that is not answered yet".to_owned();
                Err(Box::new(jsonrpc::refusal(line, why)))
            }
            Ok(message) => {
                let misread = matches!(message, ClientJsonRpcMessage::Notification(_))
                    .then(|| jsonrpc::answer_to_misread(line))
                    .flatten();
                misread.map_or(Ok(Some(message)), |answer| Err(Box::new(answer)))
            }
            Err(problem) => {
                // The problem's text may quote the message, so only its place is logged.
                let column = problem.column();
                tracing::debug!(column, "cannot parse a message");
                jsonrpc::answer(line, &problem).map_or(Ok(None), |answer| Err(Box::new(answer)))
            }
        }
    }

    /// Whether to pass the message to the SDK, which fails if the first message is not a request.
    fn admit(&mut self, message: &ClientJsonRpcMessage) -> bool {
        match message {
            ClientJsonRpcMessage::Request(request) => {
                self.opened = true;
                // A subscription is answered only when it ends.
                if !matches!(request.request, ClientRequest::SubscriptionsListenRequest(_)) {
                    self.waiting.add(request.id.clone());
                }
                true
            }
            ClientJsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.waiting.remove(id);
                }
                self.opened
            }
            _ => self.opened,
        }
    }
}

impl Transport<RoleServer> for Lines {
    type Error = io::Error;

    fn send(
        &mut self,
        item: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let (output, waiting) = (self.output.clone(), self.waiting.clone());
        async move {
            let sent = write(&output, &item).await;
            match &item {
                ServerJsonRpcMessage::Response(response) => waiting.remove(&response.id),
                ServerJsonRpcMessage::Error(error) => {
                    if let Some(id) = &error.id {
                        waiting.remove(id);
                    }
                }
                _ => {}
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if self.ended {
                if tokio::time::timeout(LAST_ANSWERS, self.waiting.none()).await.is_err() {
                    tracing::warn!("some requests are not answered at the end of input");
                }
                return None;
            }
            match self.next_line().await {
                Ok(true) => {}
                Ok(false) => {
                    self.ended = true;
                    continue;
                }
                Err(error) => {
                    tracing::error!(%error, "standard input cannot be read");
                    return None;
                }
            }
            let line = std::mem::take(&mut self.line);
            if line.trim_ascii().is_empty() {
                continue;
            }
            match self.read(&line) {
                Ok(Some(message)) if self.admit(&message) => return Some(message),
                Ok(_) => tracing::debug!("ignored a message that needs no answer"),
                Err(answer) => {
                    if let Err(error) = self.answer(&answer).await {
                        tracing::error!(%error, "standard output cannot be written");
                        return None;
                    }
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.output.lock().await.flush().await
    }
}

async fn write(output: &AsyncMutex<StdioWriter>, message: &ServerJsonRpcMessage) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut output = output.lock().await;
    output.write_all(&line).await?;
    output.flush().await
}
