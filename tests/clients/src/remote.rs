// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands on the other guest of a pair, over the network between the guests.
//!
//! The second guest [serves](serve) until the [session] of the first one ends. [`run`] is the command line
//! `uverbs-clients at HOST WORDS...`, which behaves like ssh(1): its output and its status are those of the command, and the
//! command is killed with it. So a server or a client on the other guest is a process like any other, and mpirun(1) starts
//! its daemon that way.
//!
//! A request is a number of words. The answer is the output in pieces, an empty piece, and the status. All numbers are
//! big-endian and have 4 bytes, and each word or piece follows its length.

use crate::process::End;
use anyhow::{Context, Result, ensure};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// The port of the second guest.
const PORT: u16 = 20_999;
/// The time within which the other guest boots on a busy host.
const BOOT: Duration = Duration::from_secs(500);
/// Interval of the attempts to connect to a guest that boots.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest word, and the largest number of words.
const LIMIT: u32 = 1 << 16;
/// The status of a command that can't be started, as in shells.
const NOT_FOUND: i32 = 127;

/// Runs commands for the other guest until its session ends.
///
/// # Errors
/// The port can't be opened.
pub fn serve() -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).context("cannot listen for the other guest")?;
    let (mut session, _) = listener.accept().context("no session")?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                if let Err(error) = answer(stream) {
                    eprintln!("uverbs-clients: a command of the other guest: {error:#}");
                }
            });
        }
    });
    // An error is an end, too.
    let _ = session.read(&mut [0]);
    Ok(())
}

/// Begins the session with the other guest, which ends when the result is dropped.
///
/// # Errors
/// The other guest does not serve in time.
pub fn session(host: &str) -> Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect((host, PORT)) {
            Err(_) if start.elapsed() < BOOT => thread::sleep(PAUSE),
            result => return result.with_context(|| format!("the other guest, {host}, does not serve")),
        }
    }
}

/// Runs a command on the other guest, and passes its output on; the status for this process.
///
/// # Errors
/// The other guest can't be reached, or ends the connection.
pub fn run(host: &str, words: &[String]) -> Result<u8> {
    call(host, words, &mut io::stdout())
}

fn call(host: &str, words: &[String], to: &mut impl Write) -> Result<u8> {
    let mut stream = TcpStream::connect((host, PORT)).with_context(|| format!("cannot reach {host}"))?;
    put_number(&mut stream, words.len().try_into().context("too many words")?)?;
    for word in words {
        put(&mut stream, word.as_bytes())?;
    }
    loop {
        let piece = get(&mut stream).context("the connection ended before the command")?;
        if piece.is_empty() {
            let status = number(&mut stream)?;
            return Ok(u8::try_from(status).unwrap_or(1));
        }
        to.write_all(&piece).and_then(|()| to.flush()).context("cannot write")?;
    }
}

/// The output of a command on the other guest, without white space at its ends.
///
/// # Errors
/// The other guest can't be reached, or the command fails.
pub fn output(host: &str, words: &[&str]) -> Result<String> {
    let mut text = Vec::new();
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let status = call(host, &words, &mut text)?;
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    ensure!(status == 0, "`{}` failed on {host}: {status}\n{text}", words.join(" "));
    Ok(text)
}

/// Runs the command of a request.
fn answer(mut stream: TcpStream) -> Result<()> {
    let count = number(&mut stream)?;
    ensure!((1..LIMIT).contains(&count), "{count} words");
    let words = (0..count).map(|_| Ok(String::from_utf8(get(&mut stream)?)?)).collect::<Result<Vec<_>>>()?;
    let (mut output, input) = io::pipe().context("no pipe")?;
    let errors = input.try_clone().context("no pipe")?;
    let mut cmd = Command::new(&words[0]);
    cmd.args(&words[1..]).stdin(Stdio::null()).stdout(input).stderr(errors).process_group(0);
    let spawned = cmd.spawn();
    // The command has ends of the pipe, which would stay open.
    drop(cmd);
    let status = match spawned {
        Err(error) => {
            put(&mut stream, format!("cannot start {}: {error}\n", words[0]).as_bytes())?;
            NOT_FOUND
        }
        Ok(child) => {
            let watched = stream.try_clone().context("no second handle")?;
            let ended = thread::spawn(move || wait(child, watched));
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                // If the other end is gone, the command is killed, and the rest is dropped.
                let _ = put(&mut stream, &buffer[..count]);
            }
            ended.join().unwrap_or(NOT_FOUND)
        }
    };
    put_number(&mut stream, 0)?;
    put_number(&mut stream, u32::try_from(status).unwrap_or(1))
}

/// Waits for the end of a command. It is killed with its children when the connection ends; they are killed when it ends.
fn wait(mut child: Child, mut stream: TcpStream) -> i32 {
    let group = Pid::from_raw(child.id().cast_signed());
    let ended = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&ended);
    thread::spawn(move || {
        // The other end sends nothing more: this is its end.
        let _ = stream.read(&mut [0]);
        if !is_over.load(Ordering::SeqCst) {
            let _ = killpg(group, Signal::SIGKILL);
        }
    });
    let status = child.wait().map(End::from);
    ended.store(true, Ordering::SeqCst);
    // Fails if there are none.
    let _ = killpg(group, Signal::SIGKILL);
    match status {
        Ok(End::Exit(status)) => status,
        Ok(End::Signal(signal)) => 128 + signal,
        _ => NOT_FOUND,
    }
}

fn put_number(to: &mut impl Write, number: u32) -> Result<()> {
    to.write_all(&number.to_be_bytes()).context("cannot send")
}

fn put(to: &mut impl Write, bytes: &[u8]) -> Result<()> {
    put_number(to, bytes.len().try_into().context("too long")?)?;
    to.write_all(bytes).context("cannot send")
}

fn number(from: &mut impl Read) -> Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes).context("cannot receive")?;
    Ok(u32::from_be_bytes(bytes))
}

fn get(from: &mut impl Read) -> Result<Vec<u8>> {
    let length = number(from)?;
    ensure!(length <= LIMIT, "a word of {length} bytes");
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes).context("cannot receive")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output and the status of a command.
    fn ask(words: &[&str]) -> (String, u32) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let server = thread::spawn(move || answer(server));
        put_number(&mut client, words.len().try_into().unwrap()).unwrap();
        for word in words {
            put(&mut client, word.as_bytes()).unwrap();
        }
        let mut text = Vec::new();
        loop {
            let piece = get(&mut client).unwrap();
            if piece.is_empty() {
                break;
            }
            text.extend(piece);
        }
        let status = number(&mut client).unwrap();
        server.join().unwrap().unwrap();
        (String::from_utf8(text).unwrap(), status)
    }

    #[test]
    fn a_command_has_its_words_output_and_status() {
        assert_eq!(ask(&["printf", "%s|", "a b", "", "c"]), ("a b||c|".into(), 0));
        assert_eq!(ask(&["sh", "-c", "echo out; echo err >&2; exit 5"]), ("out\nerr\n".into(), 5));
        assert_eq!(ask(&["sh", "-c", "kill -9 $$"]), (String::new(), 137));
        let (text, status) = ask(&["/no/such/program"]);
        assert!(text.starts_with("cannot start /no/such/program"));
        assert_eq!(status, 127);
    }

    #[test]
    fn children_of_a_command_end_with_it() {
        // A child that has the output open does not delay the end.
        assert_eq!(ask(&["sh", "-c", "sleep 1000 & exit 0"]), (String::new(), 0));
    }

    #[test]
    fn a_command_is_killed_when_the_connection_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let server = thread::spawn(move || answer(server));
        put_number(&mut client, 3).unwrap();
        for word in ["sh", "-c", "echo started; sleep 1000"] {
            put(&mut client, word.as_bytes()).unwrap();
        }
        assert_eq!(get(&mut client).unwrap(), b"started\n");
        // Also if a process of another test, between fork(2) and execve(2), has a copy of the socket.
        client.shutdown(std::net::Shutdown::Both).unwrap();
        // The answer can't be sent; the end of the thread shows that the command has ended.
        let _ = server.join().unwrap();
    }
}
