//! A small model that needs no key and no network: it turns simple requests into real tool calls, so that the
//! very first run shows the whole thing. It says that it is a demo.

mod forms;
mod plan;
mod wish;
mod words;

use crate::{Answer, CallRequest, CallResult, Finish, Message, ModelError, Request, Usage};
use words::Language;

/// What agents call it.
pub const DEMO: &str = "demo";

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Demo {
    instead_of: Option<Missing>,
}

/// The model that was asked for and cannot answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) model: String,
    pub(crate) provider: String,
    pub(crate) remedy: String,
}

impl Demo {
    pub(crate) fn instead_of(missing: Missing) -> Self {
        Self { instead_of: Some(missing) }
    }

    pub(crate) fn answer(
        &self,
        request: &Request,
        mut on_text: impl FnMut(&str),
    ) -> Result<Answer, ModelError> {
        let (message, results) = turn(request);
        let (text, calls) = if request.format.is_some() {
            (planned(request, message)?, Vec::new())
        } else {
            self.reply(request, message, &results)
        };
        for word in text.split_inclusive(' ') {
            on_text(word);
        }
        let finish = if calls.is_empty() { Finish::Stop } else { Finish::Calls };
        Ok(Answer { text, calls, usage: Usage::default(), finish }.counted(request))
    }

    fn reply(&self, request: &Request, message: &str, results: &[&CallResult]) -> (String, Vec<CallRequest>) {
        let language = Language::of(message);
        let mut said = vec![self.greeting(language)];
        if request.tools.is_empty() {
            // Asked to sum up, or an agent without hands: the words that came are all there is.
            said.push(message.trim().to_owned());
            return (said.join("\n\n"), Vec::new());
        }
        let wishes = wish::wishes(message);
        let failed = results.iter().any(|result| result.is_error);
        if let Some(next) = wishes.get(results.len())
            && !failed
        {
            if request.tools.iter().any(|tool| tool.name == next.tool) {
                let call = CallRequest {
                    id: format!("demo_{}", results.len() + 1),
                    name: next.tool.to_owned(),
                    arguments: next.arguments.to_string(),
                };
                return (String::new(), vec![call]);
            }
            said.push(language.no_tool(next.tool));
        }
        if wishes.is_empty() {
            said.push(language.help().to_owned());
        }
        said.extend(
            wishes.iter().zip(results).map(|(wish, result)| language.went(first_line(&wish.words), result)),
        );
        if failed {
            let left = wishes.iter().skip(results.len());
            said.extend(left.map(|wish| language.left_out(first_line(&wish.words))));
        }
        (said.join("\n\n"), Vec::new())
    }

    fn greeting(&self, language: Language) -> String {
        match &self.instead_of {
            Some(Missing { model, provider, remedy }) => language.instead_of(model, provider, remedy),
            None => language.who().to_owned(),
        }
    }
}

/// What the person said last, and the results that came since.
fn turn(request: &Request) -> (&str, Vec<&CallResult>) {
    let mut since = Vec::new();
    for message in request.messages.iter().rev() {
        match message {
            Message::User(text) => {
                since.reverse();
                return (text, since.into_iter().flatten().collect());
            }
            Message::Results(results) => since.push(results),
            Message::Assistant { .. } => {}
        }
    }
    ("", Vec::new())
}

fn planned(request: &Request, message: &str) -> Result<String, ModelError> {
    plan::plan(request, message).map(|plan| plan.to_string()).ok_or_else(|| ModelError::Malformed {
        provider: DEMO.to_owned(),
        problem: "it can only write plans, and was told of no agents".to_owned(),
    })
}

fn first_line(words: &str) -> &str {
    words.lines().next().unwrap_or(words)
}
