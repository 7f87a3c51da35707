// SPDX-License-Identifier: MIT OR Apache-2.0
//! The TCP connection over which two programs exchange the addresses of their QPs.

use crate::patience::Patience;
use anyhow::{Context, Result};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;

/// Connects to a server.
pub(crate) fn dial(host: &str, port: u16, patience: &Patience) -> Result<TcpStream> {
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

/// Waits for a client.
pub(crate) fn answer(bind: Option<IpAddr>, port: u16, patience: &Patience) -> Result<TcpStream> {
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
pub(crate) fn prepare(stream: TcpStream, patience: &Patience) -> Result<TcpStream> {
    let left = patience.left("the peer")?;
    stream.set_read_timeout(left).context("cannot set the socket's timeout")?;
    stream.set_write_timeout(left).context("cannot set the socket's timeout")?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn a_missing_peer_is_an_error_in_time() {
        let patience = Patience::new(Some(Duration::from_millis(50)));
        let error = answer(Some(Ipv4Addr::LOCALHOST.into()), 0, &patience).unwrap_err();
        assert!(error.to_string().contains("timed out"), "{error}");
    }
}
