//! The whole command for our walker, with programs of one format: the environment variable `QCOWFUZZ_FORMAT` names it.
//!
//!     QCOWFUZZ_FORMAT=vhdx cargo run --release --example one_format -- fuzz --seconds 10 --dir /tmp/vhdx
//!
//! `scripts/format-campaigns` runs it.

use std::env;
use std::process::exit;

use qcowfuzz::harness::Walker;
use qcowfuzz::harness::chain::Chain;
use qcowfuzz::harness::implementation::Implementation;
use qcowfuzz::internal::disk::observer::Observer;
use qcowfuzz::prelude::*;

/// Our walker, which claims to know one format.
#[derive(Clone, Copy)]
struct OneFormat {
    claims: Claims,
}

/// An engine of [`OneFormat`].
struct OneFormatEngine<O: Observer> {
    walker: Walker<O>,
    claims: Claims,
}

/// Returns the claims of the format that the environment names.
fn named_format() -> OneFormat {
    use Feature::{Qcow2, Vhdx, Vmdk, VmdkExtents, VmdkParent, Vpc};
    let name = env::var("QCOWFUZZ_FORMAT").unwrap_or_default();
    let vmdk = [Vmdk, VmdkParent, VmdkExtents];
    let claims = match name.as_str() {
        "qcow2" => Claims::QCOW2,
        "vpc" => Claims::ALL.no(&[Qcow2, Vhdx]).no(&vmdk),
        "vhdx" => Claims::ALL.no(&[Qcow2, Vpc]).no(&vmdk),
        "vmdk" => Claims::ALL.no(&[Qcow2, Vpc, Vhdx]),
        "all" => Claims::ALL,
        _ => {
            eprintln!("QCOWFUZZ_FORMAT: found '{name}', expected qcow2, vpc, vhdx, vmdk or all");
            exit(2)
        }
    };
    OneFormat { claims }
}

impl Implementation for OneFormat {
    type Engine<O: Observer + Clone + 'static> = OneFormatEngine<O>;

    fn engine<O: Observer + Clone + 'static>(&self, observer: &O) -> OneFormatEngine<O> {
        OneFormatEngine { walker: Walker::observed(observer.clone()), claims: self.claims }
    }
}

impl<O: Observer> Engine for OneFormatEngine<O> {
    type Disk<'s>
        = <Walker<O> as Engine>::Disk<'s>
    where
        O: 's;

    fn name(&self) -> &str {
        self.walker.name()
    }

    fn claims(&self) -> Claims {
        self.claims
    }

    fn begin_run(&mut self) {
        self.walker.begin_run();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Result<Self::Disk<'s>, EngineError> {
        self.walker.open(chain)
    }

    fn open_snapshot<'s>(
        &'s mut self,
        chain: &'s Chain,
        index: u32,
    ) -> Result<Self::Disk<'s>, EngineError> {
        self.walker.open_snapshot(chain, index)
    }
}

qcowfuzz::command!(named_format());
