//! Inquiry: one question on a stream of its own.
//!
//! A live stream leaves some questions unanswered: names that the control plane believes sent (O1),
//! names that do not exist (O2), and the end of an answer without an end mark (O3). A new stream is
//! answered in full. Owns the open question, its form, and how often a type may be asked about.
//! Knows neither topics nor the conclusions.
//!
//! The question is for names, in the protocol of the other streams, or for a whole set: a census.
//! The first SotW response to a wildcard is a whole set of clusters, listeners or scoped routes
//! (O6). A control plane that refuses a census gets no other on its connection.

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

/// Time that the control plane has to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Least time between the starts of two inquiries, of any types.
const APART: Duration = Duration::from_millis(250);

/// Type, and whether its set is counted.
type Subject = (TypeUrl, bool);

#[derive(Debug)]
enum Question {
    /// Names of the whole set.
    Census,
    /// These names. The stream is present for SotW.
    Names(BTreeSet<Name>, Option<Box<SotwStream>>),
}

#[derive(Debug)]
pub(super) enum Answer {
    /// Names of a set.
    Census(HashSet<String>),
    /// Response about names, and the requested names if it answers the end mark: those it lacks do
    /// not exist. SotW needs no mark, for full-state types (R-SotW-19).
    Names(DeltaDiscoveryResponse, BTreeSet<Name>),
}

/// Inquiries on one connection.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    /// Open question, and the time at which it is given up.
    open: Option<(TypeUrl, Question, QuietInstant)>,
    /// Start of the last one.
    begun: Option<QuietInstant>,
    /// Earliest time of the next question about a subject, and the number of fruitless ones in a
    /// row.
    paces: BTreeMap<Subject, (QuietInstant, u32)>,
}

impl Inquiries {
    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Earliest time of a question that is due since `due`.
    pub(super) fn not_before(&self, subject: &Subject, due: QuietInstant) -> QuietInstant {
        let paced = self.paces.get(subject).map(|(at, _)| *at);
        paced.into_iter().chain(self.begun.map(|begun| begun + APART)).fold(due, QuietInstant::max)
    }

    /// Begins an inquiry about these names, or a census if there are none. Returns its first
    /// request.
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

    /// Ends the open inquiry, which was refused. Returns whether it was a census.
    pub(super) fn refuse(&mut self) -> bool {
        matches!(self.open.take(), Some((_, Question::Census, _)))
    }

    /// Time at which the open inquiry is given up.
    pub(super) fn deadline(&self) -> Option<QuietInstant> {
        self.open.as_ref().map(|(.., until)| *until)
    }

    /// Gives up the open inquiry if its time is over. Names left unanswered do not delay questions
    /// about others.
    pub(super) fn give_up(&mut self, now: QuietInstant) {
        if self.deadline().is_some_and(|at| at <= now)
            && let Some((type_url, Question::Names(..), _)) = self.open.take()
        {
            self.was_useful(&(type_url, false));
        }
    }

    /// Ends the open inquiry, whose stream is gone.
    pub(super) fn abandon(&mut self) {
        self.open = None;
    }

    pub(super) fn was_useful(&mut self, subject: &Subject) {
        if let (Some(paced), Some(begun)) = (self.paces.get_mut(subject), self.begun) {
            *paced = (begun + pace(0), 0);
        }
    }

    /// Reads a message on the stream of the open inquiry, and ends that. Returns `None` if it is
    /// unreadable.
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
