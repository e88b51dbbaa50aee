//! One suite for every place that content can be kept in: a disk and a real S3 server, on both
//! databases.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use atelier_core::{
    ConversationFile, FilePath, FileSource, ProjectName, Tenant, UserId, WorkspaceKind,
};
use atelier_files::{ConversationWorkspace, Error, Files, NewFile, Settings, SweepReport};
use atelier_store::{
    Author, Error as StoreError, Expect, FileChanges, Owned, OwnedConversation, Store,
};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Bucket, Database,
};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use rstest::rstest;
use rstest_reuse::{self, *};
use std::{fs, path::Path, time::Duration};
use uuid::Uuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Objects {
    Disk,
    S3,
}
use Objects::{Disk, S3};

#[template]
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn everywhere(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
}

struct World {
    files: Files,
    store: Store,
    owned: Owned,
    conversation: OwnedConversation,
    bucket: Option<Bucket>,
    data: tempfile::TempDir,
    _database: Option<Database>,
}

async fn new_conversation(store: &Store, owned: &Owned) -> OwnedConversation {
    let conversation = store.create_conversation(owned, None, true).await.unwrap();
    store.conversation(owned, conversation.id).await.unwrap().0
}

impl World {
    async fn new(backend: Backend, objects: Objects) -> Self {
        Self::with(backend, objects, Settings::default()).await
    }

    async fn with(backend: Backend, objects: Objects, settings: Settings) -> Self {
        // The first caller wins; all of them mean the same.
        drop(rustls::crypto::ring::default_provider().install_default());
        let data = tempfile::tempdir().unwrap();
        let database = match backend {
            Sqlite => None,
            Postgres => Some(Database::create().await),
        };
        let database_url = database.as_ref().map(Database::url);
        let opened = atelier_store::Settings {
            data: data.path().to_owned(),
            database_url,
            ..Default::default()
        };
        let store = Store::open(&opened).await.unwrap();
        let (user, tenant): (UserId, Tenant) = (UserId(Uuid::now_v7()), "acme".parse().unwrap());
        store.ensure_user(user, &tenant).await.unwrap();
        let name = ProjectName::try_from("default").unwrap();
        let kind = WorkspaceKind::Conversation;
        let project = store
            .create_project(user, tenant, name, kind, Default::default(), vec![])
            .await
            .unwrap();
        let owned = store.owned_by(user, project.id).await.unwrap();
        let conversation = new_conversation(&store, &owned).await;
        let bucket = (objects == S3).then(Bucket::new);
        let prefix =
            bucket.as_ref().map_or(settings.prefix.clone(), |bucket| bucket.prefix.clone());
        let url = bucket.as_ref().map(Bucket::url);
        let settings = Settings { prefix, ..settings };
        let files =
            Files::open(settings, url.as_deref(), data.path(), store.clone()).await.unwrap();
        Self { files, store, owned, conversation, bucket, data, _database: database }
    }

    /// Makes the manifest say that the files in the folder are as the last sync left them.
    fn trust_stamps(&self) {
        use std::os::unix::fs::MetadataExt;
        let manifests = self.folder().parent().unwrap().join(".manifests");
        let path = manifests.join(format!("{}.json", self.conversation.id()));
        let mut manifest: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for (name, entry) in manifest["files"].as_object_mut().unwrap() {
            let found = fs::metadata(self.folder().join(name)).unwrap();
            entry["stamp"] = serde_json::json!({
                "size": found.len(),
                "modified": found.mtime() * 1_000_000_000 + found.mtime_nsec(),
                "changed": found.ctime() * 1_000_000_000 + found.ctime_nsec(),
                "inode": found.ino(),
            });
        }
        manifest["taken"] = (i64::MAX / 2).into();
        fs::write(&path, serde_json::to_vec(&manifest).unwrap()).unwrap();
    }

    fn workspace(&self) -> ConversationWorkspace {
        self.files.workspace(&self.conversation)
    }

    fn author(&self) -> Author {
        Author::Person(self.owned.owner)
    }

    async fn put(&self, path: &str, content: impl Into<Bytes>) -> ConversationFile {
        self.try_put(path, content, Expect::Anything).await.unwrap()
    }

    async fn try_put(
        &self,
        path: &str,
        content: impl Into<Bytes>,
        expect: Expect,
    ) -> Result<ConversationFile, Error> {
        let body = futures::stream::iter([Ok(content.into())]).boxed();
        let content = self.workspace().store(body, 100 << 20).await?;
        let path = FilePath::parse(path)?;
        let original_name = path.file_name().to_owned();
        let file = NewFile { content, path, original_name, description: None, expect };
        Ok(self.workspace().save(self.author(), vec![file]).await?.remove(0))
    }

    async fn get(&self, file: &ConversationFile, version: Option<i64>) -> Result<Vec<u8>, Error> {
        let reading = self.workspace().read(file.file_id, version).await?;
        let pieces: Vec<Bytes> = reading.whole(true).await?.try_collect().await?;
        Ok(pieces.concat())
    }

    /// The conversation's folder in the cache.
    fn folder(&self) -> std::path::PathBuf {
        self.data.path().join("workspaces").join(self.conversation.id().to_string())
    }

    /// The object store itself.
    fn objects(&self) -> Box<dyn object_store::ObjectStore> {
        match &self.bucket {
            None => {
                let top = self.data.path().join("objects");
                Box::new(object_store::local::LocalFileSystem::new_with_prefix(top).unwrap())
            }
            Some(bucket) => Box::new(
                object_store::aws::AmazonS3Builder::new()
                    .with_bucket_name(&bucket.name)
                    .with_endpoint(&bucket.endpoint)
                    .with_access_key_id(&bucket.access_key)
                    .with_secret_access_key(&bucket.secret_key)
                    .with_allow_http(true)
                    .build()
                    .unwrap(),
            ),
        }
    }

    async fn remove(&self, key: &str) {
        use object_store::ObjectStoreExt as _;
        self.objects().delete(&key.into()).await.unwrap();
    }

    /// Every key of the conversation, as the object store itself lists them.
    async fn keys(&self) -> Vec<String> {
        let store = self.objects();
        let top =
            self.bucket.as_ref().map_or("workspaces", |bucket| bucket.prefix.trim_end_matches('/'));
        let prefix = object_store::path::Path::from(top);
        let listed: Vec<_> = store.list(Some(&prefix)).try_collect().await.unwrap();
        let mut keys: Vec<String> = listed
            .into_iter()
            .map(|object| object.location.to_string())
            .filter(|key| key.contains(&self.conversation.id().to_string()))
            .collect();
        keys.sort();
        keys
    }

    async fn contents(&self) -> usize {
        self.keys().await.iter().filter(|key| key.contains(".blobs/")).count()
    }
}

/// FS-01 FS-02 FS-04
#[apply(everywhere)]
async fn versions_count_up_and_stay_readable(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    let first = world.put("docs/report.txt", "one").await;
    let second = world.put("docs/report.txt", "two").await;
    assert_eq!((first.version, second.version, second.file_id), (1, 2, first.file_id));
    assert_eq!(world.get(&second, None).await.unwrap(), b"two");
    assert_eq!(world.get(&second, Some(1)).await.unwrap(), b"one");
    assert!(matches!(world.get(&second, Some(3)).await, Err(Error::Store(StoreError::NotFound))));
    // Equal content is kept once, whatever it is called.
    world.put("copy.txt", "two").await;
    world.files.sweep().await.unwrap();
    assert_eq!(world.contents().await, 2);
    let copy = format!("{}docs/report.txt", world.files.workspace_path(world.conversation.id()));
    assert!(world.keys().await.contains(&copy));
    assert_eq!(fs::read_to_string(world.folder().join("docs/report.txt")).unwrap(), "two");

    let third = world
        .workspace()
        .restore(world.author(), first.file_id, 1, Expect::Anything)
        .await
        .unwrap();
    assert_eq!((third.version, &third.checksum), (3, &first.checksum));
    assert_eq!(world.get(&third, None).await.unwrap(), b"one");
    let diff = world.workspace().diff(first.file_id, Some(1), Some(2)).await.unwrap();
    assert!(diff.contains("-one") && diff.contains("+two"), "{diff}");
}

/// FS-10: content that no file uses is removed, and content that another file uses stays.
#[apply(everywhere)]
async fn deleting_removes_only_unused_content(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    let a = world.put("a.txt", "shared").await;
    let b = world.put("b.txt", "shared").await;
    world.put("a.txt", "own").await;
    world.workspace().delete(world.author(), a.file_id, Expect::Anything).await.unwrap();
    assert!(matches!(world.get(&a, None).await, Err(Error::Store(StoreError::NotFound))));
    assert!(!world.folder().join("a.txt").exists());
    assert_eq!(world.contents().await, 1);
    assert_eq!(world.get(&b, None).await.unwrap(), b"shared");
    world.workspace().delete(world.author(), b.file_id, Expect::Anything).await.unwrap();
    assert_eq!(world.keys().await, Vec::<String>::new());
    // The path is free for another file.
    let again = world.put("a.txt", "own").await;
    assert_eq!((again.version, again.file_id == a.file_id), (1, false));
    assert_eq!(world.get(&again, None).await.unwrap(), b"own");
}

/// Restoring a version without a condition does not fail because the file changes at the same time.
#[apply(everywhere)]
async fn unconditional_restore_survives_other_changes(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    let file = world.put("a.txt", "one").await;
    world.put("a.txt", "two").await;
    let writes = (0..8).map(|n| world.put("a.txt", format!("write {n}")));
    let restores = (0..8).map(async |_| {
        let restored =
            world.workspace().restore(world.author(), file.file_id, 1, Expect::Anything).await;
        restored.unwrap().file_id
    });
    let (_, restored) =
        tokio::join!(futures::future::join_all(writes), futures::future::join_all(restores));
    assert_eq!(restored, vec![file.file_id; 8]);
}

/// The database checks the expected version, so exactly one of two writers wins.
#[apply(everywhere)]
async fn second_write_against_the_same_version_is_refused(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    let seen = world.put("a.txt", "seen").await;
    let tries = (0..8).map(|n| {
        world.try_put("a.txt", format!("try {n}"), Expect::Checksum(vec![seen.checksum.clone()]))
    });
    let outcomes = futures::future::join_all(tries).await;
    let won: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
    assert_eq!(won.len(), 1);
    assert!(
        outcomes
            .iter()
            .filter_map(|outcome| outcome.as_ref().err())
            .all(|error| matches!(error, Error::Store(StoreError::Precondition)))
    );
    assert_eq!(world.workspace().file(seen.file_id).await.unwrap(), *won[0]);
    let twice = world.try_put("a.txt", "new", Expect::Absent).await;
    assert!(matches!(twice, Err(Error::Store(StoreError::Precondition))));
    // The content of the writer that lost is not kept.
    world.files.sweep().await.unwrap();
    assert_eq!(world.contents().await, 2);
    let folder = world.try_put("a.txt/b.txt", "x", Expect::Anything).await;
    assert!(matches!(folder, Err(Error::Store(StoreError::PathTaken(_)))));
}

/// FS-03 FS-05
#[apply(everywhere)]
async fn changes_of_an_agent_are_saved(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    for path in ["keep.txt", "change.txt", "drop.txt", "old/name.txt"] {
        world.put(path, format!("content of {path}")).await;
    }
    fs::remove_dir_all(world.folder()).unwrap();
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    assert_eq!((run.report().fetched, run.report().unchanged), (4, 0));
    let folder = run.folder().to_owned();
    assert_eq!(folder, world.folder());
    let before = world.workspace().list().await.unwrap();

    fs::write(folder.join("change.txt"), "CHANGED of change.txt").unwrap();
    fs::remove_file(folder.join("drop.txt")).unwrap();
    fs::create_dir(folder.join("new")).unwrap();
    fs::rename(folder.join("old/name.txt"), folder.join("new/name.txt")).unwrap();
    fs::write(folder.join("new/made.txt"), "made").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("link")).unwrap();
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        folder.join("pipe"),
        rustix::fs::Mode::from_raw_mode(0o600),
    )
    .unwrap();

    let mut report = run.end().await.unwrap();
    report.left_alone.sort_by(|a, b| a.path.cmp(&b.path));
    assert_eq!(report.created, ["new/made.txt"]);
    assert_eq!(report.modified, ["change.txt"]);
    assert_eq!(report.deleted, ["drop.txt"]);
    assert_eq!(
        (report.renamed[0].from.as_str(), report.renamed[0].to.as_str()),
        ("old/name.txt", "new/name.txt")
    );
    assert_eq!(report.unchanged, 1);
    let alone: Vec<_> = report.left_alone.iter().map(|it| (it.path.as_str(), it.why)).collect();
    assert_eq!(alone, [("link", "it is a link"), ("pipe", "it is not a regular file")]);

    let files = world.workspace().list().await.unwrap();
    let reported: Vec<_> =
        files.iter().map(|file| (file.file_path.as_str(), file.version, file.source)).collect();
    assert_eq!(
        reported,
        [
            ("change.txt", 2, FileSource::AiModified),
            ("keep.txt", 1, FileSource::UserUpload),
            ("new/made.txt", 1, FileSource::AiCreated),
            ("new/name.txt", 1, FileSource::UserUpload),
        ]
    );
    let id = |files: &[ConversationFile], path: &str| {
        files.iter().find(|file| file.file_path.as_str() == path).unwrap().file_id
    };
    assert_eq!(
        id(&files, "new/name.txt"),
        id(&before, "old/name.txt"),
        "a renamed file stays the same"
    );
    assert_eq!(world.get(&files[0], None).await.unwrap(), b"CHANGED of change.txt");
    let again = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    assert_eq!((again.report().fetched, again.report().unchanged), (0, 4));
}

/// FS-01: the cache may be damaged or gone at any time.
#[apply(everywhere)]
async fn a_flipped_byte_is_found_and_fetched_again(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    for n in 0..10 {
        world.put(&format!("f{n}.bin"), vec![n; 10_000]).await;
    }
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    run.end().await.unwrap();
    for round in 0..10u64 {
        for n in 0..10u8 {
            let path = world.folder().join(format!("f{n}.bin"));
            let mut content = fs::read(&path).unwrap();
            content[(round * 997 + u64::from(n)) as usize] ^= 1 << (round % 8);
            fs::write(&path, content).unwrap();
        }
        // A failing disk changes no time of a file.
        world.trust_stamps();
        let report = world.workspace().sync(Duration::ZERO).await.unwrap();
        assert_eq!((report.fetched, report.modified.len()), (10, 0));
        let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
        assert_eq!((run.report().fetched, run.report().unchanged), (0, 10));
        for n in 0..10u8 {
            assert_eq!(
                fs::read(world.folder().join(format!("f{n}.bin"))).unwrap(),
                vec![n; 10_000]
            );
        }
        assert_eq!(run.end().await.unwrap().modified, Vec::<String>::new());
    }
}

/// FS-16: an archived conversation keeps its files, unless the server's owner says for how long.
#[apply(everywhere)]
async fn files_of_archived_conversations_are_deleted_on_request(
    backend: Backend,
    objects: Objects,
) {
    let settings = Settings { keep_archived_days: Some(0), ..Settings::default() };
    let world = World::with(backend, objects, settings).await;
    world.put("a.txt", "archived").await;
    world.files.sweep().await.unwrap();
    assert_eq!(world.workspace().list().await.unwrap().len(), 1, "it is not archived");
    let archive = atelier_store::ConversationChanges {
        status: Some(atelier_core::ConversationStatus::Archived),
        ..Default::default()
    };
    let id = world.conversation.id();
    world.store.update_conversation(&world.owned, id, archive).await.unwrap();
    world.files.sweep().await.unwrap();
    assert_eq!(world.workspace().list().await.unwrap(), []);
    assert_eq!(world.store.due_removals(10).await.unwrap(), Vec::<String>::new());
}

/// FS-20: the content of an archived conversation is below a prefix of its own. What a rule of the
/// object store deletes there has expired, and no sweep brings it back.
#[apply(everywhere)]
async fn archived_content_moves_and_may_expire(backend: Backend, objects: Objects) {
    let settings = Settings { grace: Duration::ZERO, ..Settings::default() };
    let world = World::with(backend, objects, settings).await;
    let kept = world.put("kept.txt", "kept").await;
    let expired = world.put("expired.txt", "expired").await;
    let prefix = world.files.settings().prefix.clone();
    let places = async || {
        let keys = world.keys().await;
        let archived = format!("{prefix}archived/{}.blobs/", world.conversation.id());
        let copies = world.files.workspace_path(world.conversation.id());
        let below = |start: &str| keys.iter().filter(|key| key.starts_with(start)).count();
        (keys.len(), below(&archived), below(&copies))
    };
    assert_eq!(places().await, (4, 0, 2), "two contents and their copies");
    let set = async |status| {
        let changes =
            atelier_store::ConversationChanges { status: Some(status), ..Default::default() };
        let id = world.conversation.id();
        world.store.update_conversation(&world.owned, id, changes).await.unwrap();
        world.files.sweep().await.unwrap();
        // The first sweep has moved the objects after it had listed them.
        world.files.sweep().await.unwrap();
    };
    set(atelier_core::ConversationStatus::Archived).await;
    assert_eq!(places().await, (2, 2, 0));
    assert_eq!(world.get(&kept, None).await.unwrap(), b"kept");

    for key in world.keys().await.iter().filter(|key| key.contains(&expired.checksum)) {
        world.remove(key).await;
    }
    let gone = async || world.get(&expired, None).await.unwrap_err().code();
    assert_eq!(gone().await, "content_expired");
    world.files.sweep().await.unwrap();
    assert_eq!(gone().await, "content_expired");
    set(atelier_core::ConversationStatus::Active).await;
    assert_eq!(places().await, (2, 0, 1), "what has not expired is back, with its copy");
    assert_eq!(world.get(&kept, None).await.unwrap(), b"kept");
    assert_eq!(gone().await, "content_expired");
    assert_eq!(world.files.stale_copies().await.unwrap(), 0, "nothing is tried for ever");
    let report = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    assert_eq!(fs::read_to_string(report.folder().join("kept.txt")).unwrap(), "kept");
    report.end().await.unwrap();
    assert_eq!(world.put("expired.txt", "anew").await.version, 2);
}

/// FS-01 FS-19: reads need no lock and notice what others stored, and what somebody changed in the
/// folder.
#[apply(everywhere)]
async fn readers_share_a_current_folder(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    let path = |name: &str| atelier_core::FilePath::parse(name).unwrap();
    world.put("a.txt", "one").await;
    world.put("b.txt", "b").await;
    let read = async |name: &str| {
        let folder =
            world.workspace().current_folder(Some(&path(name)), Duration::ZERO).await.unwrap();
        fs::read_to_string(folder.join(name)).unwrap()
    };
    assert_eq!(read("a.txt").await, "one");
    // While a run works in the folder, others read.
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    assert_eq!(read("b.txt").await, "b");
    fs::write(run.folder().join("a.txt"), "two").unwrap();
    assert_eq!(read("a.txt").await, "two");
    run.end().await.unwrap();
    assert_eq!(read("a.txt").await, "two");
    world.put("a.txt", "three").await;
    assert_eq!(read("a.txt").await, "three");
    // A change outside a run is stored before it is read, and a lost file is fetched.
    fs::write(world.folder().join("a.txt"), "outside").unwrap();
    assert_eq!(read("a.txt").await, "outside");
    let files = world.workspace().list().await.unwrap();
    assert_eq!(files[0].version, 4);
    fs::remove_file(world.folder().join("b.txt")).unwrap();
    assert_eq!(read("b.txt").await, "b");
    fs::remove_dir_all(world.folder()).unwrap();
    assert_eq!(read("b.txt").await, "b");
}

/// A run that crashed leaves its changes in the folder, and the next run saves them.
#[apply(everywhere)]
async fn changes_of_a_crashed_run_are_saved(backend: Backend, objects: Objects) {
    let settings = Settings { lease: Duration::from_millis(300), ..Settings::default() };
    let world = World::with(backend, objects, settings).await;
    world.put("a.txt", "before").await;
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    fs::write(run.folder().join("a.txt"), "the agent's").unwrap();
    fs::write(run.folder().join("b.txt"), "new").unwrap();
    drop(run);
    let run = world.workspace().sync_to_local(Duration::from_secs(5)).await.unwrap();
    assert_eq!(
        (&run.report().modified[..], &run.report().created[..]),
        (&["a.txt".to_owned()][..], &["b.txt".to_owned()][..])
    );
    assert_eq!(fs::read_to_string(run.folder().join("a.txt")).unwrap(), "the agent's");
}

/// FS-01: deleting the cache deletes no file, not even while a run is at work.
#[apply(everywhere)]
async fn a_deleted_cache_deletes_nothing(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    let file = world.put("a.txt", "kept").await;
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    drop(run);
    fs::remove_dir_all(world.folder()).unwrap();
    let run = world.workspace().sync_to_local(Duration::from_secs(5)).await.unwrap();
    assert_eq!((run.report().deleted.len(), run.report().fetched), (0, 1));
    // Files also survive if their folder is deleted in the middle of a run.
    fs::remove_dir_all(world.folder()).unwrap();
    assert_eq!(run.end().await.unwrap().deleted, Vec::<String>::new());
    assert_eq!(world.get(&file, None).await.unwrap(), b"kept");
    assert_eq!(world.workspace().sync(Duration::from_secs(5)).await.unwrap().fetched, 1);
}

/// A folder is deleted file by file, which must not look like the agent deleting files.
#[apply(everywhere)]
async fn a_folder_that_is_being_deleted_deletes_nothing(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    for number in 0..40 {
        world.put(&format!("{number}.txt"), format!("content {number}")).await;
    }
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    let folder = run.folder().to_owned();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let remover = std::thread::spawn(move || {
        for number in 0..40 {
            fs::remove_file(folder.join(format!("{number}.txt"))).unwrap();
            begun.send(()).unwrap();
            #[expect(
                clippy::disallowed_methods,
                reason = "deleting a large folder takes its time"
            )]
            std::thread::sleep(Duration::from_millis(10));
        }
        fs::remove_dir(folder).unwrap();
    });
    has_begun.recv().unwrap();
    let report = run.end().await.unwrap();
    // The remover reports every file until it has finished.
    remover.join().unwrap();
    assert!(report.deleted.is_empty(), "{report:?}");
    assert_eq!(world.workspace().list().await.unwrap().len(), 40);
    let run = world.workspace().sync_to_local(Duration::from_secs(5)).await.unwrap();
    assert_eq!(fs::read_dir(run.folder()).unwrap().count(), 40);
}

#[apply(everywhere)]
async fn only_one_run_at_a_time_and_conflicts_keep_both_versions(
    backend: Backend,
    objects: Objects,
) {
    let world = World::new(backend, objects).await;
    let file = world.put("changes.txt", "base").await;
    let gone = world.put("gone.txt", "base").await;
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    let second = world.workspace().sync_to_local(Duration::from_millis(300)).await;
    assert!(matches!(second, Err(Error::Locked)));
    // Another machine has another folder, and the same lease.
    let elsewhere = tempfile::tempdir().unwrap();
    let url = world.bucket.as_ref().map(Bucket::url);
    let objects =
        url.unwrap_or_else(|| format!("file://{}", world.data.path().join("objects").display()));
    let settings = world.files.settings().clone();
    let node =
        Files::open(settings, Some(&objects), elsewhere.path(), world.store.clone()).await.unwrap();
    let other = node.workspace(&world.conversation);
    assert!(matches!(other.sync_to_local(Duration::from_millis(300)).await, Err(Error::Locked)));

    fs::write(run.folder().join("changes.txt"), "the agent's").unwrap();
    fs::remove_file(run.folder().join("gone.txt")).unwrap();
    world.put("changes.txt", "the person's").await;
    world.put("gone.txt", "still wanted").await;
    let report = run.sync_back().await.unwrap();
    let reported: Vec<_> =
        report.conflicts.iter().map(|it| (it.path.as_str(), it.kept_as.as_deref())).collect();
    assert_eq!(reported, [("gone.txt", None), ("changes.txt", Some("changes.agent-copy.txt"))]);
    assert_eq!(fs::read_to_string(run.folder().join("changes.txt")).unwrap(), "the person's");
    assert_eq!(
        fs::read_to_string(run.folder().join("changes.agent-copy.txt")).unwrap(),
        "the agent's"
    );
    assert_eq!(world.get(&file, None).await.unwrap(), b"the person's");
    assert_eq!(world.get(&gone, None).await.unwrap(), b"still wanted");
    assert_eq!(run.end().await.unwrap().conflicts, vec![]);

    let run = other.sync_to_local(Duration::ZERO).await.unwrap();
    assert_eq!(run.report().fetched, 3);
}

/// FS-06 FS-11
#[apply(everywhere)]
async fn prompt_lists_the_files_and_agent_presents_some(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    world.put("data/table.csv", "a,b\n").await;
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    fs::write(run.folder().join("result.md"), "# done").unwrap();
    let path = FilePath::parse("result.md").unwrap();
    let shown = run.present_files(&[path], Some("the result".into())).await.unwrap();
    assert_eq!((shown[0].is_presented, shown[0].source), (true, FileSource::AiCreated));
    let missing = run.present_files(&[FilePath::parse("nothing").unwrap()], None).await;
    assert!(matches!(missing, Err(Error::NoSuchFile(_))));
    let prompt = run.context().await.unwrap().to_string();
    for part in [
        &format!("workspace_path: {}", run.folder().display())[..],
        "\"data/table.csv\" (original name \"table.csv\", 4 bytes, user_upload)",
        "\"result.md\" (original name \"result.md\", 6 bytes, ai_created, presented)",
        "instructions: ",
    ] {
        assert!(prompt.contains(part), "{part}\n{prompt}");
    }
}

#[apply(everywhere)]
async fn sweep_removes_objects_without_a_row_and_repairs_copies(
    backend: Backend,
    objects: Objects,
) {
    let settings = Settings { grace: Duration::ZERO, ..Settings::default() };
    let world = World::with(backend, objects, settings).await;
    let file = world.put("a.txt", "kept").await;
    // Content whose row never came, as after a crash.
    let body = futures::stream::iter([Ok(Bytes::from_static(b"orphan"))]).boxed();
    world.workspace().store(body, 100).await.unwrap();
    assert_eq!(world.contents().await, 2);
    assert_eq!(world.files.sweep().await.unwrap(), SweepReport { orphans: 1, copies: 0 });
    assert_eq!(world.contents().await, 1);
    if objects == Disk {
        let copy = world
            .data
            .path()
            .join("objects")
            .join(world.files.workspace_path(world.conversation.id()));
        fs::write(copy.join("a.txt"), "somebody wrote over the copy").unwrap();
        assert_eq!(world.files.sweep().await.unwrap(), SweepReport { orphans: 0, copies: 1 });
        assert_eq!(fs::read_to_string(copy.join("a.txt")).unwrap(), "kept");
        fs::write(copy.join("a.txt"), "EVIL").unwrap();
        assert_eq!(world.files.sweep().await.unwrap(), SweepReport { orphans: 0, copies: 1 });
        assert_eq!(fs::read_to_string(copy.join("a.txt")).unwrap(), "kept");
        assert_eq!(world.files.sweep().await.unwrap(), SweepReport::default());
    }
    if let Some(bucket) = &world.bucket {
        let copy = format!("{}a.txt", world.files.workspace_path(world.conversation.id()));
        let objects = atelier_files::Objects::at(&bucket.url()).unwrap();
        for written in ["somebody wrote over the copy", "EVIL"] {
            objects.write(&copy, Bytes::from_static(written.as_bytes())).await.unwrap();
            assert_eq!(world.files.sweep().await.unwrap(), SweepReport { orphans: 0, copies: 1 });
            assert_eq!(objects.read(&copy).await.unwrap().unwrap(), "kept");
        }
        assert_eq!(world.files.sweep().await.unwrap(), SweepReport::default());
    }
    assert_eq!(world.get(&file, None).await.unwrap(), b"kept");
    // A conversation that is deleted takes everything with it.
    world.store.delete_conversation(&world.owned, world.conversation.id()).await.unwrap();
    world.files.sweep().await.unwrap();
    assert_eq!(world.keys().await, Vec::<String>::new());
    assert!(!world.folder().exists());
}

/// Large content is stored in parts and read back unchanged.
#[apply(everywhere)]
async fn large_files_are_streamed(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    let content: Vec<u8> = (0..20_000_003u32).map(|n| (n % 251) as u8).collect();
    let chunks: Vec<_> =
        content.chunks(777_777).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
    let workspace = world.workspace();
    let too_small = workspace.store(futures::stream::iter(chunks).boxed(), 15_000_000).await;
    assert!(matches!(too_small, Err(Error::TooLarge { limit: 15_000_000 })));
    let file = world.put("big.bin", content.clone()).await;
    assert!(world.get(&file, None).await.unwrap() == content);
    let reading = workspace.read(file.file_id, None).await.unwrap();
    let part: Vec<Bytes> =
        reading.part(8_388_600..8_388_620).await.unwrap().try_collect().await.unwrap();
    assert_eq!(part.concat(), content[8_388_600..8_388_620]);
    fs::remove_dir_all(world.folder()).unwrap();
    let run = workspace.sync_to_local(Duration::ZERO).await.unwrap();
    assert!(fs::read(run.folder().join("big.bin")).unwrap() == content);
    // A large file from the folder arrives unchanged in the object store as well.
    let other: Vec<u8> = content.iter().rev().copied().collect();
    fs::write(run.folder().join("other.bin"), &other).unwrap();
    run.end().await.unwrap();
    let files = workspace.list().await.unwrap();
    assert!(world.get(&files[1], None).await.unwrap() == other);
}

/// File names that some systems or tools cannot handle.
#[apply(everywhere)]
async fn unusual_file_names_work(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    let long = format!("{}.txt", "я".repeat(125)) + "x";
    let names = [
        "отчёт за год.txt",
        "報告書/第１章.txt",
        "😀🎉.txt",
        " leading and trailing ",
        "a..b.txt",
        "...",
        "CON",
        "nul.txt",
        "a#1",
        "50%.txt",
        "%41.txt",
        "q?x=1&y=2",
        "[x]{y}~`^|<>*\"'",
        "a+b=c;d,e@f!$().txt",
        "-rf",
        long.as_str(),
    ];
    assert_eq!(long.len(), 255);
    for name in names {
        world.put(name, name.to_owned()).await;
    }
    fs::remove_dir_all(world.folder()).unwrap();
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    assert_eq!(run.report().fetched, names.len());
    for name in names {
        assert_eq!(fs::read_to_string(run.folder().join(name)).unwrap(), name);
        fs::write(run.folder().join(name), format!("{name} again")).unwrap();
    }
    assert_eq!(run.end().await.unwrap().modified.len(), names.len());
    let keys = world.keys().await;
    for file in world.workspace().list().await.unwrap() {
        let path = file.file_path.as_str();
        assert_eq!(world.get(&file, None).await.unwrap(), format!("{path} again").as_bytes());
        let copy = format!("{}{path}", world.files.workspace_path(world.conversation.id()));
        match objects {
            S3 => assert!(keys.contains(&copy), "{copy} {keys:?}"),
            Disk => {
                assert!(
                    Path::new(&world.data.path().join("objects").join(copy)).exists(),
                    "{path}"
                );
            }
        }
    }
}

/// The least recently used folders are removed first, but never one with unsaved changes.
#[tokio::test(flavor = "multi_thread")]
async fn cache_stays_within_its_limit() {
    let settings = Settings { cache_bytes: 25_000, ..Settings::default() };
    let mut world = World::with(Sqlite, Disk, settings).await;
    let mut folders = Vec::new();
    for n in 0..4 {
        world.conversation = new_conversation(&world.store, &world.owned).await;
        world.put("f.bin", vec![n; 10_000]).await;
        let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
        folders.push(world.folder());
        // The second one dies.
        if n == 1 { drop(run) } else { drop(run.end().await.unwrap()) }
    }
    let there: Vec<bool> = folders.iter().map(|folder| folder.exists()).collect();
    assert_eq!(there, [false, true, false, true]);
}

/// An upload does not overwrite the changes of a crashed run: both versions stay.
#[apply(everywhere)]
async fn upload_does_not_overwrite_changes_of_a_crashed_run(backend: Backend, objects: Objects) {
    let settings = Settings { lease: Duration::from_millis(300), ..Settings::default() };
    let world = World::with(backend, objects, settings).await;
    let base = world.put("changes.txt", "base").await;
    let moved = world.put("moved.txt", "base").await;
    let gone = world.put("gone.txt", "base").await;
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    for name in ["changes.txt", "moved.txt", "gone.txt", "notes"] {
        fs::write(run.folder().join(name), format!("the agent's {name}")).unwrap();
    }
    drop(run);
    world.put("changes.txt", "the person's").await;
    world.put("notes/a.txt", "the person's").await;
    let (workspace, path) = (world.workspace(), FilePath::parse("elsewhere.txt").unwrap());
    workspace.restore(world.author(), base.file_id, 1, Expect::Anything).await.unwrap();
    let change = workspace.change(
        world.author(),
        moved.file_id,
        FileChanges { path: Some(path), ..FileChanges::default() },
        Expect::Anything,
    );
    change.await.unwrap();
    workspace.delete(world.author(), gone.file_id, Expect::Anything).await.unwrap();

    let run = world.workspace().sync_to_local(Duration::from_secs(5)).await.unwrap();
    let mut reported: Vec<_> = run
        .report()
        .conflicts
        .iter()
        .map(|it| (it.path.as_str(), it.kept_as.as_deref().unwrap()))
        .collect();
    reported.sort_unstable();
    let expected = [
        ("changes.txt", "changes.agent-copy.txt"),
        ("gone.txt", "gone.agent-copy.txt"),
        ("moved.txt", "moved.agent-copy.txt"),
        ("notes", "notes.agent-copy"),
    ];
    assert_eq!(reported, expected);
    for (name, kept) in expected {
        assert_eq!(
            fs::read_to_string(run.folder().join(kept)).unwrap(),
            format!("the agent's {name}")
        );
    }
    assert_eq!(fs::read_to_string(run.folder().join("changes.txt")).unwrap(), "base");
    assert_eq!(fs::read_to_string(run.folder().join("notes/a.txt")).unwrap(), "the person's");
    let report = run.end().await.unwrap();
    assert_eq!(report.conflicts.len(), 4, "whoever comes next is told");
}

/// A user creates a folder where an agent has a file, and the other way round: both stay.
#[apply(everywhere)]
async fn file_and_folder_with_the_same_name_both_stay(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    fs::write(run.folder().join("a"), "the agent's a").unwrap();
    fs::create_dir_all(run.folder().join("b/c")).unwrap();
    fs::write(run.folder().join("b/1.txt"), "the agent's 1").unwrap();
    fs::write(run.folder().join("b/c/2.txt"), "the agent's 2").unwrap();
    world.put("a/x.txt", "the person's").await;
    world.put("b", "the person's").await;
    let report = run.end().await.unwrap();
    assert_eq!((report.conflicts.len(), report.left_alone.len()), (3, 0));
    for (path, content) in [
        ("a/x.txt", "the person's"),
        ("b", "the person's"),
        ("a.agent-copy", "the agent's a"),
        ("b.agent-copy/1.txt", "the agent's 1"),
        ("b.agent-copy/c/2.txt", "the agent's 2"),
    ] {
        assert_eq!(fs::read_to_string(world.folder().join(path)).unwrap(), content, "{path}");
    }
}

/// A file that is too large stays in the folder, and every sync reports it.
#[tokio::test(flavor = "multi_thread")]
async fn too_large_file_stays_in_the_folder() {
    let settings =
        Settings { max_upload: 10, lease: Duration::from_millis(300), ..Settings::default() };
    let world = World::with(Sqlite, Disk, settings).await;
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    fs::write(run.folder().join("big.txt"), "more than ten bytes").unwrap();
    drop(run);
    for _ in 0..2 {
        let report = world.workspace().sync(Duration::from_secs(5)).await.unwrap();
        let left: Vec<_> = report.left_alone.iter().map(|it| (it.path.as_str(), it.why)).collect();
        assert_eq!((left, report.removed), (vec![("big.txt", "it is too large")], 0));
        assert_eq!(
            fs::read_to_string(world.folder().join("big.txt")).unwrap(),
            "more than ten bytes"
        );
    }
}

/// Lost content does not keep the agent from the other files; writing the file again repairs it.
#[tokio::test(flavor = "multi_thread")]
async fn lost_content_does_not_block_the_workspace() {
    let world = World::new(Sqlite, Disk).await;
    let whole = world.put("whole.txt", "whole").await;
    let lost = world.put("lost.txt", "lost").await;
    let contents = world
        .data
        .path()
        .join("objects/workspaces")
        .join(format!("{}.blobs", world.conversation.id()));
    let mut objects = fs::read_dir(contents).unwrap().map(|entry| entry.unwrap().path());
    let object = objects.find(|path| path.to_string_lossy().contains(&lost.checksum)).unwrap();
    fs::remove_file(object).unwrap();
    fs::write(world.folder().join("lost.txt"), "LOST").unwrap();

    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    assert_eq!(run.report().damaged, ["lost.txt"]);
    assert!(run.report().remarks().contains("lost.txt is damaged"), "{}", run.report().remarks());
    assert!(!run.folder().join("lost.txt").exists(), "wrong content is worse than none");
    assert_eq!(fs::read_to_string(run.folder().join("whole.txt")).unwrap(), "whole");
    let report = run.sync_back().await.unwrap();
    assert_eq!(
        (report.deleted.len(), report.modified.len()),
        (0, 0),
        "it was not the agent who removed it"
    );
    fs::write(run.folder().join("lost.txt"), "found").unwrap();
    let report = run.end().await.unwrap();
    assert_eq!((report.modified, report.damaged), (vec!["lost.txt".to_owned()], vec![]));
    assert_eq!(world.get(&lost, None).await.unwrap(), b"found");
    assert_eq!(world.get(&whole, None).await.unwrap(), b"whole");
}

/// Uploading lost or damaged content again repairs every file that has it.
#[apply(everywhere)]
async fn uploading_lost_content_again_repairs_it(backend: Backend, objects: Objects) {
    use object_store::ObjectStoreExt as _;
    let world = World::new(backend, objects).await;
    for (number, harm) in [None, Some("lust"), Some("lo"), Some("")].into_iter().enumerate() {
        let lost = world.put(&format!("lost{number}.txt"), "lost").await;
        for key in world.keys().await.into_iter().filter(|key| key.contains(&lost.checksum)) {
            match harm {
                None => world.remove(&key).await,
                Some(other) => drop(world.objects().put(&key.into(), other.into()).await.unwrap()),
            }
        }
        assert!(world.get(&lost, None).await.ok().is_none_or(|found| found != b"lost"));
        let again = world.put(&format!("again{number}.txt"), "lost").await;
        assert_eq!(world.get(&again, None).await.unwrap(), b"lost");
        assert_eq!(world.get(&lost, None).await.unwrap(), b"lost");
        world.files.sweep().await.unwrap();
        assert_eq!(world.get(&lost, None).await.unwrap(), b"lost");
    }
}

/// A sweep does not remove the first file of a form while the last one is still being sent.
#[apply(everywhere)]
async fn sweep_keeps_content_that_is_being_saved(backend: Backend, objects: Objects) {
    let settings = Settings { grace: Duration::ZERO, ..Settings::default() };
    let world = World::with(backend, objects, settings).await;
    let body = futures::stream::iter([Ok(Bytes::from_static(b"slow"))]).boxed();
    let content = world.workspace().store(body, 100).await.unwrap();
    let before = world.keys().await;
    let path = FilePath::parse("slow.txt").unwrap();
    let new = NewFile {
        content,
        path,
        original_name: "slow.txt".into(),
        description: None,
        expect: Expect::Anything,
    };
    let saved = world.workspace().save(world.author(), vec![new]).await.unwrap().remove(0);
    assert!(!world.keys().await.contains(&before[0]), "it went to a key that no sweep has listed");
    world.files.sweep().await.unwrap();
    assert_eq!(world.get(&saved, None).await.unwrap(), b"slow");

    let body = futures::stream::iter([Ok(Bytes::from_static(b"late"))]).boxed();
    let content = world.workspace().store(body, 100).await.unwrap();
    world.files.sweep().await.unwrap();
    let path = FilePath::parse("late.txt").unwrap();
    let new = NewFile {
        content,
        path,
        original_name: "late.txt".into(),
        description: None,
        expect: Expect::Anything,
    };
    let late = world.workspace().save(world.author(), vec![new]).await;
    assert!(matches!(late, Err(Error::Broken(_))), "no row without its object: {late:?}");
}

/// A prefix that a store would encode differently, or that leads out of it, is refused at the
/// start.
#[tokio::test]
async fn prefix_is_used_unchanged_or_refused() {
    let data = tempfile::tempdir().unwrap();
    let opened = atelier_store::Settings {
        data: data.path().to_owned(),
        database_url: None,
        ..Default::default()
    };
    let store = Store::open(&opened).await.unwrap();
    for (prefix, good) in [
        ("", true),
        ("workspaces/", true),
        ("team/a-b_1/", true),
        ("team-", true),
        ("team~a/", false),
        ("/tmp/out/", false),
        ("../up/", false),
        ("a/../b/", false),
        ("a//b/", false),
        ("per%cent/", false),
    ] {
        let settings = Settings { prefix: prefix.into(), ..Settings::default() };
        let opened = Files::open(settings, None, data.path(), store.clone()).await;
        assert_eq!(opened.is_ok(), good, "{prefix:?}");
        assert!(good || matches!(opened, Err(Error::Configuration(_))), "{prefix:?}");
    }
}

/// A path whose copy would have too long a key is refused.
#[apply(everywhere)]
async fn too_long_path_is_refused(backend: Backend, objects: Objects) {
    let world = World::new(backend, objects).await;
    let path = |length: usize| {
        let folder = format!("{}/", "d".repeat(199));
        let mut path = folder.repeat(length / 200 - 1);
        path.push_str(&"f".repeat((length - path.len()).min(250)));
        path
    };
    let long = match objects {
        Disk => path(4090),
        S3 => path(1000),
    };
    let refused = world.try_put(&long, "x", Expect::Anything).await;
    assert!(matches!(refused, Err(Error::Path(_))), "{refused:?}");
    world.put(&path(700), "x").await;
    let run = world.workspace().sync_to_local(Duration::ZERO).await.unwrap();
    assert_eq!(run.end().await.unwrap().left_alone, vec![]);
    assert_eq!(world.files.sweep().await.unwrap(), SweepReport::default());
}
