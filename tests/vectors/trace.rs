// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control trace: every ioctl that the reference made in a series of control calls, with the kernel's answers.

use crate::model::{self, Num, Pattern};
use anyhow::{Context as _, Result};
use serde::Deserialize;
use std::path::Path;
use std::sync::OnceLock;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_QUERY_PORT_RESP, UVERBS_ATTR_UHW_OUT, UVERBS_ATTR_WRITE_CMD,
    UVERBS_METHOD_GET_CONTEXT, UVERBS_METHOD_INVOKE_WRITE, UVERBS_METHOD_QUERY_PORT, UVERBS_OBJECT_DEVICE,
};
use uverbs_uapi::ioctl::UVERBS_ATTR_F_MANDATORY;
use uverbs_uapi::mlx5::mlx5_ib_alloc_ucontext_resp;
use zerocopy::{FromBytes, IntoBytes};

/// An attribute of a command.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Attr {
    pub id: u16,
    pub len: u16,
    pub mandatory: u8,
    pub elem_id: u8,
    /// Bytes that were passed.
    #[serde(rename = "in")]
    pub input: Option<Pattern>,
    /// Bytes that the kernel wrote.
    pub out: Option<Pattern>,
    /// The data word after the command, of an object or a file.
    pub data: Option<Num>,
}

/// A command.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Ioctl {
    pub object: u16,
    pub method: u16,
    pub driver_id: u32,
    pub errno: i32,
    pub attrs: Vec<Attr>,
}

fn pattern(bytes: &[u8]) -> Pattern {
    Pattern(bytes.iter().copied().map(Some).collect())
}

impl Ioctl {
    /// A command before it is answered.
    pub(crate) fn asked(command: &mut RawCommand<'_, '_>) -> Self {
        let attrs: Vec<_> = command.attrs().collect();
        let attrs = attrs
            .into_iter()
            .map(|a| Attr {
                id: a.id,
                len: a.len,
                mandatory: u8::from(a.flags & UVERBS_ATTR_F_MANDATORY != 0),
                elem_id: a.elem_id,
                input: if a.len != 0 { command.input(a.id).map(pattern) } else { None },
                out: command.output(a.id).map(|bytes| pattern(bytes)),
                data: None,
            })
            .collect();
        let (object, method, driver_id) = (command.object(), command.method(), command.driver_id());
        Self { object, method, driver_id, errno: 0, attrs }
    }

    /// The command with its answer.
    pub(crate) fn answered(
        &mut self,
        command: &mut RawCommand<'_, '_>,
        result: Result<(), Errno>,
        given: Option<(u16, u32)>,
    ) {
        self.errno = result.err().map_or(0, Errno::raw);
        for attr in &mut self.attrs {
            attr.out = command.output(attr.id).map(|bytes| pattern(bytes));
            let new = given.filter(|(id, _)| *id == attr.id).map(|(_, handle)| handle.into());
            attr.data = new.or(command.handle(attr.id)).map(Num);
        }
    }

    pub(crate) fn attr(&self, id: u16) -> Option<&Attr> {
        self.attrs.iter().find(|a| a.id == id)
    }

    /// The number of the write command that it runs.
    pub(crate) fn write_command(&self) -> Option<u32> {
        if (self.object, self.method) != (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) {
            return None;
        }
        let bytes = self.attr(UVERBS_ATTR_WRITE_CMD)?.input.as_ref()?.bytes()?;
        u32::read_from_prefix(&bytes).ok().map(|(number, _)| number)
    }
}

/// A call of a verb, with the commands that it made.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub note: String,
    pub ioctls: Vec<Ioctl>,
}

/// The whole walk.
#[derive(Debug)]
pub(crate) struct Trace {
    pub calls: Vec<Call>,
    /// Answers that each case needs.
    context: Answer,
    device: Answer,
    device_private: Answer,
    port: Answer,
}

/// Bytes of the trace, found once.
type Answer = OnceLock<Vec<u8>>;

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Note { note: String },
    Ioctl(Ioctl),
}

impl Trace {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let mut calls = Vec::new();
        for (n, line) in model::text(path)?.lines().enumerate() {
            let place = || format!("{}:{}", path.display(), n + 1);
            match serde_json::from_str(line).with_context(place)? {
                Line::Note { note } => calls.push(Call { note, ioctls: Vec::new() }),
                Line::Ioctl(ioctl) => calls.last_mut().with_context(place)?.ioctls.push(ioctl),
            }
        }
        let answer = Answer::new;
        Ok(Self { calls, context: answer(), device: answer(), device_private: answer(), port: answer() })
    }

    /// What the device answered to the first of these commands that succeeded.
    fn output<'a>(&self, found: &'a Answer, wanted: impl Fn(&Ioctl) -> bool, id: u16) -> &'a [u8] {
        found.get_or_init(|| {
            let mut all = self.calls.iter().flat_map(|call| &call.ioctls);
            let answered = all.find(|ioctl| ioctl.errno == 0 && wanted(ioctl));
            let out = answered.and_then(|ioctl| ioctl.attr(id)?.out.as_ref()?.bytes());
            out.expect("the trace has the device's answers")
        })
    }

    /// The kernel's answer to the creation of the context.
    pub(crate) fn context<T: FromBytes>(&self) -> T {
        let of = |i: &Ioctl| (i.object, i.method) == (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
        match T::read_from_prefix(self.output(&self.context, of, UVERBS_ATTR_UHW_OUT)) {
            Ok((value, _)) => value,
            Err(_) => panic!("the context's answer in the trace is too short"),
        }
    }

    /// Key of the null region.
    pub(crate) fn null_mr(&self) -> u32 {
        self.context::<mlx5_ib_alloc_ucontext_resp>().dump_fill_mkey
    }

    /// Its answer to `ibv_query_device_ex`.
    pub(crate) fn device<T: FromBytes + IntoBytes>(&self) -> T {
        let bytes = self.output(&self.device, Self::is_query_device, UVERBS_ATTR_CORE_OUT);
        let mut value = T::new_zeroed();
        let n = bytes.len().min(size_of::<T>());
        value.as_mut_bytes()[..n].copy_from_slice(&bytes[..n]);
        value
    }

    /// The driver's part of it.
    pub(crate) fn device_private(&self) -> &[u8] {
        self.output(&self.device_private, Self::is_query_device, UVERBS_ATTR_UHW_OUT)
    }

    fn is_query_device(ioctl: &Ioctl) -> bool {
        ioctl.write_command() == Some(0x8000_0001)
    }

    /// Its answer to `ibv_query_port`.
    pub(crate) fn port(&self) -> &[u8] {
        let of = |i: &Ioctl| (i.object, i.method) == (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
        self.output(&self.port, of, UVERBS_ATTR_QUERY_PORT_RESP)
    }
}
