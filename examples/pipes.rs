//! An implementation behind the line protocol of `docs/engines.md`: our walker, which reads the files. It measures
//! what the protocol costs, and plants the faults that the harness must survive.
//!
//!     cargo build --release --example pipes
//!     qcowfuzz --engine-command target/release/examples/pipes fuzz --seconds 10 --dir pipes
//!     qcowfuzz --engine-command 'target/release/examples/pipes abort' fuzz --seconds 10 --dir pipes
//!     target/release/examples/pipes measure

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, BufRead, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use qcowfuzz::disk::extent::{Extent, Mapping, Window};
use qcowfuzz::disk::offsets::{GuestOffset, HostOffset};
use qcowfuzz::disk::storage::{FileStorage, Layer};
use qcowfuzz::harness::Checks;
use qcowfuzz::harness::cases::implementation::no_observer;
use qcowfuzz::harness::engines::command::EngineCommand;
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::images::FileNames;
use qcowfuzz::programs::generate::generate_any;
use qcowfuzz::walkers::{Disk, MapError, WalkScratch, map_extents, read};

type AnyError = Box<dyn Error>;

/// The files of an image, as its first lines name them.
#[derive(Default)]
struct Files {
    /// The path of the last image.
    path: String,
    layers: Vec<(FileStorage, Option<FileStorage>)>,
}

/// The walker asks the system for the holes of a raw file, which reports them in the units of its own.
const FIRST_LINES: &str = "qcowfuzz-engine 1
name pipes
no a raw backing file
answers map read snapshot
ready
";

fn main() -> Result<(), AnyError> {
    let fault = std::env::args().nth(1).unwrap_or_default();
    match fault.as_str() {
        "measure" => measure(),
        fault => serve(fault),
    }
}

/// Measures the rate at which the harness judges the images of generated programs behind the protocol.
fn measure() -> Result<(), AnyError> {
    let command = EngineCommand::start(&std::env::current_exe()?.display().to_string())?;
    let (names, observer) = (FileNames::default(), no_observer());
    let mut harness = TargetKind::MapExtents.create(&command.into(), names, observer);
    let mut images = 0;
    let start = Instant::now();
    for seed in 0..20_000 {
        let input = generate_any(seed, 12).encode();
        images += harness
            .run(&input, Checks::AtCheckpoints)
            .map_err(|it| it.violation.to_string())?
            .images;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{images} images in {seconds:.1} s: {:.0} a second", images as f64 / seconds);
    Ok(())
}

/// Answers questions until there are no more.
fn serve(fault: &str) -> Result<(), AnyError> {
    let mut out = io::stdout().lock();
    // The fault `claims FILE`: the first lines change, and the command does not.
    let more = match (fault, std::env::args().nth(2)) {
        ("claims", Some(file)) => std::fs::read_to_string(file)?,
        _ => String::new(),
    };
    out.write_all(FIRST_LINES.replace("ready", &format!("{more}ready")).as_bytes())?;
    out.flush()?;
    let (mut answers, mut questions) = (Vec::new(), Vec::new());
    let mut files = Files::default();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match verb {
            "image" => {
                let (_, path) = rest.split_once(' ').ok_or("a line without a path")?;
                files.layers.push((FileStorage::open(Path::new(path))?, None));
                files.path = path.to_string();
            }
            "data" => {
                let layer = files.layers.last_mut().ok_or("a data file without an image")?;
                layer.1 = Some(FileStorage::open(Path::new(rest))?);
            }
            "end" => {
                answer(&files, &questions, fault, &mut answers);
                out.write_all(&answers)?;
                out.flush()?;
                (files, questions) = Default::default();
                answers.clear();
            }
            _ => questions.push(line),
        }
    }
    Ok(())
}

/// Answers all questions about one image.
fn answer(files: &Files, questions: &[String], fault: &str, answers: &mut Vec<u8>) {
    let layers = files
        .layers
        .iter()
        .map(|(image, data_file)| Layer { data_file: data_file.as_ref(), ..Layer::alone(image) });
    let layers: Vec<_> = layers.collect();
    let mut opened: Result<Disk<FileStorage>, String> = Err("nothing is open".to_string());
    let mut scratch = WalkScratch::default();
    for question in questions {
        let mut words = question.split(' ');
        let verb = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        let answered = match verb {
            "open" | "snapshot" => {
                let disk = Disk::open(&layers);
                let disk = match verb {
                    "open" => disk,
                    _ => disk.and_then(|disk| disk.into_snapshot(number() as u32)),
                };
                opened = disk.map_err(|error| error.to_string());
                opened.as_ref().map_or_else(
                    |error| Err(error.clone()),
                    |disk| Ok(format!("ok {}\n", disk.virtual_size_bytes()).into_bytes()),
                )
            }
            "map" => {
                let window = Window { start: GuestOffset::new(number()), length_bytes: number() };
                opened.as_ref().map_err(Clone::clone).and_then(|disk| {
                    extents(disk, window, fault, &mut scratch).map_err(|error| error.to_string())
                })
            }
            _ => {
                let (start, length) = (GuestOffset::new(number()), number());
                let mut bytes = vec![0; length as usize];
                opened.as_ref().map_err(Clone::clone).and_then(|disk| {
                    read(disk, start, &mut bytes, &mut scratch)
                        .map_err(|error| error.to_string())?;
                    Ok([format!("ok {length}\n").as_bytes(), &bytes].concat())
                })
            }
        };
        match answered {
            Ok(_) if fault == "path" => answers.extend(format!("failed {}\n", files.path).bytes()),
            Ok(bytes) => answers.extend(bytes),
            Err(error) => answers.extend(format!("failed {error}\n").into_bytes()),
        }
    }
}

/// Returns the answer to `map`.
fn extents(
    disk: &Disk<FileStorage>,
    window: Window,
    fault: &str,
    scratch: &mut WalkScratch,
) -> Result<Vec<u8>, MapError> {
    let (mut text, mut count, mut has_zeros) = (String::new(), 0, false);
    map_extents(disk, window, scratch, &mut |extent: Extent| {
        let Extent { start, length_bytes, mapping } = extent;
        let is_zeros = mapping.zero && mapping.present;
        has_zeros |= is_zeros;
        let status = match mapping {
            Mapping { compressed: true, .. } => "compressed",
            Mapping { data: true, .. } => "data",
            Mapping { present: true, .. } if fault != "hole" => "zeros",
            _ => "hole",
        };
        let host =
            mapping.offset.map_or("-".to_string(), |host: HostOffset| host.get().to_string());
        let _ = writeln!(text, "{} {length_bytes} {status} {host} {}", start.get(), mapping.depth);
        count += 1;
        ControlFlow::Continue(())
    })?;
    if has_zeros {
        misbehave(fault);
    }
    Ok(format!("ok {count}\n{text}").into_bytes())
}

/// Does what an implementation should not do, if `fault` names it: for images with zero clusters.
fn misbehave(fault: &str) {
    let mut out = io::stdout().lock();
    let mut say = |text: &str| {
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    };
    match fault {
        "abort" => std::process::abort(),
        "exit" => std::process::exit(3),
        "panic" => panic!("no table at offset 4096\nand more"),
        "spin" => loop {
            std::hint::spin_loop();
        },
        "sleep" => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        "memory" => {
            let mut all: Vec<Vec<u8>> = Vec::new();
            loop {
                all.push(vec![1; 64 << 20]);
            }
        }
        "garbage" => say("what?\n"),
        "negative" => say("ok -9223372036854775808\n"),
        "half" => {
            say("ok 10");
            std::process::exit(0);
        }
        "long" => say(&"x".repeat(1 << 20)),
        // A signal that the harness did not send, once.
        "killed-once" => {
            let mark = std::env::args().nth(2).unwrap_or_default();
            if std::fs::File::create_new(mark).is_ok() {
                let own = std::process::id().to_string();
                let _ = std::process::Command::new("kill").args(["-9", &own]).status();
            }
        }
        _ => {}
    }
}
