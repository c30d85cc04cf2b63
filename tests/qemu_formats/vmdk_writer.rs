//! Writes VMDK images of every shape that the format allows: the image itself, and the files that it names.

use std::fmt::Write as _;

use qcowfuzz::internal::images::entropy::Entropy;

use crate::comparison::one_of;
use crate::vmdk_extents::{WrittenFile, cowd, sesparse, shape, sparse};

/// Writes a disk that begins in the file `name`, perhaps with a parent below it. Returns the files, the image first.
pub fn write(entropy: &mut Entropy, name: &str) -> Vec<WrittenFile> {
    if !entropy.one_in(5) {
        return image(entropy, name, None);
    }
    let parent = format!("{name}-parent");
    let mut files = image(entropy, name, Some(&parent));
    files.extend(image(entropy, &parent, None));
    files
}

/// Writes an image and its extents.
fn image(entropy: &mut Entropy, name: &str, parent: Option<&str>) -> Vec<WrittenFile> {
    let mut head = format!("# Disk DescriptorFile\nversion={}\n", 1 + entropy.below(3));
    // A parent with another identity can be mapped, and not be read.
    let wanted = one_of(entropy, [0xfe, 0xfe, 0xfe, 0xfe, 0xfd]);
    let (content, before) = if parent.is_some() { (7, wanted) } else { (0xfe, u32::MAX) };
    let _ = write!(head, "CID={content:08x}\nparentCID={before:x}\n");
    let hint = parent.map(|parent| format!("parentFileNameHint=\"{parent}\"\n"));
    let hint = hint.unwrap_or_default();
    match entropy.below(12) {
        0..4 => {
            let shape = shape(entropy, true, false);
            let mut file = sparse(entropy, &shape);
            file.set_text(512, &format!("{head}createType=\"monolithicSparse\"\n{hint}"));
            file.name = name.to_owned();
            vec![file]
        }
        4 | 5 => {
            let mut file = cowd(entropy, false);
            // The sectors behind the header may hold a table: this one has no space for the descriptor.
            file.set_text(512, &format!("{head}{hint}"));
            file.name = name.to_owned();
            vec![file]
        }
        kind => {
            let (lines, extents) =
                extents(entropy, name, parent.is_some() || name.ends_with("-parent"));
            let types =
                ["vmfs", "twoGbMaxExtentSparse", "monolithicFlat", "seSparse", "vmfsSparse"];
            let create_type = one_of(entropy, types);
            let text = format!("{head}createType=\"{create_type}\"\n{hint}{lines}");
            let mut file = WrittenFile { name: name.to_owned(), ..WrittenFile::default() };
            if kind == 6 {
                // The descriptor of a sparse extent without a disk.
                file.set_text(512, &text);
                file.bytes[..4].copy_from_slice(b"KDMV");
                file.bytes[28] = 1;
            } else {
                file.set_text(0, &text);
                let length = text.len() + [0, entropy.below(4) as usize][kind as usize & 1];
                file.bytes.resize(length, 0);
            }
            std::iter::once(file).chain(extents).collect()
        }
    }
}

/// Writes up to four extents. Returns their lines, too, with lines that have no effect between them.
fn extents(entropy: &mut Entropy, image: &str, is_in_chain: bool) -> (String, Vec<WrittenFile>) {
    let (mut lines, mut files) = (String::new(), Vec::<WrittenFile>::new());
    let mut last = String::new();
    for index in 0..=entropy.below(4) {
        let name =
            one_of(entropy, [format!("{image}-s{index:03}"), format!("{image} {index}.vmdk")]);
        let line = match entropy.below(9) {
            0 if !last.is_empty() => last.clone(),
            0..3 => {
                let shape = shape(entropy, false, is_in_chain);
                files.push(sparse(entropy, &shape));
                format!("RW {} SPARSE \"{name}\"", 1 + entropy.below(99))
            }
            3 => {
                files.push(cowd(entropy, is_in_chain));
                format!("RW {} VMFSSPARSE \"{name}\"", 1 + entropy.below(99))
            }
            4..6 => {
                files.push(sesparse(entropy));
                format!("RW 1 SESPARSE \"{name}\"")
            }
            _ => {
                files.push(flat(entropy));
                let sectors = one_of(entropy, [1, 8, 100, 777]);
                match entropy.below(3) {
                    0 => format!("RW {sectors} VMFS \"{name}\""),
                    _ => format!("RW {sectors} FLAT \"{name}\" {}", 8 * entropy.below(5)),
                }
            }
        };
        if line != last {
            files.last_mut().unwrap().name = name;
        }
        let between = [
            "",
            "",
            "",
            "# a comment\n",
            "RW 8 ZERO\n",
            "RDONLY 8 FLAT \"x\" 0\n",
            "RW 8 OTHER \"x\"\n",
            "RW 0 VMFS \"x\"\n",
            "\n",
            " ",
            "\r\n",
        ];
        lines += one_of(entropy, between);
        lines += &line;
        lines += one_of(entropy, ["\n", "\n", "\r\n", " \n"]);
        last = line;
    }
    // The second part continues the first, or lies beside it in a file of another name.
    if entropy.one_in(4)
        && let Some(file) = files.last().map(|file| file.name.clone())
    {
        let name = one_of(entropy, [file.clone(), format!("./{file}")]);
        let _ = write!(lines, "RW 8 FLAT \"{file}\" 0\nRW 8 FLAT \"{name}\" 8\n");
    }
    lines += one_of(entropy, ["", "\n# The Disk Data Base\n#DDB\nddb.adapterType = \"ide\"\n"]);
    (lines, files)
}

/// Writes a file of guest data.
fn flat(entropy: &mut Entropy) -> WrittenFile {
    let sectors = one_of(entropy, [0, 1, 8, 130, 800]);
    let length = sectors * 512 + entropy.below(2) as usize * 100;
    let seed = entropy.next_u64() as u8;
    let bytes = (0..length).map(|at| seed ^ (at / 61) as u8 | 1).collect();
    WrittenFile { bytes, ..WrittenFile::default() }
}
