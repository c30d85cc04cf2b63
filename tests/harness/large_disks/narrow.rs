//! Bugs that only large disks show: readers and walkers that keep 32 bits of a guest offset, in VHD and VMDK images.

use test_support::prelude::*;

/// The first guest offset that needs more than 32 bits.
const REACH: u64 = 1 << 32;

/// The question in whose guest offset an engine keeps 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrow {
    Read,
    Walk,
    LookUp,
}

/// A bug, the programs that show it, and the beginning of its fingerprint.
pub struct LargeCase {
    pub format: ImageFormat,
    pub narrow: Narrow,
    /// The first lines of programs. The same operations follow in all of them.
    pub bases: &'static [&'static str],
    pub fingerprint: &'static str,
}

const VPC: &[&str] = &[
    // The usual blocks, with a disk of little more than 4 GiB, and with the largest disk.
    "cluster_bits=21 size=2049<<21+0 base=large_vpc",
    "cluster_bits=21 size=1020<<31+0 base=large_vpc",
    "cluster_bits=16 size=9<<30+512 base=large_vpc form=128",
    // The largest disk before there were large ones.
    "cluster_bits=21 size=32<<30+0 base=vpc",
];
const VMDK: &[&str] = &[
    "cluster_bits=16 size=5<<30+0 base=large_vmdk",
    "cluster_bits=16 size=1<<40+0 base=large_vmdk form=1024",
    // COWD, a footer with compressed grains and markers, and the same with tables at the end.
    "cluster_bits=16 size=1<<40+0 base=large_vmdk form=24",
    "cluster_bits=16 size=20<<30+0 base=large_vmdk form=32",
    "cluster_bits=16 size=20<<30+0 base=large_vmdk form=160",
    // Tables of a single entry.
    "cluster_bits=19 size=20<<30+0 base=large_vmdk form=6",
];

pub const CASES: &[LargeCase] = &[
    LargeCase { format: ImageFormat::Vpc, narrow: Narrow::Read, bases: VPC, fingerprint: "data: " },
    LargeCase {
        format: ImageFormat::Vpc,
        narrow: Narrow::Walk,
        bases: VPC,
        fingerprint: "model: kind, ",
    },
    LargeCase {
        format: ImageFormat::Vpc,
        narrow: Narrow::LookUp,
        bases: VPC,
        fingerprint: "lookup: ",
    },
    LargeCase {
        format: ImageFormat::Vmdk,
        narrow: Narrow::Read,
        bases: VMDK,
        fingerprint: "data: ",
    },
    LargeCase {
        format: ImageFormat::Vmdk,
        narrow: Narrow::Walk,
        bases: VMDK,
        fingerprint: "model: kind, ",
    },
    LargeCase {
        format: ImageFormat::Vmdk,
        narrow: Narrow::LookUp,
        bases: VMDK,
        fingerprint: "lookup: ",
    },
];

impl LargeCase {
    /// Returns the texts of the programs: each writes to the end of the disk.
    pub fn programs(&self) -> impl Iterator<Item = String> {
        self.bases.iter().map(|base| {
            format!(
                "image version=3 refcount_order=4 features=none rng_seed=0 blocks=append table=append tolerance=0 \
                 {base}\nwrite at=start+3 clusters=2\nwrite at=end-1 clusters=2\n"
            )
        })
    }
}

/// A bug, if the image at the top has the format.
#[derive(Clone)]
pub struct NarrowEngine {
    format: ImageFormat,
    narrow: Option<Narrow>,
}

impl NarrowEngine {
    /// Returns the bug of a case.
    pub fn of(case: &LargeCase) -> Self {
        Self { format: case.format, narrow: Some(case.narrow) }
    }

    /// Returns the guest offset that the engine uses instead of `guest`.
    fn cut(&self, guest: GuestOffset, question: Narrow) -> GuestOffset {
        match self.narrow {
            Some(narrow) if narrow == question => GuestOffset::new(guest.get() % REACH),
            _ => guest,
        }
    }
}

impl Change for NarrowEngine {
    fn facts(&self, facts: Facts) -> Facts {
        Facts { claims: Walker::default().facts().claims, ..facts }
    }

    fn opened(&self, opening: Opening, chain: &Chain, _: &mut Inner) -> Answer<Self> {
        let is_narrow = opening == Opening::Read && chain.format() == self.format;
        Ok(Self { narrow: self.narrow.filter(|_| is_narrow), ..self.clone() })
    }

    fn report(&mut self, _: &mut Inner, _: ReportKind) -> Answer<ImageReport> {
        Err(EngineError::NoAnswer)
    }

    fn map(&mut self, disk: &mut Inner, window: Window, visitor: &mut dyn Visitor) -> Answer {
        if self.narrow != Some(Narrow::Walk) {
            return disk.map(window, visitor);
        }
        let asked = window.clipped(disk.virtual_size_bytes());
        let (mut at, end) = (asked.start.get(), asked.end.get());
        let (mut low, mut extents) = (Vec::new(), Vec::new());
        let first = Window { start: GuestOffset::ZERO, length_bytes: REACH };
        disk.map(first, &mut |extent: Extent| {
            low.push(extent);
            ControlFlow::Continue(())
        })?;
        while at < end {
            let base = at - at % REACH;
            let until = (base + REACH).min(end);
            for extent in &low {
                let start = (base + extent.start.get()).max(at);
                let stop = (base + extent.start.get() + extent.length_bytes).min(until);
                if start < stop {
                    let inside = start - base - extent.start.get();
                    let mapping = extent.mapping.advanced(inside).unwrap();
                    let (start, length_bytes) = (GuestOffset::new(start), stop - start);
                    extents.push(Extent { start, length_bytes, mapping });
                }
            }
            at = until;
        }
        extents.dedup_by(|next, here| {
            let merges = here.mapping.continues_as(here.length_bytes, &next.mapping);
            here.length_bytes += if merges { next.length_bytes } else { 0 };
            merges
        });
        let _ = extents.into_iter().try_for_each(|extent| visitor.extent(extent));
        Ok(())
    }

    fn status(&mut self, disk: &mut Inner, guest: GuestOffset) -> Answer<GuestRun> {
        disk.status(self.cut(guest, Narrow::LookUp))
    }

    fn read(&mut self, disk: &mut Inner, guest: GuestOffset, into: &mut [u8]) -> Answer {
        disk.read(self.cut(guest, Narrow::Read), into)
    }
}
