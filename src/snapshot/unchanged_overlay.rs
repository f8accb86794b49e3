//! File that is read without any change.
//!
//! Owns blocks that the library writes while reading, such as repairs after a kill. They stay in memory and
//! go with the value.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use parking_lot::Mutex;
use redb::StorageBackend;

const BLOCK: u64 = 4096;

/// File with changes that only its reader sees.
#[derive(Debug)]
pub(super) struct Overlay {
    file: File,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    len: u64,
    /// Bytes of the file that count: those after a cut are zero.
    kept: u64,
    blocks: BTreeMap<u64, Box<[u8]>>,
}

impl Overlay {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { file, state: Mutex::new(State { len, kept: len, blocks: BTreeMap::new() }) })
    }

    fn block(&self, state: &State, number: u64) -> io::Result<Box<[u8]>> {
        if let Some(block) = state.blocks.get(&number) {
            return Ok(block.clone());
        }
        let mut block = vec![0; BLOCK as usize].into_boxed_slice();
        let start = number * BLOCK;
        let there = state.kept.saturating_sub(start).min(BLOCK) as usize;
        self.file.read_exact_at(&mut block[..there], start)?;
        Ok(block)
    }

    /// Splits a range into blocks: number of each, place in it, and place in the range.
    fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>, usize)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset + done as u64;
            let inside = (at % BLOCK) as usize;
            let count = (BLOCK as usize - inside).min(len - done);
            let piece = (count > 0).then_some((at / BLOCK, inside..inside + count, done));
            done += count;
            piece
        })
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > state.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (number, inside, at) in Self::pieces(offset, out.len()) {
            let block = self.block(&state, number)?;
            out[at..at + inside.len()].copy_from_slice(&block[inside]);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        for (number, inside, at) in Self::pieces(offset, data.len()) {
            let mut block = self.block(&state, number)?;
            block[inside.clone()].copy_from_slice(&data[at..at + inside.len()]);
            state.blocks.insert(number, block);
        }
        state.len = state.len.max(offset + data.len() as u64);
        Ok(())
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if len < state.len {
            state.kept = state.kept.min(len);
            let first = len.div_ceil(BLOCK);
            state.blocks.split_off(&first);
            if let Some(block) = state.blocks.get_mut(&(len / BLOCK)) {
                block[(len % BLOCK) as usize..].fill(0);
            }
        }
        state.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_at(offset, data)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_is_written_is_seen_and_the_file_stays() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[7; 10_000]).expect("room");
        let overlay = Overlay::new(file.try_clone().expect("a file")).expect("a length");
        overlay.write(4_090, &[1; 20]).expect("written");
        let mut out = [0; 30];
        overlay.read(4_085, &mut out).expect("read");
        assert_eq!((&out[..5], &out[5..25], &out[25..]), (&[7; 5][..], &[1; 20][..], &[7; 5][..]));
        overlay.set_len(4_095).expect("cut");
        overlay.set_len(9_000).expect("longer");
        let mut out = [9; 20];
        overlay.read(4_085, &mut out).expect("read");
        assert_eq!((&out[..5], &out[5..10], &out[10..]), (&[7; 5][..], &[1; 5][..], &[0; 10][..]));
        assert!(overlay.read(8_990, &mut [0; 11]).is_err());
        let mut whole = vec![0; 10_000];
        file.read_exact_at(&mut whole, 0).expect("the file");
        assert!(whole.iter().all(|byte| *byte == 7));
    }
}
