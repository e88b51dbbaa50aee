//! Runs of agents in the folder of a conversation, and changes that meet there.

use super::*;

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
