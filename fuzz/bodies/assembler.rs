//! gRPC messages out of a request body, however it is cut, against a reader that has all of it at once.

use bytes::Bytes;
use deltafan::downstream::assemble;

use super::input::Input;

// Codes of gRPC.
const INVALID_ARGUMENT: i32 = 3;
const RESOURCE_EXHAUSTED: i32 = 8;
const UNIMPLEMENTED: i32 = 12;

/// A limit, the lengths of the pieces, then the body.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let limit = usize::from(input.byte());
    let cuts = input.piece();
    let body = input.rest();

    let mut pieces = Vec::new();
    let mut rest = body;
    for cut in cuts.iter().copied().chain(std::iter::repeat(u8::MAX)) {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at(usize::from(cut).min(rest.len()));
        pieces.push(Bytes::copy_from_slice(piece));
        rest = after;
    }
    let (messages, end) = assemble(pieces, limit);
    let (expected, expected_end) = whole(body, limit);
    assert_eq!(messages, expected);
    assert_eq!(end.map_err(|code| code as i32), expected_end);
}

fn whole(mut body: &[u8], limit: usize) -> (Vec<&[u8]>, Result<(), i32>) {
    let mut messages = Vec::new();
    while !body.is_empty() {
        let Some((&[compressed, a, b, c, d], rest)) = body.split_first_chunk() else {
            return (messages, Err(INVALID_ARGUMENT));
        };
        if compressed != 0 {
            return (messages, Err(UNIMPLEMENTED));
        }
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > limit {
            return (messages, Err(RESOURCE_EXHAUSTED));
        }
        let Some((message, rest)) = rest.split_at_checked(len) else {
            return (messages, Err(INVALID_ARGUMENT));
        };
        messages.push(message);
        body = rest;
    }
    (messages, Ok(()))
}
