//! The bucket of the real SeaweedFS that `make services` starts. Tests share it; each uses its own
//! prefix.

use object_store::{Error, ObjectStoreExt, aws::AmazonS3Builder, path::Path};
use uuid::Uuid;

/// A test's own part of the bucket. Its objects are deleted with the service.
#[derive(Debug, Clone)]
pub struct Bucket {
    pub endpoint: String,
    pub name: String,
    pub access_key: String,
    pub secret_key: String,
    /// Ends with a slash.
    pub prefix: String,
}

impl Bucket {
    pub fn new() -> Self {
        let service = |name: &str| crate::service(&format!("ATELIER_TEST_S3_{name}"), "SeaweedFS");
        Self {
            endpoint: service("ENDPOINT"),
            name: service("BUCKET"),
            access_key: service("ACCESS_KEY"),
            secret_key: service("SECRET_KEY"),
            prefix: format!("test-{}/", Uuid::now_v7().simple()),
        }
    }

    /// This bucket at another address, such as that of a proxy.
    #[must_use]
    pub fn through(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = endpoint.into();
        self
    }

    /// The content of an object, read directly from the service; `None` if there is no such object.
    pub async fn read(&self, key: &str) -> Option<Vec<u8>> {
        let store = AmazonS3Builder::new()
            .with_endpoint(&self.endpoint)
            .with_bucket_name(&self.name)
            .with_access_key_id(&self.access_key)
            .with_secret_access_key(&self.secret_key)
            .with_region("us-east-1")
            .with_allow_http(true)
            .build()
            .unwrap();
        match store.get(&Path::from(key)).await {
            Ok(object) => Some(object.bytes().await.unwrap().into()),
            Err(Error::NotFound { .. }) => None,
            Err(error) => panic!("{key}: {error}"),
        }
    }

    /// The value of the setting `object_store`.
    pub fn url(&self) -> String {
        let Self { endpoint, name, access_key, secret_key, .. } = self;
        format!(
            "s3://{name}?endpoint={endpoint}&access_key_id={access_key}&secret_access_key={secret_key}&region=us-east-1"
        )
    }
}

impl Default for Bucket {
    fn default() -> Self {
        Self::new()
    }
}
