// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver that a build with two drivers lacks.
//!
//! `AnyDriver` has a part for each driver. [`Absent`] takes the place of a driver whose feature is off, and of all its
//! parts. It has no values, so the compiler removes the branches on it.
#![expect(unsafe_code)]
// UNSAFETY: implements unsafe functions that have no caller, because there is no value to call them with.

use core::convert::Infallible;
use core::marker::PhantomData;
use std::sync::Arc;
use uverbs_core::attr::{AccessFlags, AhAttr, CqInitAttr, QpAttr, QpAttrMask, SrqAttr, SrqAttrMask};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, CoreSupport, CqEvents, CqHandle, MrHandle, MrRange, PdHandle,
    QpHandle, SrqHandle,
};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Kernel;
use uverbs_core::provider::{
    BadWr, Completion, CompletionQueue, CqObject, CqParts, Driver, Head, Inline, NoWq, Object, Op, PollError,
    PostError, QpCreate, QpEnd, QpObject, QpParts, RecvBatch, RecvQueue, RemoteAddr, SendBatch, SendQueue,
    SrqCreate, SrqObject, SrqParts, Wr, WrBuilder,
};
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus};
use uverbs_core::wr::{RecvWr, SendWr, Sge};

/// A driver that this build does not have, and each of its parts. It has no values.
#[derive(Clone, Copy, Debug)]
pub struct Absent(Infallible);

/// An object that this build does not have, with this handle and this report.
#[derive(Debug)]
pub struct AbsentObject<H, R>(Infallible, PhantomData<fn() -> (H, R)>);

impl<H: core::fmt::Debug + 'static, R: core::fmt::Debug + 'static> Object for AbsentObject<H, R> {
    type Handle = H;
    type Reported = R;

    fn handle(&self) -> &H {
        match self.0 {}
    }

    fn destroy(self) -> Result<R, (Self, Error)> {
        match self.0 {}
    }
}

impl CqObject for AbsentObject<CqHandle, CqEvents> {
    type Engine = Absent;
}

impl SrqObject for AbsentObject<SrqHandle, u32> {
    type Engine = Absent;

    fn modify(&self, _: &mut Absent, _: &SrqAttr, _: SrqAttrMask) -> Result<()> {
        match self.0 {}
    }
}

impl QpObject for AbsentObject<QpHandle, QpEnd> {
    fn modify(&self, _: &QpAttr, _: QpAttrMask) -> Result<()> {
        match self.0 {}
    }
}

impl Driver for Absent {
    const NAME: &'static str = "absent";
    /// No driver of the kernel has this number.
    const DRIVER_ID: u32 = u32::MAX;

    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Self;
    type SendQueue = Self;
    type RecvQueue = Self;
    type SharedRecvQueue = Self;
    type CompletionQueue = Self;
    type Qp = AbsentObject<QpHandle, QpEnd>;
    type Cq = AbsentObject<CqHandle, CqEvents>;
    type Srq = AbsentObject<SrqHandle, u32>;
    type Wq = NoWq;
    type Td = Self;

    fn open(_: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        Err(Error::unsupported("open_device", "this build does not have the driver".to_owned()))
    }

    fn kernel(&self) -> &Arc<dyn Kernel> {
        match self.0 {}
    }

    unsafe fn reg_mr(&self, _: CoreSupport, _: &PdHandle, _: MrRange, _: AccessFlags) -> Result<MrHandle> {
        match self.0 {}
    }

    fn create_cq(&self, _: &CqInitAttr, _: Option<&CompChannelHandle>, _: u64) -> Result<CqParts<Self>> {
        match self.0 {}
    }

    fn create_srq(&self, _: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>> {
        match self.0 {}
    }

    unsafe fn create_qp(&self, _: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        match self.0 {}
    }

    fn create_ah(&self, _: &PdHandle, _: &AhAttr) -> Result<(AhHandle, Self)> {
        match self.0 {}
    }

    fn alloc_td(&self) -> Result<Self> {
        match self.0 {}
    }
}

impl SendBatch for Absent {
    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Self;

    unsafe fn push(&mut self, _: &Wr<'_, Self>) {
        match self.0 {}
    }

    fn complete(self) -> Result<(), PostError> {
        match self.0 {}
    }
}

impl SendQueue for Absent {
    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Self;
    type Batch<'q> = Self;

    fn batch(&mut self) -> Self {
        match self.0 {}
    }

    unsafe fn post_send(&mut self, _: *const SendWr) -> Result<(), BadWr<SendWr>> {
        match self.0 {}
    }
}

impl WrBuilder for Absent {
    fn wr_start(&mut self) {
        match self.0 {}
    }

    fn wr_is_open(&self) -> bool {
        match self.0 {}
    }

    unsafe fn wr_begin(&mut self, _: Head, _: Op<'_>) {
        match self.0 {}
    }

    fn wr_set_ud_addr(&mut self, _: &Self, _: u32, _: u32) {
        match self.0 {}
    }

    fn wr_set_xrc_srqn(&mut self, _: u32) {
        match self.0 {}
    }

    unsafe fn wr_set_sges(&mut self, _: &[Sge]) {
        match self.0 {}
    }

    fn wr_set_inline(&mut self, _: Inline<'_>) {
        match self.0 {}
    }

    fn wr_latch(&mut self, _: PostError) {
        match self.0 {}
    }

    fn wr_complete(&mut self) -> Result<(), PostError> {
        match self.0 {}
    }

    fn wr_abort(&mut self) {
        match self.0 {}
    }
}

impl RecvBatch for Absent {
    type Sge = Sge;

    unsafe fn push(&mut self, _: u64, _: &[Sge]) {
        match self.0 {}
    }

    fn complete(self) -> Result<(), PostError> {
        match self.0 {}
    }
}

impl RecvQueue for Absent {
    type Sge = Sge;
    type Batch<'q> = Self;

    fn batch(&mut self) -> Self {
        match self.0 {}
    }

    unsafe fn post_recv(&mut self, _: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        match self.0 {}
    }
}

macro_rules! fields {
    ($($name:ident: $ty:ty;)*) => {
        impl Completion for Absent {
            $(fn $name(&self) -> $ty {
                match self.0 {}
            })*
        }
    };
}

fields! {
    wr_id: u64;
    status: WcStatus;
    opcode: WcOpcode;
    vendor_err: u32;
    byte_len: u32;
    qp_num: u32;
    src_qp: u32;
    wc_flags: WcFlags;
    imm_data_or_invalidated_rkey: u32;
    pkey_index: u16;
    slid: u32;
    sl: u8;
    dlid_path_bits: u8;
}

impl CompletionQueue for Absent {
    type Completion<'c> = Self;

    fn poll_each(&mut self, _: usize, _: impl FnMut(&Self)) -> Result<usize, PollError> {
        match self.0 {}
    }

    fn start_poll(&mut self) -> Result<(), PollError> {
        match self.0 {}
    }

    fn next_poll(&mut self) -> Result<(), PollError> {
        match self.0 {}
    }

    fn end_poll(&mut self) {
        match self.0 {}
    }

    fn current(&self) -> Option<Self> {
        match self.0 {}
    }

    fn req_notify(&mut self, _: bool) -> Result<(), PollError> {
        match self.0 {}
    }

    fn cqe(&self) -> u32 {
        match self.0 {}
    }
}
