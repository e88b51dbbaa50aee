//! The bucket of the real SeaweedFS that `make services` starts. Tests share it; each has a prefix of its own.

use uuid::Uuid;

/// A place of its own in the bucket. What is in it goes with the service.
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

    /// The same bucket by way of another address, such as a proxy's.
    #[must_use]
    pub fn through(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = endpoint.into();
        self
    }

    /// As the setting `object_store` takes it.
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
