// SPDX-License-Identifier: MIT OR Apache-2.0
//! Test beds of two software HCAs on a fabric.

use anyhow::{Context as _, Result, ensure};
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::{Mutex, PoisonError};
use uverbs::Context;
use uverbs::attr::{Gid, LinkLayer};
use uverbs::mlx5::Mlx5;
use uverbs_hca::{Fabric, Link, UdpStat, Violation};
use uverbs_tests::bed::{Bed, Disturbance, DropGuard};
use uverbs_tests::env::End;
use uverbs_tests::runner::without_open_files;
use uverbs_tests::wait::work_while_waiting;
use uverbs_tests::{Lab, LabEnv, LabTest, Outcome, TestBed};

/// The fabric of the running test, whose clock advances during waits.
static FABRIC: Mutex<Option<Fabric>> = Mutex::new(None);

fn current() -> Option<Fabric> {
    FABRIC.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The number of waits.
static TURNS: AtomicU32 = AtomicU32::new(0);

/// Makes waits advance the clock of the fabric.
pub(crate) fn install() {
    work_while_waiting(|time| {
        if let Some(fabric) = current() {
            fabric.run_for(time);
            // A virtual clock advances as fast as the test waits, but other threads of the test need CPU time. The
            // thread yields only now and then, because on a busy machine it may take milliseconds until it runs again.
            if TURNS.fetch_add(1, Ordering::Relaxed).is_multiple_of(8) {
                std::thread::yield_now();
            }
        } else {
            std::thread::sleep(time);
        }
    });
}

/// Two RoCE devices with a virtual clock.
#[derive(Debug)]
pub(crate) struct Hca;

/// A bed of two devices.
#[derive(Clone, Debug)]
struct Two {
    /// The fabric of both, or one of each.
    fabrics: Vec<Fabric>,
    link: Link,
    hcas: [uverbs_hca::Hca; 2],
    /// The addresses of devices that reach each other by UDP.
    hosts: Option<[Ipv4Addr; 2]>,
}

/// Index of the GID of the IPv4 address, for RoCE version 2.
const GID_INDEX: u8 = 3;

/// Two devices on InfiniBand, with a virtual clock.
#[derive(Debug)]
pub(crate) struct InfiniBand;

impl Two {
    fn new(fabric: Fabric, link: Link) -> Self {
        let hcas = ["hca0", "hca1"].map(|name| fabric.device(name).link(link).build());
        Self { fabrics: vec![fabric], link, hcas, hosts: None }
    }

    /// Two devices that have a fabric each, and reach each other by UDP.
    fn by_udp() -> Result<Self> {
        let [.., a, b] = std::process::id().to_be_bytes();
        let hosts = [64, 128].map(|c| Ipv4Addr::new(127, a, b, c));
        let build = |host: Ipv4Addr| {
            let fabric = Fabric::new(u64::from(u32::from(host)));
            let hca = fabric.device("hca0").build_udp(host.into()).with_context(|| host.to_string())?;
            anyhow::Ok((fabric, hca))
        };
        let [(here, a), (there, b)] = [build(hosts[0])?, build(hosts[1])?];
        Ok(Self { fabrics: vec![here, there], link: Link::Ethernet, hcas: [a, b], hosts: Some(hosts) })
    }

    fn hca(&self, end: End) -> &uverbs_hca::Hca {
        &self.hcas[end as usize]
    }
}

impl Bed<Mlx5> for Two {
    fn open(&self, end: End) -> Result<Context<Mlx5>> {
        Ok(Context::from_kernel(self.hca(end).open())?)
    }
    fn name(&self, end: End) -> &str {
        self.hca(end).name()
    }
    fn gid_index(&self) -> u8 {
        match self.link {
            Link::Ethernet if self.hosts.is_some() => 1,
            Link::Ethernet => GID_INDEX,
            Link::InfiniBand => 0,
        }
    }
    fn link_layer(&self) -> LinkLayer {
        if self.link == Link::Ethernet { LinkLayer::ETHERNET } else { LinkLayer::INFINIBAND }
    }
    fn gid(&self, end: End) -> Result<Gid> {
        if self.link == Link::InfiniBand {
            return format!("fe80::55:56ff:fe00:{}", end as usize + 1).parse().ok().context("an address");
        }
        if let Some(hosts) = self.hosts {
            return Ok(Gid(hosts[end as usize].to_ipv6_mapped().octets()));
        }
        format!("::ffff:10.77.0.{}", end as usize + 1).parse().ok().context("an address")
    }
    fn resources(&self, end: End) -> Result<String> {
        Ok(format!("{:?}", self.hca(end).objects()))
    }
    fn join_group(&self, _: End, _: &str) -> Result<DropGuard> {
        // The fabric delivers packets of a group to attached QPs; hosts need not join it.
        Ok(Box::new(()))
    }
    fn disturb(&self, what: &Disturbance) -> Result<DropGuard> {
        struct Off(Vec<Fabric>);
        impl Drop for Off {
            fn drop(&mut self) {
                for fabric in &self.0 {
                    fabric.loss(0.0).duplicate(0.0).reorder(0.0).delay(Duration::ZERO);
                }
            }
        }
        let share = |percent: u8| f64::from(percent) / 100.0;
        // A damaged packet fails the CRC check and is dropped, so damage counts as loss.
        let lost = what.loss.saturating_add(what.corrupt);
        let late = what.reorder.map_or(0.0, |(at_once, _)| 1.0 - share(at_once));
        for fabric in &self.fabrics {
            fabric.loss(share(lost)).duplicate(share(what.duplicate)).reorder(late).delay(what.delay);
        }
        Ok(Box::new(Off(self.fabrics.clone())))
    }
    fn repairs(&self) -> u64 {
        self.hcas.iter().map(|hca| hca.repairs()).sum()
    }
    fn forgive(&self, kinds: &[&str]) -> Result<Option<usize>> {
        let wanted = |v: &Violation| kinds.contains(&v.mistake.kind().as_str());
        Ok(Some(self.hcas.iter().map(|hca| hca.take_violations_if(wanted).len()).sum()))
    }
    fn invalidates_on_uc(&self) -> bool {
        self.hosts.is_none()
    }
    fn env(&self) -> Option<&LabEnv> {
        None
    }
}

/// A test of this driver. The functions that run one are compiled once for all.
type Run<'a> = &'a dyn Fn(&Lab<Mlx5>) -> Outcome;

/// Runs a test on a bed, and checks that it left nothing open.
fn on_bed(bed: &Two, test: Run<'_>) -> Outcome {
    let hcas = &bed.hcas;
    let result = without_open_files(&|| {
        let lab = Lab::new(bed.open(End::A)?, Box::new(bed.clone()))?;
        test(&lab)
    });
    // The violations may explain the failure.
    result
        .with_context(|| format!("{:?}", hcas.iter().flat_map(|hca| hca.violations()).collect::<Vec<_>>()))?;
    for hca in hcas {
        let objects = hca.objects();
        ensure!(objects.is_empty(), "{}: objects were not destroyed: {objects:?}", hca.name());
        let mistakes: Vec<_> = hca.violations().iter().map(Violation::to_string).collect();
        ensure!(mistakes.is_empty(), "{}: violations of the driver: {mistakes:?}", hca.name());
    }
    Ok(())
}

/// Runs a test on a fabric with a virtual clock.
fn virtual_time(link: Link, test: Run<'_>) -> Outcome {
    /// Removes the fabric at the end of the test.
    struct Used;
    impl Drop for Used {
        fn drop(&mut self) {
            *FABRIC.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
    let fabric = Fabric::deterministic(1);
    *FABRIC.lock().unwrap_or_else(PoisonError::into_inner) = Some(fabric.clone());
    let _used = Used;
    on_bed(&Two::new(fabric, link), test)
}

impl TestBed for Hca {
    fn run(test: impl LabTest) -> Outcome {
        virtual_time(Link::Ethernet, &|lab| test.clone().run(lab))
    }
}

impl TestBed for InfiniBand {
    const PREFIX: &'static str = "ib::";

    fn run(test: impl LabTest) -> Outcome {
        virtual_time(Link::InfiniBand, &|lab| test.clone().run(lab))
    }
}

/// Runs a test in real time, with the fabric's own thread, for tests with several threads.
#[derive(Debug)]
pub(crate) struct RealTime;

impl TestBed for RealTime {
    const PREFIX: &'static str = "real_time::";

    fn run(test: impl LabTest) -> Outcome {
        on_bed(&Two::new(Fabric::new(1), Link::Ethernet), &|lab| test.clone().run(lab))
    }
}

/// As [`RealTime`], with devices on two fabrics that exchange datagrams of RoCE version 2.
#[derive(Debug)]
pub(crate) struct Udp;

impl TestBed for Udp {
    const PREFIX: &'static str = "udp::";

    fn run(test: impl LabTest) -> Outcome {
        by_udp(&|lab| test.clone().run(lab))
    }
}

fn by_udp(test: Run<'_>) -> Outcome {
    let bed = Two::by_udp()?;
    on_bed(&bed, test)?;
    for hca in &bed.hcas {
        let stat = hca.udp_stat().context("its port has a socket")?;
        let UdpStat { damaged, malformed, lost, unsendable, .. } = stat;
        ensure!((damaged, malformed, lost, unsendable) == (0, 0, 0, 0), "{stat:?}");
    }
    Ok(())
}
