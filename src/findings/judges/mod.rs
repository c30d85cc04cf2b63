//! The judges of the minimizer: each reports whether a candidate shows the bug that the input shows.

mod judge;
mod predicate;
mod same_finding;

pub use judge::{CandidateJudge, JudgeError};
pub use predicate::{Passed, Predicate};
pub use same_finding::SameFinding;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::isolation::tests::shell;
    use crate::images::limits::Limits;
    use crate::programs::text::assemble;

    const IMAGE: &str = "image version=3 cluster_bits=16 refcount_order=4 features=none size=16<<16+0 rng_seed=0 \
                         blocks=append table=append tolerance=0\n";

    fn program(operations: &str) -> Vec<u8> {
        assemble(&format!("{IMAGE}{operations}")).unwrap().encode()
    }

    fn predicate(command: &str, passed: Passed) -> Result<Predicate, String> {
        let input = program("snapshot\nwrite at=start+0 clusters=1");
        Predicate::new(command, passed, &input).map_err(|error| error.to_string())
    }

    #[test]
    fn an_input_that_ends_its_process_is_judged_by_the_end() {
        let script = r#"ulimit -c 0
            grep -q bad "$input" && kill -ABRT $$; grep -q odd "$input" && exit 3; echo {}"#;
        let mut judge = SameFinding::new(b"a bad input", shell(script)).unwrap();
        assert_eq!(judge.found(), "process: end, an answer → signal: 6 (SIGABRT)");
        assert!(!judge.runs_here() && judge.rerolls() == 0);
        let shows = [&b"bad"[..], b"odd", b"good"].map(|candidate| judge.shows(candidate).unwrap());
        assert_eq!(shows, [true, false, false]);
    }

    #[test]
    fn a_candidate_that_ends_the_process_does_not_show_another_finding() {
        let script = r#"ulimit -c 0; grep -q dies "$input" && kill -SEGV $$
            grep -q bug "$input" && echo '{"fingerprint":"model: kind, a → b","drawn":true}' || echo {}"#;
        let mut judge = SameFinding::new(b"a bug", shell(script)).unwrap();
        assert_eq!(judge.found(), "model: kind, a → b");
        assert!(judge.runs_here() && judge.rerolls() > 0);
        let shows = [&b"bug"[..], b"bug that dies", b"", b"bug"]
            .map(|candidate| judge.shows(candidate).unwrap());
        assert_eq!(shows, [true, false, false, true]);
    }

    #[test]
    fn a_known_finding_is_judged_if_there_is_no_other() {
        // The candidates are answers.
        let answers = || shell(r#"cat "$input"; echo"#);
        let (known, both) =
            (r#"{"known":["one","two"]}"#, r#"{"fingerprint":"new","known":["one"]}"#);
        let candidates = [known, both, r#"{"known":["two","one"]}"#, "{}"];
        for (input, expected) in
            [(known, [true, false, false, false]), (both, [false, true, false, false])]
        {
            let mut judge = SameFinding::new(input.as_bytes(), answers()).unwrap();
            let shows = candidates.map(|candidate| judge.shows(candidate.as_bytes()).unwrap());
            assert_eq!(shows, expected, "{input}");
        }
    }

    #[test]
    fn an_input_without_a_finding_has_no_judge() {
        let judge = SameFinding::new(b"", shell("echo {}"));
        assert!(matches!(judge, Err(JudgeError::NothingFound)));
    }

    #[test]
    fn a_judge_that_cannot_judge_returns_an_error() {
        let dir = tempfile::tempdir().unwrap();
        // The first run ends its process. The second run fails with exit code 2.
        let script = format!(
            "test -e {0} && {{ echo no >&2; exit 2; }}; touch {0}; exit 3",
            dir.path().join("flag").display()
        );
        let mut judge = SameFinding::new(b"", shell(&script)).unwrap();
        assert_eq!(judge.shows(b"").unwrap_err().to_string(), "no");
    }

    #[test]
    fn a_command_is_called_with_the_candidate_or_with_its_image() {
        // Reads the number of snapshots in the header of the image.
        let command = "f() { test $(od -An -tu1 -j63 -N1 \"$1\") -gt 0; }; f";
        let mut judge = predicate(command, Passed::Image(Limits::WALKED)).unwrap();
        assert!(judge.found().ends_with(": exit status: 0"), "{}", judge.found());
        let shows =
            ["snapshot", "write at=start+0 clusters=1", "write at=start+1 clusters=1\nsnapshot"]
                .map(|operations| judge.shows(&program(operations)).unwrap());
        assert_eq!(shows, [true, false, true]);
        // Exits with the length of the candidate.
        let mut judge = predicate("f() { exit $(wc -c <\"$1\"); }; f", Passed::Program).unwrap();
        assert!(judge.found().ends_with(": exit status: 36"), "{}", judge.found());
        assert!(judge.shows(&[0; 36]).unwrap() && !judge.shows(&[0; 37]).unwrap());
    }

    #[test]
    fn a_command_that_decides_nothing_is_refused() {
        let error = predicate("true", Passed::Program).unwrap_err();
        let expected = "true: ended with exit status: 0 for the input and for an empty one, \
                        expected different results";
        assert_eq!(error, expected);
    }
}
