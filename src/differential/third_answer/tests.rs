use crate::recipes::guest::GuestModel;
use crate::recipes::guest::tests::{img, io};

use super::{compare, compare_zeros};

#[test]
fn a_lost_write_is_a_divergence() {
    let dir = tempfile::tempdir().unwrap();
    let read = dir.path().join("read.raw");
    std::fs::write(dir.path().join("noise"), [1, 2, 3]).unwrap();
    let mut model = GuestModel::default();
    img(&mut model, "create -q -f raw a.raw 4096");
    io(&mut model, "write -q -s noise 512 7", "a.raw", 0);
    io(&mut model, "discard -q 1024 512", "a.raw", 0);
    let mut bytes = vec![0; 4096];
    bytes[512..519].copy_from_slice(&[1, 2, 3, 1, 2, 3, 1]);
    bytes[1100] = 5;
    for (at, expected) in [
        (None, None),
        (Some(515), Some("data → other data")),
        (Some(600), Some("zero → data")),
        (Some(2000), Some("zero → data")),
    ] {
        let mut bytes = bytes.clone();
        if let Some(at) = at {
            bytes[at] ^= 0x80;
        }
        std::fs::write(&read, &bytes).unwrap();
        let found = compare(model.disk("a.raw").unwrap(), &read, dir.path()).unwrap().err();
        assert_eq!(found.map(|it| it.what).as_deref(), expected, "{at:?}");
    }
}

#[test]
fn data_that_a_map_calls_zeros_are_a_divergence() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("noise"), [0, 0, 3]).unwrap();
    let mut model = GuestModel::default();
    img(&mut model, "create -q -f raw a.raw 4096");
    io(&mut model, "write -q -s noise 512 512", "a.raw", 0);
    io(&mut model, "write -q -P 7 1024 512", "a.raw", 0);
    io(&mut model, "discard -q 1280 512", "a.raw", 0);
    for (zeros, expected) in [
        // The file begins with zeros.
        (0..514, None),
        (0..515, Some(514)),
        (1000..1024, Some(1000)),
        (1024..1025, Some(1024)),
        (1280..4096, None),
    ] {
        let data = model.disk("a.raw").unwrap();
        let zeros_only = std::iter::once(zeros.clone());
        let found = compare_zeros(data, zeros_only, dir.path()).unwrap().err();
        let expected = expected.map(|at| format!("guest offset {at}: "));
        let detail = found.map(|it| it.detail);
        let (start, wanted) = (detail.as_deref().unwrap_or(""), expected.as_deref().unwrap_or(""));
        assert!(
            start.starts_with(wanted) && start.is_empty() == wanted.is_empty(),
            "{zeros:?}: {start}"
        );
    }
}
