//! The modules that are not part of the library's interface. The project's own tests, benchmarks and fuzz targets
//! reach them here. They change without notice: nothing else may use them.

#[cfg(feature = "cli")]
pub mod cli {
    pub mod info {
        pub use crate::cli::images::info::*;
    }
    pub mod measure {
        pub use crate::cli::images::measure::*;
    }
}
#[cfg(feature = "cli")]
pub mod differential {
    pub use crate::differential::*;
}
pub mod base {
    #[cfg(feature = "fuzzer")]
    pub mod files {
        pub use crate::base::files::*;
    }
    pub mod limits {
        pub use crate::base::limits::MAX_OPERATIONS;
    }
}
pub mod findings {
    pub mod crash_state {
        pub use crate::findings::crash_state::*;
    }
    pub mod explain {
        pub use crate::findings::explain::*;
    }
    #[cfg(feature = "fuzzer")]
    pub mod log {
        pub use crate::findings::report::log::*;
    }
    pub mod panics {
        pub use crate::findings::panics::*;
    }
    #[cfg(feature = "fuzzer")]
    pub mod records {
        pub use crate::findings::report::records::*;
    }
}
pub mod fuzzing {
    #[cfg(feature = "fuzzer")]
    pub mod campaign {
        pub mod subject {
            pub use crate::fuzzing::campaign::subject::*;
        }
    }
    #[cfg(feature = "fuzzer")]
    pub mod embedded {
        pub mod state {
            pub use crate::fuzzing::embedded::state::*;
        }
    }
    pub mod feedback {
        #[cfg(feature = "fuzzer")]
        pub mod coverage {
            pub use crate::fuzzing::feedback::coverage::*;
        }
        pub mod layout {
            pub use crate::fuzzing::feedback::layout::*;
        }
    }
    pub mod mutators {
        pub use crate::fuzzing::mutators::*;
    }
}
pub mod harness {
    pub mod cases {
        pub mod case {
            pub use crate::harness::cases::case::*;
        }
    }
    pub mod engine {
        #[cfg(feature = "fuzzer")]
        pub mod failure {
            pub use crate::harness::engine::failure::line_of;
        }
        pub mod tested {
            pub use crate::harness::engine::tested::TestedEngine;
        }
    }
    pub mod model {
        pub use crate::harness::model::*;
    }
    pub mod oracles {
        // One by one: the compiler reports an oracle that is not in this list and that the harness does not call.
        pub use crate::harness::oracles::{OracleResult, data, layout, snapshots};
        pub mod bounds {
            pub use crate::harness::oracles::bounds::Collector;
        }
        pub mod extents {
            pub use crate::harness::oracles::extents::model;
        }
        pub mod qcow2 {
            pub use crate::harness::oracles::qcow2::{
                Structures, check_raw_data_file, declarations, recount, refcounts,
            };
        }
    }
}
pub mod images {
    pub mod content {
        pub use crate::images::content::*;
    }
    pub mod damage {
        pub use crate::images::damage::*;
    }
    pub mod declarations {
        pub use crate::images::files::*;
    }
    pub mod entropy {
        pub use crate::images::content::entropy::*;
    }
    pub mod export {
        pub use crate::images::files::export::*;
    }
    pub mod files {
        pub use crate::images::files::*;
    }
    pub mod layer_anatomy {
        pub use crate::images::format::layer_anatomy::*;
    }
    pub mod format {
        pub mod file_plan {
            pub use crate::images::format::file_plan::ExtentForm;
        }
        pub mod list {
            pub use crate::images::format::list::*;
        }
    }
    pub mod qcow2 {
        pub use crate::images::qcow2::*;
    }
}
#[cfg(feature = "cli")]
pub mod recipes {
    pub use crate::recipes::*;
}
pub mod programs {
    #[cfg(feature = "fuzzer")]
    pub mod export {
        pub use crate::programs::export::{names, write};
    }
    pub mod interpreter {
        pub use crate::programs::interpreter::*;
    }
    pub mod journal {
        pub use crate::programs::journal::*;
    }
    pub mod operand {
        pub use crate::programs::operand::*;
    }
    pub mod operation {
        pub use crate::programs::operation::*;
    }
    pub mod prologue {
        pub use crate::programs::prologue::*;
    }
}
