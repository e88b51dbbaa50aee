//! Answers to messages that the SDK cannot parse. The sender of a request waits for an answer even
//! if the request is malformed.

use rmcp::model::{
    CallToolRequestParams, CustomRequest, ErrorCode, ErrorData, NumberOrString, RequestId,
    ServerJsonRpcMessage,
};
use serde::Deserialize;

/// The error for a message that is not a JSON-RPC request; `None` if nobody waits for an answer.
pub(crate) fn answer(message: &[u8], problem: &serde_json::Error) -> Option<ServerJsonRpcMessage> {
    let envelope = Envelope::read(message);
    // A notification has a method and no id. It gets no answer, even if it is invalid.
    if !envelope.has_id && envelope.has_method && problem.is_data() {
        return None;
    }
    let (code, text) = if message.trim_ascii_start().starts_with(b"[") {
        (
            ErrorCode::INVALID_REQUEST,
            "Invalid request: batches are not supported; send messages one by one".into(),
        )
    } else if problem.is_data() {
        (ErrorCode::INVALID_REQUEST, format!("Invalid request: {problem}"))
    } else {
        (ErrorCode::PARSE_ERROR, format!("Parse error: {problem}"))
    };
    Some(ServerJsonRpcMessage::error(ErrorData::new(code, text, None), envelope.id))
}

/// The error for a request that the SDK takes for a notification because it does not support the
/// type of its id.
pub(crate) fn answer_to_misread(message: &[u8]) -> Option<ServerJsonRpcMessage> {
    let envelope = Envelope::read(message);
    (envelope.has_method && envelope.has_id && envelope.id.is_none()).then(|| {
        let text = "Invalid request: the id must be a string or a whole number of 64 bits";
        ServerJsonRpcMessage::error(ErrorData::new(ErrorCode::INVALID_REQUEST, text, None), None)
    })
}

/// Refuses a message with a reason. The answer has the message's id if the given part of the
/// message contains it.
pub(crate) fn refusal(start: &[u8], why: String) -> ServerJsonRpcMessage {
    let error = ErrorData::new(ErrorCode::INVALID_REQUEST, format!("Invalid request: {why}"), None);
    ServerJsonRpcMessage::error(error, Envelope::read(start).id)
}

/// The answer to a method that the SDK does not know. If this server offers the method, its
/// parameters were invalid, and the answer must not say that the method does not exist.
pub(crate) fn unknown(request: &CustomRequest, offered: &[&str]) -> ErrorData {
    let method = &request.method;
    if !offered.contains(&method.as_str()) {
        return ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method.clone(), None);
    }
    let why = match (method.as_str(), &request.params) {
        (_, None) => "they are missing".to_owned(),
        ("tools/call", Some(params)) => CallToolRequestParams::deserialize(params)
            .err()
            .map_or_else(|| "they do not match the method".to_owned(), |error| error.to_string()),
        _ => "they do not match the method".to_owned(),
    };
    ErrorData::invalid_params(format!("Invalid parameters of {method}: {why}"), None)
}

/// The facts that can be found out about a message that cannot be parsed. Lone surrogates, invalid
/// UTF-8 and extreme nesting do not hide its id.
#[derive(Debug, Default, PartialEq)]
struct Envelope {
    id: Option<RequestId>,
    /// Whether the message has an id, even one that is not allowed for requests.
    has_id: bool,
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
                            None => {
                                found.has_id |= text == b"id";
                                key = Some(text);
                            }
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
                    let end = at
                        + message[at..].iter().take_while(|b| !b",}] \t\r\n".contains(b)).count();
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

/// The index after the closing quote, or the end of the message if the string is not closed.
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
        for id in ["1.5", "99999999999999999999999", "null", "true", "{}", "[1]"] {
            let message = format!(r#"{{"method":"x","params":{{"id":1}},"id":{id}}}"#);
            assert!(answer(message.as_bytes(), &problem).is_some(), "{id}");
            assert!(answer_to_misread(message.as_bytes()).is_some(), "{id}");
        }
        for fine in [
            r#"{"method":"x","params":{"id":null}}"#,
            r#"{"method":"id"}"#,
            r#"{"method":"x","id":"a"}"#,
        ] {
            assert!(answer_to_misread(fine.as_bytes()).is_none(), "{fine}");
        }
    }
}
