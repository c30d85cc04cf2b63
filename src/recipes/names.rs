//! The names of the files of an iteration, and those by which images name each other.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::recipe::FOLDER;

/// Returns the file that the image `image` names as `name`: absolute, or relative to the folder of that image.
pub(crate) fn named_by(image: &str, name: &str) -> String {
    if let Some(absolute) = name.strip_prefix(FOLDER) {
        return absolute.trim_start_matches('/').to_string();
    }
    let mut parts: Vec<&str> = image.split('/').collect();
    parts.pop();
    for part in name.split('/') {
        match part {
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the name of `file` relative to the folder of the image `image`.
pub(crate) fn relative_to(image: &str, file: &str) -> String {
    let folder = image.rsplit_once('/').map_or("", |(folder, _)| folder);
    if folder.is_empty() {
        return file.to_string();
    }
    match file.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')) {
        Some(rest) => rest.to_string(),
        None => "../".repeat(folder.split('/').count()) + file,
    }
}

/// Returns the files in a folder and in the folders below it, in the order of their paths.
pub fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => files.extend(files_below(&entry.path())?),
            false => files.push(entry.path()),
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_from_each_folder_to_each_file() {
        for (image, file, name) in [
            ("b.qcow2", "a.raw", "a.raw"),
            ("b.qcow2", "lower/a.raw", "lower/a.raw"),
            ("lower/b.qcow2", "a.raw", "../a.raw"),
            ("lower/b.qcow2", "lower/a.raw", "a.raw"),
        ] {
            assert_eq!(relative_to(image, file), name, "{image}, {file}");
            assert_eq!(named_by(image, name), file, "{image}, {name}");
            assert_eq!(named_by(image, &format!("{FOLDER}/{file}")), file);
        }
    }

    #[test]
    fn files_are_found_in_folders_too() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "lower/b", "z"].map(|name| dir.path().join(name));
        fs::create_dir(dir.path().join("lower")).unwrap();
        paths.iter().rev().for_each(|path| fs::write(path, "").unwrap());
        assert_eq!(files_below(dir.path()).unwrap(), paths);
    }
}
