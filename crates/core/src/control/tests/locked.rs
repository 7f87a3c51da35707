// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ENOMEM` above the limit of locked memory.

use super::*;

const KIB: u64 = 1024;

fn refuse_reg(script: &Arc<Script>) {
    script.expect_write::<ib_uverbs_reg_mr>(IB_USER_VERBS_CMD_REG_MR, |_, _| Err(Errno::ENOMEM));
}

fn reg(pd: &PdHandle, length: u64, access: AccessFlags) -> String {
    let range = MrRange { addr: 0x10_0000, length, iova: 0 };
    scripted!(mr::reg(CoreSupport::default(), pd, range, access, Uhw::none())).unwrap_err().to_string()
}

#[test]
fn a_refused_region_names_the_limit_of_locked_memory() {
    let test = "control::tests::locked::a_refused_region_names_the_limit_of_locked_memory";
    if !uverbs_testkit::machine::in_user_process(test, 64 * KIB) {
        return;
    }
    let script = Script::new();
    let pd = alloc_pd(&script);
    refuse_reg(&script);
    assert_eq!(
        reg(&pd, 128 * KIB, AccessFlags::LOCAL_WRITE),
        "reg_mr(pd 7 of script0): Out of memory (ENOMEM): it needs 128 KiB of locked memory, 0 KiB are in use, and the \
         limit (`ulimit -l`) is 64 KiB; it must be at least 128"
    );
    // Below the limit, and on demand, the limit is not the cause.
    for (length, access) in [(64 * KIB, AccessFlags::LOCAL_WRITE), (128 * KIB, AccessFlags::ON_DEMAND)] {
        refuse_reg(&script);
        assert_eq!(reg(&pd, length, access), "reg_mr(pd 7 of script0): Out of memory (ENOMEM)");
    }
    script.expect_write::<ib_uverbs_reg_mr>(IB_USER_VERBS_CMD_REG_MR, |_, c| {
        c.answer(UVERBS_ATTR_CORE_OUT, [4_u32, 5, 6].as_bytes());
        Ok(())
    });
    let range = MrRange { addr: 0x10_0000, length: 64 * KIB, iova: 0 };
    let all = CoreSupport::default();
    let mut mr = scripted!(mr::reg(all, &pd, range, AccessFlags::empty(), Uhw::none())).unwrap();
    script.expect_write::<ib_uverbs_rereg_mr>(IB_USER_VERBS_CMD_REREG_MR, |_, _| Err(Errno::ENOMEM));
    let change = Rereg { range: Some(MrRange { length: 72 * KIB, ..range }), pd: None, access: None };
    let error = scripted!(mr.rereg(all, &change, Uhw::none())).unwrap_err();
    let Error::LockedMemory { sizes, .. } = error else { panic!("{error}") };
    assert_eq!((sizes.limit, sizes.pinned, sizes.needed), (64 * KIB, 0, 72 * KIB));
    script.done();
}
