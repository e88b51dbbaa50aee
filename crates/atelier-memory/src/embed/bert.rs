//! A BERT encoder that is read from a model directory. MiniLM and many other models have this
//! shape.
//!
//! Texts are encoded without padding, some of them together: the rows of all texts form one matrix,
//! and only attention looks at each text alone.
//!
//! Weights are 32-bit floats, or 8-bit integers with one scale for each row. Integers stay as they
//! are in memory, a quarter of the size, and a matrix becomes floats when it is multiplied.

use super::{EmbedError, normalized};
use safetensors::SafeTensors;
use serde::Deserialize;
use std::ops::Range;

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
    words: Weights,
    positions: Weights,
    kinds: Weights,
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
struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

/// A matrix of the model, as it is stored.
pub(crate) struct Weights {
    rows: usize,
    columns: usize,
    numbers: Numbers,
}

enum Numbers {
    Floats(Vec<f32>),
    /// Each value is an integer times the scale of its row.
    Integers {
        values: Vec<i8>,
        scales: Vec<f32>,
    },
}

struct Linear {
    weight: Weights,
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
        let matrix = |name: &str| Weights::read(tensors, &format!("{prefix}{name}"));
        let vector = |name: String| matrix(&name).map(|weights| weights.into_floats());
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

    /// A vector for each text: the mean over its tokens, scaled to length one.
    pub(crate) fn embed(&self, texts: &[&[u32]]) -> Vec<Vec<f32>> {
        let width = self.dimension();
        let rows = texts.iter().map(|tokens| tokens.len()).sum();
        let mut states = Matrix { rows, columns: width, values: vec![0.0; rows * width] };
        let mut parts = Vec::with_capacity(texts.len());
        let mut at = 0;
        for tokens in texts {
            parts.push(at..at + tokens.len());
            for (position, token) in tokens.iter().enumerate() {
                let state = &mut states.values[at * width..(at + 1) * width];
                self.words.add_row(*token as usize, state);
                self.positions.add_row(position, state);
                self.kinds.add_row(0, state);
                at += 1;
            }
        }
        self.norm.apply(&mut states);
        let mut scratch = Vec::new();
        for layer in &self.layers {
            layer.apply(&mut states, &parts, self.heads, &mut scratch);
        }
        let mean = |part: &Range<usize>| {
            let mut mean = vec![0.0; width];
            for row in states.values[part.start * width..part.end * width].chunks(width) {
                for (sum, value) in mean.iter_mut().zip(row) {
                    *sum += value;
                }
            }
            normalized(mean)
        };
        parts.iter().map(mean).collect()
    }
}

impl Layer {
    fn apply(
        &self,
        states: &mut Matrix,
        parts: &[Range<usize>],
        heads: usize,
        scratch: &mut Vec<f32>,
    ) {
        let attended = self.attend(states, parts, heads, scratch);
        add(states, &self.attended.apply(&attended, scratch));
        self.attended_norm.apply(states);
        let mut wide = self.widen.apply(states, scratch);
        wide.values.iter_mut().for_each(|value| *value = gelu(*value));
        add(states, &self.narrow.apply(&wide, scratch));
        self.norm.apply(states);
    }

    fn attend(
        &self,
        states: &Matrix,
        parts: &[Range<usize>],
        heads: usize,
        scratch: &mut Vec<f32>,
    ) -> Matrix {
        let query = self.query.apply(states, scratch);
        let key = self.key.apply(states, scratch);
        let value = self.value.apply(states, scratch);
        let (rows, width) = (states.rows, states.columns);
        let size = width / heads;
        let scale = 1.0 / (size as f32).sqrt();
        let mut result = Matrix { rows, columns: width, values: vec![0.0; rows * width] };
        let mut scores = Vec::new();
        for (part, head) in
            parts.iter().flat_map(|part| (0..width).step_by(size).map(move |head| (part, head)))
        {
            let place = |row: usize| head + row * width..head + row * width + size;
            for row in part.clone() {
                let asking = &query.values[place(row)];
                let score = |other| scale * dot(asking, &key.values[place(other)]);
                scores.clear();
                scores.extend(part.clone().map(score));
                softmax(&mut scores);
                let target = &mut result.values[place(row)];
                for (other, score) in part.clone().zip(&scores) {
                    for (sum, value) in target.iter_mut().zip(&value.values[place(other)]) {
                        *sum += score * value;
                    }
                }
            }
        }
        result
    }
}

impl Weights {
    pub(crate) fn read(tensors: &SafeTensors<'_>, name: &str) -> Result<Self, EmbedError> {
        let tensor = tensors
            .tensor(name)
            .map_err(|_| EmbedError::Model(format!("the weights have no {name}")))?;
        let (rows, columns) = match *tensor.shape() {
            [columns] => (1, columns),
            [rows, columns] => (rows, columns),
            _ => return Err(EmbedError::Model(format!("{name} has an unusual shape"))),
        };
        let numbers = match tensor.dtype() {
            safetensors::Dtype::F32 => {
                let (values, _) = tensor.data().as_chunks::<4>();
                Numbers::Floats(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
            }
            safetensors::Dtype::I8 => {
                let scales = Self::read(tensors, &format!("{name}.scale"))?.into_floats();
                if scales.len() != rows {
                    return Err(EmbedError::Model(format!(
                        "{name} has not one scale for each row"
                    )));
                }
                let values = tensor.data().iter().map(|byte| byte.cast_signed()).collect();
                Numbers::Integers { values, scales }
            }
            other => {
                return Err(EmbedError::Model(format!(
                    "{name} is {other:?}; only F32 and I8 are read"
                )));
            }
        };
        if rows == 0 || columns == 0 {
            return Err(EmbedError::Model(format!("{name} is empty")));
        }
        Ok(Self { rows, columns, numbers })
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Adds a row to `sum`. A token beyond the table means that the tokenizer belongs to another
    /// model; the last row is used rather than none.
    pub(crate) fn add_row(&self, number: usize, sum: &mut [f32]) {
        let number = number.min(self.rows - 1);
        let row = number * self.columns..(number + 1) * self.columns;
        match &self.numbers {
            Numbers::Floats(values) => {
                sum.iter_mut().zip(&values[row]).for_each(|(sum, value)| *sum += value);
            }
            Numbers::Integers { values, scales } => {
                let scale = scales[number];
                let add = |(sum, value): (&mut f32, &i8)| *sum += scale * f32::from(*value);
                sum.iter_mut().zip(&values[row]).for_each(add);
            }
        }
    }

    /// All values. Integers are converted into `scratch`, which is used again for the next matrix.
    fn floats<'w>(&'w self, scratch: &'w mut Vec<f32>) -> &'w [f32] {
        match &self.numbers {
            Numbers::Floats(values) => values,
            Numbers::Integers { values, scales } => {
                scratch.resize(values.len(), 0.0);
                let rows = scratch.chunks_mut(self.columns).zip(values.chunks(self.columns));
                for ((floats, integers), scale) in rows.zip(scales) {
                    for (float, integer) in floats.iter_mut().zip(integers) {
                        *float = scale * f32::from(*integer);
                    }
                }
                &scratch[..values.len()]
            }
        }
    }

    fn into_floats(self) -> Vec<f32> {
        let mut scratch = Vec::new();
        self.floats(&mut scratch).to_vec()
    }
}

impl Linear {
    /// `input · weightᵀ + bias`
    #[expect(
        unsafe_code,
        reason = "the matrix multiplication takes pointers; the sizes are checked here"
    )]
    fn apply(&self, input: &Matrix, scratch: &mut Vec<f32>) -> Matrix {
        let (rows, inner, columns) = (input.rows, input.columns, self.weight.rows);
        let weight = self.weight.floats(scratch);
        assert!(
            weight.len() == columns * inner
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
                weight.as_ptr(),
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

/// Eight sums at a time, which the compiler can keep in one register.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0f32; 8];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
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
