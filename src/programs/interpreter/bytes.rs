//! Operations that pass the bytes of a program to later ones.

use crate::programs::operand::{BytesKind, Length};
use crate::programs::operation::OPERATION_BYTES;

use super::{Effect, Vm, effect};

impl Vm {
    /// Begins the bytes of an operation.
    pub(super) fn begin_bytes(&mut self, kind: BytesKind, length: Length) -> Effect {
        self.given.begin(kind, length);
        Effect::Changed
    }

    /// Adds a record to the bytes of an operation.
    pub(super) fn add_data(&mut self, data: [u8; OPERATION_BYTES]) -> Effect {
        effect(self.given.add(data))
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::offsets::HostOffset;
    use crate::disk::storage::Storage;
    use crate::images::damage::Damage;
    use crate::images::files::{FileNames, Images, StringOwner};
    use crate::images::limits::Limits;
    use crate::programs::journal::JournalRecord;
    use crate::programs::text::assemble;
    use crate::programs::{Program, Vm};

    fn program(lines: &str) -> Program {
        let image = "image version=3 cluster_bits=12 refcount_order=4 features=none size=64<<12+0 \
                     rng_seed=0 blocks=append table=append tolerance=0\n";
        assemble(&format!("{image}{lines}")).unwrap()
    }

    fn built(program: &Program, limits: Limits) -> (Vm, Images) {
        let (mut vm, mut images) = (Vm::new(), Images::default());
        vm.begin(&program.prologue, limits);
        for operation in &program.operations {
            vm.step(*operation);
        }
        vm.build(&FileNames::default(), &mut images, &());
        (vm, images)
    }

    /// Returns the strings that a program gives, with U+FFFD for bytes that are no UTF-8.
    fn strings(lines: &str, limits: Limits) -> Vec<(StringOwner, String)> {
        let (_, images) = built(&program(lines), limits);
        let strings = images.top().declarations.strings.iter();
        strings.map(|(owner, bytes)| (owner, String::from_utf8_lossy(bytes).into())).collect()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn names_of_bitmaps_become_valid_and_hostile_ones_stay() {
        let name = |bytes: &[u8]| {
            let bitmap = "bitmap granularity=16 flags=none name=3";
            format!("bytes kind=name data={}\n{bitmap}\n", hex(bytes))
        };
        let names: [&[u8]; 6] = [b"a", b"a", b"b7", b"", b"x\0\xff", "é".as_bytes()];
        let lines: String = names.iter().map(|bytes| name(bytes)).collect();
        let owned = |names: [&str; 6]| {
            let owner = (0..).map(StringOwner::BitmapName);
            owner.zip(names.map(str::to_string)).collect::<Vec<_>>()
        };
        let valid = owned(["a", "a~2", "b7~3", "~4", "x0\u{fffd}", "é"]);
        assert_eq!(strings(&lines, Limits::WALKED), valid);
        let unchanged = owned(["a", "a", "b7", "", "x\0\u{fffd}", "é"]);
        assert_eq!(strings(&lines, Limits::HOSTILE), unchanged);
        // A name is cut to what the format allows, and no character is cut.
        let long = name("é".repeat(600).as_bytes()).repeat(2);
        let [(_, one), (_, other)] = &strings(&long, Limits::WALKED)[..] else { panic!() };
        assert_eq!(*one, "é".repeat(511));
        assert_eq!(*other, format!("{}~2", "é".repeat(510)));
        // The third bitmap finds no unique string, so its name is made of its number.
        let taken = [name(b"a"), name(b"a~3"), name(b"a")].concat();
        assert_eq!(strings(&taken, Limits::WALKED).len(), 2);
    }

    #[test]
    fn snapshots_and_extensions_take_the_last_bytes_of_their_kind() {
        let lines = "bytes kind=id data=31\nbytes kind=id data=6964\nbytes kind=name data=6e\n\
                     bytes kind=extension data=000102\nsnapshot\nsnapshot\n\
                     header length=shortest order=0 unknown=0 bytes=0 flags=none\n\
                     header length=shortest order=0 unknown=2 bytes=9 flags=none\n";
        let expected = [
            (StringOwner::SnapshotId(0), "id".to_string()),
            (StringOwner::SnapshotName(0), "n".to_string()),
            (StringOwner::Extension(1), "\0\x01\x02".to_string()),
        ];
        assert_eq!(strings(lines, Limits::WALKED), expected);
        assert_eq!(strings(lines, Limits::HOSTILE), expected);
    }

    #[test]
    fn hostile_payloads_are_used_once_and_unchanged() {
        let bytes: Vec<u8> = (0..200).collect();
        let compress = "compress at=start+1 clusters=2 shape=text skew=packed\n";
        let lines = format!("bytes kind=payload data={}\n{compress}", hex(&bytes));
        let (vm, images) = built(&program(&lines), Limits::HOSTILE);
        let [JournalRecord::Compressed { host, length_bytes: 200, .. }, next] =
            vm.journal().records[..]
        else {
            panic!("{:?}", vm.journal().records)
        };
        assert!(matches!(next, JournalRecord::Compressed { length_bytes: ..100, .. }));
        let mut found = [0; 200];
        images.top().image.read_at(host, &mut found).unwrap();
        assert_eq!(found[..], bytes);
    }

    #[test]
    fn attacks_reach_each_byte_of_a_payload_and_no_other() {
        let compress = "compress at=start+1 clusters=1 shape=half skew=fresh+300\n";
        let payload = |vm: &Vm| match vm.journal().records[..] {
            [JournalRecord::Compressed { host, length_bytes, .. }] => (host.get(), length_bytes),
            _ => panic!("{:?}", vm.journal().records),
        };
        let content = |images: &Images| {
            let image = &images.top().image;
            let mut bytes = vec![0; image.length_bytes() as usize];
            image.read_at(HostOffset::ZERO, &mut bytes).unwrap();
            bytes
        };
        let (vm, images) = built(&program(compress), Limits::HOSTILE);
        let ((start, length), sound) = (payload(&vm), content(&images));
        assert!(length > 512);
        for inside in (0..u64::from(length)).step_by(7).chain([0, 1 << 24]) {
            let bytes = hex(&inside.to_le_bytes()[..4]);
            let patch = "patch part=payload depth=0 nth=0 transform=flip value=6";
            let lines = format!("{compress}bytes kind=inside data={bytes}\n{patch}\n{patch}\n");
            let (vm, mut images) = built(&program(&lines), Limits::HOSTILE);
            Damage::default().apply(&mut images, vm.attacks());
            let damaged = content(&images);
            let all = sound.iter().zip(&damaged).enumerate();
            let changed: Vec<_> = all.filter(|(_, (one, other))| one != other).collect();
            // The second attack has no bytes, so that it changes the first byte.
            let found: Vec<u64> = changed.iter().map(|(at, _)| *at as u64).collect();
            match inside {
                0 => assert!(found.is_empty(), "{found:?}"),
                1..0x100_0000 => assert_eq!(found, [start, start + inside]),
                // Modulo the bytes up to the end of the last sector.
                _ => assert!(found.len() == 2 && found[0] == start),
            }
        }
    }
}
