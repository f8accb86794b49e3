//! Cost of TLS, with certificates on both sides: per update, per client, and when a fleet shakes hands.

use std::io;
use std::time::Duration;

use super::Bench;
use super::join::Bystanders;
use super::memory::{self, four_types};
use super::update::beside;
use crate::measure::median;
use crate::origin::Origin;
use crate::report::Stormed;
use crate::shape::{Kind, Load};
use crate::storm::Storm;
use crate::subject::{Comparison, RESOURCE_BYTES};
use crate::target::{Driver, Relay, storm as storm_of};
use crate::tls::Certificates;
use crate::verdict::Goal;

/// Clients of a fleet that comes back.
const FLEET: usize = 15_000;

fn over(certificates: &Certificates, load: Load) -> Load {
    Load { certificates: Some(certificates.folder()), ..load }
}

/// The CPU of an update, of what it is in cleartext.
pub(super) fn update(bench: &Bench, name: &str) -> io::Result<()> {
    let certificates = Certificates::make()?;
    let clear = Load::delta(1000, 1000);
    let tls = over(&certificates, clear.clone());
    let Comparison { ratio, .. } = beside(bench, name, ("clear", &clear), ("tls", &tls))?;
    Goal::new(1.35, 1.2).at_most("times the CPU of cleartext", ratio);
    Ok(())
}

pub(super) fn idle(bench: &Bench, name: &str) -> io::Result<()> {
    let certificates = Certificates::make()?;
    memory::idle(bench, name, &over(&certificates, four_types(2000, 50, 37)), Goal::new(20.0, 17.0))
}

/// Clients that hold everything, and find a relay that has just begun and holds nothing.
pub(super) fn storm(bench: &Bench, name: &str) -> io::Result<()> {
    let certificates = Certificates::make()?;
    let clear = Load { held: true, first: 0, at_once: 2000, ..Load::delta(FLEET, 100) };
    let tls = over(&certificates, clear.clone());
    let (mut seconds, mut cpu_us, mut load_us, mut in_clear) = (vec![], vec![], vec![], vec![]);
    for _ in 0..bench.rounds {
        let origin = Origin::start();
        origin.fill(Kind::Eds, tls.resources, RESOURCE_BYTES);
        let relay = Relay::start(bench.cores, origin.address, &tls)?;
        let cpu = relay.process.cpu()?;
        let (driver, joined) = Driver::start(bench.cores, relay.address, &tls)?;
        cpu_us.push((relay.process.cpu()? - cpu) as f64 / 1e3 / FLEET as f64);
        load_us.push(driver.0.cpu()? as f64 / 1e3 / FLEET as f64);
        seconds.push(joined.nanos as f64 / 1e9);
        drop((driver, relay));
        let relay = Relay::start(bench.cores, origin.address, &clear)?;
        let (_driver, joined) = Driver::start(bench.cores, relay.address, &clear)?;
        in_clear.push(joined.nanos as f64 / 1e9);
    }
    println!(
        "{name}: whole handshakes, {:.0} us CPU each (load {:.0}); in cleartext all are answered after {:.2} s",
        median(cpu_us),
        median(load_us),
        median(in_clear)
    );
    Goal::new(15.0, 10.0).at_most("seconds until all are answered", median(seconds));
    Ok(())
}

/// A fleet that comes all at once and has deadlines, of which a third holds everything and comes last.
pub(super) fn all_at_once(bench: &Bench, name: &str) -> io::Result<()> {
    let certificates = Certificates::make()?;
    let of = |clients| Load { first: 0, ..over(&certificates, Load::delta(clients, 1000)) };
    let resuming = Load { held: true, ..of(FLEET / 3) };
    let fleet = Storm { cold: of(FLEET - resuming.clients), resuming };
    let (mut last, mut late) = (Vec::new(), 0);
    println!("{name}: {FLEET} clients with deadlines, of which a third resumes and comes last");
    for _ in 0..bench.rounds {
        let origin = Origin::start();
        origin.fill(Kind::Eds, fleet.cold.resources, RESOURCE_BYTES);
        let relay = Relay::start(bench.cores, origin.address, &fleet.cold)?;
        // It is answered when the relay knows that it has everything.
        let _first =
            Driver::start(bench.cores, relay.address, &Load { clients: 1, ..fleet.resuming.clone() })?;
        let Stormed { resuming, cold, refused, given_up, late: too_late } =
            storm_of(bench.cores, relay.address, &fleet)?;
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        println!(
            "    answered after {:.2} s (p50), {:.2} s (p99), {:.2} s (all) that resume; {:.2}, {:.2}, {:.2} s others; \
             {refused} refused, {given_up} gave up, {too_late} answers too late",
            seconds(resuming.p50),
            seconds(resuming.p99),
            seconds(resuming.max),
            seconds(cold.p50),
            seconds(cold.p99),
            seconds(cold.max),
        );
        last.push(seconds(resuming.max.max(cold.max)));
        late += too_late;
    }
    Goal::new(15.0, 10.0).at_most("seconds until all are answered", median(last));
    Goal::new(0.0, 0.0).at_most("answers later than 15 s", late as f64);
    Ok(())
}

/// How old changes are when they come to clients that were there before, while a fleet comes.
pub(super) fn live(bench: &Bench, name: &str) -> io::Result<()> {
    const BEFORE: Duration = Duration::from_secs(5);
    let certificates = Certificates::make()?;
    let live = Load::delta(Bystanders::CLIENTS, 100);
    // They leave the core to those who measure.
    let fleet = Load { kinds: vec![Kind::Cds], yields: true, at_once: 2000, ..Load::delta(FLEET, 1) };
    let (mut lines, mut oldest) = (Vec::new(), Vec::new());
    let pairs = [
        ("cleartext", live.clone(), fleet.clone()),
        ("tls", over(&certificates, live), over(&certificates, fleet)),
    ];
    for (who, live, fleet) in pairs {
        for _ in 0..bench.rounds {
            let mut bystanders = Bystanders::start(bench, &live, &fleet)?;
            let address = bystanders.relay.address;
            let before = bystanders.watch(BEFORE)?;
            let (during, (_fleet, joined)) =
                bystanders.during(|| Driver::start(bench.cores, address, &fleet))?;
            let ms = |nanos: u64| nanos as f64 / 1e6;
            if live.certificates.is_some() {
                oldest.push(ms(during.max_age));
            }
            lines.push(format!(
                "    {who:<9} p99 {:.2} -> {:.2} ms, p50 {:.2} -> {:.2}, at most {:.2} -> {:.2}; {} changes, all there after {:.2} s",
                ms(before.p99_age),
                ms(during.p99_age),
                ms(before.p50_age),
                ms(during.p50_age),
                ms(before.max_age),
                ms(during.max_age),
                during.messages / Bystanders::CLIENTS as u64,
                joined.nanos as f64 / 1e9,
            ));
        }
    }
    println!("{name}: {} delta streams, {} changes/s", Bystanders::CLIENTS, Bystanders::CHANGES_PER_SECOND);
    lines.iter().for_each(|line| println!("{line}"));
    Goal::new(50.0, 50.0).at_most("ms that the oldest change was old", median(oldest));
    Ok(())
}
