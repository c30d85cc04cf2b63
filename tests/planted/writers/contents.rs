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

/// A writer that leaves out some bytes.
#[derive(Clone)]
struct Skipping {
    skipped: Skipped,
    /// The bytes of the disk when it was opened.
    before: Vec<u8>,
}

impl Change for Skipping {
    fn opened(&self, opening: Opening, _: &Chain, disk: &mut Inner) -> Answer<Self> {
        let skipped = if opening == Opening::Write { self.skipped } else { Skipped::Nothing };
        let mut before = vec![0; disk.virtual_size_bytes() as usize];
        disk.read(GuestOffset::ZERO, &mut before)?;
        Ok(Self { skipped, before })
    }

    fn request(&mut self, disk: &mut Inner, request: &Request) -> Answer {
        let Request::Write { guest, bytes } = *request else { return disk.request(request) };
        let place = guest.get() as usize..guest.get() as usize + bytes.len();
        let is_repeat = bytes.iter().all(|byte| *byte == bytes[0]);
        let bytes = match self.skipped {
            Skipped::Zeros if is_repeat && bytes[0] == 0 => return Ok(()),
            Skipped::Former if self.before.get(place) == Some(bytes) => return Ok(()),
            Skipped::Repeats if is_repeat && bytes.len() > 512 => &bytes[..512],
            _ => bytes,
        };
        disk.request(&Request::Write { guest, bytes })
    }
}

/// Returns the fingerprint of the violation in a program with these operations.
fn found_with(skipped: Skipped, operations: &str) -> Option<String> {
    let operations = format!("write at=start+2 clusters=3\n{operations}");
    let skipping = Changed::writer(Skipping { skipped, before: Vec::new() });
    let program = lines::program("cluster_bits=12 size=16<<12+0", &operations);
    found_in(&mut TargetKind::Writes.judging(skipping), &program)
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
    let (zeros, other) = (
        "written: zeros, the bytes of the guest → other bytes",
        "written: a write, the bytes of the guest → other bytes",
    );
    for (skipped, operations, expected) in [
        (Skipped::Zeros, at("zeros"), Some(zeros)),
        (Skipped::Zeros, [begins, &data("zeros", 0)].concat(), Some(zeros)),
        (Skipped::Former, back, Some(other)),
        (Skipped::Repeats, [begins, &data("repeat", 7)].concat(), Some(other)),
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
