//! The answers that are compared.

use std::borrow::Cow;
use std::path::Path;

use serde_json::Value;

use crate::differential::sides::{Sides, Tested};
use crate::processes::Reply;
use crate::recipes::recipe::DiskQuestion;

/// The answers of both sides to a question.
#[derive(Clone, Copy, Debug)]
pub struct Replies<'a> {
    /// The answer of QEMU.
    pub qemu: &'a Reply,
    /// The answer of the program under test.
    pub tested: &'a Reply,
    /// The first two numbers of QEMU's version.
    pub version: (u32, u32),
    /// The program under test is qcowfuzz, so each of its messages has a known class.
    pub has_known_messages: bool,
}

impl<'a> Replies<'a> {
    /// Returns the answers of both sides.
    pub fn new(sides: &Sides, qemu: &'a Reply, tested: &'a Reply) -> Self {
        let version = version_of(&sides.qemu.version);
        let has_known_messages = matches!(sides.tested, Tested::Ours(_));
        Self { qemu, tested, version, has_known_messages }
    }
}

/// The raw files that both sides wrote, for `DiskQuestion::Read`.
#[derive(Clone, Copy, Debug)]
pub struct RawFiles<'a> {
    /// QEMU's file.
    pub qemu: &'a Path,
    /// The file of the program under test.
    pub tested: &'a Path,
}

/// A field of JSON, and the first version of QEMU that prints it.
const FIELDS: [(&str, &str, (u32, u32)); 1] = [("info", "children", (8, 0))];

/// Returns the two first numbers of a version. A version without numbers prints all fields.
pub fn version_of(text: &str) -> (u32, u32) {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(Some(major)), Some(Some(minor))) => (major, minor),
        _ => (u32::MAX, 0),
    }
}

/// Returns an answer without the fields that this version of QEMU does not print.
pub(super) fn as_in<'r>(
    version: (u32, u32),
    question: &DiskQuestion,
    reply: &'r Reply,
) -> Cow<'r, Reply> {
    let verb = question.verb();
    let fields = FIELDS.iter().filter(|(of, _, since)| *of == verb && version < *since);
    let fields: Vec<&str> = fields.map(|(_, field, _)| *field).collect();
    match fields.is_empty() {
        true => Cow::Borrowed(reply),
        false => without_fields(&fields, reply),
    }
}

fn without_fields<'r>(fields: &[&str], reply: &'r Reply) -> Cow<'r, Reply> {
    // The comparison reports an output that cannot be parsed.
    let Ok(mut value) = serde_json::from_slice::<Value>(&reply.stdout) else {
        return Cow::Borrowed(reply);
    };
    remove(fields, &mut value);
    Cow::Owned(Reply { stdout: value.to_string().into_bytes(), ..reply.clone() })
}

fn remove(fields: &[&str], value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|key, _| !fields.contains(&key.as_str()));
            object.values_mut().for_each(|value| remove(fields, value));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| remove(fields, value)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::ProcessEnd;

    fn left(version: &str, question: &DiskQuestion, text: &str) -> String {
        let reply = Reply { end: ProcessEnd::Exit(0), stdout: text.into(), stderr: Vec::new() };
        let reply = as_in(version_of(version), question, &reply).into_owned();
        String::from_utf8(reply.stdout).unwrap()
    }

    #[test]
    fn newer_fields_are_removed() {
        let (info, question) = (r#"{"children":[],"format":"raw"}"#, DiskQuestion::Info);
        assert_eq!(left("7.2.22", &question, info), r#"{"format":"raw"}"#);
        assert_eq!(left("8.0.0", &question, info), info);
        assert_eq!(left("unknown", &question, info), info);
    }
}
