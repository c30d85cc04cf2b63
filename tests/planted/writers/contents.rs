//! Writers that look at the bytes of a write, with a mistake: requests with given contents find them.

use super::*;

/// The bytes that a writer leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skipped {
    Nothing,
    /// Zeros, as if the disk were new.
    Zeros,
    /// Bytes that the disk had at this place when it was opened.
    Former,
    /// Bytes that are all the same, behind the first sector.
    Repeats,
}

/// Our walker, whose writer leaves out some bytes.
struct Skipping(WritingWalker, Skipped);

struct SkippingDisk<'s> {
    disk: Box<dyn OpenDisk + 's>,
    skipped: Skipped,
    /// The bytes of the disk when it was opened.
    before: Vec<u8>,
}

impl Engine for Skipping {
    fn facts(&self) -> Facts {
        Facts { write_claims: self.0.facts().write_claims, ..Facts::new("skipping") }
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.0.open(chain)
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let mut disk = self.0.open_to_write(chain)?;
        let mut before = vec![0; disk.virtual_size_bytes() as usize];
        disk.read(GuestOffset::ZERO, &mut before)?;
        Ok(Box::new(SkippingDisk { disk, skipped: self.1, before }))
    }
}

impl OpenDisk for SkippingDisk<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        self.disk.virtual_size_bytes()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.disk.read(guest, into)
    }

    fn request(&mut self, request: &Request) -> Answer {
        let Request::Write { guest, bytes } = *request else { return self.disk.request(request) };
        let place = guest.get() as usize..guest.get() as usize + bytes.len();
        let is_repeat = bytes.iter().all(|byte| *byte == bytes[0]);
        let bytes = match self.skipped {
            Skipped::Zeros if is_repeat && bytes[0] == 0 => return Ok(()),
            Skipped::Former if self.before.get(place) == Some(bytes) => return Ok(()),
            Skipped::Repeats if is_repeat && bytes.len() > 512 => &bytes[..512],
            _ => bytes,
        };
        self.disk.request(&Request::Write { guest, bytes })
    }

    fn close(self: Box<Self>) -> Answer {
        self.disk.close()
    }
}

/// Returns the fingerprint of the violation in a program with these operations.
fn found_with(skipped: Skipped, operations: &str) -> Option<String> {
    let text = format!(
        "image version=3 cluster_bits=12 refcount_order=4 features=none size=16<<12+0 rng_seed=0 \
         blocks=append table=append tolerance=0\nwrite at=start+2 clusters=3\n{operations}"
    );
    let mut target = TargetKind::Writes.judging(Skipping(WritingWalker::default(), skipped));
    found_in(&mut target, &assemble(&text).unwrap())
}

#[test]
fn a_writer_that_leaves_out_bytes_is_found() {
    let at = |content: &str| format!("write_data_at at=start+2 length=5<<10 content={content}\n");
    let data = |content: &str, value: u8| {
        format!("write_data at=start+2 clusters=2 content={content} value={value}\n")
    };
    let begins = "write_at at=start+9 inside=0 length=1<<12\n";
    // Bytes that a request has replaced come back.
    let back = ["write_at at=start+2 inside=0 length=1<<13\n", &at("former")].concat();
    for (skipped, operations, expected) in [
        (Skipped::Zeros, at("zeros"), Some("written: zeros, the bytes of the guest → other bytes")),
        (
            Skipped::Zeros,
            [begins, &data("zeros", 0)].concat(),
            Some("written: zeros, the bytes of the guest → other bytes"),
        ),
        (Skipped::Former, back, Some("written: a write, the bytes of the guest → other bytes")),
        (
            Skipped::Repeats,
            [begins, &data("repeat", 7)].concat(),
            Some("written: a write, the bytes of the guest → other bytes"),
        ),
        // Bytes that are there already need not be written.
        (Skipped::Former, at("same"), None),
        (Skipped::Former, at("former"), None),
    ] {
        assert_eq!(found_with(Skipped::Nothing, &operations), None, "{operations}");
        assert_eq!(found_with(skipped, &operations).as_deref(), expected, "{operations}");
    }
    for content in ["deep", "own", "repeat", "entries", "counts", "same", "former"] {
        let bytes = "bytes kind=data data=51464900010203\n";
        let operations = [bytes, &at(content), &data(content, 9), &at("same"), &at("former")];
        assert_eq!(found_with(Skipped::Nothing, &operations.concat()), None, "{content}");
    }
}
