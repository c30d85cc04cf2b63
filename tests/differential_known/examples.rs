//! The recipes that show the known divergences.

use qcowfuzz::internal::recipes::recipe::{
    AskedDisk, Command, DiskOperation, DiskQuestion, Recipe, RecipeStep,
};

/// Returns a recipe of one step.
fn recipe(
    operation: DiskOperation,
    file: &str,
    commands: Vec<Command>,
    questions: Vec<DiskQuestion>,
) -> Recipe {
    let disk = AskedDisk { file: file.to_string(), format: format_of(file) };
    Recipe { steps: vec![RecipeStep { operation, commands, disk, questions }] }
}

fn qemu_img(line: &str) -> Command {
    Command::QemuImg(line.split(' ').map(str::to_string).collect())
}

fn format_of(file: &str) -> Option<String> {
    file.rsplit_once('.').map(|(_, format)| format.to_string())
}

fn qemu_io(requests: &[&str], file: &str) -> Command {
    Command::QemuIo {
        options: ["-f".to_string()].into_iter().chain(format_of(file)).collect(),
        requests: requests.iter().map(|request| (*request).to_string()).collect(),
        file: file.to_string(),
    }
}

/// A commit to an image with the autoclear bit of bitmaps and without bitmaps.
pub fn commit_crash() -> Recipe {
    let commands = vec![
        qemu_img("create -q -f qcow2 lower.qcow2 64k"),
        // The lowest byte of the autoclear features.
        Command::Damage { file: "lower.qcow2".to_string(), at: 95, bytes: "01".to_string() },
        qemu_img("create -q -f qcow2 -b lower.qcow2 -F qcow2 top.qcow2"),
        qemu_io(&["write -q 0 64k"], "top.qcow2"),
        qemu_img("commit -q -f qcow2 top.qcow2"),
    ];
    recipe(DiskOperation::Commit, "top.qcow2", commands, Vec::new())
}

/// A commit of an image with a damaged L2 entry, over two images.
pub fn commit_abort() -> Recipe {
    let commands = vec![
        qemu_img("create -q -f qcow2 lower.qcow2 64k"),
        qemu_img("create -q -f qcow2 -b lower.qcow2 -F qcow2 middle.qcow2"),
        qemu_img("create -q -f qcow2 -b middle.qcow2 -F qcow2 top.qcow2"),
        qemu_io(&["write -q 0 64k"], "top.qcow2"),
        // The first L2 entry.
        Command::Damage { file: "top.qcow2".to_string(), at: 0x40000, bytes: "03".repeat(8) },
        qemu_img("commit -q -f qcow2 top.qcow2"),
    ];
    recipe(DiskOperation::Commit, "top.qcow2", commands, Vec::new())
}

/// An encrypted image.
pub fn info_encrypted() -> Recipe {
    let options = "encrypt.format=aes,encrypt.key-secret=key";
    let commands = vec![qemu_img(&format!(
        "create -q --object secret,id=key,data=qcowfuzz -f qcow2 -o {options} disk.qcow2 64k"
    ))];
    let questions = vec![DiskQuestion::Info];
    recipe(DiskOperation::Create, "disk.qcow2", commands, questions)
}

/// Preallocated clusters in place of an L1 table.
pub fn preallocated_old_data() -> Recipe {
    let commands = vec![
        qemu_img("create -q -f qcow2 -o cluster_size=512 disk.qcow2 4226048"),
        qemu_io(&["write -q -P 7 0 4226048"], "disk.qcow2"),
        qemu_img("resize -q --preallocation=metadata -f qcow2 disk.qcow2 8388608"),
    ];
    recipe(DiskOperation::Resize, "disk.qcow2", commands, vec![DiskQuestion::Read])
}

/// Preallocated clusters in place of a bitmap directory at the end of the file.
pub fn preallocated_end_of_file() -> Recipe {
    let commands = vec![
        qemu_img("create -q -f qcow2 disk.qcow2 65536"),
        qemu_img("bitmap --add -f qcow2 disk.qcow2 one"),
        // A writer that opens the image puts the directory elsewhere.
        qemu_io(&["quit"], "disk.qcow2"),
        qemu_img("bitmap --clear -f qcow2 disk.qcow2 one"),
        qemu_img("resize -q --preallocation=falloc -f qcow2 disk.qcow2 131072"),
    ];
    recipe(DiskOperation::Resize, "disk.qcow2", commands, vec![DiskQuestion::Read])
}

/// An empty disk of a format that has one extent for each 2 GiB.
pub fn vmdk_no_extents() -> Recipe {
    let commands = vec![qemu_img("create -q -f vmdk -o subformat=twoGbMaxExtentFlat disk.vmdk 0")];
    let questions = vec![DiskQuestion::Info];
    recipe(DiskOperation::Create, "disk.vmdk", commands, questions)
}

/// A commit to an image whose two grain directories have no grain table.
pub fn vmdk_no_table() -> Recipe {
    let without = |at| {
        let (file, bytes) = ("lower.vmdk".to_string(), "00000000".to_string());
        Command::Damage { file, at, bytes }
    };
    let commands = vec![
        qemu_img("create -q -f vmdk lower.vmdk 64k"),
        // The first entry of the redundant directory, and that of the other one.
        without(21 * 512),
        without(26 * 512),
        qemu_img("create -q -f vmdk -b lower.vmdk -F vmdk top.vmdk"),
        qemu_io(&["write -q 0 64k"], "top.vmdk"),
        qemu_img("commit -q -f vmdk top.vmdk"),
    ];
    let questions = vec![DiskQuestion::Check];
    recipe(DiskOperation::Commit, "top.vmdk", commands, questions)
}

/// A bitmap whose bits represent too many bytes each.
pub fn map_without_bitmaps() -> Recipe {
    let commands = vec![
        qemu_img("create -q -f qcow2 disk.qcow2 64k"),
        qemu_img("bitmap --add -f qcow2 disk.qcow2 bitmap"),
        // log2 of the bytes per bit, in the directory.
        Command::Damage { file: "disk.qcow2".to_string(), at: 0x50011, bytes: "3f".to_string() },
    ];
    recipe(DiskOperation::Bitmap, "disk.qcow2", commands, vec![DiskQuestion::MAP])
}

/// A damaged L2 entry behind data, in the same cluster of a new image of 64 KiB.
pub fn measure_behind_data() -> Recipe {
    let commands = vec![
        qemu_img("create -q -f qcow2 -o cluster_size=4k disk.qcow2 64k"),
        qemu_io(&["write -q 0 12k"], "disk.qcow2"),
        // The second L2 entry.
        Command::Damage { file: "disk.qcow2".to_string(), at: 0x4008, bytes: "03".repeat(8) },
    ];
    recipe(DiskOperation::Damage, "disk.qcow2", commands, vec![DiskQuestion::Measure])
}

/// A disk of 64 KiB in a compressed cluster of 2 MiB. The payload is malformed behind the first 64 KiB.
pub fn part_of_a_cluster() -> Recipe {
    let bytes = "0303030303030303".to_string();
    let commands = vec![
        qemu_img("create -q -f qcow2 -o cluster_size=2M disk.qcow2 64k"),
        qemu_io(&["write -q -c -P 7 0 64k"], "disk.qcow2"),
        // The payload begins with the sixth cluster and has 2051 bytes.
        Command::Damage { file: "disk.qcow2".to_string(), at: (10 << 20) + 1000, bytes },
    ];
    recipe(DiskOperation::Damage, "disk.qcow2", commands, vec![DiskQuestion::Read])
}

/// Compressed writes around a discard.
pub fn compressed_overwrite() -> Recipe {
    let requests = [
        "write -q -c -P 7 0 64k",
        "discard -q 0 64k",
        "write -q -P 1 64k 64k",
        "write -q -c -P 9 128k 64k",
    ];
    let commands = vec![
        qemu_img("create -q -f qcow2 disk.qcow2 1M"),
        qemu_io(&requests, "disk.qcow2"),
        // The guest wrote 1, and reads something else.
        qemu_io(&["read -q -P 1 64k 64k"], "disk.qcow2"),
        qemu_img("snapshot -q -c now disk.qcow2"),
    ];
    let questions = vec![DiskQuestion::Check];
    recipe(DiskOperation::Snapshot, "disk.qcow2", commands, questions)
}

/// An image that names a data file which does not exist.
pub fn check_alone() -> Recipe {
    let commands = vec![
        qemu_img("create -q -f qcow2 -o data_file=disk.data disk.qcow2 64k"),
        // The first letter of the name.
        Command::Damage { file: "disk.qcow2".to_string(), at: 120, bytes: "44".to_string() },
    ];
    let questions = vec![DiskQuestion::Check];
    recipe(DiskOperation::Create, "disk.qcow2", commands, questions)
}

/// A damaged L2 entry of a version 2 image.
pub fn version_2_zero_flag() -> Recipe {
    let commands = vec![
        qemu_img("create -q -f qcow2 -o compat=0.10 disk.qcow2 64k"),
        qemu_io(&["write -q 0 64k"], "disk.qcow2"),
        // The lowest byte of the first L2 entry.
        Command::Damage { file: "disk.qcow2".to_string(), at: 0x40007, bytes: "01".to_string() },
    ];
    let questions = vec![DiskQuestion::Check];
    recipe(DiskOperation::Create, "disk.qcow2", commands, questions)
}
