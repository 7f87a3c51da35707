// SPDX-License-Identifier: MIT OR Apache-2.0
//! The TCP connection over which two programs exchange the addresses of their QPs.

use crate::patience::Patience;
use anyhow::{Context, Result};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};

/// Connects to a server.
pub(crate) fn dial(host: &str, port: u16, patience: &Patience) -> Result<Stream> {
    // Only names need the resolver.
    let addresses = (host, port).to_socket_addrs().with_context(|| format!("cannot resolve {host}"))?;
    let mut failure = None;
    for address in addresses {
        let attempt = match patience.left("the server")? {
            Some(left) => TcpStream::connect_timeout(&address, left),
            None => TcpStream::connect(address),
        };
        match attempt {
            Ok(stream) => return prepare(stream, patience),
            Err(error) => failure = Some(error),
        }
    }
    let error = failure.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it has no address"));
    Err(error).with_context(|| format!("cannot connect to {host}:{port}"))
}

/// Listens: a client can connect from then on.
pub(crate) fn listen(bind: Option<IpAddr>, port: u16) -> Result<TcpListener> {
    let listener = match bind {
        Some(ip) => TcpListener::bind(SocketAddr::new(ip, port)),
        // Both IP versions, if the host has both.
        None => TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))),
    };
    let listener = listener.with_context(|| match bind {
        Some(ip) => format!("cannot listen on {}", SocketAddr::new(ip, port)),
        None => format!("cannot listen on port {port}"),
    })?;
    listener.set_nonblocking(true).context("cannot set up the listening socket")?;
    Ok(listener)
}

/// Waits for a client.
pub(crate) fn accept(listener: &TcpListener, patience: &Patience) -> Result<Stream> {
    loop {
        patience.wait_readable(listener.as_fd(), "a client")?;
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).context("cannot set up the client's socket")?;
                return prepare(stream, patience);
            }
            // The client has closed the connection.
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {}
            Err(error) => return Err(error).context("accept failed"),
        }
    }
}

/// Applies the time limit to the calls of a stream.
pub(crate) fn prepare(stream: TcpStream, patience: &Patience) -> Result<Stream> {
    let left = patience.left("the peer")?;
    stream.set_read_timeout(left).context("cannot set the socket's timeout")?;
    stream.set_write_timeout(left).context("cannot set the socket's timeout")?;
    Ok(Stream(stream))
}

/// A connection with a time limit for its calls.
#[derive(Debug)]
pub(crate) struct Stream(TcpStream);

impl Stream {
    /// Sends each write at once.
    pub(crate) fn set_nodelay(&self) -> Result<()> {
        self.0.set_nodelay(true).context("cannot set up the socket")
    }

    /// Changes the time limit; `None` is no limit.
    pub(crate) fn set_limit(&self, limit: Option<Duration>) -> Result<()> {
        self.0.set_read_timeout(limit).context("cannot set the socket's timeout")
    }
}

/// The error of a call with its meaning: `EAGAIN` is that of the time limit.
fn explain(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "timed out"),
        // A process that is killed resets the connection if it has not read everything.
        kind
        @ (io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
            io::Error::new(kind, CLOSED)
        }
        _ => error,
    }
}

/// The error of an end whose other end has closed the connection.
pub(crate) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, CLOSED)
}

const CLOSED: &str = "the other end has ended the connection";

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes).map_err(explain)
    }

    fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(bytes).map_err(explain)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(explain)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_peer_is_an_error_in_time() {
        let patience = Patience::new(Some(Duration::from_millis(50)));
        let listener = listen(Some(Ipv4Addr::LOCALHOST.into()), 0).unwrap();
        let error = accept(&listener, &patience).unwrap_err();
        assert!(error.to_string().contains("timed out"), "{error}");
    }

    #[test]
    fn a_silent_peer_is_an_error_that_says_so() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let patience = Patience::new(Some(Duration::from_millis(50)));
        let port = listener.local_addr().unwrap().port();
        let mut stream = dial("127.0.0.1", port, &patience).unwrap();
        let error = stream.read_exact(&mut [0]).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::TimedOut, "timed out".into()));
    }

    #[test]
    fn a_peer_that_has_gone_is_an_error_that_says_so() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut stream = dial("127.0.0.1", port, &Patience::new(None)).unwrap();
        drop(listener.accept().unwrap());
        let error = stream.read_exact(&mut [0]).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::UnexpectedEof, CLOSED.into()));
    }
}
