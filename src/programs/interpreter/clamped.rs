//! Operands after clamping, for operations that leave no record in the journal.

use crate::images::file_plan::ExtentPlan;
use crate::programs::operand::{Count, Number};
use crate::programs::operation::Operation;

use super::Vm;

impl Vm {
    /// Returns the clamped values of the operands of `operation`, as if it ran now: each with its name and unit. Empty
    /// if the journal records them, or if nothing clamps the operand.
    pub fn clamped(&self, operation: Operation) -> Vec<(&'static str, u64)> {
        match operation {
            Operation::Reserve { gap } => vec![("clusters", gap.units())],
            Operation::ReserveFar { gap } => {
                vec![("clusters", self.builder.far_gap(gap.units()))]
            }
            Operation::EndFile { tail, .. } => vec![("bytes of tail", tail.units())],
            Operation::Spare { table, l1 } => {
                let limit = self.limits.l1_entries(&self.builder.plan().geometry);
                let entries = l1.units().min(limit);
                vec![("refcount table clusters", u64::from(table.get())), ("L1 entries", entries)]
            }
            Operation::SpareBlocks { blocks, distance } => {
                vec![
                    ("refcount blocks", blocks.get()),
                    ("entries before them", u64::from(distance)),
                ]
            }
            Operation::FillBitmap { index, entry, entries, .. } => {
                let index = self.bitmap_index(index);
                let table_entries = self.builder.bitmap_table_entries(index).unwrap_or(1);
                let first = u64::from(entry) % table_entries;
                let count = u64::from(entries.get()).min(self.touchable).min(table_entries - first);
                vec![("bitmap", index as u64), ("entry", first), ("entries", count)]
            }
            Operation::DeleteBitmap { index, .. } => {
                vec![("bitmap", self.bitmap_index(index) as u64)]
            }
            Operation::Beyond { table, distance, clusters, .. } => {
                self.clamped_beyond(table, distance, clusters)
            }
            Operation::Extent { kind, length, lead } => {
                let plan = ExtentPlan::new(kind, length.units(), lead);
                vec![("clusters", plan.clusters), ("unused bytes", plan.lead_bytes)]
            }
            Operation::Truncate { cut, .. } => vec![("bytes", cut.units())],
            _ => Vec::new(),
        }
    }

    fn clamped_beyond(
        &self,
        table: Number<0, 15>,
        distance: u16,
        clusters: Count,
    ) -> Vec<(&'static str, u64)> {
        let range = self.clusters_beyond(table, distance, clusters).unwrap_or(0..0);
        vec![("guest cluster", range.start), ("clusters", range.end - range.start)]
    }
}
