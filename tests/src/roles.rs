// SPDX-License-Identifier: MIT OR Apache-2.0
//! The suite's own program as a child process: a peer that can be killed, a member of a multicast group, a TCP server.
//!
//! A child is started with [`ROLE`] in its environment; `main` calls [`play`] first, which runs the role and no tests.

use crate::child::Child;
use crate::env::{End, LabEnv};
use crate::lab::{PORT, find};
use anyhow::{Context as _, Result, bail, ensure};
use core::net::Ipv4Addr;
use std::env;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::process::{ChildStdin, ChildStdout, Stdio};
use uverbs::{ConnectAttr, Context, Driver, DriverVisitor, Endpoint, PageBuf, Rc, open_with};
use uverbs::{
    Exposed,
    attr::{AccessFlags, QpCap},
};

/// Names the role and its arguments, separated by blanks.
pub const ROLE: &str = "UVERBS_TESTS_ROLE";

/// Runs the role that the environment names, if there is one, and exits.
#[must_use]
pub fn play() -> Option<std::process::ExitCode> {
    let role = env::var(ROLE).ok()?;
    match act(&role) {
        Ok(()) => Some(std::process::ExitCode::SUCCESS),
        Err(e) => {
            eprintln!("{role}: {e:#}");
            Some(std::process::ExitCode::FAILURE)
        }
    }
}

fn act(role: &str) -> Result<()> {
    let words: Vec<_> = role.split_whitespace().collect();
    match words[..] {
        ["join", group, address] => {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.join_multicast_v4(&group.parse()?, &address.parse()?)?;
            println!("joined");
            wait_for_end()
        }
        ["echo", port] => serve_echo(port.parse()?),
        ["peer", device, gid_index] => open_with(&find(device)?, Peer(gid_index.parse()?))?,
        _ => bail!("no such role"),
    }
}

/// Waits until the parent closes our input, or exits.
fn wait_for_end() -> Result<()> {
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Starts this program in a role, at an end of the link, and waits for its first line.
fn start(env: &LabEnv, end: End, role: &str) -> Result<(Child, String, ChildStdin)> {
    let program = env::current_exe()?;
    let program = program.to_str().context("our own path")?;
    let mut command = env.command(end, program);
    command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut inner = command.spawn().with_context(|| format!("cannot start the role {role}"))?;
    let (stdin, stdout) = (inner.stdin.take(), inner.stdout.take());
    let mut line = String::new();
    let child = Child::from_inner(role, inner);
    read_line(stdout.context("its output")?, &mut line)?;
    ensure!(!line.is_empty(), "the role {role} ended early");
    Ok((child, line.trim_end().to_owned(), stdin.context("its input")?))
}

fn read_line(stdout: ChildStdout, line: &mut String) -> Result<()> {
    BufReader::new(stdout).read_line(line)?;
    Ok(())
}

/// A membership of the host at an end of the link in a multicast group, until it is dropped.
#[derive(Debug)]
pub struct Membership {
    _child: Child,
    _stdin: ChildStdin,
}

/// Joins.
pub fn join_group(env: &LabEnv, end: End, group: &str) -> Result<Membership> {
    let address = &env.ip[end as usize];
    let (child, line, stdin) = start(env, end, &format!("join {group} {address}"))?;
    ensure!(line == "joined", "{line}");
    Ok(Membership { _child: child, _stdin: stdin })
}

/// A TCP server that accepts one connection, and sends back all received bytes.
#[derive(Debug)]
pub struct EchoServer {
    child: Child,
    _stdin: ChildStdin,
}

/// Starts it at an end of the link.
pub fn echo(env: &LabEnv, end: End, port: u16) -> Result<EchoServer> {
    let (child, line, stdin) = start(env, end, &format!("echo {port}"))?;
    ensure!(line == "listening", "{line}");
    Ok(EchoServer { child, _stdin: stdin })
}

impl EchoServer {
    /// Waits until the server has ended.
    pub fn end(self) -> Result<()> {
        self.child.success(crate::LIMIT)?;
        Ok(())
    }
}

/// The role of [`EchoServer`].
fn serve_echo(port: u16) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    println!("listening");
    io::stdout().flush()?;
    let (mut stream, _) = listener.accept()?;
    let mut data = Vec::new();
    stream.read_to_end(&mut data)?;
    Ok(stream.write_all(&data)?)
}

/// Sizes of the peer's QP.
const CAP: QpCap = QpCap::new(64, 64);

/// A process with an RC QP that has posted receives and posts no sends.
#[derive(Debug)]
pub struct PeerProcess {
    child: Child,
    stdin: ChildStdin,
    /// Its QP.
    pub endpoint: Endpoint,
}

/// The attributes of the connection.
fn peer_attr(gid_index: u8) -> ConnectAttr {
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    ConnectAttr::new().port_num(PORT).sgid_index(Some(gid_index)).access(access).hop_limit(64)
}

impl PeerProcess {
    /// Starts it on a device.
    pub fn start(env: &LabEnv, end: End) -> Result<Self> {
        let role = format!("peer {} {}", env.dev(end), env.gid_index);
        let (child, line, stdin) = start(env, end, &role)?;
        let endpoint = line.parse().with_context(|| format!("expected an endpoint, found {line}"))?;
        Ok(Self { child, stdin, endpoint })
    }

    /// Sends it the endpoint to connect to.
    pub fn connect(&mut self, to: &Endpoint) -> Result<()> {
        writeln!(self.stdin, "{to}")?;
        Ok(self.stdin.flush()?)
    }

    /// Kills it.
    pub fn kill(self) -> Result<()> {
        self.child.kill()
    }

    /// Ends it normally.
    pub fn end(self) -> Result<()> {
        let Self { child, stdin, .. } = self;
        drop(stdin);
        child.success(crate::LIMIT)?;
        Ok(())
    }
}

/// The role of [`PeerProcess`].
struct Peer(u8);

impl DriverVisitor for Peer {
    type Out = Result<()>;

    fn visit<D: Driver>(self, context: Context<D>) -> Result<()> {
        let attr = peer_attr(self.0);
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(128, None)?;
        let mr = crate::pair::region(&pd, 1 << 16, AccessFlags::LOCAL_WRITE)?;
        let _: &uverbs::MemoryRegion<PageBuf, Exposed, D> = &mr;
        let mut qp = pd.raw_qp::<Rc>().cq(&cq).cap(CAP).create()?;
        qp.init(&attr)?;
        let sges = [crate::sges::sge(&mr, 0..4096)];
        let recvs: Vec<_> = (0..u64::from(CAP.max_recv_wr)).map(|i| (i, &sges[..])).collect();
        crate::post_recv(qp.rq()?, crate::Face::Batch, &recvs)?;
        let here = qp.control.endpoint(0x77, &attr)?;
        println!("{here}");
        io::stdout().flush()?;
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
        let there: Endpoint = line.trim().parse()?;
        qp.connect(&here, &there, &attr)?;
        wait_for_end()
    }
}
