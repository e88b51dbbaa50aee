//! The loop on SQLite, with prepared statements of the SQLite library itself.

use super::{Template, name};
use anyhow::Result;
use rusqlite::{Connection, params};
use std::path::Path;
use uuid::Uuid;

pub(crate) struct Lite {
    db: Connection,
    template: Template,
    /// The current time, in the server's format.
    time: String,
}

impl Lite {
    /// Opens the database with the settings of `Db::open_lite` in the store.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let db = Connection::open(path)?;
        db.pragma_update(None, "journal_mode", "wal")?;
        db.pragma_update(None, "synchronous", "full")?;
        db.pragma_update(None, "foreign_keys", true)?;
        db.pragma_update(None, "cache_size", -4000)?;
        db.set_prepared_statement_cache_capacity(16);
        let (template, time) = template(&db)?;
        Ok(Self { db, template, time })
    }

    /// Writes this many projects in one transaction.
    pub(super) fn commit(&mut self, projects: usize) -> Result<()> {
        let (template, time) = (&self.template, &self.time);
        let tx = self.db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        {
            let mut insert_project = tx.prepare_cached(
                "INSERT INTO projects
                 (id, tenant_id, user_id, name, workspace, settings, created_at, updated_at, \
                 event_seq)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8)",
            )?;
            let mut insert_agent = tx.prepare_cached(
                "INSERT INTO agents (id, project_id, name, status, config, created_at, updated_at)
                 VALUES (?1, ?2, ?3, 'active', ?4, ?5, ?5)",
            )?;
            let mut insert_event = tx.prepare_cached(
                "INSERT INTO events (project_id, seq, user_id, user_seq, name, data, created_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?;
            let count = (projects * template.events.len()) as i64;
            let mut number: i64 = tx
                .prepare_cached(
                    "UPDATE users SET event_seq = event_seq + ?1 WHERE id = ?2 RETURNING \
                     event_seq - ?1",
                )?
                .query_row(params![count, template.user.as_bytes()], |row| row.get(0))?;
            let user = template.user.as_bytes();
            for _ in 0..projects {
                let id = Uuid::now_v7();
                insert_project.execute(params![
                    id.as_bytes(),
                    template.tenant,
                    user,
                    name(id),
                    template.workspace,
                    template.settings,
                    time,
                    template.events.len() as i64
                ])?;
                for (agent, config) in &template.agents {
                    insert_agent.execute(params![
                        Uuid::now_v7().as_bytes(),
                        id.as_bytes(),
                        agent,
                        config,
                        time
                    ])?;
                }
                for (seq, (event, data)) in (1i64..).zip(&template.events) {
                    number += 1;
                    insert_event.execute(params![
                        id.as_bytes(),
                        seq,
                        user,
                        number,
                        event,
                        data,
                        time
                    ])?;
                }
            }
        }
        Ok(tx.commit()?)
    }
}

fn template(db: &Connection) -> Result<(Template, String)> {
    let sql =
        "SELECT id, tenant_id, user_id, workspace, settings, created_at FROM projects LIMIT 1";
    let (project, mut template, time) = db.query_row(sql, [], |row| {
        let template = Template {
            tenant: row.get(1)?,
            user: Uuid::from_bytes(row.get(2)?),
            workspace: row.get(3)?,
            settings: row.get(4)?,
            agents: vec![],
            events: vec![],
        };
        Ok((row.get::<_, [u8; 16]>(0)?, template, row.get(5)?))
    })?;
    let pairs = |sql| -> Result<Vec<(String, String)>> {
        let mut rows = db.prepare(sql)?;
        let rows = rows.query_map([project], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    };
    template.agents = pairs("SELECT name, config FROM agents WHERE project_id = ?1 ORDER BY id")?;
    template.events =
        pairs("SELECT name, data FROM events WHERE project_id = ?1 ORDER BY seq LIMIT 5")?;
    Ok((template, time))
}
