//! Compares two answers in JSON, field by field.

use serde_json::Value;

use super::replies::Replies;
use crate::differential::divergence::{Divergence, DivergenceKind};
use crate::processes::Reply;

/// Compares all fields. An empty output is that of a side that failed.
pub(super) fn compare(answers: Replies<'_>) -> Result<(), Divergence> {
    let parsed = |side: &str, answer: &Reply| match answer.stdout.is_empty() {
        true => Ok(Value::Null),
        false => serde_json::from_slice(&answer.stdout)
            .map_err(|error| Divergence::new(DivergenceKind::JsonParseFailure, side, error)),
    };
    let (qemu, tested) = (parsed("qemu", answers.qemu)?, parsed("tested", answers.tested)?);
    match difference(String::new(), &qemu, &tested) {
        None => Ok(()),
        Some((field, one, other)) => {
            let what = format!("{field}: {}", kinds(one, other));
            let detail = format!("{field}: qemu {}, tested {}", shown(one), shown(other));
            Err(Divergence::new(DivergenceKind::FieldDivergence, what, detail))
        }
    }
}

/// The path of the first field that differs, and both values. `None` stands for a missing field.
type Difference<'v> = (String, Option<&'v Value>, Option<&'v Value>);

fn difference<'v>(path: String, qemu: &'v Value, tested: &'v Value) -> Option<Difference<'v>> {
    match (qemu, tested) {
        (Value::Object(one), Value::Object(other)) => {
            let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
            keys.into_iter().find_map(|key| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match (one.get(key), other.get(key)) {
                    (Some(one), Some(other)) => difference(path, one, other),
                    (one, other) => Some((path, one, other)),
                }
            })
        }
        (Value::Array(one), Value::Array(other)) => {
            let pairs = one.iter().zip(other);
            let found = pairs
                .into_iter()
                .find_map(|(one, other)| difference(format!("{path}[]"), one, other));
            let lengths = (one.len() != other.len()).then_some((path, Some(qemu), Some(tested)));
            found.or(lengths)
        }
        (one, other) => (one != other).then_some((path, Some(one), Some(other))),
    }
}

/// Returns the kinds of both values. Only booleans keep their values, because numbers and names differ in every image.
fn kinds(qemu: Option<&Value>, tested: Option<&Value>) -> String {
    let kind = |value: Option<&Value>| match value {
        None => "missing".to_string(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Null) => "nothing".to_string(),
        Some(Value::Number(_)) => "number".to_string(),
        Some(Value::String(_)) => "text".to_string(),
        Some(Value::Array(_)) => "list".to_string(),
        Some(Value::Object(_)) => "object".to_string(),
    };
    format!("{} → {}", kind(qemu), kind(tested))
}

fn shown(value: Option<&Value>) -> String {
    value.map_or("nothing".to_string(), Value::to_string)
}
