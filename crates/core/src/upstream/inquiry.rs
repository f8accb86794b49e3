//! Inquiry: one question on a stream of its own, beside those that live.
//!
//! A stream that lives answers some questions with silence: what it has sent, as far as the origin knows (O1), what does not exist
//! (O2), and whether there is more where the origin does not answer the end mark (O3). A new stream is answered in full. Owns which
//! question is open, how it is put, and how often a type may be asked about. Knows neither topics nor what follows from the answer.
//!
//! The question is for names, in the protocol of the other streams, or for a set: a census. The first response to a wildcard of state of
//! the world is a whole set of clusters, listeners or scoped routes (O6). An origin that refuses a census gets no other on its connection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::HashSet;
use prost::Message as _;

use super::response::{self, ProtocolError, ResponseError};
use super::sotw::{self, SotwStream};
use crate::cache::Protocol;
use crate::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, Node};
use crate::resource::{Envelope, Kind, Name, SotwElement, TypeUrl, normal_form};

/// Time that the origin has to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two questions about a type. It doubles with each that had no answer of use: 1 s, 2 s, …, 64 s.
const PACE: Duration = Duration::from_secs(1);
const DOUBLINGS: u32 = 6;

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
    /// A response about names. If it is the last, these have been asked for, and the ones that it does not have do not exist; a
    /// state of the world says by itself what is gone, of types that have states (R-SotW-19).
    Names(DeltaDiscoveryResponse, Option<BTreeSet<Name>>),
}

/// Inquiries on one connection.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    open: Option<(TypeUrl, Question, Instant)>,
    /// When each type may be asked about again, and how many questions in a row had no answer of use.
    paces: BTreeMap<TypeUrl, (Instant, u32)>,
}

impl Inquiries {
    /// Whether a state of the world of this type is a whole set.
    pub(super) const fn can_count(kind: Kind) -> bool {
        matches!(kind, Kind::Cluster | Kind::Listener | Kind::ScopedRoute)
    }

    /// Whether a stream is to be open for one.
    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// When a type may be asked about that is due since then.
    pub(super) fn not_before(&self, type_url: &TypeUrl, due: Instant) -> Instant {
        self.paces.get(type_url).map_or(due, |(at, _)| due.max(*at))
    }

    /// Begins an inquiry about these names, or about the set where there are none; returns its first request.
    pub(super) fn begin(
        &mut self,
        type_url: TypeUrl,
        names: BTreeSet<Name>,
        (node, protocol): (&Node, Protocol),
        now: Instant,
    ) -> (Protocol, Bytes) {
        let failures = self.paces.get(&type_url).map_or(0, |(_, failures)| *failures);
        let wait = PACE * (1 << failures.min(DOUBLINGS));
        self.paces.insert(type_url.clone(), (now + wait, failures + 1));
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
        self.open = Some((type_url, question, now));
        (protocol, request)
    }

    /// The stream ended without an answer. Returns whether it was that of a census.
    pub(super) fn refuse(&mut self) -> bool {
        matches!(self.open.take(), Some((_, Question::Census, _)))
    }

    /// When the open one is given up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.open.as_ref().map(|(.., since)| *since + PATIENCE)
    }

    /// Gives up the open one if it has had its time.
    pub(super) fn give_up(&mut self, now: Instant) {
        if self.deadline().is_some_and(|at| at <= now) {
            self.open = None;
        }
    }

    /// The connection is gone, and with it what was asked.
    pub(super) fn abandon(&mut self) {
        self.open = None;
    }

    /// Time in which this process did not run is no silence of the origin.
    pub(super) fn shift(&mut self, pause: Duration, now: Instant) {
        if let Some((.., since)) = &mut self.open {
            *since = (*since + pause).min(now);
        }
    }

    /// The last answer was of use: the next question about the type need not wait longer than the first.
    pub(super) fn was_useful(&mut self, type_url: &TypeUrl) {
        if let Some((at, failures)) = self.paces.get_mut(type_url) {
            *at -= PACE * (1 << failures.saturating_sub(1).min(DOUBLINGS)) - PACE;
            *failures = 0;
        }
    }

    /// Takes in a message on the stream of the open one. `None` if it is no answer to it.
    pub(super) fn take_answer(&mut self, message: Bytes) -> Result<Option<(TypeUrl, Answer)>, ProtocolError> {
        let Some((type_url, question, since)) = self.open.take() else { return Ok(None) };
        // One that cannot be read says nothing.
        let answer = match question {
            Question::Census => {
                let response = sotw::decode(message)?;
                let name = |bytes: &Bytes| {
                    SotwElement::parse(bytes, &type_url)
                        .map(|element| normal_form(element.name()).into_owned())
                };
                response.resources.iter().map(name).collect::<Result<_, _>>().ok().map(Answer::Census)
            }
            Question::Names(_, Some(mut stream)) => {
                let read: Result<_, ResponseError> = stream.read(sotw::decode(message)?, &type_url);
                read.ok().map(|reading| Answer::Names(reading.response, Some(BTreeSet::new())))
            }
            Question::Names(names, None) => {
                let response = response::decode(message)?;
                let is_end = |bytes: &Bytes| Envelope::name_in(bytes) == Some(Name::END_MARK);
                let ends = response.removed_resources.iter().any(|name| name == Name::END_MARK)
                    || response.resources.iter().any(is_end);
                if ends {
                    Some(Answer::Names(response, Some(names)))
                } else {
                    self.open = Some((type_url.clone(), Question::Names(names, None), since));
                    Some(Answer::Names(response, None))
                }
            }
        };
        Ok(answer.map(|answer| (type_url, answer)))
    }
}
