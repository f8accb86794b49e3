//! Reading of a snapshot that could not be read at the start, while the relay runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::upstream::{Client, LateRestore};

/// Time between two attempts.
const RETRY: Duration = Duration::from_secs(1);

/// Tries to `read` until that can be done, and has the client take in what was read. Once the client is past its start it waits for
/// nothing, and the attempts end. `read` may wait for the disk.
pub fn load_later<T: Send + 'static>(
    read: impl Fn() -> Option<T> + Send + Sync + 'static,
    restore: impl FnOnce(T, &mut Client) + Send + 'static,
) -> oneshot::Receiver<LateRestore> {
    let (mut sender, receiver) = oneshot::channel();
    let read = Arc::new(read);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = sender.closed() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
            let attempt = Arc::clone(&read);
            let read = tokio::task::spawn_blocking(move || attempt()).await;
            if let Ok(Some(content)) = read {
                // Unless the client is past its start.
                drop(sender.send(LateRestore::new(move |client| restore(content, client))));
                return;
            }
        }
    });
    receiver
}
