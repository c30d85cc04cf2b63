//! The first cluster: the structures that the build writes there, and those that it leaves out if there is no room.

use qcowfuzz::formats::qcow2::constants::{
    COMPATIBLE_LAZY_REFCOUNTS, EXTENSION_BACKING_FORMAT, EXTENSION_DATA_FILE, EXTENSION_END,
    EXTENSION_FEATURE_NAMES,
};
use qcowfuzz::internal::images::files::LayerFiles;
use qcowfuzz::internal::images::qcow2::{
    BackingPlan, BuildScratch, Builder, DataFilePlan, HeaderFlags, HeaderLength, HeaderStyle,
    ImagePlan, Names, NamesFormat,
};
use test_support::prelude::*;

fn builder(image: &str) -> Builder {
    let rest = "size=1<<20+0 rng_seed=0 blocks=append table=append tolerance=0";
    let plan = assemble(&format!("image {image} {rest}")).unwrap().prologue.plan();
    let mut builder = Builder::new();
    builder.begin(plan, Limits::WALKED);
    builder
}

/// The structures in the first cluster.
struct First {
    head: Head,
    bytes: Vec<u8>,
    /// The type and the length of each extension.
    extensions: Vec<(u32, u32)>,
}

impl First {
    fn of(builder: &Builder, names: &Names) -> Self {
        let mut files = LayerFiles::default();
        builder.build(names, &mut BuildScratch::default(), &mut files, &());
        let image = files.image;
        let head = Head::read(&image).unwrap();
        let mut bytes = vec![0; head.header.geometry.cluster_size.bytes_usize()];
        image.read_at(HostOffset::ZERO, &mut bytes).unwrap();
        let mut extensions = Vec::new();
        let mut at = head.header.header_length_bytes as usize;
        while at < head.header.extension_area_end() as usize {
            let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            if word(at) == EXTENSION_END {
                break;
            }
            extensions.push((word(at), word(at + 4)));
            at += 8 + word(at + 4).next_multiple_of(8) as usize;
        }
        Self { head, bytes, extensions }
    }

    fn length(&self) -> u64 {
        u64::from(self.head.header.header_length_bytes)
    }
}

/// The header of a program without a `header` operation never changes: old corpus files must give the same image.
#[test]
fn the_features_of_the_prologue_keep_their_bytes() {
    let features = "feature_names,unknown_extension,compression_field,lazy_refcounts";
    for (bits, features, header_bytes, extended) in [
        (9, "none", 104, false),
        (9, "compression_field", 112, false),
        (16, "zstd", 112, false),
        (9, features, 112, true),
        (21, features, 112, true),
    ] {
        let image = format!("version=3 cluster_bits={bits} refcount_order=4 features={features}");
        let first = First::of(&builder(&image), &Names::default());
        let mut expected = Vec::new();
        if extended {
            expected.extend([0x68, 0x03, 0xF8, 0x57, 0, 0, 0, 144]);
            for (field, bit, name) in
                [(0u8, 0u8, "dirty bit"), (0, 1, "corrupt bit"), (1, 0, "lazy refcounts")]
            {
                let mut row = [0; 48];
                (row[0], row[1]) = (field, bit);
                row[2..2 + name.len()].copy_from_slice(name.as_bytes());
                expected.extend(row);
            }
            expected.extend([0x71, 0x43, 0x66, 0x75, 0, 0, 0, 13]);
            expected.extend([0xA5; 13]);
            expected.extend([0; 3]);
        }
        expected.resize(first.bytes.len() - header_bytes, 0);
        assert_eq!(first.length(), header_bytes as u64);
        assert_eq!(first.bytes[header_bytes..], expected);
        let lazy = if extended { COMPATIBLE_LAZY_REFCOUNTS } else { 0 };
        let header = &first.head.header;
        assert_eq!((header.compatible, header.autoclear), (lazy, 0));
    }
}

#[test]
fn a_header_has_the_requested_length() {
    let mut builder = builder("version=3 cluster_bits=9 refcount_order=4 features=none");
    for steps in 0..=408u16 {
        for (length, asked) in [
            (HeaderLength::Above(steps), 104 + u64::from(steps)),
            (HeaderLength::Below(steps), 512 - u64::from(steps)),
            (HeaderLength::Above(steps + 409), 104 + u64::from(steps)),
        ] {
            builder.set_header(HeaderStyle { length, ..HeaderStyle::default() });
            let written = First::of(&builder, &Names::default()).length();
            // The end of the extensions does not fit into less than 8 bytes behind the header.
            assert_eq!(written, if (505..512).contains(&asked) { 504 } else { asked });
        }
    }
}

/// The name of the backing file grows until it does not fit. The build leaves out optional structures in a fixed order,
/// and keeps the required ones.
#[test]
fn structures_without_room_are_left_out_in_order() {
    // The end of the extensions does not fit into the last few bytes between extensions and name. So a name that is one
    // byte longer may need fewer structures to be left out.
    for (flags, order, step) in [(HeaderFlags::default(), 0, 1), (HeaderFlags::NAME_AT_END, 5, 8)] {
        let plan = *builder("version=3 cluster_bits=10 refcount_order=4 features=none").plan();
        let backing =
            Some(BackingPlan { format: ImageFormat::Raw, names_format: NamesFormat::Usually });
        let data_file = Some(DataFilePlan { raw: false });
        let mut builder = Builder::new();
        builder.begin(ImagePlan { backing, data_file, ..plan }, Limits::WALKED);
        let flags = flags.with(HeaderFlags::UNKNOWN_NAMES);
        let length = HeaderLength::Above(96);
        builder.set_header(HeaderStyle { length, order, unknown: 5, unknown_bytes: 1, flags });
        let mut steps = Vec::new();
        for bytes in (step..1024).step_by(step) {
            let name = vec![b'n'; bytes];
            let names = Names { backing: &name, ..Names::default() };
            if builder.check_names(&names).is_err() {
                break;
            }
            let first = First::of(&builder, &names);
            assert_eq!(first.head.backing_name.unwrap().length_bytes as usize, bytes);
            let mut kinds = [0, 0, first.length()];
            for (kind, length) in &first.extensions {
                match *kind {
                    EXTENSION_BACKING_FORMAT => assert_eq!(*length, 3),
                    EXTENSION_DATA_FILE => assert_eq!(*length, 4),
                    EXTENSION_FEATURE_NAMES => kinds[1] = u64::from(*length) / 48,
                    _ => kinds[0] += 1,
                }
            }
            assert!(first.head.backing_format.is_some() && first.head.data_file.is_some());
            if steps.last() != Some(&kinds) {
                steps.push(kinds);
            }
        }
        let before = [[5, 8, 200], [4, 8, 200], [3, 8, 200], [2, 8, 200], [1, 8, 200], [0, 8, 200]];
        assert_eq!(steps[..6], before);
        assert_eq!(steps[6..8], [[0, 3, 200], [0, 0, 200]]);
        assert!(steps[8..].iter().all(|step| step[..2] == [0, 0]));
        assert!(steps[8..].windows(2).all(|pair| pair[1][2] < pair[0][2]));
        assert_eq!(steps.last().unwrap()[2], 104);
    }
}

/// Any combination of `header` operands gives a first cluster that can be read and has the required structures.
#[test]
fn every_style_can_be_read() {
    let mut entropy = Entropy::new(8);
    for round in 0..4000 {
        let bits = 9 + entropy.below(6);
        let version = 2 + entropy.below(4).min(1);
        let features = ["none", "zstd", "feature_names,unknown_extension", "compression_field"];
        let features = features[entropy.below(4) as usize];
        let image =
            format!("version={version} cluster_bits={bits} refcount_order=4 features={features}");
        let plan = *builder(&image).plan();
        let names_format = [NamesFormat::Never, NamesFormat::Usually][entropy.below(2) as usize];
        let backing =
            entropy.one_in(2).then_some(BackingPlan { names_format, ..BackingPlan::default() });
        let raw = entropy.one_in(2);
        let data_file = (version == 3 && entropy.one_in(3)).then_some(DataFilePlan { raw });
        let mut builder = Builder::new();
        builder.begin(ImagePlan { backing, data_file, ..plan }, Limits::WALKED);
        let line = lines::header(&mut entropy);
        let Operation::Header { length, order, unknown, bytes, flags } =
            lines::operations(&line)[0]
        else {
            panic!("no header: {line}")
        };
        let (unknown, unknown_bytes) = (unknown.get(), bytes);
        builder.set_header(HeaderStyle { length, order, unknown, unknown_bytes, flags });
        let first = First::of(&builder, &Names::default());
        let head = &first.head;
        let has_format = backing.is_some_and(|backing| backing.names_format != NamesFormat::Never)
            && !flags.has(HeaderFlags::NO_FORMAT);
        assert_eq!(head.backing_name.is_some(), backing.is_some(), "{round}: {line}");
        assert_eq!(head.backing_format.is_some(), has_format, "{round}: {line}");
        assert_eq!(head.data_file.is_some(), data_file.is_some(), "{round}: {line}");
    }
}
