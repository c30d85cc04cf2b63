//! `measure`: prints the size of the file that a new image needs for a disk.

mod options;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::options::parse_size;
use crate::cli::output::{CommandError, Exit, ExitResult, json_of_qemu_img, print_with};
use crate::disk::image_format::ImageFormat;
use crate::disk::storage::{FileStorage, Layer, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap::{ListedBitmap, bitmap_list};
use crate::formats::qcow2::geometry::Version;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::snapshot::each_entry;
use crate::walkers::{MeasureError, Measurement, PlannedImage};

use super::info::text_at;
use super::map::Form;
use super::{at_layer, open_chain, open_disk};

use options::PlannedOptions;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The required size is enough for the data of the source; the fully allocated size is enough for every write of a \
guest. Both count the metadata of a full disk. The size of the bitmaps comes in addition, if they are copied, too.

Options of a new qcow2 image: backing_file, cluster_size, compat, extended_l2, preallocation and refcount_bits change \
the sizes. The others of 'qemu-img create' are accepted, except for those of encryption. A raw image has no such \
option. Without a source, every cluster is empty.

The command opens the backing files and data files that the image names, as 'map' does.

Exit codes (those of 'qemu-img measure'): 0 the sizes were printed; 1 the image could not be read, or the options are \
wrong. A command line that cannot be parsed has the exit code 2.

Example: qcowfuzz measure -O qcow2 -o cluster_size=4k disk.raw")]
pub(crate) struct Arguments {
    /// The image whose disk is the source: a file or a block device
    #[arg(required_unless_present = "size", conflicts_with = "size")]
    image: Option<PathBuf>,
    /// The format of the image, by its name in qemu-img, such as qcow2 or raw [default: by its first bytes, as in
    /// qemu-img]
    #[arg(short, long, value_name = "FMT", conflicts_with = "size")]
    format: Option<String>,
    /// Measure an empty disk of N bytes; suffixes k, M, G, T, P, E
    #[arg(short, long, value_name = "N", value_parser = parse_size, allow_hyphen_values = true)]
    size: Option<u64>,
    /// Measure the disk of a snapshot of the image, by its id or its name: ID, NAME, 'snapshot.id=ID' or
    /// 'snapshot.name=NAME'
    #[arg(
        short = 'l',
        long,
        value_name = "SNAPSHOT",
        conflicts_with = "size",
        allow_hyphen_values = true
    )]
    snapshot: Option<String>,
    /// The format of the new image
    #[arg(short = 'O', long, value_name = "FMT", default_value = "raw", value_parser = ["raw", "qcow2"])]
    target_format: String,
    /// Options of the new image, as for 'qemu-img create': cluster_size=64k,refcount_bits=16,...
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// The output format
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
}

/// The disk that a new image is measured for.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// An empty disk of this size in bytes.
    Empty(u64),
    /// The disk of an image.
    Image {
        /// The file of the image.
        path: &'a Path,
        /// The value of `-f`.
        format: Option<&'a str>,
        /// The value of `-l`.
        snapshot: Option<&'a str>,
    },
}

/// The sizes, in the order in which qemu-img prints them as JSON (`BlockMeasureInfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MeasureRecord {
    #[serde(skip_serializing_if = "Option::is_none")]
    bitmaps: Option<u64>,
    required: u64,
    fully_allocated: u64,
}

impl From<Measurement> for MeasureRecord {
    fn from(measured: Measurement) -> Self {
        Self {
            bitmaps: measured.bitmaps_bytes,
            required: measured.required_bytes,
            fully_allocated: measured.fully_allocated_bytes,
        }
    }
}

impl MeasureRecord {
    /// Writes the sizes as text.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "required size: {}", self.required)?;
        writeln!(out, "fully allocated size: {}", self.fully_allocated)?;
        match self.bitmaps {
            Some(bytes) => writeln!(out, "bitmaps size: {bytes}"),
            None => Ok(()),
        }
    }

    /// Writes the sizes as JSON, indented as qemu-img indents them.
    pub fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        json_of_qemu_img(self, out)
    }
}

/// Prints the sizes.
pub(crate) fn run(arguments: &Arguments) -> ExitResult {
    measure(arguments).map_err(CommandError::with_exit_code_of_qemu_img)
}

fn measure(arguments: &Arguments) -> ExitResult {
    let source = match &arguments.image {
        // One of the two is there.
        None => Source::Empty(arguments.size.unwrap_or(0)),
        Some(path) => {
            let (format, snapshot) = (arguments.format.as_deref(), arguments.snapshot.as_deref());
            Source::Image { path, format, snapshot }
        }
    };
    let record = record_of(source, &arguments.target_format, &arguments.options)?;
    print_with(|out| match arguments.output {
        Form::Human => record.print(out),
        Form::Json => record.print_json(out),
    })?;
    Ok(Exit::Nothing)
}

/// Measures a new image of `target_format` (raw or qcow2) for `source`. `options` are the values of `-o`.
pub fn record_of(
    source: Source,
    target_format: &str,
    options: &[String],
) -> Result<MeasureRecord, CommandError> {
    let options = PlannedOptions::parse(target_format, options);
    let PlannedOptions { image, size_bytes } = options.map_err(CommandError::Message)?;
    let at_command = |error: MeasureError| CommandError::Message(error.to_string());
    Ok(match source {
        Source::Empty(size_bytes) => image.measure_empty(size_bytes).map_err(at_command)?.into(),
        Source::Image { path, format, snapshot } => {
            // QEMU checks the size among the options, and then takes the size of the source.
            if let (PlannedImage::Qcow2(new), Some(size_bytes)) = (&image, size_bytes) {
                new.check_size(size_bytes).map_err(at_command)?;
            }
            of_image(&image, path, format, snapshot)?.into()
        }
    })
}

/// Measures a new image for the disk of the image at `path`.
fn of_image(
    new: &PlannedImage,
    path: &Path,
    format: Option<&str>,
    snapshot: Option<&str>,
) -> Result<Measurement, CommandError> {
    let chain = open_chain(path, format)?;
    let mut disk = open_disk(&chain, path)?;
    let failed = |error: MapError| at_layer(&chain, path, &error);
    let layers = chain.layers();
    let top = match (layers.first(), chain.format()) {
        (Some(Layer { image, .. }), ImageFormat::Qcow2) => Some(*image),
        _ => None,
    };
    if let Some(wanted) = snapshot {
        let Some(image) = top else {
            let what = format_args!("the format {} has no snapshots", chain.format().name());
            return Err(CommandError::at(path, what));
        };
        let index = find_snapshot(image, wanted).map_err(failed)?;
        let missing = || CommandError::at(path, format_args!("there is no snapshot '{wanted}'"));
        disk = disk.with_table_of_snapshot(index.ok_or_else(missing)?).map_err(failed)?;
    }
    let bitmaps = top.map(bitmaps_of).transpose().map_err(failed)?.flatten();
    let disk = disk.with_host_holes().as_qemu_reports();
    new.measure(&disk, bitmaps.as_deref()).map_err(|error| match error {
        MeasureError::Source(error) => failed(error),
        error => CommandError::at(path, error),
    })
}

/// Returns the bitmaps of a qcow2 image, or `None` if its version has none. QEMU refuses an image with malformed
/// bitmaps, so this reads them for each new image.
fn bitmaps_of(image: &FileStorage) -> Result<Option<Vec<ListedBitmap>>, MapError> {
    let head = Head::read(image)?;
    let bitmaps = bitmap_list(image, &head.header, head.bitmaps.as_ref())?;
    Ok((head.header.geometry.version == Version::V3).then_some(bitmaps))
}

/// Returns the index of the first snapshot that fits `wanted` (QEMU `block/snapshot.c`,
/// `bdrv_snapshot_load_tmp_by_id_or_name`). `wanted` is `snapshot.id=ID`, `snapshot.name=NAME`, or both, joined by a
/// comma: then both must fit. Any other text is an id or, if no snapshot has that id, a name.
fn find_snapshot<S: Storage + ?Sized>(image: &S, wanted: &str) -> Result<Option<u32>, MapError> {
    let head = Head::read(image)?;
    match wanted.starts_with("snapshot.") {
        true => match Keys::parse(wanted) {
            Some(keys) => first_that_fits(image, &head, &keys),
            None => Ok(None),
        },
        false => {
            let wanted = Some(wanted.as_bytes());
            let by_id = first_that_fits(image, &head, &Keys { id: wanted, name: None })?;
            match by_id {
                Some(index) => Ok(Some(index)),
                None => first_that_fits(image, &head, &Keys { id: None, name: wanted }),
            }
        }
    }
}

/// The id and the name that a snapshot must have. `None` stands for any.
struct Keys<'a> {
    id: Option<&'a [u8]>,
    name: Option<&'a [u8]>,
}

impl<'a> Keys<'a> {
    /// Parses options. Returns `None` if there is an unknown one.
    fn parse(text: &'a str) -> Option<Self> {
        let mut keys = Self { id: None, name: None };
        for option in text.split(',') {
            match option.split_once('=')? {
                ("snapshot.id", id) => keys.id = Some(id.as_bytes()),
                ("snapshot.name", name) => keys.name = Some(name.as_bytes()),
                _ => return None,
            }
        }
        Some(keys)
    }

    /// Reports whether a snapshot has this id and this name.
    fn fit(&self, id: &[u8], name: &[u8]) -> bool {
        self.id.is_none_or(|it| it == id) && self.name.is_none_or(|it| it == name)
    }
}

/// Returns the index of the first snapshot that fits.
fn first_that_fits<S: Storage + ?Sized>(
    image: &S,
    head: &Head,
    keys: &Keys<'_>,
) -> Result<Option<u32>, MapError> {
    let mut found = None;
    each_entry(image, &head.header, |index, at, entry| {
        if found.is_none() {
            let [id_at, name_at] = entry.strings_at(at);
            let id = text_at(image, id_at, entry.id_bytes.into())?;
            let name = text_at(image, name_at, entry.name_bytes.into())?;
            found = keys.fit(id.bytes(), name.bytes()).then_some(index);
        }
        Ok(())
    })?;
    Ok(found)
}
