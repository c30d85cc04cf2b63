//! Makes operations plainer ones of their kind.

use crate::images::content::Shape;
use crate::programs::Operation;
use crate::programs::operand::Count;

use super::search::Search;

pub(super) fn reduce(search: &mut Search) {
    for at in 0..search.best().operations.len() {
        while let Some(operation) = search.best().operations.get(at).copied() {
            let plainer = plainer(operation);
            if !plainer.into_iter().flatten().any(|plainer| search.propose_at(at, plainer)) {
                break;
            }
        }
    }
}

/// Plainer operations, the plainest first.
fn plainer(operation: Operation) -> [Option<Operation>; 2] {
    let write = |at, clusters| Some(Operation::Write { at, clusters });
    match operation {
        Operation::Compress { at, clusters, .. }
        | Operation::Zero { at, clusters, .. }
        | Operation::Discard { at, clusters }
        | Operation::Preallocate { at, clusters } => [write(at, clusters), None],
        Operation::Subclusters { at, .. } => [write(at, Count::ONE), None],
        Operation::CompressAs { at, skew, .. } => {
            let (clusters, shape) = (Count::ONE, Shape::Text);
            [write(at, clusters), Some(Operation::Compress { at, clusters, shape, skew })]
        }
        Operation::SnapshotWith { .. } => [Some(Operation::Snapshot {}), None],
        Operation::Trap { part, depth, nth, transform, value, .. } => {
            let value = value.into();
            [Some(Operation::Patch { part, depth, nth, transform, value }), None]
        }
        _ => [None, None],
    }
}
