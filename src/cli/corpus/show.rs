//! `corpus show`: prints what a corpus covers and what it misses.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use crate::cli::output::counted;
use crate::disk::observer::{Event, Rare, State, Vital};
use crate::fuzzing::corpus::inputs::Corpus;
use crate::fuzzing::feedback::coverage::{Coverage, Covered};
use crate::fuzzing::feedback::layout::{Counter, schema_hash, values};

/// The coverage of a corpus.
#[derive(Serialize)]
pub struct Show {
    corpus: String,
    /// A hash of the counters and their names: two results are comparable if it is equal.
    schema: String,
    inputs: usize,
    bytes: usize,
    violations: usize,
    /// The number of distinct edges of each state.
    edges: BTreeMap<&'static str, usize>,
    /// The number of inputs that fire each rare event, by name.
    rare_events: BTreeMap<&'static str, usize>,
    /// The number of distinct reasons for which the walker refuses damaged images.
    reasons: usize,
    /// The magnitudes that each vital reached, by name.
    vitals: BTreeMap<&'static str, Vec<String>>,
    never_happened: Never,
    rarest_edges: Vec<Rarest>,
}

/// The names of the events and vitals that no input reaches.
#[derive(Serialize)]
struct Never {
    events: Vec<&'static str>,
    rare_events: Vec<&'static str>,
    /// The vitals that were 0 in every image.
    vitals: Vec<&'static str>,
}

/// An edge that few inputs take.
#[derive(Serialize)]
struct Rarest {
    edge: String,
    inputs: usize,
    shortest: String,
    bytes: usize,
}

impl Show {
    /// Summarizes what `corpus` covers, with at most `rarest` of its rarest edges.
    pub fn of(corpus: &Corpus, rarest: usize) -> Self {
        let mut edges: BTreeMap<_, _> = State::ALL.iter().map(|state| (state.name(), 0)).collect();
        let mut rare_events = BTreeMap::new();
        let mut vitals: BTreeMap<_, Vec<String>> = BTreeMap::new();
        let mut by_inputs: Vec<(Counter, Covered)> = Vec::new();
        let mut reasons = 0;
        for (counter, covered) in corpus.coverage.counters() {
            match counter {
                Counter::Edge { state, .. } => {
                    *edges.entry(state.name()).or_default() += 1;
                    by_inputs.push((counter, covered));
                }
                Counter::Rare(rare) => drop(rare_events.insert(rare.name(), covered.inputs)),
                Counter::Vital { vital, magnitude } => {
                    vitals.entry(vital.name()).or_default().push(values(magnitude));
                }
                Counter::Reason(_) => reasons += 1,
                Counter::Delta { .. } | Counter::Second(_) => {}
            }
        }
        by_inputs.sort_by_key(|(_, covered)| covered.inputs);
        let rarest_edge = |(counter, covered): &(Counter, Covered)| {
            let (input, bytes) = covered.shortest;
            let (edge, shortest) = (counter.to_string(), corpus.name(input));
            Rarest { edge, inputs: covered.inputs, shortest, bytes }
        };
        Self {
            corpus: corpus.dir.clone(),
            schema: format!("{:08x}", schema_hash()),
            inputs: corpus.coverage.inputs(),
            bytes: corpus.bytes(),
            violations: corpus.violations,
            edges,
            rare_events,
            reasons,
            vitals,
            never_happened: Never::of(&corpus.coverage),
            rarest_edges: by_inputs.iter().take(rarest).map(rarest_edge).collect(),
        }
    }

    /// Prints the summary as text.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}: {}, {} bytes", self.corpus, counted(self.inputs, "input"), self.bytes)?;
        if self.violations > 0 {
            writeln!(out, "{} with a violation", self.violations)?;
        }
        writeln!(out, "\nedges: {}", self.edges.values().sum::<usize>())?;
        for state in State::ALL.iter().map(|state| state.name()) {
            writeln!(out, "  {state:<16} {:>5}", self.edges.get(state).unwrap_or(&0))?;
        }
        writeln!(out, "\nrare events: {} of {}", self.rare_events.len(), Rare::COUNT)?;
        for rare in Rare::ALL.iter().map(|rare| rare.name()) {
            if let Some(inputs) = self.rare_events.get(rare) {
                writeln!(out, "  {rare:<36} {:>10}", counted(*inputs, "input"))?;
            }
        }
        if self.reasons > 0 {
            writeln!(out, "\nreasons of refusals: {}", self.reasons)?;
        }
        writeln!(out, "\nvitals, in magnitudes:")?;
        for (vital, values) in &self.vitals {
            writeln!(out, "  {vital:<24} {}", values.join(", "))?;
        }
        let Never { events, rare_events, vitals } = &self.never_happened;
        writeln!(out, "\nnever happened:")?;
        for (what, names) in [("events", events), ("rare events", rare_events), ("vitals", vitals)]
        {
            let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
            writeln!(out, "  {what:<12} {names}")?;
        }
        writeln!(out, "\nrarest edges:")?;
        for Rarest { edge, inputs, shortest, bytes } in &self.rarest_edges {
            let inputs = counted(*inputs, "input");
            writeln!(out, "  {inputs:>10}  {edge}  ({shortest}, {bytes} bytes)")?;
        }
        Ok(())
    }
}

impl Never {
    fn of(coverage: &Coverage) -> Self {
        let happened = |wanted: Event| {
            coverage.counters().any(|(counter, _)| match counter {
                Counter::Edge { previous, event, .. } => wanted == previous || wanted == event,
                _ => false,
            })
        };
        let moved = |wanted: Vital| {
            coverage.counters().any(|(counter, _)| match counter {
                Counter::Vital { vital, magnitude } => vital == wanted && magnitude > 0,
                _ => false,
            })
        };
        let events = Event::ALL.iter().filter(|event| !happened(**event));
        let rare = Rare::ALL.iter().filter(|rare| !coverage.reaches(Counter::Rare(**rare)));
        let vitals = Vital::ALL.iter().filter(|vital| !moved(**vital));
        Self {
            events: events.map(|event| event.name()).collect(),
            rare_events: rare.map(|rare| rare.name()).collect(),
            vitals: vitals.map(|vital| vital.name()).collect(),
        }
    }
}
