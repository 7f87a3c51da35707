// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connections to a running VM: sockets for the guest's virtio-serial ports and for QEMU's monitor.
//!
//! QEMU connects to each of them once; a thread serves the connection.

use anyhow::{Context, Result};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::thread::JoinHandle;

/// A message of the guest on the control port.
pub(crate) enum Event {
    /// A line, without its end.
    Line(String),
    /// The port is closed: QEMU ends.
    Closed,
}

/// One socket that QEMU connects to, and the thread that serves it.
pub(crate) struct Port {
    /// Its name in the guest.
    pub(crate) name: &'static str,
    /// The abstract socket that QEMU is to connect to.
    pub(crate) socket: String,
    thread: JoinHandle<()>,
}

impl Port {
    /// Listens on an abstract socket, which needs no file, for one connection.
    pub(crate) fn listen(
        name: &'static str,
        serve: impl FnOnce(UnixStream) + Send + 'static,
    ) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let socket = format!("uverbs-lab-{}-{}-{name}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let listener = SocketAddr::from_abstract_name(&socket)
            .and_then(|address| UnixListener::bind_addr(&address))
            .with_context(|| format!("cannot listen on the socket @{socket}"))?;
        let thread = thread::spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                serve(stream);
            }
        });
        Ok(Self { name, socket, thread })
    }

    /// Waits until all data of QEMU is processed. QEMU must have exited.
    pub(crate) fn finish(self) {
        // If QEMU has not connected, the thread still waits: this connection ends it.
        if let Ok(address) = SocketAddr::from_abstract_name(&self.socket) {
            let _ = UnixStream::connect_addr(&address);
        }
        let _ = self.thread.join();
    }
}

/// Serves the control port.
pub(crate) fn control(stream: UnixStream, events: &Sender<Event>) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if events.send(Event::Line(line)).is_err() {
            return;
        }
    }
    let _ = events.send(Event::Closed);
}

/// Serves an output port: data is passed on at once. After an error of `to`, the rest is dropped.
pub(crate) fn copy(mut stream: UnixStream, mut to: impl Write) {
    let mut buffer = [0; 16384];
    let mut open = true;
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        open = open && to.write_all(&buffer[..count]).and_then(|()| to.flush()).is_ok();
    }
}

/// QEMU's monitor, for the state of a guest that does not answer.
pub(crate) struct Monitor {
    port: Port,
    connected: Receiver<UnixStream>,
}

impl Monitor {
    /// Listens for QEMU.
    pub(crate) fn listen() -> Result<Self> {
        let (sender, connected) = channel();
        let port = Port::listen("monitor", move |stream| drop(sender.send(stream)))?;
        Ok(Self { port, connected })
    }

    /// The abstract socket that QEMU is to connect to.
    pub(crate) fn socket(&self) -> String {
        self.port.socket.clone()
    }

    /// The position of each CPU of the guest, several times, as text for the log.
    pub(crate) fn where_cpus_are(&self) -> String {
        let mut text = "lab: where the CPUs are:\n".to_owned();
        let Ok(mut stream) = self.connected.try_recv() else { return text + "lab: no monitor" };
        // If the monitor hangs, its answer is missing.
        let _ = stream.set_read_timeout(Some(Duration::from_millis(300)));
        for _ in 0..3 {
            let _ = stream.write_all(b"info registers -a\n");
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            for line in String::from_utf8_lossy(&answer).lines() {
                if line.starts_with("CPU#") || line.starts_with("RIP=") {
                    text.push_str(line.trim_end());
                    text.push(if line.starts_with("CPU#") { ' ' } else { '\n' });
                }
            }
        }
        text
    }

    /// Ends the thread. QEMU must have exited.
    pub(crate) fn finish(self) {
        self.port.finish();
    }
}
