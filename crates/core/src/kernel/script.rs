// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel with a script: a test specifies each expected command and its answer.

use super::{Kernel, Mapping, Protection, RawCommand, WriteCommand};
use crate::errno::Errno;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE,
};
use zerocopy::FromBytes;

/// Calls an `unsafe` verb on an object of a scripted kernel.
macro_rules! scripted {
    ($call:expr) => {{
        // SAFETY: no device is behind the script, and the object has no queues.
        #[expect(unsafe_code, reason = "a verb of a scripted kernel")]
        let result = unsafe { $call };
        result
    }};
}
pub(crate) use scripted;

type Step = Box<dyn FnMut(&mut RawCommand<'_, '_>) -> Result<(), Errno> + Send>;

/// See the module.
pub(crate) struct Script {
    steps: Mutex<VecDeque<Step>>,
    pub(crate) creator: AtomicBool,
    pub(crate) written: Mutex<Vec<(u32, Vec<u8>)>>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Script")
    }
}

impl Script {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { steps: Mutex::default(), creator: AtomicBool::new(true), written: Mutex::default() })
    }

    /// The next command must be this method of this object; `step` checks it and answers.
    pub(crate) fn expect(
        self: &Arc<Self>,
        object: u16,
        method: u16,
        mut step: impl FnMut(&mut RawCommand<'_, '_>) -> Result<(), Errno> + Send + 'static,
    ) -> &Arc<Self> {
        self.expect_any(move |command| {
            assert_eq!((command.object(), command.method()), (object, method), "object and method");
            step(command)
        })
    }

    /// The next command may be any; `step` checks it and answers.
    pub(crate) fn expect_any(
        self: &Arc<Self>,
        step: impl FnMut(&mut RawCommand<'_, '_>) -> Result<(), Errno> + Send + 'static,
    ) -> &Arc<Self> {
        self.steps.lock().unwrap().push_back(Box::new(step));
        self
    }

    /// The next command must be this write command with this input.
    pub(crate) fn expect_write<T: FromBytes>(
        self: &Arc<Self>,
        number: u32,
        mut step: impl FnMut(T, &mut RawCommand<'_, '_>) -> Result<(), Errno> + Send + 'static,
    ) -> &Arc<Self> {
        self.expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, move |command| {
            let sent = command.input(UVERBS_ATTR_WRITE_CMD).map(|b| u64::read_from_bytes(b).unwrap());
            assert_eq!(sent, Some(number.into()), "write command");
            let input = T::read_from_bytes(command.input(UVERBS_ATTR_CORE_IN).expect("core input")).ok();
            step(input.expect("core input of another size"), command)
        })
    }

    /// Asserts that every step was executed.
    pub(crate) fn done(&self) {
        assert_eq!(self.steps.lock().unwrap().len(), 0, "commands that never came");
    }

    pub(crate) fn kernel(self: &Arc<Self>) -> Arc<dyn Kernel> {
        Arc::clone(self) as Arc<dyn Kernel>
    }
}

impl Kernel for Script {
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let step = self.steps.lock().unwrap().pop_front();
        let Some(mut step) = step else { panic!("unexpected command {command:?}") };
        step(command)
    }

    fn write(&self, command: &mut WriteCommand<'_>) -> Result<(), Errno> {
        self.written.lock().unwrap().push((command.command(), command.request().to_vec()));
        Ok(())
    }

    fn mmap(&self, _: u64, _: usize, _: Protection) -> Result<Mapping, Errno> {
        Err(Errno::ENODEV)
    }

    fn attribute(&self, path: &str) -> Result<Vec<u8>, Errno> {
        match path {
            "ports/1/pkeys/0" => Ok(b"0xffff\n".to_vec()),
            "ports/1/pkeys/1" => Ok(b"not a number".to_vec()),
            _ => Err(Errno::ENOENT),
        }
    }

    fn driver_id(&self) -> u32 {
        14
    }

    fn name(&self) -> &str {
        "script0"
    }

    fn is_creator_process(&self) -> bool {
        self.creator.load(Ordering::Relaxed)
    }
}
