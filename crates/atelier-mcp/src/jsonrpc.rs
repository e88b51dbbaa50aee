//! Answers to what the SDK cannot read. Whoever sent a request waits for an answer, however it was spelled.

use rmcp::model::{ErrorCode, ErrorData, NumberOrString, RequestId, ServerJsonRpcMessage};

/// The error that answers a message which is no JSON-RPC request; nothing when nobody waits for one.
pub(crate) fn answer(message: &[u8], problem: &serde_json::Error) -> Option<ServerJsonRpcMessage> {
    let envelope = Envelope::read(message);
    // A notification has a method and no id: it gets no answer, however bad it is.
    if envelope.id.is_none() && envelope.has_method && problem.is_data() {
        return None;
    }
    let (code, text) = if problem.is_data() {
        (ErrorCode::INVALID_REQUEST, format!("Invalid request: {problem}"))
    } else {
        (ErrorCode::PARSE_ERROR, format!("Parse error: {problem}"))
    };
    Some(ServerJsonRpcMessage::error(ErrorData::new(code, text, None), envelope.id))
}

/// What can be told about a message without being able to read it: lone surrogates, bytes that are no UTF-8
/// and nesting beyond reason do not hide where its id is.
#[derive(Debug, Default, PartialEq)]
struct Envelope {
    id: Option<RequestId>,
    has_method: bool,
}

impl Envelope {
    fn read(message: &[u8]) -> Self {
        let mut found = Self::default();
        let mut depth = 0usize;
        let mut key: Option<&[u8]> = None;
        let mut at = 0;
        while let Some(byte) = message.get(at) {
            match byte {
                b'"' => {
                    let end = string_end(message, at);
                    let text = &message[at + 1..end.saturating_sub(1).max(at + 1)];
                    if depth == 1 {
                        match key.take() {
                            None => key = Some(text),
                            Some(name) => found.note(name, &message[at..end]),
                        }
                    }
                    at = end;
                    continue;
                }
                b'{' | b'[' => {
                    depth += 1;
                    if depth == 2 {
                        key = None;
                    }
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                b'-' | b'0'..=b'9' if depth == 1 => {
                    let end = at + message[at..].iter().take_while(|b| !b",}] \t\r\n".contains(b)).count();
                    if let Some(name) = key.take() {
                        found.note(name, &message[at..end]);
                    }
                    at = end;
                    continue;
                }
                b',' if depth == 1 => key = None,
                _ => {}
            }
            at += 1;
        }
        found
    }

    fn note(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"id" => self.id = serde_json::from_slice::<NumberOrString>(value).ok(),
            b"method" => self.has_method = true,
            _ => {}
        }
    }
}

/// The index behind the closing quote, or the end of a string that never closes.
fn string_end(message: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    while let Some(byte) = message.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    message.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(message: &[u8]) -> Option<RequestId> {
        Envelope::read(message).id
    }

    #[test]
    fn the_id_is_found_in_what_cannot_be_parsed() {
        let seven = Some(NumberOrString::Number(7));
        assert_eq!(id(br#"{"jsonrpc":"2.0","id":7,"params":{"id":1,"path":"\ud800"}}"#), seven);
        assert_eq!(id(b"{\"params\":{\"path\":\"\xff\xfe\",\"id\":[1]}, \"id\" : 7}"), seven);
        assert_eq!(id(br#"{"method":"x","params":[[[[[["#), None);
        assert_eq!(id(br#"{"a":"\"id\":1","id":"x"}"#), Some(NumberOrString::String("x".into())));
        assert_eq!(id(br#"{"id":null,"method":"m"}"#), None);
        assert_eq!(id(br#"[{"id":7}]"#), None);
        assert_eq!(id(br#"{"id":"unclosed"#), None);
        assert_eq!(id(b"\""), None);
        assert_eq!(id(b"\"\\"), None);
        let deep = format!("{{\"params\":{},\"id\":7}}", "[".repeat(1000) + &"]".repeat(1000));
        assert_eq!(id(deep.as_bytes()), seven);
    }

    #[test]
    fn notifications_get_no_answer() {
        let problem = serde_json::from_str::<bool>("1").unwrap_err();
        assert!(answer(br#"{"method":"notifications/x"}"#, &problem).is_none());
        assert!(answer(br#"{"method":"x","id":1}"#, &problem).is_some());
    }
}
