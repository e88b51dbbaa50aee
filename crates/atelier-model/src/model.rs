//! A model of any provider.

use crate::{
    Answer, DEMO, Demo, ModelError, Request, TimeoutPhase, Usage,
    answer_builder::AnswerBuilder,
    anthropic::Anthropic,
    endpoint::{Endpoint, Timeouts},
    openai::OpenAi,
};

/// A model of some provider. Cloning it is cheap.
#[derive(Debug, Clone)]
pub enum Model {
    OpenAi(OpenAi),
    Anthropic(Anthropic),
    Demo(Demo),
}

/// The demo model has no real limit; this one is as good as any.
const DEMO_WINDOW: u32 = 128_000;

impl Model {
    /// The full name, such as `openai/gpt-4o` or `demo`. An alias is resolved.
    pub fn name(&self) -> &str {
        self.endpoint().map_or(DEMO, |endpoint| &endpoint.name)
    }

    /// How many tokens a request and its answer may have together.
    pub fn context_window(&self) -> u32 {
        self.endpoint().map_or(DEMO_WINDOW, Endpoint::context_window)
    }

    /// US dollars, if the configuration knows the model's prices.
    pub fn cost(&self, usage: &Usage) -> Option<f64> {
        self.endpoint().map_or(Some(0.0), |endpoint| endpoint.cost(usage))
    }

    /// This model with other time limits.
    pub(crate) fn with_timeouts(&self, timeouts: Timeouts) -> Self {
        match self {
            Self::OpenAi(model) => Self::OpenAi(model.with_timeouts(timeouts)),
            Self::Anthropic(model) => Self::Anthropic(model.with_timeouts(timeouts)),
            Self::Demo(demo) => Self::Demo(demo.clone()),
        }
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Self::OpenAi(model) => Some(model.endpoint()),
            Self::Anthropic(model) => Some(model.endpoint()),
            Self::Demo(_) => None,
        }
    }

    /// Sends a request and streams the answer: `on_text` gets each piece of text as it arrives.
    /// Dropping the future cancels the request.
    ///
    /// A temporary error is retried, but only before the first piece of the answer: text that was
    /// shown is not taken back.
    pub async fn ask(
        &self,
        request: &Request,
        mut on_text: impl FnMut(&str) + Send,
    ) -> Result<Answer, ModelError> {
        let endpoint = match self {
            Self::Demo(demo) => return demo.answer(request, on_text),
            Self::OpenAi(model) => model.endpoint(),
            Self::Anthropic(model) => model.endpoint(),
        };
        let asking = async {
            let mut retries = endpoint.timeouts.retries();
            loop {
                let mut answer = AnswerBuilder::new(&endpoint.provider, &mut on_text);
                let streamed = match self {
                    Self::OpenAi(model) => model.ask_once(request, &mut answer).await,
                    Self::Anthropic(model) => model.ask_once(request, &mut answer).await,
                    Self::Demo(_) => unreachable!("answered above"),
                };
                let error = match streamed {
                    Ok(()) => {
                        return answer.finish().map(|answer| answer.with_estimated_usage(request));
                    }
                    Err(error) => error,
                };
                match retries.next(&error).filter(|_| answer.is_empty()) {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => return Err(error),
                }
            }
        };
        let whole = endpoint.timeouts.whole;
        tokio::time::timeout(whole, asking)
            .await
            .unwrap_or_else(|_| Err(endpoint.timed_out(TimeoutPhase::WholeAnswer, whole)))
    }
}
