// SPDX-License-Identifier: MIT OR Apache-2.0
//! The replicated log on software NICs: elections, fencing, loss, removal of a device, the death of a process.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Scope, ScopedJoinHandle, scope};
use std::time::Instant;
use uverbs::hca::{Fabric, Hca};
use uverbs_examples::log::{Entry, Follower, Leader, LogError};

/// Followers, each a thread with a device of its own.
struct Cluster<'scope> {
    fabric: &'scope Fabric,
    followers: Vec<(Hca, Sender<UnixStream>)>,
    handles: Vec<ScopedJoinHandle<'scope, anyhow::Result<Vec<Entry>>>>,
    stop: &'scope AtomicBool,
}

impl<'scope> Cluster<'scope> {
    fn new(s: &'scope Scope<'scope, '_>, fabric: &'scope Fabric, stop: &'scope AtomicBool, n: usize) -> Self {
        let (mut followers, mut handles) = (Vec::new(), Vec::new());
        for n in 0..n {
            let (sender, streams) = channel::<UnixStream>();
            let hca = fabric.device(&format!("hca{n}")).build();
            followers.push((hca.clone(), sender));
            handles.push(s.spawn(move || {
                let mut follower = Follower::new(&uverbs::open(hca.open())?)?;
                while !stop.load(Ordering::Relaxed) {
                    while let Ok(stream) = streams.try_recv() {
                        follower.join(stream)?;
                    }
                    follower.serve(Duration::from_millis(1))?;
                }
                follower.durable()
            }));
        }
        Self { fabric, followers, handles, stop }
    }

    /// A candidate that is connected to the followers whose devices are there, and its device.
    fn candidate(&self, id: u8) -> (Leader, Hca) {
        let hca = self.fabric.device(&format!("hca{}", 100 + id)).build();
        let mut leader = Leader::new(&uverbs::open(hca.open()).unwrap(), id).unwrap();
        for (_, follower) in &self.followers {
            let (here, there) = UnixStream::pair().unwrap();
            // One that has ended takes no more streams.
            if follower.send(there).is_ok() {
                leader.join(here).unwrap();
            }
        }
        (leader, hca)
    }

    /// A candidate that is elected.
    fn leader(&self, id: u8) -> (Leader, Hca) {
        let (mut leader, hca) = self.candidate(id);
        leader.elect().unwrap();
        (leader, hca)
    }

    /// Ends the followers. `None` for one whose device was removed.
    fn end(self) -> Vec<Option<Vec<Vec<u8>>>> {
        self.stop.store(true, Ordering::Relaxed);
        let data = |entries: Vec<Entry>| entries.into_iter().map(|entry| entry.data).collect();
        let ends = self.handles.into_iter().map(|handle| handle.join().unwrap().ok().map(data)).collect();
        for (hca, _) in &self.followers {
            assert_eq!(hca.violations(), []);
        }
        ends
    }
}

fn with(seed: u64, n: usize, f: impl FnOnce(Cluster<'_>)) {
    let (fabric, stop) = (Fabric::new(seed), AtomicBool::new(false));
    scope(|s| {
        // The followers end also if the test fails.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        f(Cluster::new(s, &fabric, &stop, n));
    });
}

#[test]
fn entries_are_durable_at_all_followers_also_under_loss() {
    for loss in [0.0, 0.02] {
        with(5, 3, |cluster| {
            cluster.fabric.loss(loss);
            let (mut leader, _hca) = cluster.leader(1);
            let data: Vec<Vec<u8>> = (0..40_u8).map(|n| vec![n; 5 * usize::from(n)]).collect();
            for (n, data) in data.iter().enumerate() {
                assert_eq!(leader.append(data).unwrap(), n as u64 + 1);
            }
            leader.publish().unwrap();
            assert!(matches!(leader.append(&[0; 1000]), Err(LogError::Full)));
            for end in cluster.end() {
                assert_eq!(end.unwrap(), data, "loss {loss}");
            }
        });
    }
}

/// The old leader is alive and believes that it is the leader.
#[test]
fn a_new_leader_locks_the_old_one_out() {
    with(6, 5, |cluster| {
        let (mut old, _hca) = cluster.leader(1);
        for n in 0..5 {
            old.append(&[n]).unwrap();
        }
        let (mut new, _hca) = cluster.leader(2);
        assert_eq!((new.last(), new.term()), (5, old.term() + 1));
        assert!(matches!(old.append(b"too late"), Err(LogError::Deposed)));
        new.append(b"in time").unwrap();
        // It stays locked out.
        assert!(matches!(old.append(b"later"), Err(LogError::Deposed | LogError::NoMajority { .. })));
        new.publish().unwrap();
        let expected: Vec<Vec<u8>> = vec![vec![0], vec![1], vec![2], vec![3], vec![4], b"in time".to_vec()];
        for end in cluster.end() {
            assert_eq!(end.unwrap(), expected);
        }
    });
}

#[test]
fn a_majority_is_enough_and_necessary() {
    for unplug in [true, false] {
        with(7, 3, |cluster| {
            let (mut leader, _hca) = cluster.leader(1);
            leader.append(b"all").unwrap();
            let remove = |n: usize| {
                let hca = &cluster.followers[n].0;
                if unplug { hca.unplug() } else { hca.kill() }
            };
            remove(0);
            let begin = Instant::now();
            leader.append(b"two").unwrap();
            leader.append(b"two again").unwrap();
            assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
            remove(2);
            // The one that is left is no majority.
            let error = leader.append(b"one").unwrap_err();
            assert!(
                matches!(error, LogError::NoMajority { alive: 1 | 0, all: 3 } | LogError::Deposed),
                "{error}"
            );
            let ends = cluster.end();
            assert!(ends[0].is_none() && ends[2].is_none());
            assert_eq!(ends[1].as_ref().unwrap()[..2], [b"all".to_vec(), b"two".to_vec()]);
        });
    }
}

/// What a leader has acknowledged is in the log of the next one, also if the leader dies between two entries, or its device goes.
#[test]
fn acknowledged_entries_survive_the_death_of_the_leader() {
    for (seed, kill) in [(1, true), (2, false), (3, true)] {
        with(seed, 3, |cluster| {
            let (mut leader, hca) = cluster.leader(1);
            let mut acknowledged = 0;
            for n in 0..20_u64 {
                if n == 11 {
                    if kill { hca.kill() } else { hca.unplug() }
                }
                match leader.append(&n.to_le_bytes()) {
                    Ok(number) => acknowledged = number,
                    Err(_) => break,
                }
            }
            assert_eq!(acknowledged, 11);
            let (mut next, _hca) = cluster.leader(2);
            assert!(next.last() >= acknowledged, "{}", next.last());
            next.append(b"next").unwrap();
            next.publish().unwrap();
            for end in cluster.end() {
                let end = end.unwrap();
                for (n, entry) in end[..11].iter().enumerate() {
                    assert_eq!(*entry, (n as u64).to_le_bytes());
                }
                assert_eq!(end.last().unwrap(), b"next");
            }
        });
    }
}

/// Candidates that campaign at the same time: each acknowledged entry is in the final log, once, in the order of its number.
#[test]
fn candidates_at_the_same_time_lose_no_entry() {
    with(9, 3, |cluster| {
        cluster.fabric.loss(0.005);
        let acknowledged = std::sync::Mutex::new(Vec::new());
        scope(|s| {
            for id in 1..=3_u8 {
                let (cluster, acknowledged) = (&cluster, &acknowledged);
                s.spawn(move || {
                    for turn in 0..4_u8 {
                        let (mut leader, _hca) = cluster.candidate(id * 10 + turn);
                        if leader.elect().is_err() {
                            continue;
                        }
                        for n in 0..3 {
                            let data = [id, turn, n];
                            match leader.append(&data) {
                                Ok(number) => acknowledged.lock().unwrap().push((number, data)),
                                Err(_) => break,
                            }
                        }
                    }
                });
            }
        });
        let (mut last, _hca) = loop {
            let (mut leader, hca) = cluster.candidate(99);
            if leader.elect().is_ok() {
                break (leader, hca);
            }
        };
        last.publish().unwrap();
        let mut acknowledged = acknowledged.into_inner().unwrap();
        acknowledged.sort_unstable();
        assert!(!acknowledged.is_empty());
        for end in cluster.end() {
            let end = end.unwrap();
            for (number, data) in &acknowledged {
                assert_eq!(end[*number as usize - 1], data, "entry {number} of {acknowledged:?}");
            }
        }
    });
}
