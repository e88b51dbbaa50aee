//! The OpenAPI document, and the operations that other tests generate from it.

use crate::start;
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Server,
};
use reqwest::Method;
use rstest::rstest;
use serde_json::Value;
use std::path::Path;
use uuid::Uuid;

/// One operation of the running server, as its document describes it.
pub(crate) struct Operation {
    pub(crate) method: Method,
    /// The path with parameters in braces: `/my/projects/{project}`.
    pub(crate) path: String,
    pub(crate) parameters: Vec<String>,
    /// Whether the operation needs a token.
    pub(crate) secured: bool,
    pub(crate) takes_body: bool,
    /// Whether a successful answer is an endless stream.
    pub(crate) streams: bool,
}

impl Operation {
    /// The path with each parameter replaced by the result of `value` for its name.
    pub(crate) fn fill(&self, value: impl Fn(&str) -> String) -> String {
        self.parameters.iter().fold(self.path.clone(), |path, name| {
            path.replace(&format!("{{{name}}}"), &value(name))
        })
    }

    pub(crate) fn label(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// Whether the operation is meant for this role: agents request calls, and clients run them.
    pub(crate) fn is_work_of(&self, role: &str) -> bool {
        let ends = |ends: &[&str]| ends.iter().any(|end| self.path.ends_with(end));
        match role {
            "agent" => ends(&["/tools/execute", "/context/search"]),
            "client" => ends(&["/preview", "/claim", "/result", "/clients", "/renew", "/{client}"]),
            other => panic!("{other} is no machine"),
        }
    }

    /// Whether the operation changes a project or something in it.
    pub(crate) fn changes(&self) -> bool {
        let of_people =
            ["/my/", "/api/tenants/{tenant}/conversations", "/api/tenants/{tenant}/workspace"];
        self.method != Method::GET && of_people.iter().any(|start| self.path.starts_with(start))
    }
}

async fn document(server: &Server) -> Value {
    server.bearer("").get("/openapi.json").await.expect(200)
}

/// All operations in the server's document.
pub(crate) async fn operations(server: &Server) -> Vec<Operation> {
    let document = document(server).await;
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let in_path = |parameter: &&Value| parameter["in"] == "path";
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let open = |needs: &Value| {
                needs
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|need| need == &Value::Object(Default::default()))
            };
            operations.push(Operation {
                method: method.to_uppercase().parse().unwrap(),
                path: path.clone(),
                parameters: parameters
                    .filter(in_path)
                    .map(|parameter| parameter["name"].as_str().unwrap().to_owned())
                    .collect(),
                secured: !open(operation.get("security").unwrap_or(&document["security"])),
                takes_body: operation.get("requestBody").is_some(),
                streams: !operation["responses"]["200"]["content"]["text/event-stream"].is_null(),
            });
        }
    }
    for operation in &operations {
        assert_eq!(
            operation.path.matches('{').count(),
            operation.parameters.len(),
            "{} declares its parameters",
            operation.label()
        );
    }
    operations
}

#[tokio::test]
async fn committed_openapi_document_matches_the_server() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi.json");
    let server = start(Sqlite).await;
    let mut now = document(&server).await;
    // Whether maps keep their order depends on features of other crates in the build.
    now.sort_all_objects();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&file, serde_json::to_string_pretty(&now).unwrap() + "\n").unwrap();
    }
    let committed: Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap_or_default()).unwrap_or_default();
    let different = first_difference(&now, &committed, "#".to_owned());
    assert_eq!(
        different, None,
        "openapi.json is not what the server says: if the change is meant, run \
         UPDATE_SNAPSHOTS=1 cargo nextest run -p atelier --test it openapi"
    );
}

/// The first difference between two documents, as a JSON pointer.
fn first_difference(one: &Value, other: &Value, at: String) -> Option<String> {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => a.keys().chain(b.keys()).find_map(|key| {
            let at = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
            match (a.get(key), b.get(key)) {
                (Some(a), Some(b)) => first_difference(a, b, at),
                _ => Some(at),
            }
        }),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.find_map(|(n, (a, b))| first_difference(a, b, format!("{at}/{n}")))
        }
        _ => (one != other).then_some(at),
    }
}

/// The page links only to files of this server.
#[tokio::test]
async fn docs_page_works_offline() {
    let server = start(Sqlite).await;
    for page in ["/docs", "/docs/"] {
        let (kind, text) = fetch(&server, page).await;
        assert!(kind.starts_with("text/html"), "{kind}");
        let links = links(&text);
        assert!(links.iter().any(|link| link.ends_with(".js")), "the page has scripts: {links:?}");
        for link in links {
            assert!(link.starts_with('/') && !link.starts_with("//"), "{link} leaves the server");
            let (kind, file) = fetch(&server, &link).await;
            assert!(!file.is_empty() && !kind.starts_with("text/html"), "{link}: {kind}");
            // Styles and the page's own script are checked. The bundle has addresses in its
            // comments.
            if link.ends_with(".css") {
                assert!(!file.contains("url(http") && !file.contains("@import"), "{link}");
            }
            if link.ends_with("initializer.js") {
                assert!(file.contains("\"/openapi.json\""), "{file}");
                assert!(!file.contains("http://") && !file.contains("https://"), "{file}");
            }
        }
    }
    // Whatever the bundle may request, the browser is told to contact no other server.
    let answer = server.http.get(format!("{}/docs", server.url)).send().await.unwrap();
    let policy = answer.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'self'") && !policy.contains("http"), "{policy}");
}

async fn fetch(server: &Server, path: &str) -> (String, String) {
    let answer = server.http.get(format!("{}{path}", server.url)).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
    (kind, String::from_utf8_lossy(&answer.bytes().await.unwrap()).into_owned())
}

/// What a page links to with `src` or `href`.
fn links(page: &str) -> Vec<String> {
    let mut links: Vec<String> = ["src=\"", "href=\""]
        .iter()
        .flat_map(|attribute| page.split(attribute).skip(1))
        .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
        .collect();
    links.dedup();
    links
}

/// Both forms lead to the same operation.
#[rstest]
#[tokio::test]
async fn every_route_answers_with_and_without_trailing_slash(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let project = project.rsplit('/').next().unwrap();
    for operation in operations(&server).await {
        let path = operation.fill(|name| match name {
            "project" => project.to_owned(),
            "agent" => "coder".to_owned(),
            "tool" | "approval" | "grant" | "client" | "session" | "task" | "plan"
            | "conversation" | "file" | "upload" | "run" | "interaction" | "sign_in" => {
                Uuid::now_v7().to_string()
            }
            "tenant" => "default".to_owned(),
            "provider" => "openai".to_owned(),
            "number" => "1".to_owned(),
            other => panic!("{}: what is {{{other}}}?", operation.label()),
        });
        for asker in [&ann, &server.bearer("")] {
            if operation.method == Method::GET && !operation.streams {
                let plain = asker.get(&path).await;
                let slashed = asker.get(&format!("{path}/")).await;
                assert_eq!(plain.status, slashed.status, "{}", operation.label());
                assert_eq!(keys(&plain.body), keys(&slashed.body), "{}", operation.label());
                // These ids are made up, or not accessible because the user is not an admin.
                let made_up =
                    ["{tool}", "{session}", "{task}", "{plan}", "{tenant}", "{interaction}"]
                        .iter()
                        .any(|name| operation.path.contains(name));
                assert!(
                    (made_up || plain.status != 404) && plain.status != 405,
                    "{}",
                    operation.label()
                );
            }
        }
        // A method that the path does not support is distinguished from an unknown path.
        for form in [path.clone(), format!("{path}/")] {
            let answer = ann.request(Method::TRACE, &form).send().await.unwrap();
            let allowed = answer.headers()["allow"].to_str().unwrap().to_owned();
            assert_eq!(answer.status(), 405, "{form}");
            assert!(allowed.contains(operation.method.as_str()), "{form}: {allowed}");
        }
    }
    assert_eq!(ann.get("/my/nothing").await.problem(), (404, "not_found"));
}

fn keys(value: &Value) -> Vec<&String> {
    value.as_object().into_iter().flat_map(|object| object.keys()).collect()
}
