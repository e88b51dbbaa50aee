//! Rows of messages, and the time of a conversation's last change.

use crate::{
    db::{Conn, DbError},
    rows::{json, write_rows},
};
use atelier_core::{ConversationId, Message, MessageRole};
use chrono::{DateTime, Utc};
use std::collections::BTreeMap;

pub(crate) async fn write_messages(conn: &mut Conn, messages: Vec<Message>) -> Result<(), DbError> {
    let answers = |message: &Message| match message.role {
        MessageRole::User => None,
        MessageRole::Assistant => {
            message.plan_id.map(|id| id.0).or_else(|| message.task_id.map(|id| id.0))
        }
    };
    write_rows!(
        conn,
        messages,
        "INSERT INTO messages (id, project_id, session_id, answers, record) ",
        |row, message| {
            row.push_bind(message.id.0)
                .push_bind(message.project_id.0)
                .push_bind(message.session_id.0)
                .push_bind(answers(&message))
                .push_bind(json(&message));
        },
        ""
    )
}

/// Stores when conversations last changed.
pub(crate) async fn touch_conversations(
    conn: &mut Conn,
    touched: BTreeMap<ConversationId, DateTime<Utc>>,
) -> Result<(), DbError> {
    write_rows!(
        conn,
        touched,
        "UPDATE conversations SET updated_at = v.column2 FROM (",
        |row, (conversation, time)| {
            row.push_bind(conversation.0).push_bind(time);
        },
        ") AS v WHERE id = v.column1"
    )
}
