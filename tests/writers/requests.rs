//! Draws requests for the disk of a case.

use qcowfuzz::disk::offsets::GuestOffset;
use qcowfuzz::internal::formats::qcow2::constants::MAX_L1_ENTRIES;
use qcowfuzz::internal::harness::case::Case;
use qcowfuzz::internal::harness::model::Model;
use qcowfuzz::internal::harness::writing::WriteRequest;
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::internal::programs::journal::JournalRecord;

/// The most clusters that a disk grows by.
const MAX_GROWTH_CLUSTERS: u64 = 40;

/// Draws some requests. Most lie where the program has changed the disk.
pub fn requests(case: &Case, entropy: &mut Entropy) -> Vec<WriteRequest> {
    let journal = case.journals[0];
    let cluster = journal.cluster_size.bytes();
    let touched: Vec<u64> = journal.records.iter().filter_map(touched).collect();
    let mut model = Model::new();
    model.replay(case.journals.iter().copied());
    let mut size = model.virtual_size_bytes();
    let mut requests = Vec::new();
    for _ in 0..entropy.below(8) {
        let kind = entropy.below(8);
        if kind == 0 {
            requests.push(WriteRequest::Reopen);
            continue;
        }
        if kind == 1 || size == 0 {
            let larger = size + (1 + entropy.below(MAX_GROWTH_CLUSTERS * cluster / 512)) * 512;
            if larger.div_ceil(cluster * cluster / 8) <= MAX_L1_ENTRIES as u64 {
                size = larger;
                requests.push(WriteRequest::Resize { size_bytes: size });
            }
            continue;
        }
        let near = touched.get(entropy.below(touched.len() as u64 + 1) as usize);
        let at = match near {
            Some(touched) => (touched * cluster).saturating_sub(entropy.below(2) * 700),
            None => entropy.below(size),
        };
        let start = at.saturating_add(entropy.below(cluster)).min(size - 1);
        let length = (1 + entropy.below(3 * cluster)).min(size - start);
        let guest = GuestOffset::new(start);
        requests.push(match kind {
            2 | 3 => WriteRequest::WriteZeroes { guest, length_bytes: length },
            4 => {
                let start = start / cluster * cluster;
                let end = (start + length).next_multiple_of(cluster).min(size);
                let guest = GuestOffset::new(start);
                WriteRequest::Discard { guest, length_bytes: end - start }
            }
            _ => WriteRequest::Write { guest, length_bytes: length as u32 },
        });
    }
    requests
}

fn touched(record: &JournalRecord) -> Option<u64> {
    match record {
        JournalRecord::Written { cluster, .. }
        | JournalRecord::Compressed { cluster, .. }
        | JournalRecord::Zeroed { cluster, .. }
        | JournalRecord::Discarded { cluster } => Some(cluster.get()),
        _ => None,
    }
}
