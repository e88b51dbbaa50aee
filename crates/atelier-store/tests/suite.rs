//! One suite of cases that both databases pass.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use Backend::{Postgres, Sqlite};
use atelier_core::{
    AgentConfig, AgentName, ConversationId, Event, Project, ProjectId, ProjectName, Role, Tenant,
    TokenId, TokenPlace, UserId,
};
use atelier_store::{
    AgentRef, Cursor, Error, NewAgent, Owned, Retention, Revocations, Scope, Session, Settings,
    SignIn, Store,
};
use atelier_testkit::{Backend, Database};
use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use futures::future::join_all;
use rstest::rstest;
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};
use uuid::Uuid;

/// A store with its data folder and database, which are removed with it.
struct Fixture {
    store: Store,
    _data: tempfile::TempDir,
    _database: Option<Database>,
}

async fn open(backend: Backend) -> Fixture {
    let data = tempfile::tempdir().unwrap();
    let database = match backend {
        Sqlite => None,
        Postgres => Some(Database::create().await),
    };
    let database_url = database.as_ref().map(Database::url);
    let store =
        Store::open(&Settings { data: data.path().to_owned(), database_url, ..Default::default() })
            .await
            .unwrap();
    Fixture { store, _data: data, _database: database }
}

fn tenant() -> Tenant {
    "acme".parse().unwrap()
}

impl Fixture {
    async fn user(&self) -> UserId {
        let user = UserId(Uuid::now_v7());
        self.store.ensure_user(user, &tenant()).await.unwrap();
        user
    }

    async fn project(&self, owner: UserId, name: &str) -> Result<Project, Error> {
        let name = ProjectName::try_from(name).unwrap();
        let (kind, settings) = (Default::default(), Default::default());
        self.store.create_project(owner, tenant(), name, kind, settings, vec![]).await
    }

    async fn owned(&self, owner: UserId, project: &Project) -> Owned {
        self.store.owned_by(owner, project.id).await.unwrap()
    }

    /// The numbers and names of all events of a log, once it has `count` of them.
    async fn log(&self, scope: Scope, count: usize) -> Vec<(i64, String)> {
        let (mut subscription, known) =
            self.store.subscribe(scope, Cursor::After(0)).await.unwrap();
        assert!(known);
        let mut log = Vec::new();
        while log.len() < count {
            let events = subscription.next().await.unwrap();
            log.extend(events.iter().map(|event| (event.number(scope), event.name.clone())));
        }
        log
    }
}

fn new_agent(name: &str) -> NewAgent {
    NewAgent { name: AgentName::try_from(name).unwrap(), config: AgentConfig::default() }
}

#[rstest]
#[tokio::test]
async fn a_refused_write_does_not_undo_others_of_its_group(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let fixture = open(backend).await;
    let user = fixture.user().await;
    let names: Vec<String> = (0..60).map(|n| format!("p{}", n % 20)).collect();
    let outcomes = join_all(names.iter().map(|name| fixture.project(user, name))).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 20);
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(_) | Err(Error::NameTaken))));
    // Refused writes have emitted no events.
    assert_eq!(fixture.store.projects(user, 100, 0).await.unwrap().1, 20);
    let log = fixture.log(Scope::User(user), 20).await;
    assert_eq!(log, Vec::from_iter((1..=20).map(|n| (n, "PROJECT_CREATED".to_owned()))));
}

#[rstest]
#[tokio::test]
async fn event_numbers_have_no_gaps_with_many_writers(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let fixture = open(backend).await;
    let mut owners = Vec::new();
    for _ in 0..5 {
        let user = fixture.user().await;
        let projects =
            [fixture.project(user, "a").await.unwrap(), fixture.project(user, "b").await.unwrap()];
        owners.push((
            user,
            [fixture.owned(user, &projects[0]).await, fixture.owned(user, &projects[1]).await],
        ));
    }
    let reported = Event::WorkerSpaceReady { user_prefix: "x".into() };
    let writes = owners.iter().flat_map(|(_, projects)| projects).flat_map(|project| {
        std::iter::repeat_with(|| fixture.store.append_event(project, reported.clone())).take(30)
    });
    for outcome in join_all(writes).await {
        outcome.unwrap();
    }
    for (user, projects) in &owners {
        let numbers: Vec<i64> =
            fixture.log(Scope::User(*user), 62).await.iter().map(|(n, _)| *n).collect();
        assert_eq!(numbers, Vec::from_iter(1..=62));
        for project in projects {
            let log = fixture.log(Scope::Project(project.project), 31).await;
            assert_eq!(log.iter().map(|(n, _)| *n).collect::<Vec<_>>(), Vec::from_iter(1..=31));
        }
    }
}

#[rstest]
#[tokio::test]
async fn a_reader_gets_new_events_and_learns_that_its_cursor_is_unknown(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let fixture = open(backend).await;
    let user = fixture.user().await;
    let project = fixture.project(user, "shop").await.unwrap();
    let owned = fixture.owned(user, &project).await;
    let scope = Scope::Project(project.id);
    let (mut live, _) = fixture.store.subscribe(scope, Cursor::Now).await.unwrap();
    let agent = fixture.store.create_agent(&owned, new_agent("x")).await.unwrap();
    let received = live.next().await.unwrap();
    assert_eq!(
        (received.len(), received[0].seq, received[0].name.as_str()),
        (1, 2, "AGENT_CREATED")
    );
    assert!(received[0].data.contains(&agent.id.to_string()));

    let (_, known) = fixture.store.subscribe(scope, Cursor::After(2)).await.unwrap();
    assert!(known);
    let (lost, known) = fixture.store.subscribe(scope, Cursor::After(3)).await.unwrap();
    assert_eq!((known, lost.cursor()), (false, 2));
    let missing = fixture.store.subscribe(Scope::User(UserId(Uuid::now_v7())), Cursor::Now).await;
    assert!(matches!(missing, Err(Error::NotFound)));
}

#[rstest]
#[tokio::test]
async fn retention_never_shows_a_gap(#[values(Sqlite, Postgres)] backend: Backend) {
    let fixture = open(backend).await;
    let user = fixture.user().await;
    let (a, b) =
        (fixture.project(user, "a").await.unwrap(), fixture.project(user, "b").await.unwrap());
    let (owned, gone) = (fixture.owned(user, &a).await, fixture.owned(user, &b).await);
    let (mut slow, _) =
        fixture.store.subscribe(Scope::Project(a.id), Cursor::After(0)).await.unwrap();
    for n in 0..10 {
        fixture.store.create_agent(&owned, new_agent(&format!("n{n}"))).await.unwrap();
    }
    fixture.store.delete_project(&gone).await.unwrap();

    // A sweep leaves holes in the middle of a user's log, too.
    let (mut mine, _) = fixture.store.subscribe(Scope::User(user), Cursor::After(0)).await.unwrap();
    let keep = |days, events| Retention { days, events };
    let for_ever = keep(u32::MAX, u32::MAX);
    assert_eq!(fixture.store.sweep_events(for_ever, Utc::now()).await.unwrap(), 0);
    assert_eq!(fixture.store.sweep_events(keep(30, 100), Utc::now()).await.unwrap(), 0);
    assert_eq!(fixture.store.sweep_events(keep(30, 4), Utc::now()).await.unwrap(), 7);
    assert_eq!(fixture.log(Scope::Project(a.id), 4).await[0].0, 8);
    let (_, known) = fixture.store.subscribe(Scope::Project(a.id), Cursor::After(6)).await.unwrap();
    assert!(!known, "too old");
    assert!(matches!(mine.next().await, Err(Error::Overtaken)), "not a gap");
    // A reader that falls behind retention gets an error, whether it reads from SQL or from memory.
    let next = slow.next().await;
    assert!(matches!(&next, Err(Error::Overtaken)) || next.unwrap()[0].seq == 1);

    // Later every event is too old, and the deleted project is removed with its last event.
    let later = Utc::now() + TimeDelta::days(31);
    fixture.store.sweep_events(keep(30, 100), later).await.unwrap();
    let (_, known) =
        fixture.store.subscribe(Scope::Project(a.id), Cursor::After(11)).await.unwrap();
    assert!(known, "nothing was missed");
    let tombstone = fixture.store.subscribe(Scope::Project(b.id), Cursor::Now).await;
    assert!(matches!(tombstone, Err(Error::NotFound)));
    let event = Event::WorkerSpaceReady { user_prefix: "x".into() };
    fixture.store.append_event(&owned, event).await.unwrap();
    assert_eq!(fixture.log(Scope::Project(a.id), 1).await[0].0, 12, "numbers continue");
}

#[rstest]
#[tokio::test]
async fn a_deleted_project_refuses_writes(#[values(Sqlite, Postgres)] backend: Backend) {
    let fixture = open(backend).await;
    let user = fixture.user().await;
    let project = fixture.project(user, "shop").await.unwrap();
    let owned = fixture.owned(user, &project).await;
    let agent = fixture.store.create_agent(&owned, new_agent("x")).await.unwrap();
    fixture.store.delete_project(&owned).await.unwrap();
    let late = fixture.store.create_agent(&owned, new_agent("y")).await;
    assert!(matches!(late, Err(Error::NotFound)));
    assert!(matches!(
        fixture.store.agent(&owned, &AgentRef::Id(agent.id)).await,
        Err(Error::NotFound)
    ));
    assert!(matches!(
        fixture.store.append_event(&owned, Event::ProjectDeleted {}).await,
        Err(Error::NotFound)
    ));
    let log = fixture.log(Scope::Project(project.id), 3).await;
    assert_eq!(log.last().unwrap().1, "PROJECT_DELETED");
}

#[rstest]
#[tokio::test]
async fn only_the_owner_and_administrators_of_the_tenant_get_access(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let fixture = open(backend).await;
    let store = &fixture.store;
    let (owner, stranger) = (fixture.user().await, fixture.user().await);
    let project = fixture.project(owner, "shop").await.unwrap();
    let owned = fixture.owned(owner, &project).await;
    let conversation = store.create_conversation(&owned, None, false).await.unwrap().id;
    let (same, other): (Tenant, Tenant) = (tenant(), "other".parse().unwrap());

    assert_eq!((owned.project, owned.owner, &owned.tenant), (project.id, owner, &same));
    assert!(matches!(store.owned_by(stranger, project.id).await, Err(Error::NotFound)));
    assert_eq!(store.owned_by_or_in(stranger, Some(&same), project.id).await.unwrap(), owned);
    for administered in [None, Some(&other)] {
        let refused = store.owned_by_or_in(stranger, administered, project.id).await;
        assert!(matches!(refused, Err(Error::NotFound)));
    }
    let own = store.owned_conversation(owner, &same, conversation).await.unwrap();
    assert_eq!((own.owned(), own.id()), (&owned, conversation));
    assert_eq!(store.conversation(&owned, conversation).await.unwrap().0, own);
    for (user, tenant) in [(stranger, &same), (owner, &other)] {
        let refused = store.owned_conversation(user, tenant, conversation).await;
        assert!(matches!(refused, Err(Error::NotFound)));
    }
}

#[rstest]
#[tokio::test]
async fn users_stay_in_their_tenant(#[values(Sqlite, Postgres)] backend: Backend) {
    let fixture = open(backend).await;
    let user = UserId(Uuid::now_v7());
    assert!(!fixture.store.has_projects().await.unwrap());
    let (a, b): (Tenant, Tenant) = ("a".parse().unwrap(), "b".parse().unwrap());
    for outcome in
        join_all(std::iter::repeat_with(|| fixture.store.ensure_user(user, &a)).take(10)).await
    {
        outcome.unwrap();
    }
    assert!(matches!(fixture.store.ensure_user(user, &b).await, Err(Error::OtherTenant)));
}

#[rstest]
#[tokio::test]
async fn codes_and_revocations_expire(#[values(Sqlite, Postgres)] backend: Backend) {
    let fixture = open(backend).await;
    let who = SignIn {
        user: UserId(Uuid::now_v7()),
        tenant: tenant(),
        role: Role::User,
        project: None,
        made_in: None,
    };
    let soon = Utc::now() + TimeDelta::hours(1);
    fixture.store.create_sign_in_code(b"code".to_vec(), who.clone(), soon).await.unwrap();
    let taken = join_all(
        std::iter::repeat_with(|| fixture.store.redeem_sign_in_code(b"code".to_vec())).take(10),
    )
    .await;
    let winners: Vec<SignIn> = taken.into_iter().filter_map(Result::ok).collect();
    assert_eq!(winners, std::slice::from_ref(&who));
    fixture
        .store
        .create_sign_in_code(b"old".to_vec(), who, Utc::now() - TimeDelta::hours(1))
        .await
        .unwrap();
    assert!(matches!(
        fixture.store.redeem_sign_in_code(b"old".to_vec()).await,
        Err(Error::NotFound)
    ));

    let user = fixture.user().await;
    let end = async |token, until| fixture.store.end_session(user, token, until).await.unwrap();
    let revoked = async || fixture.store.revocations().await.unwrap().tokens;
    let far = TokenId(Uuid::now_v7());
    end(far, Utc::now() + TimeDelta::days(365 * 7000)).await;
    assert_eq!(revoked().await, HashSet::from([far]));

    let (old, new) = (TokenId(Uuid::now_v7()), TokenId(Uuid::now_v7()));
    end(old, Utc::now() - TimeDelta::hours(1)).await;
    end(new, soon).await;
    end(new, soon).await;
    assert_eq!(revoked().await, HashSet::from([far, new]));
}

fn session(began: DateTime<Utc>) -> Session {
    Session {
        id: TokenId(Uuid::now_v7()),
        role: Role::User,
        place: None,
        user_agent: Some("a test".into()),
        created_at: began,
        last_used_at: began,
        expires_at: began + TimeDelta::hours(1),
    }
}

#[rstest]
#[tokio::test]
async fn sessions_are_listed_until_they_end(#[values(Sqlite, Postgres)] backend: Backend) {
    let fixture = open(backend).await;
    let (store, user, other) = (&fixture.store, fixture.user().await, fixture.user().await);
    let now = Utc::now().trunc_subsecs(6);
    let place = TokenPlace {
        project: ProjectId(Uuid::now_v7()),
        conversation: Some(ConversationId(Uuid::now_v7())),
    };
    let program = Session { role: Role::Agent, place: Some(place), ..session(now) };
    // A machine whose clock is ahead.
    let ahead = session(now + TimeDelta::minutes(5));
    let (desk, over) = (session(now - TimeDelta::minutes(5)), session(now - TimeDelta::hours(2)));
    for session in [&program, &ahead, &desk, &over] {
        store.touch_session(user, session.clone()).await.unwrap();
    }
    let theirs = session(now);
    store.touch_session(other, theirs.clone()).await.unwrap();
    assert_eq!(store.sessions(user).await.unwrap(), [ahead.clone(), program.clone(), desk.clone()]);
    assert_eq!(store.sweep_sessions().await.unwrap(), 1);

    // A renewal makes it last; an older token does not shorten it again, and nobody else can use
    // its id.
    let renewed =
        Session { expires_at: now + TimeDelta::hours(9), last_used_at: now, ..desk.clone() };
    store.touch_session(user, renewed.clone()).await.unwrap();
    store
        .touch_session(user, Session { expires_at: desk.expires_at, ..renewed.clone() })
        .await
        .unwrap();
    store.touch_session(other, Session { user_agent: None, ..renewed.clone() }).await.unwrap();
    let listed = store.sessions(user).await.unwrap();
    assert_eq!(listed.iter().find(|it| it.id == desk.id), Some(&renewed));

    store.end_session(user, desk.id, desk.expires_at).await.unwrap();
    assert_eq!(store.sessions(user).await.unwrap(), [ahead.clone(), program.clone()]);
    // A node that has not heard of it yet stores one more use.
    store.touch_session(user, renewed).await.unwrap();
    assert_eq!(store.sessions(user).await.unwrap().len(), 2);

    store.sign_out_everywhere(user, now).await.unwrap();
    assert_eq!(store.sessions(user).await.unwrap(), []);
    assert_eq!(
        store.revocations().await.unwrap(),
        Revocations {
            tokens: HashSet::from([desk.id, ahead.id, program.id]),
            signed_out: HashMap::from([(user, now)]),
        }
    );
    assert_eq!(store.sessions(other).await.unwrap(), [theirs]);
}

/// Writes that were submitted before the store closes are done; later ones get an error.
#[rstest]
#[tokio::test]
async fn closing_finishes_submitted_writes(#[values(Sqlite, Postgres)] backend: Backend) {
    let fixture = open(backend).await;
    let user = fixture.user().await;
    let names: Vec<String> = (0..50).map(|n| format!("p{n}")).collect();
    let writes = join_all(names.iter().map(|name| fixture.project(user, name)));
    let (outcomes, ()) = tokio::join!(writes, fixture.store.close());
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(_) | Err(Error::Closed))));
    assert!(matches!(fixture.project(user, "late").await, Err(Error::Closed)));
}

/// When a database that answered no node comes back, the first node that gets an answer must not
/// take the others for dead.
#[tokio::test]
async fn a_node_that_was_silent_itself_takes_no_leases_of_others() {
    let database = Database::create().await;
    let data = tempfile::tempdir().unwrap();
    let settings = Settings {
        data: data.path().to_owned(),
        database_url: Some(database.url()),
        ..Default::default()
    };
    let first = Store::open(&settings).await.unwrap();
    let second = Store::open(&settings).await.unwrap();
    for store in [&first, &second] {
        store.register_node().await.unwrap();
    }
    let fixture = Fixture { store: first.clone(), _data: data, _database: None };
    let user = fixture.user().await;
    let project = fixture.project(user, "shop").await.unwrap();
    let owned = fixture.owned(user, &project).await;
    let (folder, hour) = (ConversationId(Uuid::now_v7()), Duration::from_secs(3600));
    let fence = second.lease_workspace(&owned, folder, hour).await.unwrap().unwrap();
    for store in [&first, &second] {
        store.renew_node().await.unwrap();
    }
    assert!(first.lease_workspace(&owned, folder, hour).await.unwrap().is_none(), "it is held");

    // Longer than a node may be silent.
    tokio::time::sleep(Duration::from_millis(3200)).await;
    assert!(
        first.lease_workspace(&owned, folder, hour).await.unwrap().is_none(),
        "it is silent itself"
    );
    first.renew_node().await.unwrap();
    assert!(
        first.lease_workspace(&owned, folder, hour).await.unwrap().is_none(),
        "it was silent itself"
    );
    second.renew_node().await.unwrap();
    second.renew_workspace(&owned, folder, fence, hour).await.unwrap();

    // Now only the second node is silent: once the first can tell, the lease of the second ends.
    let alone = async {
        loop {
            first.renew_node().await.unwrap();
            if let Some(fence) = first.lease_workspace(&owned, folder, hour).await.unwrap() {
                return fence;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), alone).await.unwrap();
    assert!(matches!(
        second.renew_workspace(&owned, folder, fence, hour).await,
        Err(Error::LeaseLost)
    ));
    first.close().await;
    second.close().await;
}
