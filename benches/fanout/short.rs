//! The properties that hold on any machine, however fast: what CI runs.

use std::io;
use std::time::Duration;

use super::process::Cores;
use super::rows::memory::{self, four_types};
use super::rows::{flatness, growth_by_pushes};
use super::shape::Load;
use super::subject::{CHANGES, RelaySubject, Subject as _};

/// The factor by which cost may grow from 100 resources to 10,000. A mere walk over the table per update, with nothing
/// done to what is in it, was seen to make it 1.7; noise, 1.05.
const FLAT: f64 = 1.3;
/// Memory that 400 clients may add to the relay by four pushes of 1 MiB; a copy for each of those who do not
/// read would add 200 at once.
const PUSHES_MIB: f64 = 32.0;
/// Wake-ups of an idle relay per second. Four looks a second at its memory were seen to make them 11.5. All clients come at once
/// here, so alarms of connections that do not go off together would not show: they have a test of their own.
const WAKE_UPS: f64 = 10.0;
/// Memory of a client with one stream of four types. With room for the future of its connection twice it was 7.4 KiB.
const CLIENT_KIB: f64 = 6.0;
/// Sets of dynamic parameters.
const SETS: usize = 5;

/// Runs all checks, then fails if one did.
pub(crate) fn run(cores: Cores) -> io::Result<()> {
    let mut faults = 0;
    let mut check = |holds: bool, what: String| {
        println!("{}: {what}", if holds { "ok" } else { "FAULT" });
        faults += usize::from(!holds);
    };

    let without = |clients| Load::delta(clients, 100);
    let sets = Load { sets: SETS, ..without(500) };
    for (load, tables, clients) in [
        (&without(50), 1, "50 clients".to_owned()),
        (&without(500), 1, "500 clients".to_owned()),
        (&sets, SETS, format!("500 clients with {SETS} sets of parameters")),
        (
            &Load { variants: true, ..sets.clone() },
            SETS,
            format!("500 clients with {SETS} sets of parameters and variants of each"),
        ),
    ] {
        let Encoded { frames, generations } = encoded(cores, load)?;
        // A table also moves on when its set becomes complete, which may happen meanwhile; and whoever looks just then is
        // told by a frame of its own (tests/alloc counts exactly, without a clock).
        let expected = (CHANGES * tables)..=((CHANGES + 1) * tables);
        check(
            frames <= 2 * generations && expected.contains(&(generations as usize)),
            format!("{CHANGES} changes make {generations} generations, encoded {frames} times for {clients}"),
        );
    }

    let ratio = flatness(cores, 300, 9)?;
    check(
        ratio <= FLAT,
        format!("an update at 10,000 resources costs {ratio:.2} of one at 100 (at most {FLAT})"),
    );

    let mib = growth_by_pushes(cores, 200, 200)?;
    check(
        mib <= PUSHES_MIB,
        format!(
            "4 pushes of 1 MiB to 400 clients, half of whom do not read, add {mib:.1} MiB (at most {PUSHES_MIB})"
        ),
    );

    let idle = RelaySubject::start(cores, &without(500))?;
    // Each client is pinged meanwhile.
    let wake_ups = idle.process().wake_ups(Duration::from_secs(40))?;
    check(
        wake_ups <= WAKE_UPS,
        format!("500 idle clients wake the relay {wake_ups:.1} times a second (at most {WAKE_UPS})"),
    );

    let fleet = four_types(2000, 50, 0);
    let kib = memory::growth(cores, &fleet)? / fleet.clients as f64;
    check(kib <= CLIENT_KIB, format!("an idle client adds {kib:.2} KiB (at most {CLIENT_KIB})"));

    if faults == 0 {
        Ok(())
    } else {
        Err(io::Error::other(format!("{faults} of the properties do not hold")))
    }
}

/// Work of the encoder during one round of changes.
struct Encoded {
    frames: u64,
    /// States that the cache went through, over all sets of parameters.
    generations: u64,
}

/// Counts what is encoded for one round of changes, each told to all clients of this load.
fn encoded(cores: Cores, load: &Load) -> io::Result<Encoded> {
    let mut subject = RelaySubject::start(cores, load)?;
    let (frames, generation) = (subject.relay.encodes()?, subject.relay.generation()?);
    subject.round(0)?;
    Ok(Encoded {
        frames: subject.relay.encodes()? - frames,
        generations: subject.relay.generation()? - generation,
    })
}
