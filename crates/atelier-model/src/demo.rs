//! A small model that needs no key and no network. It turns simple requests into real tool calls,
//! so that the very first run shows how Atelier works. Its answers say that it is a demo.

mod forms;
mod intent;
mod plan;
mod replies;

use crate::{Answer, CallRequest, CallResult, Finish, Message, ModelError, Request, Usage};
use replies::Language;

/// Its name in agent configurations.
pub const DEMO: &str = "demo";

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Demo {
    instead_of: Option<MissingKey>,
}

/// The model that was requested, and why it cannot answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingKey {
    pub(crate) model: String,
    /// The provider whose key is missing, and how to add one; `None` if no provider has a key.
    pub(crate) provider: Option<(String, String)>,
}

impl Demo {
    pub(crate) fn instead_of(missing: MissingKey) -> Self {
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
        Ok(Answer { text, calls, usage: Usage::default(), finish }.with_estimated_usage(request))
    }

    fn reply(
        &self,
        request: &Request,
        message: &str,
        results: &[&CallResult],
    ) -> (String, Vec<CallRequest>) {
        let language = Language::of(message);
        let mut paragraphs = vec![self.greeting(language)];
        if request.tools.is_empty() {
            // Without tools, as in a summary, all it can do is repeat the message.
            paragraphs.push(message.trim().to_owned());
            return (paragraphs.join("\n\n"), Vec::new());
        }
        let intents = intent::intents(message);
        let steps: Vec<_> = intents
            .iter()
            .flat_map(|intent| {
                intent.calls().into_iter().map(|call| (first_line(&intent.words), call))
            })
            .collect();
        let failed = results.iter().any(|result| result.is_error);
        if let Some((_, (tool, arguments))) = steps.get(results.len())
            && !failed
        {
            if request.tools.iter().any(|offered| offered.name == *tool) {
                let call = CallRequest {
                    id: format!("demo_{}", results.len() + 1),
                    name: (*tool).to_owned(),
                    arguments: arguments.to_string(),
                };
                return (String::new(), vec![call]);
            }
            paragraphs.push(language.no_tool(tool));
        }
        if intents.is_empty() {
            paragraphs.push(language.help().to_owned());
        }
        paragraphs.extend(
            steps.iter().zip(results).map(|((words, _), result)| language.outcome(words, result)),
        );
        if failed {
            let left = steps.iter().skip(results.len());
            paragraphs.extend(left.map(|(words, _)| language.not_started(words)));
        }
        (paragraphs.join("\n\n"), Vec::new())
    }

    fn greeting(&self, language: Language) -> String {
        match &self.instead_of {
            Some(MissingKey { model, provider: Some((provider, remedy)) }) => {
                language.instead_of(model, provider, remedy)
            }
            Some(MissingKey { model, provider: None }) => language.without_any_key(model),
            None => language.introduction().to_owned(),
        }
    }
}

/// The last message of the user, and the tool results since then.
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
        problem: "the demo model can only write plans, and the request lists no agents".to_owned(),
    })
}

fn first_line(words: &str) -> &str {
    words.lines().next().unwrap_or(words)
}
