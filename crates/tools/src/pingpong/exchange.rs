// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exchange of endpoints over TCP, as rdma-core's ping-pongs do it.
//!
//! The client sends its endpoints. The server connects its QPs to them and sends its own. The client sends `done` and
//! closes the connection; then it connects its QPs and begins. An endpoint is a line of hexadecimal text with a NUL
//! ([`Endpoint`]). RC, UC and UD exchange one; SRQ always 256, of which those beyond the number of QPs are zeros. A C
//! server reads an endpoint, and `done`, by a single `read`, so each must be sent by a single write.

use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use uverbs::Endpoint;
use uverbs::connect::ENDPOINT_LEN;

/// The last message of the client, with C's NUL.
const DONE: &[u8; 5] = b"done\0";

/// The client's part. Returns as many endpoints as it was called with.
pub(crate) fn as_client(mut stream: impl Read + Write, mine: &[Endpoint]) -> Result<Vec<Endpoint>> {
    send(&mut stream, mine)?;
    let theirs = receive(&mut stream, mine.len())?;
    stream.write_all(DONE).context("cannot send the final message to the server")?;
    Ok(theirs)
}

/// The server's part. `connect` is called between receiving and sending.
pub(crate) fn as_server(
    mut stream: impl Read + Write,
    mine: &[Endpoint],
    connect: impl FnOnce(&[Endpoint]) -> Result<()>,
) -> Result<Vec<Endpoint>> {
    let theirs = receive(&mut stream, mine.len())?;
    connect(&theirs)?;
    send(&mut stream, mine)?;
    let mut done = [0; DONE.len()];
    stream.read_exact(&mut done).context("the client did not confirm our address")?;
    ensure!(done == *DONE, "the client confirmed with {:?}", String::from_utf8_lossy(&done));
    Ok(theirs)
}

fn send(stream: &mut impl Write, mine: &[Endpoint]) -> Result<()> {
    let mut text = Vec::with_capacity(mine.len() * ENDPOINT_LEN);
    mine.iter().try_for_each(|e| e.send(&mut text)).context("cannot write an endpoint")?;
    stream.write_all(&text).context("cannot send our address")
}

fn receive(stream: &mut impl Read, count: usize) -> Result<Vec<Endpoint>> {
    let one =
        |i| Endpoint::receive(&mut *stream).with_context(|| format!("cannot read the peer's address {i}"));
    (0..count).map(one).collect()
}

/// The endpoints of the peer's QPs, of which there must be as many as ours. Those behind are zeros; on some devices a QP number alone may be 0.
pub(crate) fn in_use(theirs: &[Endpoint], num_qp: usize) -> Result<&[Endpoint]> {
    let count = theirs.iter().position(|e| *e == Endpoint::default()).unwrap_or(theirs.len());
    if count != num_qp {
        bail!("the peer has {count} QPs and we have {num_qp}: give both the same --num-qp");
    }
    Ok(theirs.get(..count).unwrap_or(theirs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience::Patience;
    use crate::tcp::{Stream, dial, prepare};
    use core::time::Duration;
    use std::net::TcpListener;
    use std::thread;
    use uverbs::attr::Gid;

    fn endpoint(qp_num: u32) -> Endpoint {
        Endpoint { lid: 7, qp_num, psn: 0xabc, gid: "::ffff:10.0.0.1".parse::<Gid>().unwrap() }
    }

    fn pair() -> (Stream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let patience = Patience::new(Some(Duration::from_secs(10)));
        let client = dial("127.0.0.1", port, &patience).unwrap();
        (prepare(listener.accept().unwrap().0, &patience).unwrap(), client)
    }

    #[test]
    fn the_server_connects_before_it_answers() {
        for count in [1, 256] {
            let (server, client) = pair();
            let mine: Vec<_> = (1..=count).map(endpoint).collect();
            let theirs: Vec<_> = (1001..=1000 + count).map(endpoint).collect();
            let expected = theirs.clone();
            let client = thread::spawn(move || as_client(client, &theirs).unwrap());
            let mut connected = false;
            let got = as_server(server, &mine, |remote| {
                connected = true;
                assert_eq!(remote, expected);
                Ok(())
            });
            assert!(connected);
            assert_eq!(got.unwrap(), expected);
            assert_eq!(client.join().unwrap(), mine);
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_c_programs() {
        let (mut server, client) = pair();
        let client = thread::spawn(move || as_client(client, &[endpoint(0x11)]).unwrap());
        let mut message = [0; 52];
        server.read_exact(&mut message).unwrap();
        assert_eq!(&message, b"0007:000011:000abc:00000000000000000000ffff0a000001\0");
        server.write_all(b"0000:000012:ffffff:00000000000000000000ffff0a000002\0").unwrap();
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"done\0");
        let theirs = client.join().unwrap();
        assert_eq!((theirs[0].qp_num, theirs[0].psn), (0x12, 0xff_ffff));
    }

    #[test]
    fn a_wrong_confirmation_and_a_short_peer_are_errors() {
        let (server, mut client) = pair();
        client.write_all(b"0000:000012:ffffff:00000000000000000000ffff0a000002\0nope\0").unwrap();
        assert!(as_server(server, &[endpoint(1)], |_| Ok(())).unwrap_err().to_string().contains("nope"));

        let (server, client) = pair();
        drop(client);
        assert!(as_server(server, &[endpoint(1)], |_| Ok(())).is_err());

        let theirs = [endpoint(5), endpoint(6), Endpoint::default()];
        assert_eq!(in_use(&theirs, 2).unwrap().len(), 2);
        for num_qp in [1, 3] {
            assert!(in_use(&theirs, num_qp).unwrap_err().to_string().contains("the peer has 2 QPs"));
        }
    }
}
