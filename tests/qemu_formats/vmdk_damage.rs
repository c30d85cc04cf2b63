//! Damages VMDK images. Damage that makes qemu-img crash or walk for hours is left out, see [`new_value`].

use qcowfuzz::internal::images::entropy::Entropy;

use crate::comparison::one_of;
use crate::vmdk_extents::{Field, FieldKind, WrittenFile};

/// Damages one of the files.
pub fn damage(files: &mut [WrittenFile], entropy: &mut Entropy) {
    let is_chain = files.iter().any(|file| file.name.ends_with("-parent"));
    let chosen = entropy.below(files.len() as u64) as usize;
    let file = &mut files[chosen];
    match entropy.below(12) {
        0 => truncate(file, entropy),
        1 => any_byte(file, entropy),
        2..4 => text(file, entropy),
        4..7 => field(file, entropy, |kind| kind == FieldKind::Entry),
        // The extents of a chain stay whole, see `vmdk_extents::shape`.
        7 | 8 if !is_chain => field(file, entropy, |kind| kind == FieldKind::Size),
        _ => field(file, entropy, |kind| matches!(kind, FieldKind::Any | FieldKind::Fixed)),
    }
}

fn truncate(file: &mut WrittenFile, entropy: &mut Entropy) {
    let length = entropy.below(1 + file.bytes.len() as u64) as usize;
    file.bytes.truncate(length);
}

/// Changes a byte that is in no field: those need values that are chosen.
fn any_byte(file: &mut WrittenFile, entropy: &mut Entropy) {
    let at = entropy.below(1 + file.bytes.len() as u64) as usize;
    let is_field = file.fields.iter().any(|field| (field.at..field.at + field.width).contains(&at));
    if !is_field {
        set(&mut file.bytes, at, entropy.next_u64(), 1);
    }
}

/// Changes a number.
fn field(file: &mut WrittenFile, entropy: &mut Entropy, wanted: fn(FieldKind) -> bool) {
    let fields: Vec<&Field> = file.fields.iter().filter(|field| wanted(field.kind)).collect();
    let Some(Field { at, width, kind }) =
        fields.get(entropy.below(fields.len() as u64) as usize).copied()
    else {
        return text(file, entropy);
    };
    let mut old = [0; 8];
    let Some(bytes) = file.bytes.get(*at..at + width) else { return };
    old[..*width].copy_from_slice(bytes);
    let value = new_value(entropy, *kind, u64::from_le_bytes(old));
    let (at, width) = (*at, *width);
    set(&mut file.bytes, at, value, width);
}

/// Returns a value to replace `old`. Sizes stay small, or become so large that qemu-img refuses them: it walks disks
/// grain by grain, which takes hours for 2^40 grains. They stay below 2^63: QEMU takes a larger size as negative, which
/// moves later extents to the front; and compressed grains stay below 1 GiB, for which QEMU has no memory.
fn new_value(entropy: &mut Entropy, kind: FieldKind, old: u64) -> u64 {
    let near = old.wrapping_add(entropy.below(5)).wrapping_sub(2) & i64::MAX as u64;
    let (bit, small, random) = (1 << entropy.below(64), entropy.below(5000), entropy.next_u64());
    match kind {
        FieldKind::Size => {
            let large = one_of(entropy, [1 << 54, 1 << 55, (1 << 62) + 5]);
            let values = [0, 1, near, old / 2, old * 2, small, large];
            one_of(entropy, values) & i64::MAX as u64
        }
        FieldKind::Entry => {
            // The upper bits of an seSparse entry are its type.
            let other_type = old ^ random << 60;
            one_of(entropy, [0, 1, near, small, old ^ bit, random, other_type])
        }
        FieldKind::Any | FieldKind::Fixed => {
            let wide = one_of(entropy, [bit, u64::MAX, random]);
            one_of(entropy, [0, 1, near, small, old ^ bit, wide])
        }
    }
}

/// Changes the descriptor. Names get no colons, because their meaning depends on the directory of the image.
fn text(file: &mut WrittenFile, entropy: &mut Entropy) {
    let (start, length) = file.text;
    let end = (start + length).min(file.bytes.len());
    let Some(text) = file.bytes.get(start..end) else { return };
    let mut text = text.to_vec();
    let at = entropy.below(text.len() as u64 + 1) as usize;
    let line =
        |at: usize| text[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line_at = line(at);
    let parent = text.windows(10).position(|bytes| bytes == b"parentCID=");
    match entropy.below(7) {
        0 => text.truncate(at),
        1 => drop(text.drain(line_at..at)),
        2 => text.insert(at, one_of(entropy, *b"\n \t\"0-RWx\0")),
        3 => text.insert(line_at, one_of(entropy, *b"\n \t\"0-R#\0")),
        // A parent with another content.
        4 => parent.into_iter().for_each(|at| set(&mut text, at + 10, b'7'.into(), 1)),
        5 if at < text.len() => text[at] = one_of(entropy, *b"\n \t\"0-RWx\0"),
        _ => {
            let mut again = text[line_at..at].to_vec();
            again.push(b'\n');
            let place = entropy.below(text.len() as u64 + 1) as usize;
            text.splice(place..place, again);
        }
    }
    // The bytes behind the descriptor stay at their offsets.
    match end == file.bytes.len() {
        true => file.bytes.truncate(start),
        false => text.resize(length, 0),
    }
    file.bytes.resize(file.bytes.len().max(start + text.len()), 0);
    file.bytes[start..start + text.len()].copy_from_slice(&text);
    file.text = (start, text.len());
}

/// Writes the low bytes of a value, little-endian, as far as the file reaches.
fn set(bytes: &mut [u8], at: usize, value: u64, width: usize) {
    for (into, from) in bytes.iter_mut().skip(at).zip(&value.to_le_bytes()[..width]) {
        *into = *from;
    }
}
