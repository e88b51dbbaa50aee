//! Our points, filters and settings in the form of the engine.

use crate::{
    index::{FIELDS, FieldKind, IndexError, Point, Result, WORDS},
    lexical::Sparse,
};
use atelier_core::Filter;
use qdrant_edge::{
    CreateIndex, Distance, EdgeConfig, EdgeShard, EdgeSparseVectorParams, EdgeVectorParams,
    FieldIndexOperations, Modifier, OperationError, PayloadFieldSchema, PayloadSchemaType, PointId,
    PointInsertOperations, PointOperations, PointStruct, ScalarQuantizationConfig, ScalarType,
    UpdateOperation, Vector, Vectors,
};
use serde_json::json;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

impl From<OperationError> for IndexError {
    fn from(error: OperationError) -> Self {
        IndexError::Failed(error.to_string())
    }
}

/// Turns a panic of the engine into an error.
pub(super) fn catch_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message =
            message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
        Err(IndexError::Failed(message.to_owned()))
    })
}

pub(super) fn create(folder: &Path, dimension: usize) -> Result<EdgeShard> {
    let quantization = ScalarQuantizationConfig {
        r#type: ScalarType::Int8,
        quantile: Some(0.99),
        always_ram: Some(true),
    };
    let vectors = EdgeVectorParams::builder(dimension, Distance::Cosine)
        .on_disk(true)
        .quantization_config(quantization.into())
        .build();
    let words = EdgeSparseVectorParams { modifier: Some(Modifier::Idf), ..Default::default() };
    let config = EdgeConfig::builder()
        .vector("", vectors)
        .sparse_vector(WORDS, words)
        .on_disk_payload(true)
        .build();
    let shard = EdgeShard::new(folder, config)?;
    for (field, kind) in FIELDS {
        let kind = match kind {
            FieldKind::Keyword => PayloadSchemaType::Keyword,
            FieldKind::Time => PayloadSchemaType::Datetime,
            FieldKind::Flag => PayloadSchemaType::Bool,
        };
        let field_name =
            field.parse().map_err(|()| IndexError::Failed(format!("{field} is no path")))?;
        let index =
            CreateIndex { field_name, field_schema: Some(PayloadFieldSchema::FieldType(kind)) };
        shard.update(UpdateOperation::FieldIndexOperation(FieldIndexOperations::CreateIndex(
            index,
        )))?;
    }
    shard.flush();
    Ok(shard)
}

pub(super) fn insert(shard: &EdgeShard, points: Vec<Point>) -> Result<()> {
    if !points.is_empty() {
        let points = points.into_iter().map(|point| point_struct(point).map(Into::into));
        let points = PointInsertOperations::PointsList(points.collect::<Result<_>>()?);
        shard.update(UpdateOperation::PointOperation(PointOperations::UpsertPoints(points)))?;
    }
    Ok(())
}

pub(super) fn sparse(words: Sparse) -> Result<Vector> {
    Ok(Vector::new_sparse(words.indices, words.values)?)
}

fn point_struct(point: Point) -> Result<PointStruct> {
    let mut vectors: Vec<(&str, Vector)> = Vec::new();
    if let Some(vector) = point.vector {
        vectors.push(("", Vector::new_dense(vector)));
    }
    if !point.words.is_empty() {
        vectors.push((WORDS, sparse(point.words)?));
    }
    let interaction = &point.interaction;
    let payload = json!({
        "text": interaction.text,
        "interaction_type": interaction.interaction_type,
        "success": interaction.success,
        "timestamp": interaction.timestamp.to_rfc3339(),
        "task_id": interaction.task_id,
        "session_id": interaction.session_id,
    });
    Ok(PointStruct::new(PointId::Uuid(interaction.id.0), Vectors::new_named(vectors), payload))
}

/// Translates a filter into the JSON of Qdrant's HTTP API, which the engine parses.
pub(super) fn conditions(filter: &Filter) -> Result<Option<qdrant_edge::Filter>> {
    let mut must = Vec::new();
    if !filter.types.is_empty() {
        must.push(json!({"key": "interaction_type", "match": {"any": filter.types}}));
    }
    if let Some(success) = filter.success {
        must.push(json!({"key": "success", "match": {"value": success}}));
    }
    if filter.from.is_some() || filter.to.is_some() {
        let text = |time: Option<chrono::DateTime<chrono::Utc>>| time.map(|time| time.to_rfc3339());
        must.push(json!({"key": "timestamp", "range": {"gte": text(filter.from), "lte": text(filter.to)}}));
    }
    for (key, value) in [("task_id", &filter.task_id), ("session_id", &filter.session_id)] {
        if let Some(value) = value {
            must.push(json!({"key": key, "match": {"value": value}}));
        }
    }
    if must.is_empty() {
        return Ok(None);
    }
    serde_json::from_value(json!({"must": must}))
        .map(Some)
        .map_err(|error| IndexError::Failed(error.to_string()))
}
