//! A writer with a fault, whose discards fail.

use qcowfuzz::harness::target::Target;
use qcowfuzz::harness::{KnowingEngine, KnownFindings, Walker, WalkerDisk};
use qcowfuzz::internal::harness::targets::writes::Writes;
use qcowfuzz::internal::writers::WriterFault;
use qcowfuzz::prelude::{Answer, Chain, Claims, Engine, EngineError, GuestOffset, OpenDisk};
use qcowfuzz::programs::text::assemble;

use super::found_in;

/// The number of cuts: one of them is at a moment at which the writer has changed the file.
const CUTS: u64 = 8;

struct Failing(Walker);

struct FailingDisk<'s>(WalkerDisk<'s>);

impl Engine for Failing {
    type Disk<'s> = FailingDisk<'s>;

    fn name(&self) -> &str {
        "failing"
    }

    fn write_claims(&self) -> Claims {
        self.0.write_claims()
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Answer<FailingDisk<'s>> {
        Ok(FailingDisk(self.0.open(chain)?))
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Answer<FailingDisk<'s>> {
        Ok(FailingDisk(self.0.open_to_write(chain)?))
    }
}

impl OpenDisk for FailingDisk<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        self.0.virtual_size_bytes()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.read(guest, into)
    }

    fn write(&mut self, guest: GuestOffset, bytes: &[u8]) -> Answer {
        self.0.write(guest, bytes)
    }

    fn discard(&mut self, _guest: GuestOffset, _length_bytes: u64) -> Answer {
        Err(EngineError::from(std::io::Error::other("planted")))
    }

    fn flush(&mut self) -> Answer {
        self.0.flush()
    }

    fn close(self) -> Answer {
        self.0.close()
    }
}

/// The files of a cut are there, even if a later request fails and the harness knows that error.
#[test]
fn cuts_before_a_known_error_are_judged() {
    let cuts = (0..CUTS).map(|choice| format!("sync kind=kill choice={choice}\n"));
    let text = format!(
        "image version=3 cluster_bits=9 refcount_order=4 features=none size=9<<9+0 rng_seed=0 \
         blocks=append table=append tolerance=0\nwrite at=start+0 clusters=2\n\
         sync kind=flush choice=0\nwrite at=start+3 clusters=1\n{}discard at=start+0 clusters=1\n",
        cuts.collect::<String>()
    );
    let program = assemble(&text).unwrap();
    let known = "[[finding]]\nfingerprint = 'written: discard, *'\nreason = 'Planted.'";
    let known = KnownFindings::parse(known).unwrap();
    for (walker, expected) in [
        (Walker::default(), None),
        (
            Walker::default().with_fault(WriterFault::DirtyWhileOpen),
            Some("killed: dirty bit, clear → set"),
        ),
    ] {
        let engine = KnowingEngine::new(Failing(walker), known.clone());
        let mut target = Writes::observed(engine, ());
        assert_eq!(found_in(&mut target, &program).as_deref(), expected);
        if expected.is_none() {
            assert_eq!(target.met().len(), 1, "the known error was met");
        }
    }
}
