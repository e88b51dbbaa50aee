//! What a role token sees of a conversation: its messages, tasks and plans, without the values of
//! secret files that were read there.
//!
//! Such a file was read because the owner approved it, and an agent's answer may quote it. The same
//! values are masked in memories, so that no door to a conversation shows what another one hides.

use crate::{App, auth::Caller, error::Result};
use atelier_core::{
    ConversationId, Message, Plan, Task, TaskFailure, mask::masked, remembered::KnownSecrets,
    task::Step,
};
use atelier_store::StoredEvent;
use serde_json::Value;
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

/// Masks texts for one caller, if the caller is a program. People see their texts as they are.
pub(crate) struct ProgramView<'a> {
    app: &'a App,
    is_program: bool,
    secrets: HashMap<ConversationId, KnownSecrets>,
}

impl<'a> ProgramView<'a> {
    pub(crate) fn new(app: &'a App, caller: &Caller) -> Self {
        Self { app, is_program: !caller.role.is_person(), secrets: HashMap::new() }
    }

    pub(crate) async fn messages(&mut self, messages: &mut [Message]) -> Result<()> {
        if !self.is_program {
            return Ok(());
        }
        for message in messages {
            let secrets = self.secrets(message.session_id).await?;
            mask(secrets, &mut message.content);
        }
        Ok(())
    }

    pub(crate) async fn tasks(&mut self, tasks: &mut [Task]) -> Result<()> {
        if !self.is_program {
            return Ok(());
        }
        for task in tasks {
            let secrets = self.secrets(task.session_id).await?;
            mask(secrets, &mut task.description);
            task.result.iter_mut().for_each(|result| mask(secrets, result));
            mask_failure(secrets, &mut task.error);
        }
        Ok(())
    }

    pub(crate) async fn plans(&mut self, plans: &mut [Plan]) -> Result<()> {
        if !self.is_program {
            return Ok(());
        }
        for plan in plans {
            let secrets = self.secrets(plan.session_id).await?;
            mask_failure(secrets, &mut plan.error);
        }
        Ok(())
    }

    /// The steps of a task of this conversation.
    pub(crate) async fn steps(&mut self, of: ConversationId, steps: &mut [Step]) -> Result<()> {
        if !self.is_program {
            return Ok(());
        }
        for step in steps {
            let secrets = self.secrets(of).await?;
            mask(secrets, &mut step.text);
            for call in &mut step.calls {
                mask(secrets, &mut call.arguments);
                call.result.iter_mut().for_each(|result| mask(secrets, &mut result.content));
            }
        }
        Ok(())
    }

    /// An event of this conversation. Events of tool calls have their own rules.
    pub(crate) async fn event(
        &mut self,
        of: Option<ConversationId>,
        event: Arc<StoredEvent>,
    ) -> Result<Arc<StoredEvent>> {
        let Some(of) = of.filter(|_| self.is_program && !event.name.starts_with("TOOL_")) else {
            return Ok(event);
        };
        let Ok(mut data) = serde_json::from_str::<Value>(&event.data) else { return Ok(event) };
        mask_texts(self.secrets(of).await?, &mut data);
        Ok(Arc::new(StoredEvent { data: data.to_string(), ..StoredEvent::clone(&event) }))
    }

    async fn secrets(&mut self, of: ConversationId) -> Result<&KnownSecrets> {
        Ok(match self.secrets.entry(of) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(self.app.store.secrets_shown_in(of).await?),
        })
    }
}

fn mask(secrets: &KnownSecrets, text: &mut String) {
    *text = masked(&secrets.mask(text)).into_owned();
}

fn mask_failure(secrets: &KnownSecrets, failure: &mut Option<TaskFailure>) {
    failure.iter_mut().for_each(|failure| mask(secrets, &mut failure.detail));
}

fn mask_texts(secrets: &KnownSecrets, value: &mut Value) {
    match value {
        Value::String(text) => mask(secrets, text),
        Value::Array(items) => items.iter_mut().for_each(|item| mask_texts(secrets, item)),
        Value::Object(fields) => {
            fields.values_mut().for_each(|value| mask_texts(secrets, value));
        }
        _ => {}
    }
}
