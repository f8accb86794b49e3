//! Inquiry: one question on a stream of its own, beside those that live.
//!
//! A stream that lives answers some questions with silence: what it has sent, as far as the origin knows (O1), what does not exist
//! (O2), and whether there is more where the origin does not answer the end mark (O3). A new stream is answered in full. Owns which
//! question is open, how it is put, and how often a type may be asked about. Knows neither topics nor what follows from the answer.
//!
//! The question is for names, in the protocol of the other streams, or for a set: a census. The first response to a wildcard of state of
//! the world is a whole set of clusters, listeners or scoped routes (O6). An origin that refuses a census gets no other on its connection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use foldhash::HashSet;
use prost::Message as _;

use super::backoff::pace;
use super::quiet_clock::QuietInstant;
use super::response;
use super::sotw::{self, SotwStream};
use crate::cache::Protocol;
use crate::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, Node};
use crate::resource::{Envelope, Name, SotwElement, TypeUrl, normal_form};

/// Time that the origin has to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// An inquiry makes way for another one that is due after this time without an answer.
const LEAST: Duration = Duration::from_secs(3);
/// No two inquiries begin within this time, of whatever types.
const APART: Duration = Duration::from_millis(250);

/// Subject of a question: a type, and whether the set is counted or names are asked for.
type Subject = (TypeUrl, bool);

/// Question that is open.
#[derive(Debug)]
enum Question {
    /// Which names the set has.
    Census,
    /// Whether these names exist, and what they are. With it comes the stream where that speaks state of the world.
    Names(BTreeSet<Name>, Option<Box<SotwStream>>),
}

/// Answer to a question.
#[derive(Debug)]
pub(super) enum Answer {
    /// The names of a set.
    Census(HashSet<String>),
    /// A response about names, and if it answers the end mark, those that were asked for: the ones that it does not have do not exist. A
    /// state of the world says by itself what is gone, of types that have states (R-SotW-19).
    Names(DeltaDiscoveryResponse, BTreeSet<Name>),
}

impl Question {
    const fn is_census(&self) -> bool {
        matches!(self, Self::Census)
    }
}

/// Inquiries on one connection.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    /// The one that is open, and when it is given up.
    open: Option<(TypeUrl, Question, QuietInstant)>,
    /// When the last one began.
    begun: Option<QuietInstant>,
    /// When the same may be asked about again, and how many questions in a row had no answer of use.
    paces: BTreeMap<Subject, (QuietInstant, u32)>,
}

impl Inquiries {
    /// Whether a stream is to be open for one.
    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// When a question may be asked that is due since then. `None` while it is open.
    pub(super) fn not_before(&self, subject: &Subject, due: QuietInstant) -> Option<QuietInstant> {
        let (type_url, is_census) = subject;
        let is_open =
            |(of, question, _): &(TypeUrl, Question, _)| of == type_url && question.is_census() && *is_census;
        let paced = self.paces.get(subject).map(|(at, _)| *at);
        let at = paced.into_iter().chain(self.begun.map(|begun| begun + APART)).fold(due, QuietInstant::max);
        (!self.open.as_ref().is_some_and(is_open)).then_some(at)
    }

    /// Begins an inquiry about these names, or about the set where there are none; returns its first request.
    pub(super) fn begin(
        &mut self,
        type_url: TypeUrl,
        names: BTreeSet<Name>,
        (node, protocol): (&Node, Protocol),
        now: QuietInstant,
    ) -> (Protocol, Bytes) {
        let subject = (type_url.clone(), names.is_empty());
        let failures = self.paces.get(&subject).map_or(0, |(_, failures)| *failures);
        self.paces.retain(|_, (at, failures)| *at > now || *failures > 0);
        self.paces.insert(subject, (now + pace(failures), failures + 1));
        self.begun = Some(now);
        let (url, node) = (type_url.as_str().to_owned(), Some(node.clone()));
        let (question, protocol, request) = if names.is_empty() {
            let request = DiscoveryRequest { type_url: url, node, ..DiscoveryRequest::default() };
            (Question::Census, Protocol::Sotw, request.encode_to_vec().into())
        } else {
            let mut request =
                DeltaDiscoveryRequest { type_url: url, node, ..DeltaDiscoveryRequest::default() };
            request.resource_names_subscribe.extend(names.iter().map(|name| name.as_str().to_owned()));
            match protocol {
                Protocol::Delta => {
                    response::ask_for_end(&mut request, true);
                    (Question::Names(names, None), protocol, request.encode_to_vec().into())
                }
                Protocol::Sotw => {
                    let mut stream = SotwStream::default();
                    stream.ask(request);
                    let request = stream.next().unwrap_or_default();
                    (Question::Names(names, Some(Box::new(stream))), protocol, request)
                }
            }
        };
        self.open = Some((type_url, question, now + PATIENCE));
        (protocol, request)
    }

    /// The origin refuses the open one. Returns whether that is a census.
    pub(super) fn refuse(&mut self) -> bool {
        self.open.take().is_some_and(|(_, question, _)| question.is_census())
    }

    /// When the open one is given up, given when another one is due.
    pub(super) fn deadline(&self, next: Option<QuietInstant>) -> Option<QuietInstant> {
        let (&(.., until), begun) = (self.open.as_ref()?, self.begun?);
        Some(next.map_or(until, |next| next.max(begun + LEAST).min(until)))
    }

    /// Gives up the open one if it has had its time. Silence about names says nothing of others: these wait for no pace.
    pub(super) fn give_up(&mut self, next: Option<QuietInstant>, now: QuietInstant) {
        if self.deadline(next).is_some_and(|at| at <= now)
            && let Some((type_url, Question::Names(..), _)) = self.open.take()
        {
            self.was_useful(&(type_url, false));
        }
    }

    /// The stream of the open one is gone, and with it what was asked.
    pub(super) fn abandon(&mut self) {
        self.open = None;
    }

    /// The answer was of use.
    pub(super) fn was_useful(&mut self, subject: &Subject) {
        if let (Some(paced), Some(begun)) = (self.paces.get_mut(subject), self.begun) {
            *paced = (begun + pace(0), 0);
        }
    }

    /// Takes in a message on the stream of the open one. `None` if it cannot be read: then it ends that one, and says nothing.
    pub(super) fn take_answer(&mut self, message: Bytes) -> Option<(TypeUrl, Answer)> {
        let (type_url, question, _) = self.open.take()?;
        let answer = match question {
            Question::Census => {
                let response = sotw::decode(message).ok()?;
                let name = |bytes: &Bytes| {
                    SotwElement::parse(bytes, &type_url)
                        .map(|element| normal_form(element.name()).into_owned())
                };
                Answer::Census(response.resources.iter().map(name).collect::<Result<_, _>>().ok()?)
            }
            Question::Names(_, Some(mut stream)) => {
                let reading = stream.read(sotw::decode(message).ok()?, &type_url).ok()?;
                Answer::Names(reading.response, BTreeSet::new())
            }
            Question::Names(names, None) => {
                let response = response::decode(message).ok()?;
                let is_end = |bytes: &Bytes| Envelope::name_in(bytes) == Some(Name::END_MARK);
                let ends = response.removed_resources.iter().any(|name| name == Name::END_MARK)
                    || response.resources.iter().any(is_end);
                Answer::Names(response, if ends { names } else { BTreeSet::new() })
            }
        };
        Some((type_url, answer))
    }
}
