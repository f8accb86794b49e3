//! A control plane that changes one resource at a steady pace, and a client that acknowledges what it is sent.
//!
//! They share a core with the attackers, whose writes the kernel does not interrupt. So with each change the control plane
//! also tells the client directly, past the relay, and what counts is how much later it hears of it through the relay.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use deltafan::proto::DeltaDiscoveryRequest;
use deltafan::resource::{Envelope, TypeUrl};
use deltafan_test_support::PATIENCE;
use deltafan_test_support::client::{CDS, Delta, EDS, connect};
use deltafan_test_support::origin::{Origin, OriginStream, resource, response};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::fixture::IS_JUDGED;

/// Between two changes.
const PACE: Duration = Duration::from_millis(4);
/// Changes of which a percentile means something. Where nothing is judged, no more of them are on their way: a busy machine may
/// not keep the pace, and would never catch up.
const ENOUGH: usize = 50;
/// Name of the resource that changes.
const PULSE: &str = "pulse";
/// Resources beside it: clusters, and endpoints that are worth not reading.
const CLUSTERS: usize = 100;
const ENDPOINTS: usize = 64;
const ENDPOINT_BYTES: usize = 32 << 10;

/// When each change was made, when the client was told of it directly, and when it heard of it. One that a later one
/// overtook was heard of with that.
#[derive(Debug, Default)]
pub(crate) struct Pulses {
    sent: Vec<Instant>,
    told: Vec<Instant>,
    heard: Vec<Instant>,
}

impl Pulses {
    /// The 99th percentile of how much later than directly the changes of a span of time were heard of; `None` if they are too
    /// few to tell.
    pub(crate) fn p99(&self, from: Instant, to: Instant) -> Option<Duration> {
        let now = Instant::now();
        let of_span = self.sent.iter().enumerate().filter(|(_, sent)| (from..to).contains(*sent));
        let mut took: Vec<_> = of_span
            .map(|(at, sent)| {
                let told = self.told.get(at).unwrap_or(sent);
                self.heard.get(at).copied().unwrap_or(now).saturating_duration_since(*told)
            })
            .collect();
        took.sort_unstable();
        (took.len() >= ENOUGH).then(|| took[(took.len() * 99).div_ceil(100) - 1])
    }

    /// Whether the next change waits until the client has caught up.
    fn must_wait(&self) -> bool {
        !IS_JUDGED && self.sent.len() >= self.heard.len() + ENOUGH
    }

    /// Whether all that was sent before a moment has been heard.
    pub(crate) fn has_heard(&self, before: Instant) -> bool {
        self.sent.partition_point(|sent| *sent < before) <= self.heard.len()
    }
}

/// Both, until this is dropped.
#[derive(Debug)]
pub(crate) struct Honest {
    pub(crate) pulses: Arc<Mutex<Pulses>>,
    stop: Arc<AtomicBool>,
    /// The client's end of the direct way.
    direct: Mutex<Option<std::net::TcpStream>>,
}

impl Drop for Honest {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn on_a_thread(work: impl Future<Output = ()> + Send + 'static) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work);
    });
}

impl Honest {
    /// Starts the control plane, and returns its address.
    pub(crate) fn origin() -> (Self, String) {
        let meeting = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = std::net::TcpStream::connect(meeting.local_addr().unwrap()).unwrap();
        let (theirs, _) = meeting.accept().unwrap();
        for end in [&ours, &theirs] {
            end.set_nonblocking(true).unwrap();
            end.set_nodelay(true).unwrap();
        }
        let direct = Mutex::new(Some(theirs));
        let honest = Self { pulses: Arc::default(), stop: Arc::default(), direct };
        let (tell, told) = std::sync::mpsc::channel();
        let (pulses, stop) = (Arc::clone(&honest.pulses), Arc::clone(&honest.stop));
        on_a_thread(async move {
            let mut origin = Origin::start().await;
            let direct = Arc::new(TcpStream::from_std(ours).unwrap());
            tell.send(origin.uri()).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let next = tokio::time::timeout(Duration::from_millis(50), origin.next_stream()).await;
                let Ok(Some(stream)) = next else { continue };
                tokio::spawn(serve(stream, Arc::clone(&pulses), Arc::clone(&direct)));
            }
        });
        (honest, told.recv().unwrap())
    }

    /// Has a client listen from here on, and returns once it hears.
    pub(crate) fn listen(&self, relay: String) {
        let (pulses, stop) = (Arc::clone(&self.pulses), Arc::clone(&self.stop));
        let direct = self.direct.lock().take().expect("there is one client");
        on_a_thread(async move {
            tokio::spawn(listen_directly(TcpStream::from_std(direct).unwrap(), Arc::clone(&pulses)));
            let mut client = Delta::asking(&connect(&relay).await, "honest", CDS, &["*"]).await;
            let cds = TypeUrl::from(CDS);
            while !stop.load(Ordering::Relaxed) {
                let Some(response) = client.next_response().await else { return };
                let now = Instant::now();
                for resource in &response.resources {
                    let envelope = Envelope::parse(resource, &cds).unwrap();
                    if envelope.name == PULSE {
                        let pulse: usize = envelope.version.parse().unwrap();
                        pulses.lock().heard.resize(pulse + 1, now);
                    }
                }
                client.ack(&response).await;
            }
        });
        let until = Instant::now() + PATIENCE;
        while self.pulses.lock().heard.len() < 20 {
            assert!(Instant::now() < until, "the honest client hears nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Hears of changes by their numbers.
async fn listen_directly(mut direct: TcpStream, pulses: Arc<Mutex<Pulses>>) {
    while let Ok(pulse) = direct.read_u64().await {
        let now = Instant::now();
        pulses.lock().told.resize(pulse as usize + 1, now);
    }
}

/// Answers what is asked: clusters, endpoints, and that anything else is not there.
async fn serve(mut stream: OriginStream, pulses: Arc<Mutex<Pulses>>, direct: Arc<TcpStream>) {
    let [cds, eds] = [CDS, EDS].map(TypeUrl::from);
    let mut pulse = tokio::time::interval(PACE);
    let mut beats = false;
    loop {
        tokio::select! {
            request = stream.next_request() => {
                let Some(request) = request else { return };
                let newest = pulses.lock().sent.len().checked_sub(1);
                if let Some(mut answer) = answer(&request, newest, &cds, &eds) {
                    beats |= request.type_url == CDS && has_star(&request);
                    answer.type_url = request.type_url;
                    answer.nonce = "n".to_owned();
                    stream.send(&answer);
                }
            }
            _ = pulse.tick(), if beats => {
                let version = {
                    let mut pulses = pulses.lock();
                    if pulses.must_wait() {
                        continue;
                    }
                    pulses.sent.push(Instant::now());
                    pulses.sent.len() - 1
                };
                let mut change = response(&cds, "p");
                change.resources.push(resource(&cds, PULSE, &version.to_string(), b""));
                stream.send(&change);
                let number = (version as u64).to_be_bytes();
                // Eight bytes go whole or, once the client is gone, not at all.
                _ = direct.try_write(&number);
            }
        }
    }
}

/// Whether all resources of the type are asked for, in the old way or the new.
fn has_star(request: &DeltaDiscoveryRequest) -> bool {
    let asked = &request.resource_names_subscribe;
    let changes = [asked, &request.resource_names_unsubscribe];
    asked.iter().any(|name| name == "*")
        || (request.response_nonce.is_empty()
            && changes.into_iter().all(Vec::is_empty)
            && request.resource_locators_subscribe.is_empty()
            && request.resource_locators_unsubscribe.is_empty())
}

fn answer(
    request: &DeltaDiscoveryRequest,
    newest: Option<usize>,
    cds: &TypeUrl,
    eds: &TypeUrl,
) -> Option<deltafan::proto::DeltaDiscoveryResponse> {
    let asked = &request.resource_names_subscribe;
    let locators = &request.resource_locators_subscribe;
    if asked.is_empty() && locators.is_empty() && !has_star(request) {
        return None;
    }
    let mut answer = deltafan::proto::DeltaDiscoveryResponse::default();
    if has_star(request) && request.type_url == CDS {
        answer.resources =
            (0..CLUSTERS).map(|n| resource(cds, &format!("c{n}"), "1", &[b'x'; 500])).collect();
        // The relay opens streams anew: changes that were on their way are lost.
        answer.resources.extend(newest.map(|newest| resource(cds, PULSE, &newest.to_string(), b"")));
    } else if has_star(request) && request.type_url == EDS {
        let body = [b'x'; ENDPOINT_BYTES];
        answer.resources = (0..ENDPOINTS).map(|n| resource(eds, &format!("e{n}"), "1", &body)).collect();
    }
    let names = asked.iter().chain(locators.iter().map(|locator| &locator.name));
    answer.removed_resources = names.filter(|name| *name != "*").cloned().collect();
    Some(answer)
}
