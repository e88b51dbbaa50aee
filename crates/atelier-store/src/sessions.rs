//! Sign-in sessions: which there are, when they were last used, and which have ended.
//!
//! A session is a family of tokens: the first one, and all that were renewed from it.

use crate::{
    Result, Store,
    db::sql,
    feed::Wakeup,
    rows::{corrupt, now},
};
use atelier_core::{ConversationId, ProjectId, Role, TokenId, TokenPlace, UserId};
use chrono::{DateTime, Utc};
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// One sign-in of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The id of the first token.
    pub id: TokenId,
    pub role: Role,
    /// What the tokens are for; `None` for people.
    pub place: Option<TokenPlace>,
    /// The program that used the session last.
    pub user_agent: Option<String>,
    pub created_at: DateTime<Utc>,
    pub last_used_at: DateTime<Utc>,
    /// When the newest token expires that was used.
    pub expires_at: DateTime<Utc>,
}

/// What is no longer accepted, although it has not expired.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations {
    /// Single tokens, and sessions by the id of their first token.
    pub tokens: HashSet<TokenId>,
    /// Users who signed out everywhere, and when: their earlier sessions have ended.
    pub signed_out: HashMap<UserId, DateTime<Utc>>,
}

type Row = (
    Uuid,
    String,
    Option<Uuid>,
    Option<Uuid>,
    Option<String>,
    DateTime<Utc>,
    DateTime<Utc>,
    DateTime<Utc>,
);

fn read_session(row: Row) -> Result<Session> {
    let (id, role, project, conversation, user_agent, created_at, last_used_at, expires_at) = row;
    let place = project.map(|project| TokenPlace {
        project: ProjectId(project),
        conversation: conversation.map(ConversationId),
    });
    let role = corrupt(role.parse())?;
    Ok(Session { id: TokenId(id), role, place, user_agent, created_at, last_used_at, expires_at })
}

impl Store {
    /// Stores that a session was used.
    pub async fn touch_session(&self, user: UserId, session: Session) -> Result<()> {
        self.write(user, move |tx| {
            Box::pin(async move {
                sql("INSERT INTO sessions (id, user_id, role, project_id, conversation_id,
                                               user_agent, created_at, last_used_at, expires_at)
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
                         ON CONFLICT (id) DO UPDATE SET user_agent = excluded.user_agent,
                             last_used_at = excluded.last_used_at,
                             expires_at = CASE WHEN excluded.expires_at > sessions.expires_at
                                               THEN excluded.expires_at ELSE sessions.expires_at END
                         WHERE sessions.user_id = excluded.user_id")
                .bind(session.id.0)
                .bind(user.0)
                .bind(session.role.as_str())
                .bind(session.place.map(|place| place.project.0))
                .bind(session.place.and_then(|place| place.conversation).map(|id| id.0))
                .bind(session.user_agent)
                .bind(session.created_at)
                .bind(session.last_used_at)
                .bind(session.expires_at)
                .execute(&mut tx.conn)
                .await?;

                Ok(())
            })
        })
        .await
    }

    /// The user's sessions that have not ended, the last used one first.
    pub async fn sessions(&self, user: UserId) -> Result<Vec<Session>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = sql(
            "SELECT id, role, project_id, conversation_id, user_agent, created_at, last_used_at,
                    expires_at
             FROM sessions s WHERE user_id = $1 AND expires_at > $2
             AND NOT EXISTS (SELECT 1 FROM revoked_tokens WHERE jti = s.id)
             AND NOT EXISTS (SELECT 1 FROM sign_outs o
                             WHERE o.user_id = s.user_id AND o.began_before >= s.created_at)
             ORDER BY last_used_at DESC, id LIMIT 1000",
        )
        .bind(user.0)
        .bind(now())
        .fetch_all(&mut conn)
        .await?;
        rows.into_iter().map(read_session).collect()
    }

    /// Ends a session: none of its tokens is accepted any more, nor a code that it has made. This is stored at least until
    /// `expires_at`, and until every token of the session that was ever used has expired.
    pub async fn end_session(
        &self,
        user: UserId,
        session: TokenId,
        expires_at: DateTime<Utc>,
    ) -> Result<()> {
        self.write(user, move |tx| {
            Box::pin(async move {
                sql("DELETE FROM revoked_tokens WHERE expires_at < $1")
                    .bind(now())
                    .execute(&mut tx.conn)
                    .await?;
                sql("DELETE FROM sign_in_codes WHERE session_id = $1")
                    .bind(session.0)
                    .execute(&mut tx.conn)
                    .await?;
                let known: Option<(DateTime<Utc>,)> =
                    sql("DELETE FROM sessions WHERE id = $1 AND user_id = $2 RETURNING expires_at")
                        .bind(session.0)
                        .bind(user.0)
                        .fetch_optional(&mut tx.conn)
                        .await?;
                let until = known.map_or(expires_at, |(known,)| known.max(expires_at));
                sql("INSERT INTO revoked_tokens (jti, expires_at) VALUES ($1, $2)
                         ON CONFLICT DO NOTHING")
                .bind(session.0)
                .bind(until)
                .execute(&mut tx.conn)
                .await?;

                tx.wake(Wakeup::Tokens);
                Ok(())
            })
        })
        .await
    }

    /// Ends all sessions of a user: those that began until `time`, used or not, and those that are
    /// known, whatever they say about their beginning.
    pub async fn sign_out_everywhere(&self, user: UserId, time: DateTime<Utc>) -> Result<()> {
        self.write(user, move |tx| {
            Box::pin(async move {
                sql("INSERT INTO sign_outs (user_id, began_before) VALUES ($1, $2)
                         ON CONFLICT (user_id) DO UPDATE SET began_before = excluded.began_before
                         WHERE excluded.began_before > sign_outs.began_before")
                .bind(user.0)
                .bind(time)
                .execute(&mut tx.conn)
                .await?;
                sql("INSERT INTO revoked_tokens (jti, expires_at)
                         SELECT id, expires_at FROM sessions WHERE user_id = $1
                         ON CONFLICT DO NOTHING")
                .bind(user.0)
                .execute(&mut tx.conn)
                .await?;
                sql("DELETE FROM sign_in_codes WHERE user_id = $1")
                    .bind(user.0)
                    .execute(&mut tx.conn)
                    .await?;
                sql("DELETE FROM sessions WHERE user_id = $1")
                    .bind(user.0)
                    .execute(&mut tx.conn)
                    .await?;

                tx.wake(Wakeup::Tokens);
                Ok(())
            })
        })
        .await
    }

    /// Everything that is no longer accepted.
    pub async fn revocations(&self) -> Result<Revocations> {
        let mut conn = self.db.connect().await?;
        let tokens: Vec<(Uuid,)> = sql("SELECT jti FROM revoked_tokens WHERE expires_at >= $1")
            .bind(now())
            .fetch_all(&mut conn)
            .await?;
        let signed_out: Vec<(Uuid, DateTime<Utc>)> =
            sql("SELECT user_id, began_before FROM sign_outs").fetch_all(&mut conn).await?;
        Ok(Revocations {
            tokens: tokens.into_iter().map(|(id,)| TokenId(id)).collect(),
            signed_out: signed_out.into_iter().map(|(user, time)| (UserId(user), time)).collect(),
        })
    }

    /// Removes sessions whose last token has expired.
    pub async fn sweep_sessions(&self) -> Result<u64> {
        self.write(UserId(Uuid::nil()), move |tx| {
            Box::pin(async move {
                let removed = sql("DELETE FROM sessions WHERE expires_at < $1")
                    .bind(now())
                    .execute(&mut tx.conn)
                    .await?;
                Ok(removed)
            })
        })
        .await
    }
}
