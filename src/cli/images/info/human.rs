//! The human form of the record: the lines of `qemu-img info` (QEMU `block/qapi.c`, `bdrv_node_info_dump`).

use std::io::{self, Write};

use super::record::{Detail, Details, InfoRecord, SnapshotInfo, Text};

/// Prints the record of an image, and those of its children.
///
/// # Errors
/// The output cannot be written.
pub fn print(info: &InfoRecord, out: &mut impl Write) -> io::Result<()> {
    node(info, 0, "/", out)
}

fn node(info: &InfoRecord, depth: usize, path: &str, out: &mut impl Write) -> io::Result<()> {
    let indent = " ".repeat(4 * depth);
    // A node without children is a file.
    let [filename, format, size] = match info.children.is_empty() {
        true => ["filename", "protocol type", "file length"],
        false => ["image", "file format", "virtual size"],
    };
    line(out, &indent, filename, &info.filename, "")?;
    writeln!(out, "{indent}{format}: {}", info.format)?;
    let bytes = info.virtual_size;
    writeln!(out, "{indent}{size}: {} ({bytes} bytes)", size_text(bytes))?;
    let on_disk = info.actual_size.map_or("unavailable".into(), size_text);
    writeln!(out, "{indent}disk size: {on_disk}")?;
    if let Some(cluster_size) = info.cluster_size {
        writeln!(out, "{indent}cluster_size: {cluster_size}")?;
    }
    if info.dirty_flag == Some(true) {
        writeln!(out, "{indent}cleanly shut down: no")?;
    }
    backing_file(info, &indent, out)?;
    snapshots(&info.snapshots, &indent, out)?;
    if let Some(specific) = info.format_specific.as_ref().filter(|it| !it.data.0.is_empty()) {
        writeln!(out, "{indent}Format specific information:")?;
        details(&specific.data, depth + 1, out)?;
    }
    for child in &info.children {
        let path = format!("{path}{}", child.name);
        writeln!(out, "{indent}Child node '{path}':")?;
        node(&child.info, depth + 1, &format!("{path}/"), out)?;
    }
    Ok(())
}

/// Writes a line with a name, which need not be UTF-8.
fn line(
    out: &mut impl Write,
    indent: &str,
    key: &str,
    name: &Text,
    behind: &str,
) -> io::Result<()> {
    write!(out, "{indent}{key}: ")?;
    out.write_all(name.bytes())?;
    writeln!(out, "{behind}")
}

fn backing_file(info: &InfoRecord, indent: &str, out: &mut impl Write) -> io::Result<()> {
    let Some(name) = &info.backing_filename else { return Ok(()) };
    match info.full_backing_filename.as_ref().filter(|full| *full != name) {
        None => line(out, indent, "backing file", name, "")?,
        Some(full) => {
            write!(out, "{indent}backing file: ")?;
            out.write_all(name.bytes())?;
            line(out, "", " (actual path", full, ")")?;
        }
    }
    match &info.backing_filename_format {
        None => Ok(()),
        Some(format) => line(out, indent, "backing file format", format, ""),
    }
}

fn snapshots(snapshots: &[SnapshotInfo], indent: &str, out: &mut impl Write) -> io::Result<()> {
    if snapshots.is_empty() {
        return Ok(());
    }
    writeln!(out, "{indent}Snapshot list:")?;
    let [id, tag, size, date, clock] = ["ID", "TAG", "VM_SIZE", "DATE", "VM_CLOCK"];
    writeln!(out, "{indent}{id:<7} {tag:<16} {size:>8} {date:>19} {clock:>15} {:>10}", "ICOUNT")?;
    for snapshot in snapshots {
        out.write_all(indent.as_bytes())?;
        padded(&snapshot.id, 7, out)?;
        padded(&snapshot.name, 16, out)?;
        // QEMU casts the length here, so that it is not negative.
        let size = size_text(snapshot.vm_state_size.cast_unsigned());
        let (date, clock) = (date_text(snapshot.date_sec), clock_text(snapshot));
        let icount = snapshot.icount.map_or("--".into(), |count| count.to_string());
        writeln!(out, "{size:>8} {date:>19} {clock:>15} {icount:>10}")?;
    }
    Ok(())
}

/// Writes a name and a space. The name takes at least `width` bytes.
fn padded(name: &Text, width: usize, out: &mut impl Write) -> io::Result<()> {
    out.write_all(name.bytes())?;
    let missing = width.saturating_sub(name.bytes().len());
    write!(out, "{:missing$} ", "")
}

/// Returns a time since 1970 as a date in UTC.
fn date_text(seconds: u32) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that the leap day is their last. A cycle of 400 years has 146,097 days.
    let since_year_0 = days + 719_468;
    let (cycle, day) = (since_year_0 / 146_097, since_year_0 % 146_097);
    let year_of_cycle = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = cycle * 400 + year_of_cycle + u32::from(month <= 2);
    let (hours, minutes) = (of_day / 3600, of_day / 60 % 60);
    format!("{year:04}-{month:02}-{day_of_month:02} {hours:02}:{minutes:02}:{:02}", of_day % 60)
}

fn clock_text(snapshot: &SnapshotInfo) -> String {
    let seconds = snapshot.vm_clock_sec;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let milliseconds = snapshot.vm_clock_nsec / 1_000_000;
    format!("{hours:04}:{minutes:02}:{:02}.{milliseconds:03}", seconds % 60)
}

/// Returns a number of bytes as QEMU prints it (`util/cutils.c`, `size_to_str`): the unit in which it is below 1000,
/// and three digits.
fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    // 1000 of a unit are 2^10 here, so that the number of bits decides.
    let scaled = bytes as f64 * 1.024;
    let unit = (scaled.max(1.0).log2() / 10.0) as usize;
    let unit = unit.min(UNITS.len() - 1);
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    format!("{} {}B", three_digits(value), UNITS[unit])
}

/// Returns a number as C's `%0.3g` prints it: three digits without the zeros at their end.
fn three_digits(value: f64) -> String {
    let scientific = format!("{value:.2e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    match usize::try_from(2 - exponent) {
        Ok(decimals) => trimmed(&format!("{value:.decimals$}")),
        Err(_) => format!("{}e+{exponent:02}", trimmed(digits)),
    }
}

fn details(details: &Details, depth: usize, out: &mut impl Write) -> io::Result<()> {
    for (key, value) in &details.0 {
        write!(out, "{:1$}{2}:", "", 4 * depth, key.replace('-', " "))?;
        detail(value, depth, out)?;
    }
    Ok(())
}

/// Prints a value after its key: on the same line, or on lines that are indented further.
fn detail(value: &Detail, depth: usize, out: &mut impl Write) -> io::Result<()> {
    match value {
        Detail::Text(text) => {
            out.write_all(b" ")?;
            out.write_all(text.bytes())?;
            writeln!(out)
        }
        Detail::Number(number) => writeln!(out, " {number}"),
        Detail::Flag(flag) => writeln!(out, " {flag}"),
        Detail::Group(group) => {
            writeln!(out)?;
            details(group, depth + 1, out)
        }
        Detail::List(list) => {
            writeln!(out)?;
            for (index, value) in list.iter().enumerate() {
                write!(out, "{:1$}[{index}]:", "", 4 * (depth + 1))?;
                detail(value, depth + 1, out)?;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.977 KiB"),
            (197_120, "192 KiB"),
            (5_257_216, "5.01 MiB"),
            (1_023_488, "1e+03 KiB"),
            (1 << 40, "1 TiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }

    #[test]
    fn dates_are_in_utc() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00:00"),
            (951_827_696, "2000-02-29 12:34:56"),
            (951_868_800, "2000-03-01 00:00:00"),
            (u32::MAX, "2106-02-07 06:28:15"),
        ] {
            assert_eq!(date_text(seconds), date);
        }
    }
}
