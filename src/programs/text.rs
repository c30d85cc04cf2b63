//! Programs as text: one line for the image, one for each operation, `name operand=value ...`. The assembler ignores
//! empty lines and the text after a `;`. Text and canonical bytes convert into each other exactly.

use crate::base::error::Error;

use super::operand::{TextError, TextOperands};
use super::operation::Operation;
use super::program::Program;
use super::program::framing::parse_bytes;
use super::prologue::Prologue;

/// Assembles a program from its text.
///
/// # Errors
/// Returns the first line that is not a record, and the expected text.
pub fn assemble(text: &str) -> Result<Program, Error> {
    let mut program = Program::default();
    let mut prologue = None;
    for (number, line) in (1..).zip(text.lines()) {
        let record = line.split(';').next().unwrap_or_default();
        let mut words = record.split_whitespace();
        let Some(name) = words.next() else { continue };
        let located = |error| Error::Text { line: number, what: describe(error) };
        let operands = TextOperands::new(words).map_err(located)?;
        match (name, prologue.is_some()) {
            ("image", false) => prologue = Some(Prologue::parse(operands).map_err(located)?),
            ("image", true) => {
                let what = "a second image line, expected an operation".to_string();
                return Err(Error::Text { line: number, what });
            }
            (_, false) => {
                let what = format!("'{name}' before the image line");
                return Err(Error::Text { line: number, what });
            }
            ("bytes", true) => {
                parse_bytes(operands, &mut program.operations).map_err(located)?;
            }
            (name, true) => {
                program.operations.push(Operation::parse(name, operands).map_err(located)?);
            }
        }
    }
    let missing = || Error::Text { line: 1, what: "no image line".to_string() };
    program.prologue = prologue.ok_or_else(missing)?;
    Ok(program)
}

fn describe(error: TextError) -> String {
    match error {
        TextError::UnknownName(name) => {
            let names: Vec<_> = Operation::OPCODES.iter().map(|(_, name)| *name).collect();
            format!("unknown operation '{name}', expected one of {}", names.join(", "))
        }
        TextError::Operand { name, found, expected } => {
            format!("operand {name} is '{found}', expected {expected}")
        }
        TextError::Missing(name) => format!("operand {name}=... is missing"),
        TextError::Unexpected(word) => format!("unexpected '{word}'"),
    }
}

#[cfg(test)]
mod tests {
    use crate::images::content::entropy::Entropy;

    use super::*;

    #[test]
    fn text_and_bytes_turn_into_each_other() {
        let mut entropy = Entropy::new(5);
        for _ in 0..2000 {
            let length = entropy.below(300) as usize;
            let bytes: Vec<u8> = (0..length).map(|_| entropy.next_u64() as u8).collect();
            let program = Program::decode(&bytes);
            let text = program.to_string();
            let assembled = assemble(&text).unwrap_or_else(|error| panic!("{error} in\n{text}"));
            assert_eq!(assembled, program);
            assert_eq!(assembled.to_string(), text);
        }
    }

    #[test]
    fn errors_of_text_name_the_line() {
        let image = Program::default().to_string();
        let message = |text: &str| assemble(text).unwrap_err().to_string();
        assert_eq!(message(""), "line 1: no image line");
        assert_eq!(message("write"), "line 1: 'write' before the image line");
        assert!(message(&format!("{image}jump")).starts_with("line 2: unknown operation 'jump'"));
        assert_eq!(
            message(&format!("{image}write at=start+0")),
            "line 2: operand clusters=... is missing"
        );
        assert_eq!(
            message(&format!("{image}\nwrite at=start+0 clusters=17")),
            "line 3: operand clusters is '17', expected 1 to 16"
        );
        assert_eq!(message(&format!("{image}snapshot now")), "line 2: unexpected 'now'");
    }
}
