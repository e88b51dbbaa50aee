//! A Qdrant server, whose collections all nodes share.

use super::{
    CollectionKey, FIELDS, FieldKind, IndexError, IndexMatches, IndexQuery, Point, Result, WORDS,
    beam,
};
use atelier_core::Filter;
use qdrant_client::{
    Qdrant, QdrantError,
    qdrant::{
        CollectionStatus, Condition, CountPointsBuilder, CreateCollectionBuilder,
        CreateFieldIndexCollectionBuilder, DatetimeRange, DeletePointsBuilder, Distance, FieldType,
        Filter as Conditions, Modifier, NamedVectors, PointId, PointStruct, PointsIdsList,
        QuantizationSearchParamsBuilder, Query, QueryBatchPointsBuilder, QueryPoints,
        QueryPointsBuilder, ScalarQuantizationBuilder, ScoredPoint, SearchParamsBuilder,
        SparseVectorParamsBuilder, SparseVectorsConfigBuilder, Timestamp, UpsertPointsBuilder,
        Value, Vector, VectorInput, VectorParamsBuilder, point_id::PointIdOptions,
    },
};
use std::{collections::HashMap, sync::Arc, time::Duration};
use uuid::Uuid;

/// How many points one request carries: one or two megabytes.
const BATCH: usize = 256;

#[derive(Clone)]
pub(super) struct Server {
    client: Arc<Qdrant>,
}

/// Distinguishes a missing collection, an unreachable server and a failed operation.
impl From<QdrantError> for IndexError {
    fn from(error: QdrantError) -> Self {
        let QdrantError::ResponseError { status } = &error else {
            return IndexError::Unreachable(error.to_string());
        };
        match format!("{:?}", status.code()).as_str() {
            "NotFound" => IndexError::CollectionMissing,
            // The client reports `Internal` when it cannot connect.
            "Unavailable" | "DeadlineExceeded" | "Cancelled" | "Unknown" | "Internal" => {
                IndexError::Unreachable(status.message().to_owned())
            }
            _ => IndexError::Failed(status.message().to_owned()),
        }
    }
}

impl Server {
    pub(super) fn new(url: &str, api_key: Option<&str>) -> Result<Self> {
        let client = Qdrant::from_url(url)
            .api_key(api_key)
            .timeout(Duration::from_secs(30))
            .connect_timeout(Duration::from_secs(2))
            // This code uses nothing that requires the server to be as new as the client.
            .skip_compatibility_check()
            .build()?;
        Ok(Self { client: Arc::new(client) })
    }

    /// All servers have the same id, because nodes may know one server by different addresses. A
    /// collection that a server does not have is noticed and created there.
    pub(super) fn id(&self) -> &'static str {
        "qdrant"
    }

    pub(super) async fn create(&self, key: &CollectionKey, dimension: usize) -> Result<()> {
        self.drop(key).await?;
        let mut words = SparseVectorsConfigBuilder::default();
        words.add_named_vector_params(
            WORDS,
            SparseVectorParamsBuilder::default().modifier(Modifier::Idf),
        );
        let vectors = VectorParamsBuilder::new(dimension as u64, Distance::Cosine).on_disk(true);
        let quantization = ScalarQuantizationBuilder::default().quantile(0.99).always_ram(true);
        let collection = CreateCollectionBuilder::new(&key.name)
            .vectors_config(vectors)
            .sparse_vectors_config(words)
            .quantization_config(quantization)
            .on_disk_payload(true);
        self.client.create_collection(collection).await?;
        for (field, kind) in FIELDS {
            let kind = match kind {
                FieldKind::Keyword => FieldType::Keyword,
                FieldKind::Time => FieldType::Datetime,
                FieldKind::Flag => FieldType::Bool,
            };
            let index = CreateFieldIndexCollectionBuilder::new(&key.name, field, kind).wait(true);
            self.client.create_field_index(index).await?;
        }
        Ok(())
    }

    pub(super) async fn exists(&self, key: &CollectionKey) -> Result<bool> {
        Ok(self.client.collection_exists(&key.name).await?)
    }

    pub(super) async fn apply(
        &self,
        key: &CollectionKey,
        points: Vec<Point>,
        removed: Vec<Uuid>,
    ) -> Result<()> {
        if !removed.is_empty() {
            let ids = removed.into_iter().map(PointId::from).collect();
            let delete =
                DeletePointsBuilder::new(&key.name).points(PointsIdsList { ids }).wait(true);
            self.client.delete_points(delete).await?;
        }
        let mut points = points.into_iter().map(point_struct);
        loop {
            let batch: Vec<PointStruct> = points.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            self.client
                .upsert_points(UpsertPointsBuilder::new(&key.name, batch).wait(true))
                .await?;
        }
    }

    /// A server logs every change before it answers, so there is nothing to flush.
    pub(super) async fn flush(&self, _: &CollectionKey) -> Result<()> {
        Ok(())
    }

    pub(super) async fn search(
        &self,
        key: &CollectionKey,
        ask: IndexQuery,
    ) -> Result<IndexMatches> {
        let filter = conditions(&ask.filter);
        let params = SearchParamsBuilder::default()
            .hnsw_ef(beam(&ask.filter) as u64)
            .quantization(
                QuantizationSearchParamsBuilder::default().rescore(true).oversampling(2.0),
            )
            .build();
        let query = |vector: VectorInput| {
            let query = QueryPointsBuilder::new(&key.name)
                .query(Query::new_nearest(vector))
                .params(params.clone())
                .limit(ask.limit as u64)
                .with_payload(false);
            match &filter {
                Some(filter) => query.filter(filter.clone()),
                None => query,
            }
        };
        // One request carries both queries. The order of the results tells them apart.
        let (vector, words) = (ask.vector, ask.words.filter(|words| !words.is_empty()));
        let (dense, lexical) = (vector.is_some(), words.is_some());
        let queries: Vec<QueryPoints> = vector
            .map(|vector| query(VectorInput::new_dense(vector)).build())
            .into_iter()
            .chain(words.map(|words| {
                query(VectorInput::new_sparse(words.indices, words.values)).using(WORDS).build()
            }))
            .collect();
        if queries.is_empty() {
            return Ok(IndexMatches::default());
        }
        let found =
            self.client.query_batch(QueryBatchPointsBuilder::new(&key.name, queries)).await?;
        let mut lists = found
            .result
            .into_iter()
            .map(|list| list.result.into_iter().filter_map(scored).collect());
        let mut next =
            |wanted: bool| if wanted { lists.next().unwrap_or_default() } else { Vec::new() };
        Ok(IndexMatches { dense: next(dense), lexical: next(lexical) })
    }

    pub(super) async fn drop(&self, key: &CollectionKey) -> Result<()> {
        // The server reports whether the collection existed; either way it is gone now.
        self.client.delete_collection(&key.name).await?;
        Ok(())
    }

    pub(super) async fn count(&self, key: &CollectionKey) -> Result<u64> {
        let count = self.client.count(CountPointsBuilder::new(&key.name).exact(true)).await?;
        Ok(count.result.map_or(0, |result| result.count))
    }

    pub(super) async fn indexed_fields(&self, key: &CollectionKey) -> Result<Vec<String>> {
        let info = self
            .client
            .collection_info(&key.name)
            .await?
            .result
            .ok_or(IndexError::CollectionMissing)?;
        let mut fields: Vec<String> = info.payload_schema.into_keys().collect();
        fields.sort_unstable();
        Ok(fields)
    }

    /// Estimates the size, which the server does not report: vectors and their quantized copies,
    /// plus one third for the graph, words and payload.
    pub(super) async fn size(&self, key: &CollectionKey, dimension: usize) -> Result<u64> {
        let points = self.count(key).await?;
        Ok(points * dimension as u64 * 5 * 4 / 3)
    }

    pub(super) async fn collections(&self) -> Result<Vec<String>> {
        let list = self.client.list_collections().await?;
        let mut names: Vec<String> =
            list.collections.into_iter().map(|collection| collection.name).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The server optimizes its collections by itself.
    pub(super) async fn optimize(&self, _: &CollectionKey) -> Result<()> {
        Ok(())
    }

    pub(super) async fn is_optimized(&self, key: &CollectionKey) -> Result<bool> {
        let info = self
            .client
            .collection_info(&key.name)
            .await?
            .result
            .ok_or(IndexError::CollectionMissing)?;
        Ok(info.status() == CollectionStatus::Green)
    }

    /// The server truncates its own log, so collections need no compaction.
    pub(super) async fn needs_compaction(&self, _: &CollectionKey) -> Result<bool> {
        Ok(false)
    }

    pub(super) async fn begin_generation(
        &self,
        key: &CollectionKey,
        dimension: usize,
    ) -> Result<()> {
        self.create(key, dimension).await
    }

    pub(super) async fn fill_generation(
        &self,
        key: &CollectionKey,
        points: Vec<Point>,
    ) -> Result<()> {
        self.apply(key, points, vec![]).await
    }

    pub(super) async fn switch_generation(&self, _: &CollectionKey) -> Result<()> {
        Ok(())
    }

    pub(super) async fn ping(&self) -> Result<()> {
        self.client.health_check().await?;
        Ok(())
    }
}

fn scored(point: ScoredPoint) -> Option<(Uuid, f32)> {
    match point.id?.point_id_options? {
        PointIdOptions::Uuid(id) => Some((id.parse().ok()?, point.score)),
        PointIdOptions::Num(_) => None,
    }
}

fn point_struct(point: Point) -> PointStruct {
    let mut vectors = NamedVectors::default();
    if let Some(vector) = point.vector {
        vectors = vectors.add_vector("", Vector::new_dense(vector));
    }
    if !point.words.is_empty() {
        vectors =
            vectors.add_vector(WORDS, Vector::new_sparse(point.words.indices, point.words.values));
    }
    let interaction = point.interaction;
    let mut payload: HashMap<String, Value> = HashMap::from([
        ("text".to_owned(), interaction.text.into()),
        ("interaction_type".to_owned(), interaction.interaction_type.as_str().into()),
        ("success".to_owned(), interaction.success.into()),
        ("timestamp".to_owned(), interaction.timestamp.to_rfc3339().into()),
    ]);
    payload.extend(interaction.task_id.map(|id| ("task_id".to_owned(), id.into())));
    payload.extend(interaction.session_id.map(|id| ("session_id".to_owned(), id.into())));
    PointStruct::new(PointId::from(interaction.id.0), vectors, payload)
}

fn conditions(filter: &Filter) -> Option<Conditions> {
    let mut must = Vec::new();
    if !filter.types.is_empty() {
        let types: Vec<String> = filter.types.iter().map(|kind| kind.as_str().to_owned()).collect();
        must.push(Condition::matches("interaction_type", types));
    }
    must.extend(filter.success.map(|success| Condition::matches("success", success)));
    if filter.from.is_some() || filter.to.is_some() {
        let time = |time: chrono::DateTime<chrono::Utc>| Timestamp {
            seconds: time.timestamp(),
            nanos: time.timestamp_subsec_nanos() as i32,
        };
        let range = DatetimeRange {
            gte: filter.from.map(time),
            lte: filter.to.map(time),
            ..Default::default()
        };
        must.push(Condition::datetime_range("timestamp", range));
    }
    for (key, value) in [("task_id", &filter.task_id), ("session_id", &filter.session_id)] {
        must.extend(value.clone().map(|value| Condition::matches(key, value)));
    }
    (!must.is_empty()).then(|| Conditions::must(must))
}
