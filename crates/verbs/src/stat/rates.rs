// SPDX-License-Identifier: MIT OR Apache-2.0
//! The difference of two samples, per second.

use super::{Counters, DeviceSample, QpSample, Sample};
use std::collections::{BTreeMap, HashMap};

/// Rates between two samples, for what both have.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// The time between them.
    pub seconds: f64,
    /// The devices.
    pub devices: Vec<DeviceRates>,
}

/// Of a device.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct DeviceRates {
    /// Its name.
    pub name: String,
    /// Of its counters, per second.
    pub counters: BTreeMap<String, f64>,
    /// Of its ports.
    pub ports: Vec<PortRates>,
    /// Of its QPs.
    pub qps: Vec<QpRates>,
    /// Of the counters that sets of QPs share.
    pub bound: Vec<BoundRates>,
}

/// Of a port.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PortRates {
    /// Its number.
    pub number: u32,
    /// Of its counters, per second.
    pub counters: BTreeMap<String, f64>,
}

/// Of the counters of a set of QPs.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct BoundRates {
    /// The number of the set.
    pub id: u32,
    /// Of its counters, per second.
    pub counters: BTreeMap<String, f64>,
}

/// Of a QP: the difference of packet sequence numbers is the number of packets, if there are less than 2^24 between the samples.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct QpRates {
    /// Its number.
    pub number: u32,
    /// Packets that it sends, per second.
    pub packets_out: Option<f64>,
    /// Packets that it receives, per second.
    pub packets_in: Option<f64>,
}

impl Sample {
    /// The rates since an earlier sample. Devices, ports, QPs and counters that only one of both has are left out. A counter that has
    /// become smaller, because the device was reset, has the rate 0.
    #[must_use]
    pub fn rates_since(&self, before: &Self) -> Rates {
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64();
        let old: HashMap<_, _> = before.devices.iter().map(|device| (&device.name, device)).collect();
        let both = self.devices.iter().filter_map(|now| Some((now, *old.get(&now.name)?)));
        Rates { seconds, devices: both.map(|(now, old)| device(now, old, seconds)).collect() }
    }
}

/// The rates of what both have.
fn counters(now: &Counters, old: &Counters, seconds: f64) -> BTreeMap<String, f64> {
    let both = now.iter().filter_map(|(name, now)| Some((name, now, old.get(name)?)));
    both.map(|(name, now, old)| (name.clone(), per_second(now.saturating_sub(*old) as f64, seconds)))
        .collect()
}

fn per_second(n: f64, seconds: f64) -> f64 {
    n / seconds.max(1e-9)
}

fn device(now: &DeviceSample, old: &DeviceSample, seconds: f64) -> DeviceRates {
    let ports = now.ports.iter().filter_map(|port| {
        let old = old.ports.iter().find(|old| old.number == port.number)?;
        Some(PortRates { number: port.number, counters: counters(&port.counters, &old.counters, seconds) })
    });
    let bound = now.bound.iter().filter_map(|bound| {
        let old = old.bound.iter().find(|old| old.id == bound.id)?;
        Some(BoundRates { id: bound.id, counters: counters(&bound.counters, &old.counters, seconds) })
    });
    let old_qps: HashMap<_, _> = old.qps.iter().flatten().map(|qp| (qp.number, qp)).collect();
    let qps = now.qps.iter().flatten().filter_map(|now| Some(qp(now, old_qps.get(&now.number)?, seconds)));
    DeviceRates {
        name: now.name.clone(),
        counters: counters(&now.counters, &old.counters, seconds),
        ports: ports.collect(),
        qps: qps.collect(),
        bound: bound.collect(),
    }
}

fn qp(now: &QpSample, old: &QpSample, seconds: f64) -> QpRates {
    let packets = |now: Option<u32>, old: Option<u32>| {
        Some(per_second(f64::from(now?.wrapping_sub(old?) & 0xff_ffff), seconds))
    };
    QpRates {
        number: now.number,
        packets_out: packets(now.sq_psn, old.sq_psn),
        packets_in: packets(now.rq_psn, old.rq_psn),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BoundCounters, PortSample};
    use super::*;
    use core::time::Duration;
    use std::time::Instant;

    fn one(at: Instant, packets: u64, psn: u32) -> Sample {
        let counters = BTreeMap::from([("sent_pkts".to_owned(), packets)]);
        let qp =
            QpSample { number: 17, kind: Some(2), state: Some(3), sq_psn: Some(psn), ..QpSample::default() };
        let device = DeviceSample {
            name: "rxe0".into(),
            counters: counters.clone(),
            ports: vec![PortSample { number: 1, state: "ACTIVE".into(), counters: counters.clone() }],
            qps: Ok(vec![qp]),
            bound: vec![BoundCounters { id: 3, port: Some(1), qps: vec![17], counters }],
        };
        Sample { at, devices: vec![device] }
    }

    #[test]
    fn rates_are_those_of_the_interval() {
        let begin = Instant::now();
        // The sequence number wraps at 24 bits.
        let (old, new) = (one(begin, 100, 0xff_fffe), one(begin + Duration::from_secs(2), 300, 2));
        let rates = new.rates_since(&old);
        let device = &rates.devices[0];
        assert_eq!((rates.seconds, device.name.as_str(), device.qps.len()), (2.0, "rxe0", 1));
        for counters in [&device.counters, &device.ports[0].counters, &device.bound[0].counters] {
            assert_eq!(counters.get("sent_pkts"), Some(&100.0));
        }
        assert_eq!((device.qps[0].packets_out, device.qps[0].packets_in), (Some(2.0), None));
    }

    #[test]
    fn what_one_sample_lacks_has_no_rate() {
        let begin = Instant::now();
        let (old, mut new) = (one(begin, 100, 5), one(begin, 50, 5));
        // Counters that begin again, in no time.
        assert_eq!(new.rates_since(&old).devices[0].counters.get("sent_pkts"), Some(&0.0));
        new.devices[0].ports[0].number = 2;
        new.devices[0].bound.clear();
        new.devices[0].qps = Ok(Vec::new());
        new.devices[0].counters = BTreeMap::from([("other".to_owned(), 1)]);
        let device = new.rates_since(&old).devices.remove(0);
        assert!(
            device.ports.is_empty()
                && device.qps.is_empty()
                && device.bound.is_empty()
                && device.counters.is_empty()
        );
        new.devices[0].name = "rxe1".into();
        assert!(new.rates_since(&old).devices.is_empty());
        assert!(new.rates_since(&Sample::empty()).devices.is_empty());
    }

    #[test]
    fn names_are_those_of_the_kernel() {
        let qp = &one(Instant::now(), 0, 0).devices.remove(0).qps.unwrap()[0];
        assert_eq!((qp.type_name(), qp.state_name(), qp.owner()), ("RC".into(), "RTS".into(), "-".into()));
        let odd = QpSample {
            kind: Some(77),
            state: Some(9),
            kernel_name: Some("ib_core".into()),
            ..QpSample::default()
        };
        assert_eq!(
            (odd.type_name(), odd.state_name(), odd.owner()),
            ("77".into(), "9".into(), "[ib_core]".into())
        );
    }
}
