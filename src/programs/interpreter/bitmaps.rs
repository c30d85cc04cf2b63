//! Operations on persistent dirty bitmaps.

use crate::images::qcow2::{Fill, Leaving, NewBitmap};
use crate::programs::operand::{BitmapFlags, BytesKind, Few, NameLength, Number};

use super::{Effect, Vm, effect};

impl Vm {
    pub(super) fn bitmap(
        &mut self,
        granularity: Number<9, 31>,
        flags: BitmapFlags,
        name: NameLength,
    ) -> Effect {
        let Self { given, builder, .. } = self;
        let given_name = given.waiting(BytesKind::Name);
        let given_name = given_name.and_then(|bytes| builder.bitmap_name(bytes));
        let made = builder.bitmap(NewBitmap {
            granularity_bits: granularity.get(),
            in_use: flags.has(BitmapFlags::IN_USE),
            auto: flags.has(BitmapFlags::AUTO),
            name_bytes: name.get(),
            name: given_name,
        });
        if made {
            given.use_up(BytesKind::Name);
        }
        effect(made)
    }

    pub(super) fn fill_bitmap(
        &mut self,
        index: Few<0, 15>,
        entry: u16,
        entries: Number<1, 32>,
        fill: Fill,
    ) -> Effect {
        let index = self.bitmap_index(index);
        let write = self.next_write();
        let count = u64::from(entries.get()).min(self.touchable);
        self.touchable -= count;
        effect(self.builder.fill_bitmap(index, u64::from(entry), count, fill, write))
    }

    pub(super) fn delete_bitmap(&mut self, index: Few<0, 15>, leaving: Leaving) -> Effect {
        let index = self.bitmap_index(index);
        effect(self.builder.delete_bitmap(index, leaving))
    }

    /// Returns the number of the existing bitmap that `index` selects.
    pub(super) fn bitmap_index(&self, index: Few<0, 15>) -> usize {
        usize::from(index.get()) % self.builder.bitmap_count().max(1)
    }
}
