//! Files and their versions: storing, reading, restoring and deleting, and which names are allowed.

use super::*;

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
