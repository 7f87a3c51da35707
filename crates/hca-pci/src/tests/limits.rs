// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a guest can make this process store: objects of each kind, lists, page lists.

use super::*;
use crate::fw::Status;
use crate::limits;
use crate::state::{CqRecord, Function, SrqRecord};
use crate::tables::{Destination, Entry, Group, RECEIVE, State, Table, Tir, Where, action};
use uverbs_hca::front::{Device, Qp, QpKind};

/// Runs with the function's state.
fn with<R>(driver: &Driver, f: impl FnOnce(&mut Device, &mut Function) -> R) -> R {
    driver.function.enter(|device, function, _| f(device, function)).unwrap()
}

/// The status of a command.
fn status(driver: &Driver, input: &[u8]) -> u8 {
    driver.command(input, 512)[0]
}

/// A new entry without a destination.
fn entry(group: u32, destinations: Vec<Destination>) -> Entry {
    Entry { group, value: vec![1; 64], tag: 0, action: action::FORWARD, destinations, counters: Vec::new() }
}

/// After as many objects of a kind as the capabilities report, a further one is refused.
#[test]
fn objects_of_each_kind_have_a_limit() {
    type Fill = fn(&mut Device, &mut Function);
    let driver = Driver::on(Link::Ethernet);
    let (uar, pd) = (driver.simple(0x802), driver.simple(0x800));
    let (_event, eqn) = event_queue(&driver, uar);
    let cqn = completion_queue(&driver, uar, eqn, 0x31_0000);
    let of = |opcode: u16, len: usize, change: &dyn Fn(&mut [u8])| {
        let mut bytes = input(opcode, len);
        change(&mut bytes);
        bytes
    };
    let plain = |opcode: u16| of(opcode, 1024, &|_| ());
    let kinds: Vec<(&str, Vec<u8>, Fill)> = vec![
        ("domain", plain(0x800), |_, f| while f.pds.alloc().is_some() {}),
        ("page", plain(0x802), |_, f| while f.uars.alloc().is_some() {}),
        ("XRC domain", plain(0x80e), |_, f| while f.xrcds.alloc().is_some() {}),
        ("transport domain", plain(0x816), |_, f| while f.domains.alloc().is_some() {}),
        ("counter set", plain(0x771), |_, f| while f.counters.alloc().is_some() {}),
        ("user context", plain(0xa04), |_, f| while f.uctxs.alloc().is_some() {}),
        ("TIS", plain(0x912), |_, f| while f.ethernet_objects.tises.alloc().is_some() {}),
        (
            "user memory",
            of(0xa08, 48 + 8, &|bytes| umem::NUM_OF_MTT.set(create_umem_in::UMEM.rest_mut(bytes), 1_u32)),
            |_, f| while f.umem_ids.alloc().is_some() {},
        ),
        (
            "key",
            of(0x200, 272, &|bytes| {
                mkc::PD.set(create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(bytes), pd);
            }),
            |_, f| f.mkeys.extend((0..1 << limits::LOG_MAX_MKEY).map(|i| (i, Box::default()))),
        ),
        (
            "CQ",
            of(0x400, 272 + 8, &|bytes| {
                let context = create_cq_in::CQ_CONTEXT.bytes_mut(bytes);
                cqc::UAR_PAGE.set(context, uar);
                cqc::C_EQN_OR_APU_ELEMENT.set(context, eqn);
            }),
            |_, f| {
                let cq = |i| (i, CqRecord { eqn: 0, context: Vec::new() });
                f.cqs.extend((0..1 << limits::LOG_MAX_CQ).map(cq));
            },
        ),
        (
            "QP",
            of(0x500, 272 + 8, &|bytes| qpc::PD.set(create_qp_in::QPC.bytes_mut(bytes), pd)),
            |device, _| (0..1 << limits::LOG_MAX_QP).for_each(|i| device.add_qp(Qp::new(i, QpKind::Rc))),
        ),
        (
            "SRQ",
            {
                of(0x700, 272 + 8, &|bytes| {
                    let context = crate::layout::create_srq_in::SRQ_CONTEXT_ENTRY.bytes_mut(bytes);
                    crate::layout::srqc::LOG_RQ_STRIDE.set(context, 1_u32);
                })
            },
            |_, f| {
                let srq = |i| (i, SrqRecord { context: Vec::new(), is_pool: false });
                f.srqs.extend((0..1 << limits::LOG_MAX_SRQ).map(srq));
            },
        ),
        (
            "EQ",
            of(0x301, 272 + 8, &|bytes| {
                eqc::UAR_PAGE.set(create_eq_in::EQ_CONTEXT_ENTRY.bytes_mut(bytes), uar);
            }),
            |_, f| {
                let context = vec![0; 64];
                let pages = crate::pages::Pages::new(&f.vm.memory, vec![0], 12, 0, 4096).unwrap();
                let ring = Arc::new(pages).area(0, 4096).unwrap();
                for n in 0..1 << limits::LOG_MAX_EQ {
                    f.eqs.insert(n, crate::eq::Eq::new(ring.clone(), 1, 0, [0; 4], context.clone()));
                }
            },
        ),
        ("RQ", plain(0x908), |_, f| {
            f.ethernet_objects.rqs.extend((0..1 << limits::LOG_MAX_RQ).map(|i| (i, Vec::new())));
        }),
        (
            "SQ",
            of(0x904, 1024, &|bytes| {
                let context = crate::layout::create_sq_in::CTX.bytes_mut(bytes);
                crate::layout::sqc::CQN.set(context, cqn);
            }),
            |_, f| f.ethernet_objects.sqs.extend((0..1 << limits::LOG_MAX_SQ).map(|i| (i, Vec::new()))),
        ),
        ("TIR", plain(0x900), |_, f| {
            f.ethernet_objects.rqs.insert(0, Vec::new());
            let mut state = f.ethernet_objects.tables.state();
            for n in 0..1 << limits::LOG_MAX_TIR {
                state.add_tir(n, Tir { to: Where::Queue(0), blocks_own: 0 });
            }
        }),
        ("table of queues", plain(0x916), |_, f| {
            let mut state = f.ethernet_objects.tables.state();
            for n in 0..1 << limits::LOG_MAX_RQT {
                state.set_queue_table(n, Vec::new()).unwrap();
            }
        }),
        ("flow table", plain(0x930), |_, f| {
            let mut state = f.ethernet_objects.tables.state();
            while state.add_table(Table::new(RECEIVE, None)).is_ok() {}
            assert_eq!(state.tables.len(), 1 << limits::LOG_MAX_FLOW_TABLES);
        }),
        ("flow counter", plain(0x939), |_, f| {
            let mut state = f.ethernet_objects.tables.state();
            state.counters.extend((0..limits::MAX_FLOW_COUNTERS).map(|n| (n, (0, 0))));
        }),
        ("general object", of(0xa00, 96, &|bytes| bytes[7] = 0x3a), |_, _| ()),
    ];
    for _ in 0..1 << limits::LOG_MAX_GENERAL {
        driver.good(&of(0xa00, 96, &|bytes| bytes[7] = 0x3a), 16);
    }
    for (name, command, fill) in kinds {
        with(&driver, fill);
        assert_eq!(status(&driver, &command), Status::LIMIT.0, "{name}");
    }
    // The limits end with a reset.
    with(&driver, |_, f| f.cqs.clear());
    driver.function.enter(|device, f, port| f.reset(device, port));
    driver.simple(0x800);
}

#[test]
fn lists_of_steering_objects_are_limited_together() {
    let mut state = State::default();
    // Groups, which must not overlap.
    let table = state.add_table(Table::new(RECEIVE, None)).unwrap();
    let group = |start, end| Group { mask: vec![0; 64], start, end };
    let mut groups = Vec::new();
    for i in 0..1 << limits::LOG_MAX_GROUPS {
        groups.push(state.add_group(table, group(i * 8, i * 8 + 7)).unwrap());
    }
    assert_eq!(state.add_group(table, group(1 << 30, 1 << 30)).unwrap_err(), Status::LIMIT);
    for (start, end) in [(0, 0), (7, 9), (3, 1 << 20), (12, 11)] {
        assert_eq!(state.add_group(table, group(start, end)).unwrap_err(), Status::BAD_PARAM);
    }
    // Entries.
    state.add_tir(1, Tir { to: Where::Queue(7), blocks_own: 0 });
    for i in 0..1 << limits::LOG_MAX_FLOW {
        state.set_entry(table, i, entry(groups[i as usize / 8], vec![Destination::Tir(1)]), false).unwrap();
    }
    let more = 1 << limits::LOG_MAX_FLOW;
    let new = |to| entry(groups[more as usize / 8], to);
    assert_eq!(state.set_entry(table, more, new(vec![]), false), Err(Status::LIMIT));
    assert!(state.uses_tir(1) && state.uses_queue(7));
    // A change of an entry needs no room.
    state.set_entry(table, 5, entry(groups[0], vec![]), true).unwrap();
    state.remove_entry(table, 6).unwrap();
    state.set_entry(table, more, new(vec![]), false).unwrap();
    assert_eq!(state.remove_group(table, groups[0]), Err(Status::BUSY));
    // The destinations of all entries.
    let full = |i: u32| entry(groups[i as usize / 8], vec![Destination::Table(9); 256]);
    let changed = (0..1 << limits::LOG_MAX_FLOW).filter(|i| *i != 6);
    let index = changed.take_while(|i| state.set_entry(table, *i, full(*i), true).is_ok()).count();
    assert!((3800..=4096).contains(&index), "{index} entries of 256 destinations");
    state.remove_table(table).unwrap();
    assert!(!state.uses_tir(1));
    state.remove_tir(1).unwrap();
    assert!(!state.uses_queue(7));
    // Everything was given back.
    let table = state.add_table(Table::new(RECEIVE, None)).unwrap();
    let group = state.add_group(table, group(0, 1 << 20)).unwrap();
    for i in 0..4096 {
        state.set_entry(table, i, entry(group, vec![Destination::Tir(1); 256]), false).unwrap();
    }
    // The queues of all tables of queues.
    for n in 0..512 {
        state.set_queue_table(n, vec![3; 2048]).unwrap();
    }
    assert_eq!(state.set_queue_table(600, vec![3]), Err(Status::LIMIT));
    state.set_queue_table(5, vec![3; 2047]).unwrap();
    state.set_queue_table(600, vec![3]).unwrap();
    (0..512).for_each(|n| state.remove_queue_table(n).unwrap());
    assert!(state.uses_queue(3));
    state.remove_queue_table(600).unwrap();
    assert!(!state.uses_queue(3));
}

/// Keys in a large memory of a user share its list of pages.
#[test]
fn a_key_in_memory_of_a_user_takes_no_list() {
    const PAGES: usize = 2000;
    if !uverbs_testkit::machine::in_own_process("tests::limits::a_key_in_memory_of_a_user_takes_no_list") {
        return;
    }
    let driver = Driver::new();
    let pd = driver.simple(0x800);
    let mut create = input(0xa08, 48 + 8 * PAGES);
    umem::NUM_OF_MTT.set(create_umem_in::UMEM.rest_mut(&mut create), PAGES as u32);
    let umem = create_umem_out::UMEM_ID.get32(&driver.good(&create, 16));
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let mut mkey = input(0x200, 272);
    put(&mut mkey, 100, &umem.to_be_bytes());
    create_mkey_in::MKEY_UMEM_VALID.set(&mut mkey, 1_u32);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut mkey);
    for (field, value) in
        [(mkc::ACCESS_MODE_1_0, 1_u64), (mkc::PD, pd.into()), (mkc::LEN, 4096), (mkc::LOG_PAGE_SIZE, 12)]
    {
        field.set(context, value);
    }
    let before = resident();
    let keys: Vec<u32> =
        (0..5000).map(|_| create_mkey_out::MKEY_INDEX.get32(&driver.good(&mkey, 16))).collect();
    let each = resident().saturating_sub(before) / keys.len();
    assert!(each < 4000, "{each} bytes for each key of {PAGES} pages");
    // The memory is in use until the keys are destroyed.
    let mut destroy = input(0xa0a, 16);
    put(&mut destroy, 8, &umem.to_be_bytes());
    assert_eq!(status(&driver, &destroy), Status::BUSY.0);
    for key in keys {
        let mut destroy = input(0x202, 16);
        put(&mut destroy, 8, &key.to_be_bytes());
        driver.good(&destroy, 16);
    }
    driver.good(&destroy, 16);
}

#[test]
fn a_frame_is_compared_with_a_limited_number_of_entries() {
    let mut state = State::default();
    let table = state.add_table(Table::new(RECEIVE, None)).unwrap();
    let last = state.add_table(Table::new(RECEIVE, Some(table))).unwrap();
    let group = |state: &mut State, table| {
        state.add_group(table, Group { mask: vec![0xff; 64], start: 0, end: 1 << 20 }).unwrap()
    };
    let groups = [group(&mut state, table), group(&mut state, last)];
    for (table, group) in [table, last].into_iter().zip(groups) {
        for i in 0..20_000 {
            state.set_entry(table, i, entry(group, vec![]), false).unwrap();
        }
    }
    // Each misses, and leads to the other.
    state.tables.get_mut(&table).unwrap().miss = Some(last);
    let compared = state.compared_with(table, &[0; 64]);
    assert!((40_000..=1 << 17).contains(&compared), "{compared}");
}
