//! The whole core: scripted clients, the cache, the relay's own subscriptions, and a scripted origin.

use std::time::Duration;

use bytes::BytesMut;
use deltafan::cache::{Cache, Limits, VisibleState};
use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use deltafan::resource::TypeUrl;
use deltafan::upstream::{Mux, Settings, StreamId};
use prost::Message as _;

use crate::fixture::{Client, Fixture};
use crate::origin::Asks;
use crate::wire::{self, type_url};

pub use StreamId::{Primary, Secondary};

/// A relay that is connected.
pub struct Whole {
    /// Its clients' side. The writer in it is not that of its cache: that is the relay's.
    pub fixture: Fixture,
    pub mux: Mux,
    nonce: u32,
    has_secondary: bool,
    /// How often the second stream was opened.
    pub secondaries: u32,
}

impl Whole {
    pub fn new() -> Self {
        Self::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Self {
        let mut fixture = Fixture::new();
        let (cache, writer) = Cache::new(Limits::default());
        fixture.cache = cache;
        let mut mux = Mux::new(writer, settings);
        mux.opened(Primary, fixture.now);
        Self { fixture, mux, nonce: 0, has_secondary: false, secondaries: 0 }
    }

    pub fn delta(&self) -> Client {
        self.fixture.delta()
    }

    /// A delta client that has asked for these names.
    pub fn asking(&self, short: &str, names: &str) -> Client {
        let mut client = self.fixture.delta();
        client.change(&self.fixture, short, names);
        client
    }

    fn look(&mut self) {
        let interest = self.fixture.cache.take_interest();
        self.mux.interest(interest, self.fixture.now);
        let wants = self.mux.wants_secondary();
        match (std::mem::replace(&mut self.has_secondary, wants), wants) {
            (false, true) => {
                self.secondaries += 1;
                self.mux.opened(Secondary, self.fixture.now);
            }
            (true, false) => self.mux.closed(Secondary),
            (true, true) | (false, false) => {}
        }
    }

    /// Everything that the relay says on a stream until now, but for the ACKs.
    pub fn requests(&mut self, stream: StreamId) -> Vec<DeltaDiscoveryRequest> {
        self.look();
        self.pass(20);
        let mut requests = Vec::new();
        while self.mux.has_request(stream) {
            requests.extend(self.mux.next_request(stream, self.fixture.now).and_then(Asks::without_end_mark));
        }
        requests.retain(|request| request.response_nonce.is_empty() || has_names(request));
        requests
    }

    /// Names that are subscribed to on a stream, and with a `-` those that are not any more.
    pub fn asked(&mut self, stream: StreamId) -> String {
        let mut words = Vec::new();
        for request in self.requests(stream) {
            words.extend(request.resource_names_subscribe);
            words.extend(request.resource_names_unsubscribe.iter().map(|name| format!("-{name}")));
        }
        words.sort_unstable();
        words.join(" ")
    }

    pub fn pass(&mut self, millis: u64) {
        let end = self.fixture.now + Duration::from_millis(millis);
        while let Some(at) = self.mux.next_deadline().filter(|at| *at <= end) {
            self.fixture.now = self.fixture.now.max(at);
            self.mux.on_deadline(self.fixture.now);
            if self.mux.begin_inquiry(self.fixture.now).is_some() {
                self.mux.inquiry_refused(self.fixture.now);
            }
            while let Some(stream) = self.mux.renewal_due(self.fixture.now) {
                self.mux.closed(stream);
                self.has_secondary = false;
                if stream == Primary {
                    self.mux.opened(Primary, self.fixture.now);
                }
            }
        }
        self.fixture.now = end;
        self.mux.on_deadline(end);
    }

    pub fn reconnect(&mut self) {
        self.mux.closed(Primary);
        self.has_secondary = false;
        self.mux.opened(Primary, self.fixture.now);
    }

    /// The origin says on a stream: `vhds r/v:1=r/a,r/b r/c:?=r/c -r/d`. What follows `=` are aliases, `?` is a resource
    /// without a body, and `!` behind a version forbids to keep the body.
    pub fn says(&mut self, stream: StreamId, text: &str) {
        let (short, items) = text.split_once(' ').unwrap_or((text, ""));
        let type_url = type_url(short);
        self.nonce += 1;
        let mut response = DeltaDiscoveryResponse {
            type_url: type_url.as_str().to_owned(),
            nonce: self.nonce.to_string(),
            ..DeltaDiscoveryResponse::default()
        };
        for item in items.split_whitespace() {
            match item.strip_prefix('-') {
                Some(name) => response.removed_resources.push(name.to_owned()),
                None => response.resources.push(resource(&type_url, item).freeze()),
            }
        }
        self.mux.on_message(stream, response.encode_to_vec().into(), self.fixture.now).unwrap();
        let response_removes = response.removed_resources;
        let mut refused = None;
        let mut others = Vec::new();
        // A name that is gone is subscribed to once more, in case it comes back.
        let is_repeat = |request: &DeltaDiscoveryRequest| {
            request.resource_names_unsubscribe.is_empty()
                && request.resource_names_subscribe.iter().all(|name| response_removes.contains(name))
        };
        while self.mux.has_request(stream) {
            let Some(request) = self.mux.next_request(stream, self.fixture.now) else { continue };
            refused = refused.or_else(|| request.error_detail.clone());
            let Some(request) = request.without_end_mark() else { continue };
            others.extend((has_names(&request) && !is_repeat(&request)).then_some(request));
        }
        assert!(others.is_empty(), "it is asked with an answer: {others:?}");
        assert_eq!(refused, None, "a good response");
    }

    /// State of a name as clients see it that ask by it.
    pub fn seen(&self, short: &str, name: &str) -> String {
        let snapshot = self.fixture.cache.of(&type_url(short)).unwrap().snapshot();
        match snapshot.by_name(name) {
            VisibleState::Failed => "failed".to_owned(),
            VisibleState::Denied(resource) => format!("denied {}", resource.version()),
            VisibleState::Unknown => "unknown".to_owned(),
            VisibleState::Absent => "absent".to_owned(),
            VisibleState::Collection => "collection".to_owned(),
            VisibleState::Unresolved(_) => "unresolved".to_owned(),
            VisibleState::Dropped(_) => "dropped".to_owned(),
            VisibleState::Present(resource) => format!("{}:{}", resource.name(), resource.version()),
        }
    }

    /// How many names the relay remembers anything of.
    pub fn entries(&self, short: &str) -> usize {
        self.fixture.cache.of(&type_url(short)).unwrap().snapshot().entries().count()
    }
}

fn has_names(request: &DeltaDiscoveryRequest) -> bool {
    !request.resource_names_subscribe.is_empty() || !request.resource_names_unsubscribe.is_empty()
}

/// See [`Whole::says`].
pub fn resource(type_url: &TypeUrl, item: &str) -> BytesMut {
    let (own, aliases) = item.split_once('=').unwrap_or((item, ""));
    let (name, version) = own.rsplit_once(':').unwrap();
    let (mut any, mut sent) = (BytesMut::new(), BytesMut::new());
    let is_kept = !version.ends_with('!');
    let version = version.trim_end_matches('!');
    wire::put(&mut any, 1, type_url.as_str().as_bytes());
    wire::put(&mut any, 2, &wire::message(name, version));
    wire::put(&mut sent, 1, if version == "?" { b"" } else { version.as_bytes() });
    if version != "?" {
        wire::put(&mut sent, 2, &any);
    }
    wire::put(&mut sent, 3, name.as_bytes());
    aliases.split(',').for_each(|alias| wire::put(&mut sent, 4, alias.as_bytes()));
    if !is_kept {
        wire::put(&mut sent, 7, &[8, 1]);
    }
    sent
}
