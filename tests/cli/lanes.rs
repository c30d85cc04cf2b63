//! `replay` and `report` draw requests in flight over time.

use crate::support::{Folder, Ran, built_example};

/// A write is in flight together with zeros for another part of its cluster.
const PROGRAM: &str = "\
image version=3 cluster_bits=9 refcount_order=4 features=none size=90<<9+0 rng_seed=0 blocks=append table=append tolerance=0
in_flight requests=2 at_once=2 order=01
write_at at=start+0 inside=0 length=8<<5
zero at=start+1 clusters=1 keep=no
";

#[test]
fn each_request_has_a_lane() {
    let dir = Folder::new();
    dir.write("program.txt", PROGRAM);
    dir.run("asm program.txt -o input").ok();
    let writer = built_example("small_writer");
    let run = |words: &str| Ran::of(&mut dir.command(&writer, words));
    let replayed = run("replay --target writes input").ok();
    let lanes: Vec<_> = replayed.out.lines().filter(|line| line.ends_with('|')).collect();
    let [write, zeros] = lanes[..] else { panic!("{lanes:?}") };
    assert!(write.starts_with("  write of guest 0x0+0x100, a repeated piece |"), "{write}");
    assert!(zeros.starts_with("  zeros to guest 0x200+0x200                 |"), "{zeros}");
    // Both have turns, and at least one waits for the other.
    assert!(write.contains('w') && zeros.contains('w') && write.contains('-'), "{write}\n{zeros}");
    run("report --target writes input --html page.html").ok();
    let page = dir.read("page.html");
    let page = String::from_utf8_lossy(&page);
    assert!(page.contains("Requests in flight") && page.contains(r#"<table class="lanes">"#));
}
