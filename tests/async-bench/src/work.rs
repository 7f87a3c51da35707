// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measured programs.

use crate::carrier::{Bytes, MESSAGE, Messages};
use crate::stats::Measured;
use crate::{End, Test};
use anyhow::{Result, bail, ensure};
use std::thread;

/// Bytes of a message of the echo.
const ECHO: usize = 32;
/// Bytes of the bodies of calls, in turn.
const BODIES: [usize; 5] = [16, 64, 256, 1024, 4096];
/// Bytes of the header of a call: its number and the length of its body.
const HEADER: usize = 8;
/// Calls that wait for their answers.
const CALLS: usize = 8;
/// Bytes of a write to a stream.
pub(crate) const CHUNK: usize = 4096;

/// Runs one end of a test with messages.
pub(crate) async fn messages(carrier: impl Messages, end: &End, is_server: bool) -> Result<Measured> {
    match (end.test, is_server) {
        (Test::Echo | Test::Rpc, true) => answer(carrier, end).await,
        (Test::Echo, false) => echo(carrier, end).await,
        (Test::Rpc, false) => call(carrier, end).await,
        (Test::Write | Test::Read, _) => bail!("a test of a stream"),
    }
}

/// Runs one end of a test with a stream.
pub(crate) async fn bytes(carrier: impl Bytes, end: &End, is_server: bool) -> Result<Measured> {
    match (end.test, is_server) {
        (Test::Read, false) | (Test::Write, true) => drain(carrier, end).await,
        (Test::Write, false) | (Test::Read, true) => pour(carrier, end).await,
        (Test::Echo | Test::Rpc, _) => bail!("a test with messages"),
    }
}

/// Sends each message back, until the client has gone.
async fn answer(mut carrier: impl Messages, end: &End) -> Result<Measured> {
    let mut room = vec![0; MESSAGE];
    loop {
        let n = carrier
            .recv(|message| {
                room[..message.len()].copy_from_slice(message);
                message.len()
            })
            .await?;
        if end.pause > 0 {
            thread::sleep(end.pause());
        }
        carrier.send(n, |message| message.copy_from_slice(&room[..n])).await?;
    }
}

/// One message at a time.
async fn echo(mut carrier: impl Messages, end: &End) -> Result<Measured> {
    let mut measured = Measured::begin(end);
    let mut message = [0x5a; ECHO];
    for number in 0..end.number {
        message[..8].copy_from_slice(&number.to_le_bytes());
        let begin = measured.now();
        carrier.send(ECHO, |room| room.copy_from_slice(&message)).await?;
        let same = carrier.recv(|received| received == message).await?;
        measured.add(begin);
        ensure!(same, "message {number} is not the one that was sent");
    }
    Ok(measured.end())
}

/// Calls, several of which wait for their answers, which are in order.
async fn call(mut carrier: impl Messages, end: &End) -> Result<Measured> {
    let mut measured = Measured::begin(end);
    let mut begins = [None; CALLS];
    let mut sent = 0;
    for number in 0..end.number {
        while sent < end.number.min(number + CALLS) {
            let body = BODIES[sent % BODIES.len()];
            begins[sent % CALLS] = measured.now();
            let fill = |message: &mut [u8]| {
                message[..4].copy_from_slice(&(sent as u32).to_le_bytes());
                message[4..HEADER].copy_from_slice(&(body as u32).to_le_bytes());
            };
            carrier.send(HEADER + body, fill).await?;
            sent += 1;
        }
        let body = BODIES[number % BODIES.len()];
        let is_right = |answer: &[u8]| {
            answer.len() == HEADER + body
                && answer[..4] == (number as u32).to_le_bytes()
                && answer[4..HEADER] == (body as u32).to_le_bytes()
        };
        let right = carrier.recv(is_right).await?;
        measured.add(begins[number % CALLS]);
        ensure!(right, "the answer to call {number} is wrong");
    }
    Ok(measured.end())
}

/// Makes a part of a stream. Of the rest, as of the bodies of calls, the program leaves what is there: it would cost the same with each library.
fn mark(part: &mut [u8]) {
    if let Some(byte) = part.first_mut() {
        *byte = 1;
    }
}

/// Writes a stream, and waits until the other side has all of it.
async fn pour(mut carrier: impl Bytes, end: &End) -> Result<Measured> {
    let mut measured = Measured::begin(end);
    for _ in 0..end.number {
        if end.pause > 0 {
            thread::sleep(end.pause());
        }
        let begin = measured.now();
        carrier.put(CHUNK, mark).await?;
        measured.add(begin);
    }
    ensure!(carrier.take(|all| all.len() == 1).await?, "the stream ended");
    Ok(measured.end())
}

/// Reads a stream, and says that it has all of it.
async fn drain(mut carrier: impl Bytes, end: &End) -> Result<Measured> {
    let mut measured = Measured::begin(end);
    let (mut read, total) = (0, end.number * CHUNK);
    while read < total {
        let begin = measured.now();
        let n = carrier.take(<[u8]>::len).await?;
        ensure!(n > 0, "the stream ended after {read} bytes");
        measured.add(begin);
        read += n;
    }
    carrier.put(1, mark).await?;
    Ok(measured.end())
}
