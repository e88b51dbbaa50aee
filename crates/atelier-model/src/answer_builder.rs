//! Puts an answer together from the pieces of a stream.

use crate::{Answer, CallRequest, Finish, ModelError, Usage};
use std::collections::HashSet;

/// The largest answer of a model, in bytes: an endpoint that never ends must not exhaust memory.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

pub(crate) struct AnswerBuilder<'a> {
    provider: &'a str,
    on_text: &'a mut (dyn FnMut(&str) + Send),
    text: String,
    /// The calls in the order they were begun, each with the provider's number for it.
    calls: Vec<(Option<u64>, CallRequest)>,
    size: usize,
    pub(crate) usage: Usage,
    pub(crate) finish: Option<Finish>,
}

impl<'a> AnswerBuilder<'a> {
    pub(crate) fn new(provider: &'a str, on_text: &'a mut (dyn FnMut(&str) + Send)) -> Self {
        Self {
            provider,
            on_text,
            text: String::new(),
            calls: Vec::new(),
            size: 0,
            usage: Usage::default(),
            finish: None,
        }
    }

    /// Whether nothing has arrived yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.calls.is_empty() && self.finish.is_none()
    }

    pub(crate) fn push_text(&mut self, piece: &str) -> Result<(), ModelError> {
        if piece.is_empty() {
            return Ok(());
        }
        self.grow(piece.len())?;
        self.text.push_str(piece);
        (self.on_text)(piece);
        Ok(())
    }

    /// Adds a piece of a call. Pieces with the same number belong together, unless a different id
    /// begins a new call, because some endpoints give all calls the same number. If a provider
    /// sends no numbers, an id or a name begins the next call.
    pub(crate) fn push_call(
        &mut self,
        number: Option<u64>,
        id: Option<&str>,
        name: Option<&str>,
        arguments: &str,
    ) -> Result<(), ModelError> {
        self.grow(arguments.len() + name.map_or(0, str::len))?;
        let begun = match number {
            Some(number) => {
                let begun = self.calls.iter().rposition(|(known, _)| *known == Some(number));
                let other = |at: &usize| {
                    let known = &self.calls[*at].1.id;
                    id.is_some_and(|id| !id.is_empty() && !known.is_empty() && id != known)
                };
                begun.filter(|at| !other(at))
            }
            None if id.is_some_and(|id| !id.is_empty()) || name.is_some() => None,
            None => self.calls.len().checked_sub(1),
        };
        let at = begun.unwrap_or_else(|| {
            let empty =
                CallRequest { id: String::new(), name: String::new(), arguments: String::new() };
            self.calls.push((number, empty));
            self.calls.len() - 1
        });
        let call = &mut self.calls[at].1;
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            id.clone_into(&mut call.id);
        }
        call.name.push_str(name.unwrap_or(""));
        call.arguments.push_str(arguments);
        Ok(())
    }

    fn grow(&mut self, by: usize) -> Result<(), ModelError> {
        self.size += by;
        if self.size > MAX_ANSWER_BYTES {
            return Err(self.malformed(format!("an answer of more than {MAX_ANSWER_BYTES} bytes")));
        }
        Ok(())
    }

    fn malformed(&self, problem: String) -> ModelError {
        ModelError::Malformed { provider: self.provider.to_owned(), problem }
    }

    /// The complete answer. Fails if the provider did not mark its end.
    pub(crate) fn finish(mut self) -> Result<Answer, ModelError> {
        let Some(mut finish) = self.finish else {
            return Err(ModelError::Interrupted { provider: self.provider.to_owned() });
        };
        let mut ids = HashSet::new();
        for (at, (_, call)) in self.calls.iter_mut().enumerate() {
            if call.name.is_empty() {
                let problem = "a tool call without a name".to_owned();
                return Err(ModelError::Malformed { provider: self.provider.to_owned(), problem });
            }
            // Some endpoints send no id, but a result has to refer to one.
            if call.id.is_empty() {
                call.id = format!("call_{}", at + 1);
            }
            // Results refer to calls by id, so ids have to be unique.
            while !ids.insert(call.id.clone()) {
                call.id = format!("{}_{}", call.id, at + 1);
            }
        }
        // Some endpoints report `stop` although the answer contains calls.
        if finish == Finish::Stop && !self.calls.is_empty() {
            finish = Finish::Calls;
        }
        let calls = self.calls.into_iter().map(|(_, call)| call).collect();
        Ok(Answer { text: self.text, calls, usage: self.usage, finish })
    }
}
