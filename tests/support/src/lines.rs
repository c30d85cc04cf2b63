//! Program text: the file that a program builds, operations without a prologue, and operations with random operands.

use crate::prelude::*;

/// Returns an `image` line: the usual image of 16 clusters of 64 KiB, with these operands in place of the usual ones.
/// The other operands go to the end.
pub fn image(operands: &str) -> String {
    let usual = "version=3 cluster_bits=16 refcount_order=4 features=none size=16<<16+0 rng_seed=0 blocks=append \
                 table=append tolerance=0";
    let name = |operand: &str| operand.split('=').next().unwrap().to_string();
    let mut all: Vec<&str> = usual.split(' ').collect();
    for operand in operands.split_whitespace() {
        match all.iter_mut().find(|usual| name(usual) == name(operand)) {
            Some(usual) => *usual = operand,
            None => all.push(operand),
        }
    }
    format!("image {}\n", all.join(" "))
}

/// Returns the program with an image as [`image`] describes it and these operations.
pub fn program(operands: &str, operations: &str) -> Program {
    let text = format!("{}{operations}", image(operands));
    assemble(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Returns the encoding of [`program`].
pub fn encoded(operands: &str, operations: &str) -> Vec<u8> {
    program(operands, operations).encode()
}

/// Returns the bytes of the image that a program builds. If it builds a chain, these are the bytes of the top image.
pub fn file(text: &str) -> Vec<u8> {
    let program = assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut harness = Harness::new(Walker::default());
    let image = harness.build(&program.encode());
    let mut bytes = vec![0; usize::try_from(image.length_bytes()).unwrap()];
    image.read_at(HostOffset::ZERO, &mut bytes).unwrap();
    bytes
}

/// Assembles lines that need no prologue of their own.
pub fn operations(lines: &str) -> Vec<Operation> {
    let program = assemble(&format!("{}{lines}", Program::default()));
    program.unwrap_or_else(|error| panic!("{error}\n{lines}")).operations
}

/// The words of the flags in a `header` line.
pub const HEADER_FLAGS: [&str; 12] = [
    "dirty",
    "corrupt",
    "out_of_date",
    "compatible_bits",
    "autoclear_bits",
    "feature_names",
    "unknown_names",
    "junk",
    "no_end",
    "name_at_end",
    "empty_name",
    "no_format",
];

/// Returns a `header` line with random operands.
pub fn header(entropy: &mut Entropy) -> String {
    let length = match entropy.below(16) {
        0 => "shortest".to_string(),
        1..=8 => format!("104+{}", entropy.below(32768)),
        _ => format!("cluster-{}", entropy.below(32767)),
    };
    let (order, unknown, bytes) = (entropy.below(256), entropy.below(8), entropy.below(256));
    let flags = some_of(&HEADER_FLAGS, entropy);
    format!("header length={length} order={order} unknown={unknown} bytes={bytes} flags={flags}")
}

/// Returns an `overlay` line. Two of three overlays have the size of the disk below.
pub fn overlay(entropy: &mut Entropy) -> String {
    const FEATURES: [&str; 6] = [
        "extended_l2",
        "zstd",
        "lazy_refcounts",
        "compression_field",
        "feature_names",
        "unknown_extension",
    ];
    let version = if entropy.one_in(4) { 2 } else { 3 };
    let (bits, order) = (9 + entropy.below(13), entropy.below(7));
    let features = some_of(&FEATURES, entropy);
    let data_in = ["file", "raw_file", "image"][entropy.below(8).min(2) as usize];
    let (units, shift) = (entropy.below(256), entropy.below(64));
    let size = match entropy.below(12) {
        0 => format!("-{units}<<{shift}"),
        1 => format!("+{units}<<{shift}"),
        2 => format!("part+{}", entropy.below(1 << 14)),
        _ => "same".to_string(),
    };
    format!(
        "overlay version={version} cluster_bits={bits} refcount_order={order} features={features} \
         data_in={data_in} size={size}"
    )
}

/// Returns a random subset of `words`, separated by commas.
fn some_of(words: &[&str], entropy: &mut Entropy) -> String {
    let chosen: Vec<&str> = words.iter().copied().filter(|_| entropy.one_in(2)).collect();
    if chosen.is_empty() { "none".to_string() } else { chosen.join(",") }
}

/// Returns the digits of random bytes: any, letters, or the header of a block and any bytes behind it. Deflate and zstd
/// read it as a raw block, as codes, or as a fault.
pub fn digits(entropy: &mut Entropy) -> String {
    let magnitude = 2 + entropy.below(9);
    let mut bytes = vec![0; entropy.below(1 << magnitude) as usize];
    let letters = entropy.one_in(2);
    bytes.fill_with(|| match letters {
        true => b'a' + entropy.below(4) as u8,
        false => entropy.next_u64() as u8,
    });
    if entropy.one_in(2) {
        let header = (entropy.below(64) << 3 | entropy.below(4) << 1).to_le_bytes();
        bytes.iter_mut().zip(&header[..3]).for_each(|(byte, header)| *byte = *header);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the cells of a table: one row in each line, with ` | ` between the cells. A line that begins
/// with `#` is a comment.
pub fn rows<const N: usize>(table: &str) -> impl Iterator<Item = [&str; N]> {
    let lines =
        table.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("# "));
    lines.map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        cells.try_into().unwrap_or_else(|_| panic!("expected {N} cells: {line}"))
    })
}
