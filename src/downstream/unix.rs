//! Unix sockets of listeners.
//!
//! Owns the file of a socket. It replaces only a socket without a listener, and is removed with its own
//! listener unless another process has replaced it.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// Mode of the file, less the umask: its owner and its group may connect.
const MODE: u32 = 0o660;

#[derive(Debug)]
pub(super) struct UnixSocket {
    listener: UnixListener,
    /// Removes the file on drop.
    _file: SocketFile,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl UnixSocket {
    pub(super) fn bind(path: &Path, backlog: i32) -> io::Result<Self> {
        let address = socket2::SockAddr::unix(path)?;
        remove_stale(path, &address)?;
        let socket = new_socket()?;
        socket.bind(&address)?;
        let found = std::fs::symlink_metadata(path)?;
        let file = SocketFile { path: path.to_owned(), identity: (found.dev(), found.ino()) };
        // The mode is set before `listen`, so that no client connects with another one.
        let mode = found.permissions().mode() & MODE;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        socket.listen(backlog)?;
        Ok(Self { listener: UnixListener::from_std(socket.into())?, _file: file })
    }

    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(socket, _)| socket)
    }
}

fn new_socket() -> io::Result<socket2::Socket> {
    let kind = socket2::Type::STREAM.nonblocking().cloexec();
    socket2::Socket::new(socket2::Domain::UNIX, kind, None)
}

/// Removes a socket without a listener.
fn remove_stale(path: &Path, address: &socket2::SockAddr) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        let problem = "the file there is not a socket; remove it, or choose another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
    }
    match new_socket()?.connect(address) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A socket whose queue is full has a listener too.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        Ok(()) | Err(_) => {
            let problem = "another process listens there; stop it, or choose another path";
            Err(io::Error::new(io::ErrorKind::AddrInUse, problem))
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have put its own socket there.
        let found = std::fs::symlink_metadata(&self.path).ok().map(|found| (found.dev(), found.ino()));
        if found == Some(self.identity)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the file of the Unix socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_gives_way_and_nothing_else_does() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a socket without a listener is left behind");
        let first = UnixSocket::bind(&path, 16).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o117, 0);
        let error = UnixSocket::bind(&path, 16).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
        drop(first);
        assert!(!path.exists(), "the file goes with the listener");

        std::fs::write(&path, "precious").unwrap();
        let error = UnixSocket::bind(&path, 16).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn a_file_that_is_another_ones_by_now_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s");
        let first = UnixSocket::bind(&path, 16).unwrap();
        let (aside, mine) = (home.path().join("aside"), path.clone());
        std::fs::rename(&path, &aside).unwrap();
        let second = UnixSocket::bind(&mine, 16).unwrap();
        drop(first);
        assert!(path.exists(), "this one is the second's");
        drop(second);
        assert!(!path.exists());
    }
}
