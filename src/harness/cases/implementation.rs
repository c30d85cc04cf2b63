//! An implementation under test: creates an engine whenever a target needs a new one.

use std::borrow::Cow;
use std::fmt;
#[cfg(feature = "cli")]
use std::path::Path;
use std::rc::Rc;

use crate::base::features::FeatureSet;
use crate::disk::observer::Observer;
use crate::harness::Walker;
use crate::harness::against::second_opinion::SecondOpinion;
use crate::harness::engine::known::KnownFindings;
use crate::harness::engine::tested::TestedEngine;
use crate::harness::engine::{Engine, Facts};

/// An implementation under test, with the settings of its runs. Every engine that can be cloned is one.
#[derive(Clone)]
pub struct Implementation {
    create: Rc<CreateEngine>,
    /// The known findings in place of those of the engine.
    known: Option<KnownFindings>,
    /// The features about which the engine claims nothing in these runs.
    unclaimed: FeatureSet,
    /// Creates another implementation that judges the images of a run, too.
    second: Option<Rc<CreateOpinion>>,
    /// Two implementations take turns.
    pub(crate) takes_turns: bool,
    /// How a test creates the implementation, if that is known.
    expression: Option<Expression>,
}

/// A Rust expression for a test of an implementation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// It creates an engine.
    Engine(Cow<'static, str>),
    /// It creates an [`Implementation`].
    Implementation(Cow<'static, str>),
}

/// The function that makes an [`Implementation`] of an engine or of a command.
#[cfg(feature = "fuzzer")]
const FROM: &str = "qcowfuzz::harness::cases::implementation::Implementation::from";

impl Expression {
    /// Returns an expression that creates an [`Implementation`].
    #[cfg(feature = "fuzzer")]
    pub(crate) fn of_implementation(&self) -> String {
        match self {
            Self::Engine(it) => format!("{FROM}({it})"),
            Self::Implementation(it) => it.to_string(),
        }
    }

    /// Returns the expression of an implementation behind a command, which the function `start` starts.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn started(start: &str, line: &str) -> Self {
        Self::Implementation(format!("{FROM}({start}({line:?}).unwrap())").into())
    }
}

/// Creates an engine. Our walker reports its events to the observer; other engines report none.
type CreateEngine = dyn Fn(&Rc<dyn Observer>) -> Box<dyn Engine>;
/// Creates a second opinion, which reports its answers to the observer.
type CreateOpinion = dyn Fn(&Rc<dyn Observer>) -> Box<dyn SecondOpinion>;

impl Implementation {
    /// Creates an implementation whose engines are those that `create` returns.
    pub fn new(create: impl Fn(&Rc<dyn Observer>) -> Box<dyn Engine> + 'static) -> Self {
        let unclaimed = FeatureSet::EMPTY;
        let (known, second, takes_turns, expression) = Default::default();
        Self { create: Rc::new(create), known, unclaimed, second, takes_turns, expression }
    }

    /// Returns our walker as the implementation under test.
    pub fn our_walker() -> Self {
        let expression = Expression::Engine("qcowfuzz::harness::Walker::default()".into());
        Self::new(|observer| Box::new(Walker::observed(Rc::clone(observer)))).written_as(expression)
    }

    /// Returns the implementation, which tests create by `expression`, unless another expression is known.
    pub fn written_as(self, expression: Expression) -> Self {
        Self { expression: self.expression.or(Some(expression)), ..self }
    }

    /// Returns the expression by which tests create the implementation, if it is known.
    pub fn expression(&self) -> Option<&Expression> {
        self.expression.as_ref()
    }

    /// Adds a call to the expression by which tests create the implementation, if both are known.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn written_with(self, call: Option<String>) -> Self {
        let expression = self.expression.as_ref().zip(call);
        let expression = expression.map(|(it, call)| it.of_implementation() + &call);
        Self { expression: expression.map(|it| Expression::Implementation(it.into())), ..self }
    }

    /// Returns the implementation with the known findings `known` in place of its own.
    pub fn knowing(self, known: KnownFindings) -> Self {
        Self { known: Some(known), ..self }
    }

    /// Returns the implementation without its claims about `features`.
    pub fn without(self, features: FeatureSet) -> Self {
        Self { unclaimed: features, ..self }
    }

    /// Returns the implementation, whose engines are those that `create` returns: each is two engines in turn.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn taking_turns(
        self,
        create: impl Fn(&Rc<dyn Observer>) -> Box<dyn Engine> + 'static,
    ) -> Self {
        Self { create: Rc::new(create), takes_turns: true, ..self }
    }

    /// Returns the implementation, whose images another one judges, too: the one that `create` returns.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn judged_by(
        self,
        create: impl Fn(&Rc<dyn Observer>) -> Box<dyn SecondOpinion> + 'static,
    ) -> Self {
        Self { second: Some(Rc::new(create)), ..self }
    }

    /// Returns the implementation, whose engines write their sessions into `folder`: [`Engine::record_script`].
    #[cfg(feature = "cli")]
    pub(crate) fn recording_script(self, folder: &Path) -> Self {
        let (create, folder) = (self.create, folder.to_path_buf());
        let recording = move |observer: &Rc<dyn Observer>| {
            let mut engine = create(observer);
            engine.record_script(&folder);
            engine
        };
        Self { create: Rc::new(recording), ..self }
    }

    /// Returns the facts of an engine in these runs.
    pub fn facts(&self) -> Facts {
        self.facts_of(&*(self.create)(&no_observer()))
    }

    /// Creates an engine without the settings of these runs.
    pub fn engine(&self, observer: &Rc<dyn Observer>) -> Box<dyn Engine> {
        (self.create)(observer)
    }

    /// Creates an engine under test.
    pub(crate) fn tested(&self, observer: &Rc<dyn Observer>) -> TestedEngine {
        let engine = (self.create)(observer);
        let facts = self.facts_of(&*engine);
        TestedEngine::new(engine, facts)
    }

    /// Creates the second opinion, if there is one.
    pub fn second_opinion(&self, observer: &Rc<dyn Observer>) -> Option<Box<dyn SecondOpinion>> {
        self.second.as_ref().map(|create| create(observer))
    }

    fn facts_of(&self, engine: &dyn Engine) -> Facts {
        let facts = engine.facts().without(self.unclaimed);
        match &self.known {
            Some(known) => Facts { known: known.clone(), ..facts },
            None => facts,
        }
    }
}

/// Returns an observer that ignores all events.
pub fn no_observer() -> Rc<dyn Observer> {
    Rc::new(())
}

impl<E: Engine + Clone + 'static> From<E> for Implementation {
    fn from(engine: E) -> Self {
        Self::new(move |_| Box::new(engine.clone()))
    }
}

impl fmt::Debug for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Implementation").field("facts", &self.facts()).finish_non_exhaustive()
    }
}
