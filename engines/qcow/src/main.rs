//! The crate qcow 1.2.0 behind the line protocol of `docs/engines.md`.
//!
//!     cargo xtask other-languages --install qcow
//!     qcowfuzz --engine-command 'engines/other/engine qcow' fuzz --seconds 60 --dir qcow

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write, stderr, stdin, stdout};
use std::os::fd::AsFd;
use std::path::Path;

use qcow::{DynamicQcow, Qcow2};

type Answer<T> = Result<T, Box<dyn Error>>;

/// The first lines but `ready`. The crate lists neither data files nor extended L2 entries. It opens each backing file
/// as qcow2.
const FIRST_LINES: &str = "qcowfuzz-engine 1
name qcow
refuse an external data file
refuse extended L2 entries
refuse a raw backing file
size near
no a backing file of an odd size
answers read
";

fn main() -> Answer<()> {
    // The crate prints lines to standard output: they go to standard error.
    let mut out = File::from(stdout().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdout(stderr())?;
    // The words of the command line are claims, too.
    let claims: String = std::env::args().skip(1).map(|claim| claim + "\n").collect();
    writeln!(out, "{FIRST_LINES}{claims}ready")?;
    let (mut image, mut questions) = (None, Vec::new());
    for line in stdin().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("image", rest)) if image.is_none() => {
                image = rest.split_once(' ').map(|it| it.1.to_string())
            }
            Some(("image" | "data", _)) => {}
            None if line == "end" => {
                out.write_all(&answers(&image.take().ok_or("no image")?, &questions))?;
                questions.clear();
            }
            _ => questions.push(line),
        }
    }
    Ok(())
}

/// Returns the answers to questions about the image at `path`.
fn answers(path: &str, questions: &[String]) -> Vec<u8> {
    let mut disk = Err("nothing is open".into());
    let mut all = Vec::new();
    for question in questions {
        let answer = match question.as_str() {
            "open" => {
                disk = open(path);
                disk.as_ref()
                    .map(|disk| format!("ok {}\n", disk.header.size).into_bytes())
                    .map_err(ToString::to_string)
            }
            read => match &disk {
                Ok(disk) => read_bytes(path, disk, read).map_err(|error| error.to_string()),
                Err(_) => Err("the image is not open".to_string()),
            },
        };
        // An error of the crate has lines.
        all.extend(
            answer.unwrap_or_else(|error| {
                format!("error {}\n", error.replace('\n', " ")).into_bytes()
            }),
        );
    }
    all
}

fn open(path: &str) -> Answer<Qcow2> {
    // The crate looks for a backing file in the current folder.
    std::env::set_current_dir(Path::new(path).parent().ok_or("a path without a folder")?)?;
    match qcow::open(path) {
        Ok(DynamicQcow::Qcow2(disk)) => Ok(disk),
        Ok(DynamicQcow::Qcow1(_)) => Err("version 1".into()),
        // The error itself says only that it did not parse.
        Err(error) => Err(error.source().map_or(error.to_string(), ToString::to_string).into()),
    }
}

fn read_bytes(path: &str, disk: &Qcow2, question: &str) -> Answer<Vec<u8>> {
    let mut words = question.split(' ').skip(1).map(str::parse);
    let (start, length) = (words.next().ok_or("no start")??, words.next().ok_or("no length")??);
    let mut file = BufReader::new(File::open(path)?);
    let mut reader = disk.reader(&mut file);
    reader.seek(SeekFrom::Start(start))?;
    let mut bytes = vec![0xA5; length as usize];
    reader.read_exact(&mut bytes)?;
    Ok([format!("ok {length}\n").as_bytes(), &bytes].concat())
}
