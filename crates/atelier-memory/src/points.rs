//! Turns interactions of the store into points of the index.

use crate::{
    Embedder, Memory, Result,
    embed::{blocking, builtin},
    frequencies::Frequencies,
    index::Point,
    lexical,
};
use atelier_core::Interaction;
use atelier_store::{Collection, IndexChange, StoredVector};
use metrics::counter;

/// An interaction with its sequence number in the outbox, and its vector once there is one.
pub(crate) type PendingInteraction = (i64, Interaction, Option<Vec<f32>>);

impl Memory {
    /// Turns changes into points to add and ids to remove. An interaction without a vector of the
    /// current embedder gets one; an expensive vector is also stored.
    pub(crate) async fn prepare(
        &self,
        collection: &Collection,
        changes: Vec<IndexChange>,
        frequencies: Option<&mut Frequencies>,
    ) -> Result<(Vec<Point>, Vec<uuid::Uuid>)> {
        let embedder = self.embedder();
        let (mut removed, mut interactions): (Vec<_>, Vec<PendingInteraction>) =
            (Vec::new(), Vec::new());
        for change in changes {
            match change {
                IndexChange::Remove(id) => removed.push(id.0),
                IndexChange::Add { seq, interaction, vector } => {
                    let vector = vector.filter(|made| fits(made, embedder));
                    interactions.push((seq, interaction, vector.map(|made| made.vector)));
                }
            }
        }
        let points = points_of(self.embedded(collection, interactions).await?).await;
        if let Some(frequencies) = frequencies {
            self.count_points(&points, frequencies);
        }
        Ok((points, removed))
    }

    /// Embeds interactions that have no vector yet, and stores expensive vectors.
    pub(crate) async fn embedded(
        &self,
        collection: &Collection,
        mut interactions: Vec<PendingInteraction>,
    ) -> Result<Vec<(Interaction, Option<Vec<f32>>)>> {
        let embedder = self.embedder();
        let bare: Vec<String> = interactions
            .iter()
            .filter(|(.., vector)| vector.is_none())
            .map(|(_, interaction, _)| interaction.text.clone())
            .collect();
        if !bare.is_empty() {
            let count = bare.len() as u64;
            let mut made = embedder.embed_texts(bare).await?.into_iter();
            counter!("atelier_memory_embedded_texts_total").increment(count);
            let mut fresh = Vec::new();
            for (seq, _, vector) in interactions.iter_mut().filter(|(.., vector)| vector.is_none())
            {
                *vector = made.next().flatten();
                fresh.extend(vector.clone().map(|vector| (*seq, vector)));
            }
            if embedder.is_expensive() {
                self.inner.store.save_vectors(collection, embedder.name(), fresh).await?;
            }
        }
        Ok(interactions.into_iter().map(|(_, interaction, vector)| (interaction, vector)).collect())
    }

    /// Counts the words of points, and their pieces if the embedder uses these.
    pub(crate) fn count_points(&self, points: &[Point], frequencies: &mut Frequencies) {
        let by_pieces = self.embedder().uses_frequencies();
        for point in points {
            let text = &point.interaction.text;
            let pieces = if by_pieces { builtin::distinct(text) } else { Vec::new() };
            frequencies.count(&pieces, &lexical::distinct(text));
        }
    }
}

/// Whether a stored vector can be used with this embedder. Different embedders share dimensions, so
/// the name decides. An imported vector of length zero has no direction and matches nothing.
pub(crate) fn fits(made: &StoredVector, embedder: &Embedder) -> bool {
    let length_squared: f32 = made.vector.iter().map(|value| value * value).sum();
    made.embedder == embedder.name()
        && made.vector.len() == embedder.dimension()
        && length_squared.is_normal()
}

/// Turns interactions into points. Long texts have many words, so this does not run on the threads
/// that answer requests.
pub(crate) async fn points_of(interactions: Vec<(Interaction, Option<Vec<f32>>)>) -> Vec<Point> {
    let point = |(interaction, vector): (Interaction, Option<Vec<f32>>)| {
        let words = lexical::document(&interaction.text);
        Point { interaction, vector, words }
    };
    blocking(move || interactions.into_iter().map(point).collect()).await
}
