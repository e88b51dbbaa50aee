//! One model that can be asked.

use crate::{
    Answer, DEMO, Demo, ModelError, Request, Usage, Wait, anthropic::Anthropic, draft::Draft,
    endpoint::Endpoint, openai::OpenAi,
};

/// Cheap to clone.
#[derive(Debug, Clone)]
pub enum Model {
    OpenAi(OpenAi),
    Anthropic(Anthropic),
    Demo(Demo),
}

/// A rule of thumb for the demo model, which has no limit of its own.
const DEMO_WINDOW: u32 = 128_000;

impl Model {
    /// What answers, such as `openai/gpt-4o` or `demo`: an alias is told by what it stands for.
    pub fn name(&self) -> &str {
        self.endpoint().map_or(DEMO, |endpoint| &endpoint.name)
    }

    /// How many tokens question and answer may have together.
    pub fn context_window(&self) -> u32 {
        self.endpoint().map_or(DEMO_WINDOW, Endpoint::context_window)
    }

    /// US dollars, if the configuration knows the model's prices.
    pub fn cost(&self, usage: &Usage) -> Option<f64> {
        self.endpoint().map_or(Some(0.0), |endpoint| endpoint.cost(usage))
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Self::OpenAi(model) => Some(model.endpoint()),
            Self::Anthropic(model) => Some(model.endpoint()),
            Self::Demo(_) => None,
        }
    }

    /// Asks and listens; `on_text` gets the words as they come. Dropping the future ends the call.
    ///
    /// Trouble that may pass is met by asking again, but only while nothing was heard: words that were shown
    /// are not taken back.
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
            let mut tries = endpoint.patience.tries();
            loop {
                let mut draft = Draft::new(&endpoint.provider, &mut on_text);
                let heard = match self {
                    Self::OpenAi(model) => model.ask_once(request, &mut draft).await,
                    Self::Anthropic(model) => model.ask_once(request, &mut draft).await,
                    Self::Demo(_) => unreachable!("answered above"),
                };
                let error = match heard {
                    Ok(()) => return draft.finish().map(|answer| answer.counted(request)),
                    Err(error) => error,
                };
                match tries.next(&error).filter(|_| draft.is_empty()) {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => return Err(error),
                }
            }
        };
        let whole = endpoint.patience.whole;
        tokio::time::timeout(whole, asking)
            .await
            .unwrap_or_else(|_| Err(endpoint.timed_out(Wait::WholeAnswer, whole)))
    }
}
