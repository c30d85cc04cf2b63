//! An engine that answers only one kind of question: the oracles judge the answers to each kind apart.

use crate::disk::extent::{Visitor, Window};
use crate::disk::offsets::GuestOffset;
use crate::harness::chain::Chain;
use crate::harness::claims::Claims;
use crate::harness::engine::{Answer, Engine, EngineError, OpenDisk, pass_on_to_engine};
use crate::harness::status::GuestRun;

use super::question::SelfTestQuestion;

/// An engine that passes on only `question`, beside the size.
pub(super) struct Only<'e, E> {
    pub(super) engine: &'e mut E,
    pub(super) question: SelfTestQuestion,
}

/// An image that such an engine has opened.
pub(super) struct OnlyDisk<D> {
    disk: D,
    question: SelfTestQuestion,
}

impl<E: Engine> Engine for Only<'_, E> {
    type Disk<'s>
        = OnlyDisk<E::Disk<'s>>
    where
        Self: 's;

    pass_on_to_engine!();

    fn claims(&self) -> Claims {
        self.engine.claims()
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Answer<Self::Disk<'s>> {
        Ok(OnlyDisk { disk: self.engine.open(chain)?, question: self.question })
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Answer<Self::Disk<'s>> {
        match self.question {
            SelfTestQuestion::Snapshot => {
                let disk = self.engine.open_snapshot(chain, index)?;
                Ok(OnlyDisk { disk, question: self.question })
            }
            _ => Err(EngineError::NotAsked),
        }
    }
}

impl<D> OnlyDisk<D> {
    fn passes(&self, question: SelfTestQuestion) -> Answer {
        // All questions about a snapshot are one.
        match self.question == question || self.question == SelfTestQuestion::Snapshot {
            true => Ok(()),
            false => Err(EngineError::NotAsked),
        }
    }
}

impl<D: OpenDisk> OpenDisk for OnlyDisk<D> {
    fn virtual_size_bytes(&self) -> u64 {
        self.disk.virtual_size_bytes()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.passes(SelfTestQuestion::Data)?;
        self.disk.read(guest, into)
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        self.passes(SelfTestQuestion::Status)?;
        self.disk.status(guest)
    }

    fn map(&mut self, window: Window, visitor: &mut impl Visitor) -> Answer {
        self.passes(SelfTestQuestion::Map)?;
        self.disk.map(window, visitor)
    }
}
