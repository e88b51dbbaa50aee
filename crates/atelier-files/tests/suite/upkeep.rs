//! Damage, loss and clean-up: of the cache, of the object store, and of archived conversations.

use super::*;

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
