//! A Qdrant server, whose collections all nodes share.
//!
//! A server can have a few hundred collections, because each takes over a hundred memory maps even
//! if it is empty. So all agents whose vectors one embedder makes share a collection. Each point
//! names its agent (the tenant key), every request is limited to one agent, and the server builds a
//! search graph for each agent. A marker point says that the collection holds an agent's points: a
//! collection that was lost, and created again for another agent, has no marker of this one.
//!
//! Older versions had one collection per agent. Such a collection is read until its points are in
//! the shared one.

use super::{
    CollectionKey, FIELDS, FieldKind, IndexError, IndexMatches, IndexQuery, Point, Result, WORDS,
    beam,
};
use crate::lexical;
use atelier_core::Filter;
use qdrant_client::{
    Qdrant, QdrantError,
    qdrant::{
        CollectionStatus, Condition, CountPointsBuilder, CreateCollectionBuilder,
        CreateFieldIndexCollectionBuilder, DatetimeRange, DeletePointsBuilder, Distance, FieldType,
        Filter as Conditions, GetPointsBuilder, HnswConfigDiffBuilder, KeywordIndexParamsBuilder,
        NamedVectors, PayloadIncludeSelector, PointId, PointStruct, PointsIdsList,
        QuantizationSearchParamsBuilder, Query, QueryBatchPointsBuilder, QueryPoints,
        QueryPointsBuilder, ScalarQuantizationBuilder, ScoredPoint, SearchParamsBuilder,
        SparseVectorParamsBuilder, SparseVectorsConfigBuilder, Timestamp, UpsertPointsBuilder,
        Value, Vector, VectorInput, VectorParamsBuilder, point_id::PointIdOptions,
    },
};
use sha2::{Digest, Sha256};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};
use uuid::Uuid;

/// How many points one request carries: one or two megabytes.
const BATCH: usize = 256;
/// The id of a server for older versions, which know nothing of shared collections.
pub(super) const OLDER_ID: &str = "qdrant";
/// The payload field that names the agent of a point.
const TENANT: &str = "agent_id";
/// The payload field with the id of the interaction. Two agents may have interactions of the same
/// id, because a memory can be exported from one and imported into the other.
const INTERACTION: &str = "interaction_id";
/// The payload field of an agent's marker point.
const MARKER: &str = "marker";

#[derive(Clone)]
pub(super) struct Server {
    client: Arc<Qdrant>,
    /// The shared collections that are known to exist with all their field indexes.
    prepared: Arc<tokio::sync::Mutex<HashSet<String>>>,
}

/// The name of the collection that agents with the same embedder share.
pub(super) fn place(embedder: &str, dimension: usize) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = embedder.chars().map(|c| if plain(c) { c } else { '_' }).take(100).collect();
    match name == embedder {
        true => format!("atelier_{name}_{dimension}"),
        // Names that differ only in special characters stay different.
        false => {
            let hash = lexical::hash(embedder.as_bytes(), 4) as u32;
            format!("atelier_{name}_{hash:08x}_{dimension}")
        }
    }
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
        Ok(Self { client: Arc::new(client), prepared: Arc::default() })
    }

    /// All servers have the same id, because nodes may know one server by different addresses. A
    /// collection that a server does not have is noticed and created there.
    pub(super) fn id(&self) -> &'static str {
        "qdrant-shared"
    }

    pub(super) async fn create(&self, key: &CollectionKey, dimension: usize) -> Result<()> {
        let Some(place) = &key.place else {
            return Err(IndexError::Failed("collections of a single agent are not made".into()));
        };
        self.prepare(place, dimension).await?;
        match self.remove_points(key, place).await {
            Err(IndexError::CollectionMissing) => {
                // Somebody has removed the collection since it was prepared.
                self.prepared.lock().await.remove(place);
                self.prepare(place, dimension).await?;
                self.remove_points(key, place).await?;
            }
            removed => removed?,
        }
        let payload: HashMap<String, Value> = HashMap::from([
            (TENANT.to_owned(), key.agent.to_string().into()),
            (MARKER.to_owned(), true.into()),
        ]);
        let marker = PointStruct::new(marker_id(key), NamedVectors::default(), payload);
        self.client.upsert_points(UpsertPointsBuilder::new(place, vec![marker]).wait(true)).await?;
        Ok(())
    }

    /// Creates a shared collection and its field indexes, if they are not there yet.
    async fn prepare(&self, place: &str, dimension: usize) -> Result<()> {
        let mut prepared = self.prepared.lock().await;
        if prepared.contains(place) {
            return Ok(());
        }
        let mut words = SparseVectorsConfigBuilder::default();
        // Other agents must not change how rare a word is for this one, so the query brings the
        // weights, and the server adds none.
        words.add_named_vector_params(WORDS, SparseVectorParamsBuilder::default());
        let vectors = VectorParamsBuilder::new(dimension as u64, Distance::Cosine).on_disk(true);
        let quantization = ScalarQuantizationBuilder::default().quantile(0.99).always_ram(true);
        // One graph for each agent instead of one for all.
        let graphs = HnswConfigDiffBuilder::default().m(0).payload_m(16);
        let collection = CreateCollectionBuilder::new(place)
            .vectors_config(vectors)
            .sparse_vectors_config(words)
            .quantization_config(quantization)
            .hnsw_config(graphs)
            .on_disk_payload(true);
        if !self.client.collection_exists(place).await?
            && let Err(error) = self.client.create_collection(collection).await
            // Another node may have been faster.
            && !self.client.collection_exists(place).await?
        {
            return Err(error.into());
        }
        let tenant = KeywordIndexParamsBuilder::default().is_tenant(true);
        let index = CreateFieldIndexCollectionBuilder::new(place, TENANT, FieldType::Keyword)
            .field_index_params(tenant)
            .wait(true);
        self.client.create_field_index(index).await?;
        for (field, kind) in FIELDS {
            let kind = match kind {
                FieldKind::Keyword => FieldType::Keyword,
                FieldKind::Time => FieldType::Datetime,
                FieldKind::Flag => FieldType::Bool,
            };
            let index = CreateFieldIndexCollectionBuilder::new(place, field, kind).wait(true);
            self.client.create_field_index(index).await?;
        }
        prepared.insert(place.to_owned());
        Ok(())
    }

    async fn remove_points(&self, key: &CollectionKey, place: &str) -> Result<()> {
        let all = Conditions::must([tenant(key)]);
        self.client.delete_points(DeletePointsBuilder::new(place).points(all).wait(true)).await?;
        Ok(())
    }

    pub(super) async fn exists(&self, key: &CollectionKey) -> Result<bool> {
        let Some(place) = &key.place else {
            return Ok(self.client.collection_exists(&key.name).await?);
        };
        let ask = GetPointsBuilder::new(place, vec![marker_id(key)])
            .with_payload(false)
            .with_vectors(false);
        match self.client.get_points(ask).await.map_err(IndexError::from) {
            Ok(found) => Ok(!found.result.is_empty()),
            Err(IndexError::CollectionMissing) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Fails if the server has lost the points of an agent.
    async fn demand(&self, key: &CollectionKey) -> Result<()> {
        match self.exists(key).await? {
            true => Ok(()),
            false => Err(IndexError::CollectionMissing),
        }
    }

    pub(super) async fn apply(
        &self,
        key: &CollectionKey,
        points: Vec<Point>,
        removed: Vec<Uuid>,
    ) -> Result<()> {
        self.demand(key).await?;
        if !removed.is_empty() {
            let ids = removed.into_iter().map(|id| point_id(key, id)).collect();
            let delete =
                DeletePointsBuilder::new(collection(key)).points(PointsIdsList { ids }).wait(true);
            self.client.delete_points(delete).await?;
        }
        let mut points = points.into_iter().map(|point| point_struct(key, point));
        loop {
            let batch: Vec<PointStruct> = points.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            self.client
                .upsert_points(UpsertPointsBuilder::new(collection(key), batch).wait(true))
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
        let filter = conditions(key, &ask.filter);
        let params = SearchParamsBuilder::default()
            .hnsw_ef(beam(&ask.filter) as u64)
            .quantization(
                QuantizationSearchParamsBuilder::default().rescore(true).oversampling(2.0),
            )
            .build();
        let query = |vector: VectorInput| {
            let ids = PayloadIncludeSelector { fields: vec![INTERACTION.to_owned()] };
            let query = QueryPointsBuilder::new(collection(key))
                .query(Query::new_nearest(vector))
                .params(params.clone())
                .limit(ask.limit as u64)
                .with_payload(ids);
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
        let search = async {
            let batch = QueryBatchPointsBuilder::new(collection(key), queries);
            Ok(self.client.query_batch(batch).await?)
        };
        let (found, ()) = tokio::try_join!(search, self.demand(key))?;
        let mut lists = found
            .result
            .into_iter()
            .map(|list| list.result.into_iter().filter_map(scored).collect());
        let mut next =
            |wanted: bool| if wanted { lists.next().unwrap_or_default() } else { Vec::new() };
        Ok(IndexMatches { dense: next(dense), lexical: next(lexical) })
    }

    pub(super) async fn drop(&self, key: &CollectionKey) -> Result<()> {
        let Some(place) = &key.place else {
            // The server reports whether the collection existed; either way it is gone now.
            self.client.delete_collection(&key.name).await?;
            return Ok(());
        };
        match self.remove_points(key, place).await {
            Err(IndexError::CollectionMissing) => Ok(()),
            removed => removed,
        }
    }

    pub(super) async fn count(&self, key: &CollectionKey) -> Result<u64> {
        self.demand(key).await?;
        let ask = CountPointsBuilder::new(collection(key)).exact(true);
        let (ask, markers) = match &key.place {
            Some(_) => (ask.filter(Conditions::must([tenant(key)])), 1),
            None => (ask, 0),
        };
        let count = self.client.count(ask).await?;
        Ok(count.result.map_or(0, |result| result.count).saturating_sub(markers))
    }

    pub(super) async fn indexed_fields(&self, key: &CollectionKey) -> Result<Vec<String>> {
        self.demand(key).await?;
        let info = self
            .client
            .collection_info(collection(key))
            .await?
            .result
            .ok_or(IndexError::CollectionMissing)?;
        let mut fields: Vec<String> =
            info.payload_schema.into_keys().filter(|field| field != TENANT).collect();
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
            .collection_info(collection(key))
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

/// The name of the collection that holds an agent's points.
fn collection(key: &CollectionKey) -> &str {
    key.place.as_deref().unwrap_or(&key.name)
}

/// The id of a point in a shared collection. It depends on agent and interaction, and nobody can
/// choose an interaction's id so that it meets a point of another agent.
fn point_id(key: &CollectionKey, interaction: Uuid) -> PointId {
    if key.place.is_none() {
        return interaction.into();
    }
    let mut hash = Sha256::new();
    hash.update(key.agent.0.as_bytes());
    hash.update(interaction.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().into()
}

/// No interaction has this id.
fn marker_id(key: &CollectionKey) -> PointId {
    point_id(key, Uuid::nil())
}

fn tenant(key: &CollectionKey) -> Condition {
    Condition::matches(TENANT, key.agent.to_string())
}

fn scored(point: ScoredPoint) -> Option<(Uuid, f32)> {
    // In a collection of one agent, the point has the id of the interaction.
    if let Some(id) = point.payload.get(INTERACTION).and_then(|id| id.as_str()) {
        return Some((id.parse().ok()?, point.score));
    }
    match point.id?.point_id_options? {
        PointIdOptions::Uuid(id) => Some((id.parse().ok()?, point.score)),
        PointIdOptions::Num(_) => None,
    }
}

fn point_struct(key: &CollectionKey, point: Point) -> PointStruct {
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
        (TENANT.to_owned(), key.agent.to_string().into()),
        (INTERACTION.to_owned(), interaction.id.to_string().into()),
        ("text".to_owned(), interaction.text.into()),
        ("interaction_type".to_owned(), interaction.interaction_type.as_str().into()),
        ("success".to_owned(), interaction.success.into()),
        ("timestamp".to_owned(), interaction.timestamp.to_rfc3339().into()),
    ]);
    payload.extend(interaction.task_id.map(|id| ("task_id".to_owned(), id.into())));
    payload.extend(interaction.session_id.map(|id| ("session_id".to_owned(), id.into())));
    PointStruct::new(point_id(key, interaction.id.0), vectors, payload)
}

fn conditions(key: &CollectionKey, filter: &Filter) -> Option<Conditions> {
    let mut must = Vec::new();
    if key.place.is_some() {
        must.push(tenant(key));
    }
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
