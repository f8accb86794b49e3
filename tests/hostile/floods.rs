//! Floods of frames: what costs the sender little and brings nothing.

use super::fixture::{Fixture, attack};
use super::peer::{
    CONTINUATION, DATA, DELTA_ADS, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RST_STREAM,
    WINDOW_UPDATE, call, call_block, field, frame, setting, stream,
};

/// Frames in one write.
const BATCH: u32 = 1000;

fn batch(piece: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (0..BATCH).flat_map(piece).collect()
}

#[test]
fn floods_of_resets() {
    const BUDGET: &str = "budget of useless frames (2000, then 500/s), ENHANCE_YOUR_CALM";
    let fixture = Fixture::start("");
    fixture.suffer(&[
        attack("rapid reset", BUDGET, |target| {
            target.flood_streams(BATCH, |id| [call(id, 0), frame(RST_STREAM, 0, id, &[0, 0, 0, 8])].concat());
        }),
        attack("server-made resets: data behind the end", BUDGET, |target| {
            target.flood_streams(BATCH, |id| [call(id, END_STREAM), frame(DATA, 0, id, b"x")].concat());
        }),
        attack("server-made resets: windows of nothing, and too large", BUDGET, |target| {
            target.flood_streams(BATCH, |id| {
                let by = if id % 4 == 1 { 0 } else { 0x7fff_ffff_u32 };
                [call(id, 0), frame(WINDOW_UPDATE, 0, id, &by.to_be_bytes())].concat()
            });
        }),
        attack("server-made resets: a stream that depends on itself", BUDGET, |target| {
            target.flood_streams(BATCH, |id| {
                let itself = [&id.to_be_bytes()[..], &[0]].concat();
                [call(id, 0), frame(PRIORITY, 0, id, &itself)].concat()
            });
        }),
        attack(
            "more streams than are allowed, malformed heads",
            "max_streams_per_connection, 1 MiB of unanswered heads; budget",
            |target| {
                target.flood_streams(BATCH, |id| match id % 4 {
                    1 => frame(HEADERS, END_HEADERS, id, &field("Upper", "case")),
                    _ => call(id, 0),
                });
            },
        ),
    ]);
}

/// A block that puts a large field into the table, then refers to it again and again.
fn table_bomb() -> Vec<u8> {
    let value = "v".repeat(3900);
    // Literal with indexing, a new name; the length of the value is 127 + 3773.
    let len = value.len() - 127;
    let mut block = vec![0x83, 0x86, 0x84, 0x40, 1, b'x', 127, (len & 0x7f) as u8 | 0x80, (len >> 7) as u8];
    block.extend_from_slice(value.as_bytes());
    block.resize(16 << 10, 0x80 | 62);
    block
}

/// A block of the code that grows most: five bits for a letter.
fn huffman_bomb() -> Vec<u8> {
    let len = (16 << 10) - 300;
    let mut block = call_block(DELTA_ADS);
    block.extend([0, 1, b'x', 0xff, ((len - 127) & 0x7f) as u8 | 0x80, ((len - 127) >> 7) as u8]);
    // `0` is 00000.
    block.resize(block.len() + len - 1, 0);
    block.push(0b0000_0111);
    block
}

#[test]
fn floods_of_heads() {
    const LIST: &str = "head of 16 KiB (MAX_HEADER_LIST_SIZE), 431; table of 4 KiB; budget";
    let fixture = Fixture::start("");
    fixture.suffer(&[
        attack("CONTINUATION flood", "8 continuations, 32 KiB, first_request_timeout", |target| {
            let start = frame(HEADERS, 0, 1, &call_block(DELTA_ADS));
            target.flood(&start, |_| {
                batch(|n| frame(CONTINUATION, 0, 1, if n % 2 == 0 { b"" } else { &[0, 1, b'a', 0] }))
            });
        }),
        attack("HPACK: a table's entry, 12,000 times in a head", LIST, |target| {
            let block = table_bomb();
            target.flood_streams(20, |id| frame(HEADERS, END_HEADERS, id, &block));
        }),
        attack("HPACK: Huffman, 26 KiB of one field in 16 KiB", LIST, |target| {
            let block = huffman_bomb();
            target.flood_streams(20, |id| frame(HEADERS, END_HEADERS, id, &block));
        }),
        attack("HPACK: resizing the table", LIST, |target| {
            let mut block = [0x20, 0x3f, 0xe1, 0x1f].repeat(4000);
            block.extend(call_block(DELTA_ADS));
            target.flood_streams(20, |id| frame(HEADERS, END_HEADERS, id, &block));
        }),
        attack(
            "heads as large as are allowed, on streams that stay",
            "1 MiB of unanswered heads; max_streams_per_connection",
            |target| {
                let fields: Vec<u8> =
                    (0..60).flat_map(|n| field(&format!("x-{n}"), &"v".repeat(120))).collect();
                let block = [call_block(DELTA_ADS), fields].concat();
                target.flood_streams(20, |id| frame(HEADERS, END_HEADERS, id, &block));
            },
        )
        .by(4),
    ]);
}

#[test]
fn floods_of_frames_about_no_request() {
    const BUDGET: &str = "budget of useless frames, ENHANCE_YOUR_CALM";
    const FAIR: &str = "64 KiB, then others have their turn";
    let fixture = Fixture::start("");
    fixture.suffer(&[
        attack("SETTINGS, with 900 streams whose windows move", BUDGET, |target| {
            let open: Vec<u8> = (0..900).flat_map(|n| call(stream(n), 0)).collect();
            target.flood(&open, |_| batch(|n| setting(4, n)));
        }),
        attack("PING", BUDGET, |target| target.flood(&[], |_| batch(|_| frame(PING, 0, 0, &[7; 8])))),
        attack("PRIORITY, and frames that nobody knows", BUDGET, |target| {
            target.flood(&[], |_| {
                batch(
                    |n| {
                        if n % 2 == 0 {
                            frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 0])
                        } else {
                            frame(77, 0, 0, &[])
                        }
                    },
                )
            });
        }),
        attack("WINDOW_UPDATE of one byte", BUDGET, |target| {
            target.flood(&call(1, 0), |_| batch(|n| frame(WINDOW_UPDATE, 0, n % 2, &1_u32.to_be_bytes())));
        }),
        attack("empty DATA", BUDGET, |target| {
            target.flood(&call(1, 0), |_| batch(|_| frame(DATA, 0, 1, &[])))
        }),
        attack("DATA of one byte, of a message of 4 MiB", FAIR, |target| {
            let start = [call(1, 0), frame(DATA, 0, 1, &[0, 0, 0x3f, 0xff, 0xff])].concat();
            target.flood(&start, |_| batch(|_| frame(DATA, 0, 1, b"x")));
        }),
        attack("DATA of padding alone", BUDGET, |target| {
            let padded = frame(DATA, 8, 1, &[&[200][..], &[0; 200]].concat());
            target.flood(&call(1, 0), |_| padded.repeat(100));
        }),
    ]);
}
