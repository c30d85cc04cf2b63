//! Operations of QEMU on its image fail, and the image lies on a device that ends: QEMU meets the faults of programs,
//! and the oracle `file_error` finds a request that has failed and says that it has succeeded.

use test_support::prelude::*;

use qcowfuzz::harness::against::qemu_io::QemuEngine;

const IMAGE: &str = "image version=3 cluster_bits=12 refcount_order=4 features=none size=64<<12+0 \
                     rng_seed=0 blocks=append table=append tolerance=0\n";

/// QEMU, which says that each request has succeeded.
#[derive(Clone)]
struct WithoutErrors;

impl Change for WithoutErrors {
    fn request(&mut self, disk: &mut Inner, request: &Request) -> Answer {
        disk.request(request).or(Ok(()))
    }
}

/// Returns the fingerprint of the finding in a program, if there is one.
fn found(target: &mut Harness, program: &str) -> Option<String> {
    let input = assemble(&format!("{IMAGE}{program}")).unwrap().encode();
    let ran = target.run(&input, Checks::AtCheckpoints);
    ran.err().map(|failure| failure.violation.fingerprint())
}

/// Programs in which QEMU meets a fault, and the beginning of the fingerprint if it hides the error.
const FAULTS: [(&str, &str); 6] = [
    (
        "fail_file of=write before=1 error=io failures=one\nwrite at=start+1 clusters=1\n",
        "file_error: a write, the bytes of the guest → zeros",
    ),
    (
        "write at=start+0 clusters=3\nsnapshot\n\
         fail_file of=write before=0 error=full failures=all\n\
         zero_at at=start+1 inside=0 length=1<<12\nwrite at=start+2 clusters=1\n",
        "file_error: ",
    ),
    (
        "fail_file of=flush before=3 error=io failures=all\n\
         write at=start+1 clusters=1\nsync kind=flush choice=0\n",
        "file_error: a write in the file, the bytes of the guest → zeros",
    ),
    (
        "write at=start+1 clusters=2\n\
         fail_file of=read before=0 error=io failures=all\nwrite at=start+1 clusters=1\n",
        "file_error: a write in the file, the bytes of the guest → zeros",
    ),
    (
        "write at=start+1 clusters=4\nfail_file of=read before=0 error=io failures=all\n\
         in_flight requests=2 at_once=2 order=10\nread_at at=start+1 length=1<<9\n\
         read_at at=start+2 length=1<<9\nwrite at=start+1 clusters=1\n",
        "file_error: a write in the file, the bytes of the guest → zeros",
    ),
    (
        "device spare=1 old=zeros\nwrite at=start+1 clusters=1\nwrite at=start+8 clusters=9\n",
        "file_error: a write, the bytes of the guest → zeros",
    ),
];

#[test]
fn qemu_meets_the_faults_of_programs() {
    let Some(()) = qemu::tools() else { return };
    let mut sound = TargetKind::Writes.judging(QemuEngine::default());
    let engine = Changed { change: WithoutErrors, engine: QemuEngine::default() };
    let mut planted = TargetKind::Writes.judging(engine);
    for (program, expected) in FAULTS {
        assert_eq!(found(&mut sound, program), None, "{program}");
        let found = found(&mut planted, program).unwrap_or_default();
        assert!(found.starts_with(expected), "{found}\n{program}");
    }
}

#[test]
fn qemu_may_leave_bitmaps_in_use_after_an_error() {
    let Some(()) = qemu::tools() else { return };
    let mut target = TargetKind::Writes.judging(QemuEngine::default());
    // QEMU closes the image without an error, although it has not stored the bitmap.
    let program = "write_at at=start+0 inside=0 length=1<<0\n\
                   bitmap granularity=9 flags=none name=0\n\
                   fail_file of=read before=2 error=io failures=all\n\
                   snapshot\n";
    assert_eq!(found(&mut target, program), None);
    // qemu-img takes the snapshot, and the device has no room for the bitmap.
    let program = "device spare=8 old=data\nbitmap granularity=9 flags=auto name=0\n\
                   write at=start+0 clusters=1\nsnapshot\n";
    assert_eq!(found(&mut target, program), None);
}

/// A crash leaves an image marked as dirty, which QEMU repairs when it opens the image again.
const DIRTY: &str = "image version=3 cluster_bits=12 refcount_order=4 features=lazy_refcounts size=64<<12+0 \
                     rng_seed=0 blocks=append table=append tolerance=0\n\
                     write_at at=start+0 inside=0 length=2<<12\n\
                     sync kind=flush choice=0\n\
                     crash kind=process choice=65535\n\
                     write_at at=start+6 inside=0 length=1<<12\n";

/// QEMU, which loses the write behind the crash.
#[derive(Clone)]
struct LosesWrite;

impl Change for LosesWrite {
    fn request(&mut self, disk: &mut Inner, request: &Request) -> Answer {
        match request {
            Request::Write { guest, .. } if guest.get() == 6 << 12 => Ok(()),
            request => disk.request(request),
        }
    }
}

#[test]
fn qemu_goes_on_with_an_image_that_it_repairs() {
    let Some(()) = qemu::tools() else { return };
    let input = assemble(DIRTY).unwrap().encode();
    let mut sound = TargetKind::Writes.judging(QemuEngine::default());
    sound.run(&input, Checks::AtCheckpoints).unwrap();
    let engine = Changed { change: LosesWrite, engine: QemuEngine::default() };
    let ran = TargetKind::Writes.judging(engine).run(&input, Checks::AtCheckpoints);
    let found = ran.unwrap_err().violation.fingerprint();
    assert_eq!(found, "written: a write, the bytes of the guest → zeros");
}
