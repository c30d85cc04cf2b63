//! The fields of answers that older versions of QEMU do not print.

use std::borrow::Cow;

use serde_json::Value;

use crate::processes::Reply;
use crate::recipes::recipe::DiskQuestion;

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
