//! The layout of the files that a program builds.

use std::ops::Range;
use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::base::file_parts::FilePart;
use crate::base::limits::MAX_EXPLAINED_RUNS;
use crate::disk::clusters::ClusterSize;
use crate::disk::image_format::ImageFormat;
use crate::disk::storage::Storage;
use crate::findings::explain::provenance::Provenance;
use crate::formats::anatomy::{Anatomy, EVERYTHING, Element, Part, Structure};
use crate::formats::qcow2::entry::L1Entry;
use crate::formats::qcow2::head::Head;
use crate::formats::{ExtentLine, ImageLayout, Tables as GrainTables};
use crate::harness::oracles::qcow2::recount::{Occupied, Recount, Role};
use crate::images::files::image::Image;
use crate::images::files::{Images, LayerFile, LayerFiles};
use crate::programs::Vm;

use super::entries::{self, ExplainedEntry, ImageFacts};

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A qcow2 image.
    Image,
    /// An image in another format, which counts no clusters.
    OtherImage,
    /// A raw file at the bottom of a chain.
    Raw,
    /// The external data file of an image.
    DataFile,
    /// A file beside an image: its number, counted from 0.
    Extent(usize),
}

impl FileKind {
    /// Returns what people call the file. Extents count from 1.
    pub fn name(self) -> String {
        match self {
            Self::Image | Self::OtherImage => "image".to_string(),
            Self::Raw => "raw file".to_string(),
            Self::DataFile => "data file".to_string(),
            Self::Extent(index) => format!("extent {}", index + 1),
        }
    }

    /// Returns the file of the layer, if an anatomy takes it apart.
    pub(super) fn layer_file(self) -> Option<LayerFile> {
        match self {
            Self::Image | Self::OtherImage => Some(LayerFile::Image),
            Self::Extent(index) => Some(LayerFile::Extent(index)),
            Self::Raw | Self::DataFile => None,
        }
    }
}

impl Serialize for FileKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Image => "image",
            Self::OtherImage => "other_image",
            Self::Raw => "raw",
            Self::DataFile => "data_file",
            Self::Extent(_) => "extent",
        })
    }
}

/// A file of a chain.
#[derive(Clone, Debug, Serialize)]
pub struct FileView {
    /// The kind of the file.
    pub kind: FileKind,
    /// The depth of its layer; 0 is the top.
    pub depth: usize,
    /// The length that the build wrote, in bytes.
    pub length_bytes: u64,
    /// The length to which a hostile program truncated it, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_to_bytes: Option<u64>,
    /// The facts that give the fields and entries their meaning.
    #[serde(skip)]
    pub facts: ImageFacts,
    /// The cluster size in bytes. For a raw file, the cluster size of the operations that wrote it.
    pub cluster_bytes: u64,
    /// The runs of the file, in order, without gaps.
    pub runs: Vec<FileRun>,
    /// The fields and entries of an image, part by part.
    pub entries: Vec<ExplainedEntry>,
    /// The reason why the file could not be decoded in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Neighbouring bytes of a file with the same role and the same counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRun {
    /// The host range. The last run may end past the end of the file.
    pub bytes: Range<u64>,
    /// The role of the bytes. `None` if nothing references them: a hole, or a leak if their refcount is not 0.
    pub role: Option<Role>,
    /// The number of references to each cluster.
    pub references: u64,
    /// The refcount of each cluster in the image.
    pub on_disk: u64,
    /// The operations that wrote the bytes, or that wrote the data that the bytes map, in order.
    pub operations: Vec<usize>,
}

impl FileView {
    /// Returns the view of a file, without its runs and entries.
    fn empty(kind: FileKind, file: &Image, depth: usize, cluster_bytes: u64) -> Self {
        Self {
            kind,
            depth,
            length_bytes: file.length_bytes(),
            cut_to_bytes: None,
            facts: ImageFacts { format: ImageFormat::Raw, geometry: None, grain_tables: None },
            cluster_bytes,
            runs: Vec::new(),
            entries: Vec::new(),
            fault: None,
        }
    }

    /// Returns the depth of the file below the image at the top, in words after its name.
    pub fn layer(&self) -> String {
        match self.depth {
            0 => String::new(),
            1 => ", 1 layer down".to_string(),
            more => format!(", {more} layers down"),
        }
    }

    /// Returns the number of clusters that a run reaches into.
    pub fn clusters(&self, run: &FileRun) -> u64 {
        run.length_bytes().div_ceil(self.cluster_bytes.max(1))
    }
}

impl FileRun {
    /// Returns the number of bytes.
    pub fn length_bytes(&self) -> u64 {
        self.bytes.end.saturating_sub(self.bytes.start)
    }

    /// Returns the name of the role: `hole` or `leak` if nothing references the bytes.
    pub fn role_name(&self) -> &'static str {
        match self.role {
            Some(role) => role.name(),
            None if self.on_disk > 0 => "leak",
            None => "hole",
        }
    }
}

impl Serialize for FileRun {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut run = serializer.serialize_struct("FileRun", 6)?;
        run.serialize_field("offset", &self.bytes.start)?;
        run.serialize_field("length", &self.length_bytes())?;
        run.serialize_field("role", self.role_name())?;
        run.serialize_field("references", &self.references)?;
        run.serialize_field("refcount", &self.on_disk)?;
        run.serialize_field("operations", &self.operations)?;
        run.end()
    }
}

/// Returns the files of all layers, from the top down. `provenance` has the same order.
pub(super) fn view(images: &Images, vm: &Vm, provenance: &[Provenance]) -> Vec<FileView> {
    let (mut files, mut anatomy) = (Vec::new(), Anatomy::default());
    let nothing = Provenance::default();
    let layers = images.layers().zip(vm.journals()).zip(provenance);
    for (depth, ((layer, journal), provenance)) in layers.enumerate() {
        if layer.format == ImageFormat::Raw {
            let cluster_bytes = journal.cluster_size.bytes();
            let provenance = provenance.in_place(layer.image.length_bytes());
            files.push(plain(FileKind::Raw, &layer.image, depth, cluster_bytes, &provenance));
            continue;
        }
        if layer.format != ImageFormat::Qcow2 {
            let place = (depth, journal.cluster_size.bytes());
            let image = (layer.format, &layer.image);
            if layer.extents.all().is_empty() {
                files.push(other_image(image, &mut anatomy, place, provenance));
            } else {
                files.push(other_image(image, &mut anatomy, place, &nothing));
                let parts = journal.parts.all();
                files.extend(extents(layer, parts, &mut anatomy, place, provenance));
            }
            continue;
        }
        let view = image(&layer.image, &mut anatomy, depth, provenance);
        let cluster_bytes = view.cluster_bytes;
        files.push(view);
        if layer.has_data_file {
            let file = &layer.data_file;
            files.push(plain(FileKind::DataFile, file, depth, cluster_bytes, provenance));
        }
    }
    files
}

/// Returns the layout of an image.
pub(super) fn image(
    image: &Image,
    anatomy: &mut Anatomy,
    depth: usize,
    provenance: &Provenance,
) -> FileView {
    let mut recount = Recount::bounded(MAX_EXPLAINED_RUNS);
    let faults = [anatomy.read(ImageFormat::Qcow2, image).err(), recount.recount(image).err()];
    let fault = faults.into_iter().flatten().next().map(|error| error.to_string());
    let cluster_size = anatomy.cluster_size().unwrap_or(ClusterSize::SMALLEST);
    let geometry = Head::read(image).ok().map(|head| head.header.geometry);
    let facts = ImageFacts { format: ImageFormat::Qcow2, geometry, grain_tables: None };
    let entries = entries::of(image, anatomy, &facts, |guest| provenance.last_touching(guest));
    let empty = FileView::empty(FileKind::Image, image, depth, cluster_size.bytes());
    let mut view = FileView { facts, entries, fault, ..empty };
    let spans = table_spans(image, anatomy);
    for occupied in recount.occupied() {
        pieces(&occupied, cluster_size.bytes(), provenance, |first, end| {
            let bytes = cluster_size.saturating_bytes(first)..cluster_size.saturating_bytes(end);
            let operations = match occupied.role {
                Some(Role::Data | Role::Compressed) => provenance.lying_in(&bytes),
                Some(Role::L2Table) => match spans.iter().find(|(at, _)| *at == bytes.start) {
                    Some((_, span)) => provenance.touching(span),
                    None => Vec::new(),
                },
                _ => Vec::new(),
            };
            let Occupied { role, references, on_disk, .. } = occupied;
            add(&mut view.runs, FileRun { bytes, role, references, on_disk, operations });
        });
    }
    end(&mut view);
    view
}

/// Returns the layout of an image whose format is not qcow2: its structures, and the data of its blocks.
fn other_image(
    (format, image): (ImageFormat, &Image),
    anatomy: &mut Anatomy,
    place: (usize, u64),
    provenance: &Provenance,
) -> FileView {
    let fault = anatomy.read(format, image).err().map(|error| error.to_string());
    let flat = provenance.in_place(image.length_bytes());
    let is_flat = anatomy.of(Part::Table).is_empty();
    let own = if is_flat { &flat } else { provenance };
    let view = tabled((FileKind::OtherImage, format), image, anatomy, place, own);
    FileView { fault, ..view }
}

/// Returns the layout of a file that `anatomy` has taken apart: its structures, and the data of its blocks.
fn tabled(
    (kind, format): (FileKind, ImageFormat),
    image: &Image,
    anatomy: &Anatomy,
    (depth, cluster_bytes): (usize, u64),
    provenance: &Provenance,
) -> FileView {
    let mut view = plain(kind, image, depth, cluster_bytes, provenance);
    // The runs of data show the blocks.
    let is_shown = |structure: &&Structure| structure.part != Part::Payload;
    let mut structures: Vec<_> = anatomy.structures().iter().filter(is_shown).cloned().collect();
    structures.sort_by_key(|structure| structure.bytes.start);
    view.runs = with_structures(std::mem::take(&mut view.runs), &structures);
    if anatomy.grain_tables().is_some_and(GrainTables::is_compressed) {
        let data = view.runs.iter_mut().filter(|run| run.role == Some(Role::Data));
        data.for_each(|run| run.role = Some(Role::Compressed));
    }
    let operation = |guest: &Range<u64>| provenance.last_touching(guest);
    let facts = ImageFacts::of_other(format, anatomy);
    view.entries = entries::of(image, anatomy, &facts, operation);
    FileView { facts, ..view }
}

/// Returns the layouts of the files beside an image. `parts` are the parts of the disk that they hold.
fn extents(
    layer: &LayerFiles,
    parts: &[FilePart],
    anatomy: &mut Anatomy,
    place: (usize, u64),
    provenance: &Provenance,
) -> Vec<FileView> {
    // The image that a program builds is valid.
    let Ok(layout) = ImageLayout::read(&layer.image) else { return Vec::new() };
    let files = layout.extents().iter().zip(layer.extents.all()).zip(parts);
    let view = |((line, file), part): ((&ExtentLine, &Arc<Image>), &FilePart)| {
        let fault = anatomy.read_extent(line.kind, file.as_ref()).err();
        let (kind, own) = (FileKind::Extent(part.file), provenance.of_part(part));
        let format = if part.flat_at.is_some() { ImageFormat::Raw } else { layer.format };
        let mut view = tabled((kind, format), file, anatomy, place, &own);
        for entry in &mut view.entries {
            if entry.guest != EVERYTHING {
                let (start, end) = (entry.guest.start, entry.guest.end);
                entry.guest = start.saturating_add(part.start)..end.saturating_add(part.start);
                entry.operation = provenance.last_touching(&entry.guest);
            }
        }
        FileView { fault: fault.map(|error| error.to_string()), ..view }
    };
    files.map(view).collect()
}

/// Returns the runs, with structures in their places. `structures` are sorted.
fn with_structures(runs: Vec<FileRun>, structures: &[Structure]) -> Vec<FileRun> {
    let mut edges: Vec<u64> =
        structures.iter().flat_map(|it| [it.bytes.start, it.bytes.end]).collect();
    edges.sort_unstable();
    let mut cut = Vec::new();
    for run in runs {
        let first = edges.partition_point(|edge| *edge <= run.bytes.start);
        let inside = edges[first..].iter().copied().take_while(|edge| *edge < run.bytes.end);
        let mut start = run.bytes.start;
        for end in inside.chain([run.bytes.end]).filter(|end| *end > run.bytes.start) {
            let at = structures.partition_point(|it| it.bytes.start <= start);
            let there = structures[..at].last().filter(|it| it.bytes.end > start);
            let piece = FileRun { bytes: start..end, ..run.clone() };
            add(
                &mut cut,
                match there {
                    Some(structure) if piece.role.is_none() => {
                        FileRun { role: Some(role_of(structure.part)), references: 1, ..piece }
                    }
                    _ => piece,
                },
            );
            start = end;
        }
    }
    cut
}

/// Returns the role of a structure whose format is not qcow2.
fn role_of(part: Part) -> Role {
    match part {
        Part::Table => Role::BlockTable,
        Part::BlockFront => Role::BlockFront,
        Part::Directory => Role::Directory,
        Part::Metadata => Role::Metadata,
        _ => Role::Header,
    }
}

/// Returns the layout of a file without structures.
fn plain(
    kind: FileKind,
    file: &Image,
    depth: usize,
    cluster_bytes: u64,
    provenance: &Provenance,
) -> FileView {
    let mut view = FileView::empty(kind, file, depth, cluster_bytes);
    let mut edges: Vec<u64> = provenance.hosts().flat_map(|host| [host.start, host.end]).collect();
    edges.extend([0, view.length_bytes]);
    edges.sort_unstable();
    edges.dedup();
    for edge in edges.windows(2) {
        let bytes = edge[0]..edge[1];
        let operations = provenance.lying_in(&bytes);
        let there = kind == FileKind::Raw || !operations.is_empty();
        let (role, on_disk) = (there.then_some(Role::Data), 0);
        let references = u64::from(there);
        add(&mut view.runs, FileRun { bytes, role, references, on_disk, operations });
    }
    end(&mut view);
    view
}

/// Calls `take` with pieces of a run of clusters. Each piece has one writer, and each table is a piece by itself.
fn pieces(
    occupied: &Occupied,
    cluster: u64,
    provenance: &Provenance,
    mut take: impl FnMut(u64, u64),
) {
    let Occupied { first, end, role, .. } = *occupied;
    let mut cuts = vec![first, end];
    match role {
        Some(Role::L2Table) => cuts.extend(first..end),
        Some(Role::Data | Role::Compressed) => {
            let edges = provenance
                .hosts()
                .flat_map(|host| [host.start / cluster, host.end.div_ceil(cluster)]);
            cuts.extend(edges.filter(|edge| (first..end).contains(edge)));
        }
        _ => {}
    }
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).for_each(|cut| take(cut[0], cut[1]));
}

/// Returns the host offset of each active L2 table, and the guest range that it maps.
fn table_spans(image: &Image, anatomy: &Anatomy) -> Vec<(u64, Range<u64>)> {
    let span = |element: &Element| {
        let table = L1Entry(image.number(element.at, element.width_bytes)).table()?;
        Some((table.get(), element.guest.clone()))
    };
    anatomy.of(Part::L1).iter().filter_map(span).collect()
}

/// Appends a run. If it does not begin at the end of the last run, a hole comes between them. If it continues the last
/// run with the same properties, the last run becomes longer instead.
fn add(runs: &mut Vec<FileRun>, run: FileRun) {
    let before = runs.last().map_or(0, |last| last.bytes.end);
    if before < run.bytes.start {
        runs.push(hole(before..run.bytes.start));
    }
    if let Some(last) = runs.last_mut()
        && last.bytes.end == run.bytes.start
        && (FileRun { bytes: last.bytes.clone(), ..run.clone() }) == *last
    {
        last.bytes.end = run.bytes.end;
        return;
    }
    runs.push(run);
}

/// Appends a hole if the file continues behind the last run.
fn end(view: &mut FileView) {
    let last = view.runs.last().map_or(0, |last| last.bytes.end);
    if last < view.length_bytes {
        view.runs.push(hole(last..view.length_bytes));
    }
}

fn hole(bytes: Range<u64>) -> FileRun {
    FileRun { bytes, role: None, references: 0, on_disk: 0, operations: Vec::new() }
}

/// Records the damaged values of entries and the lengths of truncated files.
pub(super) fn note_damage(files: &mut [FileView], images: &Images) {
    for view in files {
        let Some(file) = view.kind.layer_file() else { continue };
        let Some(layer) = images.layers().nth(view.depth) else { continue };
        let image = layer.file(file);
        let length_bytes = image.length_bytes();
        view.cut_to_bytes = (length_bytes != view.length_bytes).then_some(length_bytes);
        let facts = &view.facts;
        view.entries.iter_mut().for_each(|entry| entry.note_damage(image, facts));
    }
}
