//! The parts of answers that older versions of QEMU do not print.

use std::borrow::Cow;

use serde_json::Value;

use crate::processes::Reply;
use crate::recipes::recipe::{DiskQuestion, OutputForm};

/// A field of JSON, and the first version of QEMU that prints it.
const FIELDS: [(&str, &str, (u32, u32)); 1] = [("info", "children", (8, 0))];
/// The parts of `info` for people: their first lines, the beginning of the line behind them, and the first version of
/// QEMU that prints them as 10.0 does. 7.2 prints the snapshots in other columns; no version in between was tried.
const PARTS: [(&str, &str, (u32, u32)); 2] =
    [("Snapshot list:", "Format specific", (10, 0)), ("Child node '", "\0", (8, 0))];

/// Returns the two first numbers of a version. A version without numbers prints all fields.
pub fn version_of(text: &str) -> (u32, u32) {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(Some(major)), Some(Some(minor))) => (major, minor),
        _ => (u32::MAX, 0),
    }
}

/// Returns an answer without the parts that this version of QEMU does not print, or prints otherwise.
pub(super) fn as_in<'r>(
    version: (u32, u32),
    question: &DiskQuestion,
    reply: &'r Reply,
) -> Cow<'r, Reply> {
    let verb = question.verb();
    let fields = FIELDS.iter().filter(|(of, _, since)| *of == verb && version < *since);
    let fields: Vec<&str> = fields.map(|(_, field, _)| *field).collect();
    let parts = || PARTS.iter().filter(|(_, _, since)| version < *since);
    match question.form() {
        Some(OutputForm::Json) if !fields.is_empty() => without_fields(&fields, reply),
        Some(OutputForm::Human) if verb == "info" && parts().next().is_some() => {
            let mut text = String::from_utf8_lossy(&reply.stdout).into_owned();
            parts().for_each(|(first, behind, _)| text = without_part(&text, first, behind));
            Cow::Owned(Reply { stdout: text.into_bytes(), ..reply.clone() })
        }
        _ => Cow::Borrowed(reply),
    }
}

/// Returns a text without the lines from `first` up to `behind`.
fn without_part(text: &str, first: &str, behind: &str) -> String {
    let mut is_inside = false;
    let kept = text.split_inclusive('\n').filter(|line| {
        is_inside = (is_inside || line.starts_with(first)) && !line.starts_with(behind);
        !is_inside
    });
    kept.collect()
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
        let (info, question) =
            (r#"{"children":[],"format":"raw"}"#, DiskQuestion::Info(OutputForm::Json));
        assert_eq!(left("7.2.22", &question, info), r#"{"format":"raw"}"#);
        assert_eq!(left("8.0.0", &question, info), info);
        assert_eq!(left("unknown", &question, info), info);
        let info = "image: a\nSnapshot list:\n1\nFormat specific information:\nChild node '/file':\n    filename: a\n";
        let question = DiskQuestion::Info(OutputForm::Human);
        assert_eq!(left("7.2.22", &question, info), "image: a\nFormat specific information:\n");
        assert_eq!(left("10.0.2", &question, info), info);
    }
}
