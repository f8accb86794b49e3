//! Attacks on TLS, before its handshake, in it and after it. The honest client is on a cleartext listener of the
//! same relay: what is shown is what handshakes and records cost everybody.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use deltafan_test_support::PATIENCE;
use deltafan_test_support::certificates::{Authority, Use};
use rustls::crypto::cipher::{AeadKey, Iv, OutboundChunks, OutboundPlainMessage};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, ContentType, ProtocolVersion, StreamOwned,
    SupportedCipherSuite,
};
use tempfile::TempDir;

use super::fixture::{Fixture, IS_JUDGED, attack};
use super::peer::{PING, Peer, Socket, Target, call, frame, message, preface};
use super::slow::drip;

const HANDSHAKE: &str = "handshake_timeout; half of the threads at a time, a poll each";
const RECORDS: &str = "records of 16 KiB, messages of 64 KiB (rustls); the connection ends";

/// Attackers are functions without a surrounding: who they are is the same for all.
static CLIENT: OnceLock<Arc<ClientConfig>> = OnceLock::new();
static MANY_NAMES: OnceLock<Arc<ClientConfig>> = OnceLock::new();
static LONG_CHAIN: OnceLock<Arc<ClientConfig>> = OnceLock::new();

type Tls = StreamOwned<ClientConnection, TcpStream>;

impl Socket for Tls {
    fn tcp(&self) -> &TcpStream {
        &self.sock
    }
}

fn shake_hands(address: SocketAddr, config: &OnceLock<Arc<ClientConfig>>) -> io::Result<Tls> {
    let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    socket.set_nodelay(true)?;
    // On a busy machine a handshake is slow, and it is what attacks.
    let patience = if IS_JUDGED { Duration::from_millis(500) } else { PATIENCE };
    socket.set_read_timeout(Some(patience))?;
    socket.set_write_timeout(Some(patience))?;
    let mut session =
        ClientConnection::new(Arc::clone(config.get().unwrap()), "localhost".try_into().unwrap())
            .map_err(io::Error::other)?;
    while session.is_handshaking() {
        session.complete_io(&mut socket)?;
    }
    Ok(StreamOwned::new(session, socket))
}

fn tls(address: SocketAddr) -> io::Result<Box<dyn Socket>> {
    Ok(Box::new(shake_hands(address, &CLIENT)?))
}

/// First bytes of a client, in one record.
fn hello() -> Vec<u8> {
    let config = Arc::clone(CLIENT.get().unwrap());
    let mut session = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    let mut bytes = Vec::new();
    session.write_tls(&mut bytes).unwrap();
    bytes
}

/// A relay of two listeners, the second with TLS.
fn fixture(is_mutual: bool) -> (Fixture, TempDir) {
    let home = tempfile::tempdir().unwrap();
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let further = if is_mutual { ", client_ca_file: AT/clients.pem" } else { "" };
    let secure = servers.write_server(home.path(), &clients, further);
    let listeners = format!("[{{address: \"127.0.0.1:0\"}}, {secure}]");
    let trusting = |identity| servers.trusting(identity, &[&TLS13], &["h2"]);
    if is_mutual {
        let names = (0..2_000).map(|number| format!("n{number}.many.test"));
        let names: Vec<_> = names.chain(["spiffe://many.test/client".to_owned()]).collect();
        let many = clients.certify(&names, Use::Client);
        MANY_NAMES.set(trusting(Some(&many))).expect("set once");
        // Authorities of the right name with wrong keys: each may be the one, until its signature is looked at.
        let wrong = Authority::new("clients");
        let chain: Vec<_> = (0..100).map(|_| Authority::new("clients").der()).collect();
        let chained = wrong.client("spiffe://many.test/client").chained(chain);
        LONG_CHAIN.set(trusting(Some(&chained))).expect("set once");
    } else {
        let mut config = Arc::unwrap_or_clone(trusting(None));
        config.enable_secret_extraction = true;
        CLIENT.set(Arc::new(config)).expect("set once");
    }
    (Fixture::start_with(&listeners, ""), home)
}

/// Says something on connection after connection, each for as long as it is taken.
fn again(target: &Target, says: &[u8]) {
    while target.lasts() {
        let Some(mut peer) = target.peer() else { continue };
        while target.lasts() && peer.say(says) && peer.listen() {}
    }
}

/// Records without content, which only the keys of a connection can make.
fn empty_records(target: &Target) {
    while target.lasts() {
        let Ok(mut stream) = shake_hands(target.address, &CLIENT) else { continue };
        if stream.write_all(&preface(0)).is_err() || stream.flush().is_err() {
            continue;
        }
        let (session, mut socket) = stream.into_parts();
        let suite = session.negotiated_cipher_suite().unwrap();
        let (mut number, secrets) = session.dangerous_extract_secrets().unwrap().tx;
        let (key, iv): (AeadKey, Iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv }
            | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
            | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv),
            _ => panic!("a suite that nobody offered"),
        };
        let SupportedCipherSuite::Tls13(suite) = suite else { panic!("it is not TLS 1.3") };
        let mut encrypter = suite.aead_alg.encrypter(key, iv);
        loop {
            let mut records = Vec::new();
            for _ in 0..2_000 {
                let plain = OutboundPlainMessage {
                    typ: ContentType::ApplicationData,
                    version: ProtocolVersion::TLSv1_3,
                    payload: OutboundChunks::Single(&[]),
                };
                records.extend(encrypter.encrypt(plain, number).unwrap().encode());
                number += 1;
            }
            if !target.lasts() || socket.write_all(&records).is_err() {
                break;
            }
        }
    }
}

/// Asks for other keys as often as is allowed, says a little, and again.
fn key_updates(target: &Target) {
    while target.lasts() {
        let Ok(mut stream) = shake_hands(target.address, &CLIENT) else { continue };
        let mut open = stream.write_all(&preface(0)).is_ok();
        _ = stream.sock.set_read_timeout(Some(Duration::from_millis(1)));
        while open && target.lasts() {
            for _ in 0..30 {
                open &= stream.conn.refresh_traffic_keys().is_ok();
            }
            open &= stream.write_all(&frame(PING, 0, 0, &[0; 8])).is_ok() && stream.flush().is_ok();
            open &= !matches!(stream.read(&mut [0; 4096]), Ok(0));
        }
    }
}

/// Whether the attack was one: so many handshakes ended like this, where it is judged. Elsewhere there may be time for one.
fn ended(fixture: &Fixture, result: &str, at_least: f64) {
    let at_least = if IS_JUDGED { at_least } else { 1.0 };
    let count = fixture.relay().metric(&format!("deltafan_tls_handshakes_total{{result=\"{result}\"}}"));
    println!("{count} handshakes ended with {result}");
    assert!(count >= at_least, "{count} handshakes ended with {result}");
}

#[test]
fn before_and_in_the_handshake() {
    let (fixture, _home) = fixture(false);
    // TLS is what is attacked, so what begins in cleartext goes to the same listener.
    fixture.suffer(&[
        attack("TLS: a hello byte by byte", HANDSHAKE, |target| {
            let hello = hello();
            drip(target, target.peers(500, &hello[..5]), &hello[5..]);
        }),
        attack("TLS: a hello, then silence, 1,000 times", HANDSHAKE, |target| {
            target.hold_peers(500, &hello());
        }),
        attack("TLS: a hello, then a reset, again and again", HANDSHAKE, |target| {
            while target.lasts() {
                target.peers(20, &hello()).into_iter().for_each(Peer::vanish);
            }
        }),
        attack("TLS: hellos and records that are too large", RECORDS, |target| {
            let record = [&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..], &[0; 0x4000 - 4]].concat();
            let more = [&[22, 3, 1, 0x40, 0][..], &[0; 0x4000]].concat();
            again(target, &[record, more.repeat(8)].concat());
            again(target, &[&[22, 3, 1, 0xff, 0xff][..], &[0; 0xffff]].concat());
        }),
        attack(
            "TLS: hellos of 60 KiB that never end",
            "messages of 64 KiB (rustls); handshake_timeout",
            |target| {
                let record = [&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xf0][..], &[0; 0x4000 - 4]].concat();
                let more = [&[22, 3, 1, 0x40, 0][..], &[0; 0x4000]].concat();
                target.hold_peers(200, &[record, more.repeat(2)].concat());
            },
        ),
        attack("TLS: a storm of whole handshakes", HANDSHAKE, |target| {
            while target.lasts() {
                _ = shake_hands(target.address, &CLIENT).map(|stream| Peer::new(Box::new(stream)).vanish());
            }
        }),
    ]);
    fixture.suffer_over(
        tls,
        &[
            attack(
                "TLS: records without content",
                "32 in a row (rustls); the connection ends",
                empty_records,
            ),
            attack("TLS: changes of keys", "32 in a row (rustls); budget of useless frames", key_updates),
            attack("TLS: garbage after the handshake", RECORDS, |target| {
                while target.lasts() {
                    let Ok(mut stream) = shake_hands(target.address, &CLIENT) else { continue };
                    _ = stream.sock.write_all(&[23, 3, 3, 0, 64].repeat(100));
                    _ = stream.read(&mut [0; 64]);
                }
            }),
            attack(
                "TLS: close_notify, or half of a close, and then silence",
                "what says that it is done is done",
                |target| {
                    let mut all = Vec::new();
                    while target.lasts() && all.len() < 300 {
                        let Ok(mut stream) = shake_hands(target.address, &CLIENT) else { continue };
                        _ = stream.write_all(&[preface(0), call(1, 0), message(1, 0, b"")].concat());
                        if all.len() % 2 == 0 {
                            stream.conn.send_close_notify();
                            _ = stream.flush();
                        } else {
                            _ = stream.flush();
                            _ = stream.sock.shutdown(Shutdown::Write);
                        }
                        all.push(stream);
                    }
                    std::thread::sleep(target.until.saturating_duration_since(std::time::Instant::now()));
                },
            ),
            attack("TLS: PING", "budget of useless frames, ENHANCE_YOUR_CALM", |target| {
                let pings = frame(PING, 0, 0, &[0; 8]).repeat(500);
                target.flood(&[], |_| pings.clone());
            }),
        ],
    );
    ended(&fixture, "ok", 100.0);
}

#[test]
fn certificates_that_are_dear_to_verify() {
    let (fixture, _home) = fixture(true);
    fixture.suffer(&[
        attack("TLS: certificates with 2,000 names", "64 KiB of certificates (rustls)", |target| {
            loop {
                if let Ok(mut stream) = shake_hands(target.address, &MANY_NAMES) {
                    if !IS_JUDGED {
                        // A reset would overtake the certificates on a busy machine.
                        _ = stream.read(&mut [0; 1]);
                    }
                    Peer::new(Box::new(stream)).vanish();
                }
                if !target.lasts() {
                    break;
                }
            }
        }),
        attack(
            "TLS: 100 authorities of the right name with wrong keys",
            "10 certificates behind the client's own",
            |target| {
                loop {
                    _ = shake_hands(target.address, &LONG_CHAIN).map(|mut stream| stream.read(&mut [0; 64]));
                    if !target.lasts() {
                        break;
                    }
                }
            },
        ),
    ]);
    ended(&fixture, "ok", 10.0);
    ended(&fixture, "bad_certificate", 10.0);
}
