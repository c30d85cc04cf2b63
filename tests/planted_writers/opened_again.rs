//! Engines that read an image in a wrong way when it is opened again.

use qcowfuzz::harness::{Walker, WalkerDisk};
use qcowfuzz::internal::harness::targets::writes::Writes;
use qcowfuzz::prelude::{Answer, Chain, Claims, Engine, GuestOffset, OpenDisk};

use super::{found_in, programs};

/// Our walker, which reads an image that it opens for reading only in a wrong way.
struct ReadsWrong(Walker, Wrong);

#[derive(Clone, Copy, Debug)]
enum Wrong {
    Nothing,
    Bytes,
    Size,
}

struct DiskReadWrong<'s>(WalkerDisk<'s>, Wrong);

impl Engine for ReadsWrong {
    type Disk<'s> = DiskReadWrong<'s>;

    fn name(&self) -> &str {
        "reads wrong"
    }

    fn write_claims(&self) -> Claims {
        self.0.write_claims()
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Answer<DiskReadWrong<'s>> {
        Ok(DiskReadWrong(self.0.open(chain)?, self.1))
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Answer<DiskReadWrong<'s>> {
        Ok(DiskReadWrong(self.0.open_to_write(chain)?, Wrong::Nothing))
    }
}

impl OpenDisk for DiskReadWrong<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        self.0.virtual_size_bytes() + if matches!(self.1, Wrong::Size) { 512 } else { 0 }
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.read(guest, into)?;
        if let (Wrong::Bytes, Some(byte)) = (self.1, into.last_mut()) {
            *byte = !*byte;
        }
        Ok(())
    }

    fn write(&mut self, guest: GuestOffset, bytes: &[u8]) -> Answer {
        self.0.write(guest, bytes)
    }

    fn flush(&mut self) -> Answer {
        self.0.flush()
    }

    fn close(self) -> Answer {
        self.0.close()
    }
}

/// A closed file, and one after a cut, are read through the engine, too.
#[test]
fn wrong_reads_of_an_image_that_is_opened_again_are_found() {
    for (wrong, after_cut, closed) in [
        (Wrong::Bytes, "power_cut: the rest, opened again, ", "written: the rest, opened again, "),
        (Wrong::Size, "power_cut: virtual size, ", "model: virtual size, "),
    ] {
        let mut target = Writes::observed(ReadsWrong(Walker::default(), wrong), ());
        let found: Vec<String> =
            programs().iter().filter_map(|program| found_in(&mut target, program)).collect();
        for start in [after_cut, closed] {
            assert!(found.iter().any(|name| name.starts_with(start)), "{start}: {found:?}");
        }
    }
}
