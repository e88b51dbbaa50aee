//! A BERT encoder that is read from a model directory. MiniLM and many other models have this
//! shape.
//!
//! It encodes one text at a time without padding: texts are short, and matrices of a few dozen rows
//! keep a core busy.

use super::{EmbedError, normalized};
use safetensors::SafeTensors;
use serde::Deserialize;

#[derive(Deserialize)]
pub(crate) struct Config {
    hidden_size: usize,
    num_attention_heads: usize,
    num_hidden_layers: usize,
    #[serde(default = "epsilon")]
    layer_norm_eps: f32,
}

fn epsilon() -> f32 {
    1e-12
}

pub(crate) struct Bert {
    words: Matrix,
    positions: Matrix,
    kinds: Matrix,
    norm: Norm,
    layers: Vec<Layer>,
    heads: usize,
}

struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attended: Linear,
    attended_norm: Norm,
    widen: Linear,
    narrow: Linear,
    norm: Norm,
}

/// A matrix whose rows are stored one after another.
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) values: Vec<f32>,
}

struct Linear {
    weight: Matrix,
    bias: Vec<f32>,
}

struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    epsilon: f32,
}

impl Bert {
    pub(crate) fn read(tensors: &SafeTensors<'_>, config: &Config) -> Result<Self, EmbedError> {
        let prefix = if tensors.tensor("bert.embeddings.word_embeddings.weight").is_ok() {
            "bert."
        } else {
            ""
        };
        let matrix = |name: &str| Matrix::read(tensors, &format!("{prefix}{name}"));
        let vector = |name: String| matrix(&name).map(|matrix| matrix.values);
        let linear = |name: String| {
            Ok::<_, EmbedError>(Linear {
                weight: matrix(&format!("{name}.weight"))?,
                bias: vector(format!("{name}.bias"))?,
            })
        };
        let norm = |name: String| {
            Ok::<_, EmbedError>(Norm {
                weight: vector(format!("{name}.weight"))?,
                bias: vector(format!("{name}.bias"))?,
                epsilon: config.layer_norm_eps,
            })
        };
        let layer = |number: usize| {
            let at = |part: &str| format!("encoder.layer.{number}.{part}");
            Ok::<_, EmbedError>(Layer {
                query: linear(at("attention.self.query"))?,
                key: linear(at("attention.self.key"))?,
                value: linear(at("attention.self.value"))?,
                attended: linear(at("attention.output.dense"))?,
                attended_norm: norm(at("attention.output.LayerNorm"))?,
                widen: linear(at("intermediate.dense"))?,
                narrow: linear(at("output.dense"))?,
                norm: norm(at("output.LayerNorm"))?,
            })
        };
        let bert = Self {
            words: matrix("embeddings.word_embeddings.weight")?,
            positions: matrix("embeddings.position_embeddings.weight")?,
            kinds: matrix("embeddings.token_type_embeddings.weight")?,
            norm: norm("embeddings.LayerNorm".into())?,
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_, _>>()?,
            heads: config.num_attention_heads,
        };
        let fits = bert.words.columns == config.hidden_size
            && config.hidden_size.is_multiple_of(bert.heads.max(1));
        if fits {
            Ok(bert)
        } else {
            Err(EmbedError::Model("config.json does not fit the weights".into()))
        }
    }

    pub(crate) fn dimension(&self) -> usize {
        self.words.columns
    }

    pub(crate) fn longest(&self) -> usize {
        self.positions.rows
    }

    /// The mean over all tokens, scaled to length one.
    pub(crate) fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        let width = self.dimension();
        let mut states = Matrix { rows: tokens.len(), columns: width, values: Vec::new() };
        for (position, token) in tokens.iter().enumerate() {
            let parts =
                [self.words.row(*token as usize), self.positions.row(position), self.kinds.row(0)];
            states
                .values
                .extend((0..width).map(|at| parts.iter().map(|part| part[at]).sum::<f32>()));
        }
        self.norm.apply(&mut states);
        for layer in &self.layers {
            layer.apply(&mut states, self.heads);
        }
        let mut mean = vec![0.0; width];
        for row in states.values.chunks(width) {
            for (sum, value) in mean.iter_mut().zip(row) {
                *sum += value;
            }
        }
        normalized(mean)
    }
}

impl Layer {
    fn apply(&self, states: &mut Matrix, heads: usize) {
        let attended = self.attended.apply(&self.attend(states, heads));
        add(states, &attended);
        self.attended_norm.apply(states);
        let mut wide = self.widen.apply(states);
        wide.values.iter_mut().for_each(|value| *value = gelu(*value));
        add(states, &self.narrow.apply(&wide));
        self.norm.apply(states);
    }

    fn attend(&self, states: &Matrix, heads: usize) -> Matrix {
        let (query, key, value) =
            (self.query.apply(states), self.key.apply(states), self.value.apply(states));
        let (rows, width) = (states.rows, states.columns);
        let size = width / heads;
        let scale = 1.0 / (size as f32).sqrt();
        let mut result = Matrix { rows, columns: width, values: vec![0.0; rows * width] };
        let mut scores = vec![0.0f32; rows];
        for head in (0..width).step_by(size) {
            let part = |matrix: &'_ Matrix, row: usize| {
                head + row * matrix.columns..head + row * matrix.columns + size
            };
            for row in 0..rows {
                let asking = &query.values[part(&query, row)];
                for (other, score) in scores.iter_mut().enumerate() {
                    *score = scale * dot(asking, &key.values[part(&key, other)]);
                }
                softmax(&mut scores);
                let target = &mut result.values[head + row * width..head + row * width + size];
                for (other, score) in scores.iter().enumerate() {
                    for (sum, value) in target.iter_mut().zip(&value.values[part(&value, other)]) {
                        *sum += score * value;
                    }
                }
            }
        }
        result
    }
}

impl Matrix {
    pub(crate) fn read(tensors: &SafeTensors<'_>, name: &str) -> Result<Self, EmbedError> {
        let tensor = tensors
            .tensor(name)
            .map_err(|_| EmbedError::Model(format!("the weights have no {name}")))?;
        if tensor.dtype() != safetensors::Dtype::F32 {
            return Err(EmbedError::Model(format!(
                "{name} is {:?}; only F32 is read",
                tensor.dtype()
            )));
        }
        let (rows, columns) = match *tensor.shape() {
            [columns] => (1, columns),
            [rows, columns] => (rows, columns),
            _ => return Err(EmbedError::Model(format!("{name} has an unusual shape"))),
        };
        let (values, _) = tensor.data().as_chunks::<4>();
        Ok(Self {
            rows,
            columns,
            values: values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        })
    }

    pub(crate) fn row(&self, number: usize) -> &[f32] {
        // A token beyond the table means that the tokenizer belongs to another model. Use the last
        // row rather than fail.
        let start = number.min(self.rows - 1) * self.columns;
        &self.values[start..start + self.columns]
    }
}

impl Linear {
    /// `input · weightᵀ + bias`
    #[expect(
        unsafe_code,
        reason = "the matrix multiplication takes pointers; the sizes are checked here"
    )]
    fn apply(&self, input: &Matrix) -> Matrix {
        let (rows, inner, columns) = (input.rows, input.columns, self.weight.rows);
        assert!(
            self.weight.columns == inner
                && self.bias.len() == columns
                && input.values.len() == rows * inner
        );
        let mut values = Vec::with_capacity(rows * columns);
        for _ in 0..rows {
            values.extend_from_slice(&self.bias);
        }
        // SAFETY: the three matrices have rows×inner, columns×inner (read transposed) and
        // rows×columns values.
        unsafe {
            matrixmultiply::sgemm(
                rows,
                inner,
                columns,
                1.0,
                input.values.as_ptr(),
                inner as isize,
                1,
                self.weight.values.as_ptr(),
                1,
                inner as isize,
                1.0,
                values.as_mut_ptr(),
                columns as isize,
                1,
            );
        }
        Matrix { rows, columns, values }
    }
}

impl Norm {
    fn apply(&self, matrix: &mut Matrix) {
        for row in matrix.values.chunks_mut(matrix.columns) {
            let count = row.len() as f32;
            let mean = row.iter().sum::<f32>() / count;
            let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / count;
            let scale = 1.0 / (variance + self.epsilon).sqrt();
            for ((value, weight), bias) in row.iter_mut().zip(&self.weight).zip(&self.bias) {
                *value = (*value - mean) * scale * weight + bias;
            }
        }
    }
}

fn add(matrix: &mut Matrix, other: &Matrix) {
    for (value, more) in matrix.values.iter_mut().zip(&other.values) {
        *value += more;
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - largest).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// `x·Φ(x)`, with the error function as approximated by Abramowitz and Stegun (7.1.26, error below
/// 2e-7).
fn gelu(x: f32) -> f32 {
    let z = x.abs() / std::f32::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let poly = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_7) * t - 0.284_496_74) * t
        + 0.254_829_6)
        * t;
    let erf = (1.0 - poly * (-z * z).exp()).copysign(x);
    0.5 * x * (1.0 + erf)
}
