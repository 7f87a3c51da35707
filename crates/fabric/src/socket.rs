// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths of Unix sockets: a socket that a killed process has left is replaced, and nothing else.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Whether there is a socket, not a link to one or another file.
fn is_socket(path: &Path) -> Result<bool> {
    Ok(path.symlink_metadata()?.file_type().is_socket())
}

/// Removes a socket at which no process listens any more.
///
/// # Errors
/// Another process listens there (`AddrInUse`); the path is that of another file (`AlreadyExists`), which stays.
pub fn clear(path: &Path) -> Result<()> {
    match is_socket(path) {
        Ok(true) => {}
        Ok(false) => {
            let text = format!("{} exists and is not a socket", path.display());
            return Err(Error::new(ErrorKind::AlreadyExists, text));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => remove(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes a socket, if the path is that of a socket.
///
/// # Errors
/// The folder can't be changed.
pub fn remove(path: &Path) -> Result<()> {
    match is_socket(path) {
        Ok(true) => std::fs::remove_file(path),
        Ok(false) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Binds a socket, after [`clear`]. The folder is locked, so that two processes do not replace each other's socket.
///
/// # Errors
/// Those of [`clear`], and of bind(2).
pub fn bind(path: &Path) -> Result<UnixListener> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let lock = File::open(folder.unwrap_or(Path::new(".")))?;
    lock.lock()?;
    clear(path)?;
    UnixListener::bind(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_without_a_listener_are_replaced() {
        let folder = std::env::temp_dir().join(format!("uverbs-fabric-socket-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (socket, file, link) = (folder.join("socket"), folder.join("file"), folder.join("link"));
        std::fs::write(&file, "of the user").unwrap();
        let kind = |path: &Path| bind(path).unwrap_err().kind();
        assert_eq!(kind(&file), ErrorKind::AlreadyExists);
        assert_eq!(kind(&folder), ErrorKind::AlreadyExists);
        remove(&file).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"of the user");
        let listener = bind(&socket).unwrap();
        assert_eq!(kind(&socket), ErrorKind::AddrInUse);
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        assert_eq!(kind(&link), ErrorKind::AlreadyExists);
        drop(listener);
        // The socket of a process that has ended.
        drop(bind(&socket).unwrap());
        remove(&socket).unwrap();
        remove(&socket).unwrap();
        assert!(!socket.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
