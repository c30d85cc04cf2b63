//! The modules of a crate and their imports.

use std::collections::{BTreeMap, BTreeSet};

use super::Source;

/// The highest number of re-exports between a path and the declaration of the item.
const MAX_HOPS: usize = 8;

/// The files of a crate, by their modules.
pub struct Modules {
    files: Vec<Source>,
    names: BTreeSet<String>,
    /// The names that each module re-exports with `pub use`, and the paths for which they stand.
    passed_on: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

impl Modules {
    pub fn new(files: Vec<Source>) -> Self {
        let names = files.iter().map(|source| source.module().join("::")).collect();
        let mut modules = Self { files, names, passed_on: BTreeMap::new() };
        for source in &modules.files {
            let paths = modules.absolute(source, source.passed_on());
            let named = paths.into_iter().filter_map(|path| Some((path.last()?.clone(), path)));
            modules.passed_on.insert(source.module().join("::"), named.collect());
        }
        modules
    }

    /// Returns the files, in the order of [`Modules::names`].
    pub fn files(&self) -> &[Source] {
        &self.files
    }

    /// Returns the path of each module, as `walkers::qcow2`. The path of the root is empty.
    pub fn names(&self) -> Vec<String> {
        self.files.iter().map(|source| source.module().join("::")).collect()
    }

    /// Returns the modules that each file imports from. A name that a module merely passes on counts for the module
    /// that it comes from.
    pub fn imports(&self) -> Vec<BTreeSet<String>> {
        let of = |source: &Source| {
            let own = source.module().join("::");
            let children = self.children(&own);
            let roots = ["crate", "super", "self", "qcowfuzz"].map(str::to_string);
            let roots: Vec<_> = roots.iter().chain(&children).map(String::as_str).collect();
            let paths = self.absolute(source, source.paths(&roots));
            let to = paths.iter().filter_map(|path| self.source_of(path, MAX_HOPS));
            // The root re-exports the rooms, and a declaration is not an import.
            to.filter(|to| *to != own && !to.is_empty()).collect()
        };
        self.files.iter().map(of).collect()
    }

    /// Returns the names of the modules that lie directly in `module`.
    fn children(&self, module: &str) -> BTreeSet<String> {
        let inside = |name: &String| {
            let rest = if module.is_empty() {
                name
            } else {
                name.strip_prefix(module)?.strip_prefix("::")?
            };
            (!rest.is_empty() && !rest.contains("::")).then(|| rest.to_string())
        };
        self.names.iter().filter_map(inside).collect()
    }

    /// Returns paths without `crate`, and with the module before the name of a child.
    fn absolute(&self, source: &Source, paths: Vec<Vec<String>>) -> Vec<Vec<String>> {
        let module = source.module();
        let children = self.children(&module.join("::"));
        let full = |path: Vec<String>| match path[0].as_str() {
            "crate" => path[1..].to_vec(),
            "self" => [module.clone(), path[1..].to_vec()].concat(),
            first if children.contains(first) => [module.clone(), path].concat(),
            _ => Vec::new(),
        };
        paths.into_iter().map(full).filter(|path| !path.is_empty()).collect()
    }

    /// Returns the module that the last name of a path comes from. A path to no module stands for itself.
    fn source_of(&self, path: &[String], hops: usize) -> Option<String> {
        let is_module = |length: &usize| self.names.contains(&path[..*length].join("::"));
        let Some(length) = (1..=path.len()).rev().find(is_module) else {
            return Some(path.join("::"));
        };
        let module = path[..length].join("::");
        let next = path.get(length).and_then(|name| self.passed_on.get(&module)?.get(name));
        match next {
            Some(to) if hops > 0 => {
                self.source_of(&[to.as_slice(), &path[length + 1..]].concat(), hops - 1)
            }
            _ => Some(module),
        }
    }
}
