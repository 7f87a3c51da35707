// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queries of the device, its ports and GIDs.

use super::*;

#[test]
fn query_device_uses_the_extended_command_and_else_the_old_one() {
    let script = Script::new();
    let extended = IB_USER_VERBS_EX_CMD_QUERY_DEVICE | IB_USER_VERBS_CMD_FLAG_EXTENDED;
    let answer = |response_length| {
        script.expect_write::<ib_uverbs_ex_query_device>(extended, move |_, c| {
            let mut resp = ib_uverbs_ex_query_device_resp { response_length, ..Default::default() };
            resp.base.node_guid = 0x5054_00ff_fe12_3456.into();
            resp.base.max_qp = 100;
            resp.base.phys_port_cnt = 1;
            resp.odp_caps.per_transport_caps.rc_odp_caps = 0x1f;
            resp.cq_moderation_caps.max_cq_moderation_count = 7;
            resp.device_cap_flags_ex = 1 << 40 | 1 << 50;
            c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes());
            Ok(())
        });
    };
    let full = size_of::<ib_uverbs_ex_query_device_resp>() as u32;
    answer(full);
    let attr = query::device(&script.kernel(), Uhw::none()).unwrap();
    assert!(attr.extended);
    assert_eq!((attr.node_guid, attr.max_qp, attr.phys_port_cnt_ex), (0x5054_00ff_fe12_3456, 100, 1));
    assert_eq!(attr.odp_caps.rc_odp_caps.bits(), 0x1f);
    assert_eq!(attr.cq_mod_caps.max_cq_count, 7);
    assert!(attr.device_cap_flags.contains(DeviceCapFlags::ATOMIC_WRITE));
    assert_eq!(attr.device_cap_flags.bits(), 1 << 40 | 1 << 50, "an unknown bit is kept");
    for value in [0, 8, full + 1, u32::MAX] {
        answer(value);
        assert!(
            matches!(query::device(&script.kernel(), Uhw::none()), Err(Error::Protocol { .. })),
            "{value}"
        );
    }
    script.expect_write::<ib_uverbs_ex_query_device>(extended, |_, _| Err(Errno::EOPNOTSUPP));
    script.expect_write::<ib_uverbs_query_device>(IB_USER_VERBS_CMD_QUERY_DEVICE, |_, c| {
        c.answer(
            UVERBS_ATTR_CORE_OUT,
            ib_uverbs_query_device_resp { max_qp: 5, ..Default::default() }.as_bytes(),
        );
        Ok(())
    });
    let attr = query::device(&script.kernel(), Uhw::none()).unwrap();
    assert_eq!((attr.extended, attr.max_qp), (false, 5));
    script.done();
}

#[test]
fn ports_and_gids_are_queried() {
    let script = Script::new();
    script.expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT, |c| {
        assert_eq!(c.input(UVERBS_ATTR_QUERY_PORT_PORT_NUM), Some(&1_u64.to_ne_bytes()[..]));
        let mut resp = ib_uverbs_query_port_resp_ex::default();
        resp.legacy_resp.state = 4;
        resp.legacy_resp.active_mtu = 3;
        resp.legacy_resp.link_layer = 2;
        // An older kernel returns a shorter answer; the rest is zeros.
        c.answer(UVERBS_ATTR_QUERY_PORT_RESP, resp.legacy_resp.as_bytes());
        Ok(())
    });
    let port = query::port(&script.kernel(), 1_u8).unwrap();
    assert_eq!(
        (port.state, port.active_mtu, port.link_layer),
        (PortState::ACTIVE, Mtu::MTU_1024, LinkLayer::ETHERNET)
    );
    assert!(matches!(query::port(&script.kernel(), 0_u32), Err(Error::Invalid { field: "port_num", .. })));

    let table = |count: u64| {
        script.expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE, move |c| {
            assert_eq!(c.input(UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE), Some(&32_u64.to_ne_bytes()[..]));
            let mut entry =
                ib_uverbs_gid_entry { gid_index: 3, port_num: 1, gid_type: 2, ..Default::default() };
            entry.gid.as_mut_bytes().copy_from_slice(&[9; 16]);
            c.answer(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, entry.as_bytes());
            c.answer(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &count.to_ne_bytes());
            Ok(())
        });
        query::gid_table(&script.kernel())
    };
    let expected = GidEntry {
        gid: Gid([9; 16]),
        gid_index: 3,
        port_num: 1,
        gid_type: GidType::ROCE_V2,
        ndev_ifindex: 0,
    };
    assert_eq!(table(1).unwrap(), [expected]);
    assert_eq!(table(0).unwrap(), []);
    for value in [2048, u64::MAX, 1 << 63] {
        assert!(matches!(table(value), Err(Error::Protocol { .. })), "{value}");
    }
    script.expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE, |c| {
        assert_eq!(c.output(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES).unwrap().len(), 2047 * 32);
        Err(Errno::EINVAL)
    });
    assert!(query::gid_table(&script.kernel()).is_err());
    script.expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY, |c| {
        assert_eq!(c.attrs().map(|a| a.len).collect::<Vec<_>>(), [8, 8, 8, 32]);
        Err(Errno::from_raw(libc::ENODATA))
    });
    assert_eq!(query::pkey(&script.kernel(), 1_u8, 0).unwrap(), 0xffff);
    assert!(matches!(query::pkey(&script.kernel(), 1_u8, 1), Err(Error::Protocol { .. })));
    assert_eq!(query::pkey(&script.kernel(), 1_u8, 2).unwrap_err().errno(), Errno::ENOENT);
    assert!(matches!(query::pkey(&script.kernel(), 0_u8, 0), Err(Error::Invalid { field: "port_num", .. })));
    assert_eq!(query::gid_entry(&script.kernel(), 1_u8, 9).unwrap_err().errno().raw(), libc::ENODATA);
    script.done();
}
