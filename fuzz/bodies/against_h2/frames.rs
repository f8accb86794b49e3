//! Frames that a peer sends, one at a time: mostly what RFC 9113 allows, with faults strewn in.

use deltafan::http2::PREFACE;

use super::super::input::Input;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;
/// Stands for bytes that are no frame.
pub(super) const NO_FRAME: u8 = 0xff;

pub(super) const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const HAS_PRIORITY: u8 = 0x20;

/// Sizes of DATA, the last of which no window and no frame has room for.
const SIZES: [usize; 10] = [0, 1, 1, 5, 5, 10, 100, 3000, 3000, 16_385];
const WINDOWS: [u32; 8] = [1, 100, 100, 20_000, 65_535, 1 << 20, 0, u32::MAX >> 1];
const REASONS: [u32; 4] = [0, 8, 2, 0xdead];

/// One frame, or bytes that are none.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
    /// Sent instead of it.
    raw: Option<Vec<u8>>,
}

impl Frame {
    const fn new(kind: u8, flags: u8, stream: u32, payload: Vec<u8>) -> Self {
        Self { kind, flags, stream, payload, raw: None }
    }

    /// The stream that it is on, without the reserved bit.
    pub(super) const fn stream(&self) -> u32 {
        self.stream & (u32::MAX >> 1)
    }

    /// The number that its payload is.
    pub(super) fn number(&self) -> usize {
        let number = self.payload.first_chunk().map_or(0, |number| u32::from_be_bytes(*number));
        number as usize & (u32::MAX >> 1) as usize
    }

    pub(super) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        if let Some(raw) = &self.raw {
            return raw.clone();
        }
        let mut bytes = (self.payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend_from_slice(&[self.kind, self.flags]);
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// The payload without its padding, if that is well-formed.
    pub(super) fn unpadded(&self) -> Option<&[u8]> {
        if !self.has(PADDED) {
            return Some(&self.payload);
        }
        let (&padding, rest) = self.payload.split_first()?;
        rest.get(..rest.len().checked_sub(usize::from(padding))?)
    }

    /// The stream that a frame says its own stream depends on.
    pub(super) fn dependency(&self) -> Option<u32> {
        let payload = match self.kind {
            PRIORITY => &self.payload[..],
            HEADERS if self.has(HAS_PRIORITY) => self.unpadded()?,
            _ => return None,
        };
        payload
            .first_chunk::<5>()
            .map(|[a, b, c, d, _]| u32::from_be_bytes([*a, *b, *c, *d]) & (u32::MAX >> 1))
    }

    /// Whether it has no room for the fields that its flags speak of.
    pub(super) fn lacks_fields(&self) -> bool {
        let no_padding_length = self.has(PADDED) && self.payload.is_empty();
        let no_priority = self.kind == HEADERS
            && self.has(HAS_PRIORITY)
            && self.unpadded().is_some_and(|rest| rest.len() < 5);
        matches!(self.kind, DATA | HEADERS) && (no_padding_length || no_priority)
    }
}

/// The peer, which keeps to the protocol as far as it remembers it.
pub(super) struct Peer<'a, 'b> {
    input: &'a mut Input<'b>,
    /// The streams that it has opened, and whether its half is closed.
    streams: Vec<(u32, bool)>,
    /// Frames of a block of headers that are still to be sent.
    rest: Vec<Frame>,
    /// Entries that were put into the header table.
    table: u8,
}

impl<'a, 'b> Peer<'a, 'b> {
    pub(super) const fn new(input: &'a mut Input<'b>) -> Self {
        Self { input, streams: Vec::new(), rest: Vec::new(), table: 0 }
    }

    /// How the connection begins.
    pub(super) fn first(&mut self) -> Frame {
        if self.input.byte() == 0xff {
            let raw = self.input.piece().to_vec();
            return Frame { raw: Some(raw), ..Frame::new(NO_FRAME, 0, 0, Vec::new()) };
        }
        let mut first = if self.input.byte() == 0xff { self.frame() } else { self.settings() };
        first.raw = Some([PREFACE.as_slice(), &first.bytes()].concat());
        first
    }

    /// The next frames that it sends.
    pub(super) fn next(&mut self) -> Option<Frame> {
        if self.rest.is_empty() && self.input.is_empty() {
            return None;
        }
        Some(self.frame())
    }

    fn frame(&mut self) -> Frame {
        if let Some(frame) = self.rest.pop() {
            return frame;
        }
        match self.input.byte() {
            0..70 => self.request(),
            70..130 => self.data(),
            130..142 => self.trailers(),
            142..162 => self.window_update(),
            162..174 => self.settings(),
            174..182 => Frame::new(PING, self.input.byte() / 200, 0, vec![self.input.byte(); 8]),
            182..192 => {
                let reason = self.input.pick(&REASONS).to_be_bytes().to_vec();
                Frame::new(RST_STREAM, 0, self.known(), reason)
            }
            192..200 => {
                let on = self.input.byte() % 16;
                let dependency = self.input.byte() % 16;
                Frame::new(PRIORITY, 0, u32::from(on), vec![0, 0, 0, dependency, 16])
            }
            200..204 => Frame::new(SETTINGS, ACK, 0, Vec::new()),
            204 => Frame::new(GOAWAY, 0, 0, vec![0; 8]),
            205..210 => {
                Frame::new(self.input.byte() & 0x7f | 16, self.input.byte(), self.known(), self.piece())
            }
            210..235 => self.faulty(),
            235..253 => {
                let (kind, flags, stream) =
                    (self.input.byte() % 11, self.input.byte(), self.input.byte() % 16);
                Frame::new(kind, flags, u32::from(stream), self.piece())
            }
            _ => {
                // Frames behind it mean nothing that is known here.
                let raw = self.input.rest().to_vec();
                Frame { raw: Some(raw), ..Frame::new(NO_FRAME, 0, 0, Vec::new()) }
            }
        }
    }

    fn piece(&mut self) -> Vec<u8> {
        let len = self.input.byte() % 32;
        self.input.take(usize::from(len)).to_vec()
    }

    /// One of its streams, mostly one of the newest.
    fn known(&mut self) -> u32 {
        let back = usize::from(self.input.byte() % 8) * self.streams.len() / 8;
        self.streams.iter().rev().nth(back).map_or(1, |(stream, _)| *stream)
    }

    /// One of its streams that it may send on, if there is any.
    fn open(&mut self) -> u32 {
        let pick = usize::from(self.input.byte());
        let open: Vec<u32> =
            self.streams.iter().filter(|(_, closed)| !closed).map(|(stream, _)| *stream).collect();
        open.get(pick % open.len().max(1)).copied().unwrap_or_else(|| self.known())
    }

    fn close(&mut self, stream: u32) {
        self.streams.iter_mut().filter(|(id, _)| *id == stream).for_each(|(_, closed)| *closed = true);
    }

    fn request(&mut self) -> Frame {
        let shape = self.input.byte();
        // A stream's number may leave some out.
        let stream = self.streams.last().map_or(1, |(last, _)| last + 2 + u32::from(shape == 7) * 4);
        let ends = shape & 1 == 1;
        self.streams.push((stream, ends));
        let block = Block::request(self.input, &mut self.table);
        self.block(stream, if ends { END_STREAM } else { 0 }, block, shape)
    }

    fn trailers(&mut self) -> Frame {
        let stream = self.open();
        let block = Block::trailers(self.input, &mut self.table);
        self.close(stream);
        let shape = self.input.byte();
        self.block(stream, u8::from(shape < 240), block, shape)
    }

    /// The frames of a block of headers: the first, and those that are to follow.
    fn block(&mut self, stream: u32, mut flags: u8, mut block: Vec<u8>, shape: u8) -> Frame {
        let pieces = if shape >> 1 & 7 == 0 { 1 + usize::from(self.input.byte() % 4) } else { 0 };
        for _ in 0..pieces {
            let at = usize::from(self.input.byte()) % (block.len() + 1);
            let end = if self.rest.is_empty() { END_HEADERS } else { 0 };
            self.rest.push(Frame::new(CONTINUATION, end, stream, block.split_off(at)));
        }
        if self.rest.is_empty() {
            flags |= END_HEADERS;
        }
        let mut payload = Vec::new();
        let padding = if shape >> 4 & 7 == 1 { self.input.byte() % 20 } else { 0 };
        if padding > 0 {
            flags |= PADDED;
            payload.push(padding);
        }
        if shape >> 4 & 7 == 2 {
            flags |= HAS_PRIORITY;
            payload.extend_from_slice(&[0, 0, 0, self.input.byte() % 16, 7]);
        }
        payload.extend_from_slice(&block);
        payload.resize(payload.len() + usize::from(padding), 0);
        Frame::new(HEADERS, flags, stream, payload)
    }

    fn data(&mut self) -> Frame {
        let stream = self.open();
        let (size, shape) = (*self.input.pick(&SIZES), self.input.byte());
        let mut flags = if shape & 3 == 0 { END_STREAM } else { 0 };
        if flags != 0 {
            self.close(stream);
        }
        let mut payload = vec![shape; size];
        if shape >> 2 & 7 == 0 && size > 0 {
            flags |= PADDED;
            // The first byte says how many of the others are padding.
            payload[0] = if size > 5 { 5 } else { size as u8 - 1 };
        }
        Frame::new(DATA, flags, stream, payload)
    }

    fn window_update(&mut self) -> Frame {
        let stream = if self.input.flag() { self.known() } else { 0 };
        let by = *self.input.pick(&WINDOWS);
        // The two that are faults are rarer than the others.
        let by = if matches!(by, 0 | 0x7fff_ffff) && self.input.byte() < 200 { 50_000 } else { by };
        Frame::new(WINDOW_UPDATE, 0, stream, by.to_be_bytes().to_vec())
    }

    fn settings(&mut self) -> Frame {
        const USUAL: [(u16, u32); 12] = [
            (1, 0),
            (1, 4096),
            (2, 0),
            (3, 100),
            (4, 0),
            (4, 10),
            (4, 65_535),
            (4, 200_000),
            (5, 16_384),
            (5, 30_000),
            (6, 5000),
            (0x0a0a, 7),
        ];
        const FAULTS: [(u16, u32); 4] = [(2, 2), (4, u32::MAX), (5, 16_383), (5, 1 << 24)];
        let mut payload = Vec::new();
        for _ in 0..self.input.byte() % 4 {
            let fault = self.input.byte() > 250;
            let (id, value) = *self.input.pick(if fault { &FAULTS } else { &USUAL[..] });
            payload.extend_from_slice(&id.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        Frame::new(SETTINGS, 0, 0, payload)
    }

    /// A frame that would be as it should, changed in one place.
    fn faulty(&mut self) -> Frame {
        let mut frame = self.frame();
        match self.input.byte() % 8 {
            0 => frame.flags ^= 1 << (self.input.byte() % 8),
            1 => frame.stream = u32::from(self.input.byte() % 16),
            2 => frame.stream ^= 1 << 31,
            3 => drop(frame.payload.pop()),
            4 => frame.payload.push(self.input.byte()),
            5 => frame.kind = self.input.byte() % 11,
            6 => {
                let at = usize::from(self.input.byte()) % frame.payload.len().max(1);
                if let Some(byte) = frame.payload.get_mut(at) {
                    *byte = self.input.byte();
                }
            }
            _ => frame.stream = self.streams.last().map_or(1, |(last, _)| last + 2),
        }
        frame
    }
}

/// Fields of requests, most of them good.
const FIELDS: [(&str, &str); 24] = [
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("user-agent", "somebody"),
    ("x-a", ""),
    ("x-b", "\u{e9}"),
    ("cookie", "a=b"),
    ("cookie", "c=d"),
    ("content-length", "0"),
    ("content-length", "5"),
    ("content-length", "10"),
    ("content-length", "3000"),
    ("host", "other"),
    ("te", "gzip"),
    ("connection", "close"),
    ("transfer-encoding", "chunked"),
    ("Upper", "1"),
    ("x c", "1"),
    ("x-d", "a\r\nb"),
    ("x-e", "a\0b"),
    ("x-f", " padded "),
    ("content-length", "+5"),
    ("content-length", "five"),
    ("", "no name"),
    (":status", "200"),
];
const METHODS: [&str; 8] = ["POST", "POST", "POST", "GET", "PUT", "OPTIONS", "CONNECT", "PO ST"];
const PATHS: [&str; 10] = ["/", "/a", "/a/b?c=d", "/%20", "*", "", "a", "/ a", "/#x", "//host/a"];
const AUTHORITIES: [&str; 7] = ["relay", "relay:15010", "[::1]:1", "", "user@relay", "a b", "relay:port"];
const SCHEMES: [&str; 4] = ["http", "https", "h t", ""];
/// Texts and their Huffman codes (RFC 7541, appendix C).
const CODED: [(&str, &[u8]); 4] = [
    ("www.example.com", b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"),
    ("no-cache", b"\xa8\xeb\x10\x64\x9c\xbf"),
    ("custom-key", b"\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f"),
    ("custom-value", b"\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf"),
];
const SIZE_UPDATES: [usize; 6] = [4096, 4096, 100, 30, 0, 4097];

/// A block of headers (RFC 7541), as it is written.
struct Block<'a, 'b, 'c> {
    input: &'a mut Input<'b>,
    table: &'c mut u8,
    out: Vec<u8>,
}

impl<'a, 'b, 'c> Block<'a, 'b, 'c> {
    fn new(input: &'a mut Input<'b>, table: &'c mut u8) -> Self {
        Self { input, table, out: Vec::new() }
    }

    fn request(input: &'a mut Input<'b>, table: &'c mut u8) -> Vec<u8> {
        let mut block = Self::new(input, table);
        let shape = block.input.byte();
        if shape < 10 {
            let size = *block.input.pick(&SIZE_UPDATES);
            block.number(0x20, 5, size);
        }
        // One in sixteen leaves one of the pseudo-headers out, puts it last or says it twice.
        let (odd, how) = (shape >> 4 == 15, shape & 3);
        let which = if odd { block.input.byte() % 4 } else { 4 };
        for at in 0..4 {
            if at != which || how == 3 {
                block.pseudo(at);
            }
            if at == which && how >= 2 {
                block.pseudo(at);
            }
        }
        block.fields();
        if which < 4 && how == 1 {
            block.pseudo(which);
        }
        block.out
    }

    fn trailers(input: &'a mut Input<'b>, table: &'c mut u8) -> Vec<u8> {
        let mut block = Self::new(input, table);
        block.fields();
        if block.input.byte() > 240 {
            block.pseudo(2);
        }
        block.out
    }

    /// Each of the four, in most cases what everybody sends.
    fn pseudo(&mut self, which: u8) {
        let rare = self.input.byte();
        match (which, rare) {
            (0, 0..150) => self.out.push(0x83),
            (0, 150..220) => self.out.push(0x82),
            (0, _) => self.choose(":method", 2, &METHODS),
            (1, 0..240) => self.out.push(0x86),
            (1, _) => self.choose(":scheme", 6, &SCHEMES),
            (2, 0..200) => self.out.push(0x84),
            (2, _) => self.choose(":path", 4, &PATHS),
            (_, 0..60) => {}
            (_, 60..200) => self.field(":authority", 1, "relay"),
            _ => self.choose(":authority", 1, &AUTHORITIES),
        }
    }

    fn choose(&mut self, name: &str, index: usize, values: &[&str]) {
        let value = *self.input.pick(values);
        self.field(name, index, value);
    }

    fn fields(&mut self) {
        for _ in 0..self.input.byte() % 5 {
            match self.input.byte() {
                0..150 => {
                    let (name, value) = *self.input.pick(&FIELDS[..12]);
                    self.field(name, 0, value);
                }
                150..180 if *self.table > 0 => {
                    let back = self.input.byte() % (*self.table).min(8);
                    self.number(0x80, 7, 62 + usize::from(back));
                }
                180..200 => {
                    let ((_, name), (_, value)) = (*self.input.pick(&CODED), *self.input.pick(&CODED));
                    self.insert();
                    self.out.push(0x40);
                    self.text(name, true);
                    self.text(value, true);
                }
                200..210 => {
                    let index = 15 + self.input.byte() % 46;
                    self.number(0x80, 7, usize::from(index));
                }
                210..220 => self.field("x-long", 0, &"l".repeat(300)),
                150..180 | 220..241 => {
                    let (name, value) = *self.input.pick(&FIELDS);
                    self.field(name, 0, value);
                }
                241..246 => {
                    let piece = self.input.piece();
                    self.out.push(0);
                    self.text(b"x-coded", false);
                    self.text(&piece[..piece.len().min(20)], true);
                }
                246..248 => {
                    let size = *self.input.pick(&SIZE_UPDATES);
                    self.number(0x20, 5, size);
                }
                _ => {
                    let len = self.input.byte() % 8;
                    let raw = self.input.take(usize::from(len));
                    self.out.extend_from_slice(raw);
                }
            }
        }
    }

    /// A literal, whose name may be one of the static table.
    fn field(&mut self, name: &str, index: usize, value: &str) {
        let (pattern, bits) = match self.input.byte() % 4 {
            0 | 1 => (0x40, 6),
            2 => (0, 4),
            _ => (0x10, 4),
        };
        if pattern == 0x40 {
            self.insert();
        }
        self.number(pattern, bits, index);
        if index == 0 {
            self.text(name.as_bytes(), false);
        }
        self.text(value.as_bytes(), false);
    }

    const fn insert(&mut self) {
        *self.table = self.table.saturating_add(1);
    }

    fn text(&mut self, text: &[u8], coded: bool) {
        self.number(if coded { 0x80 } else { 0 }, 7, text.len());
        self.out.extend_from_slice(text);
    }

    /// A number behind a pattern, in so many bits and as many bytes as it takes (RFC 7541, section 5.1).
    fn number(&mut self, pattern: u8, bits: u32, number: usize) {
        let most = (1_usize << bits) - 1;
        if number < most {
            return self.out.push(pattern | number as u8);
        }
        self.out.push(pattern | most as u8);
        let mut left = number - most;
        while left >= 0x80 {
            self.out.push(left as u8 | 0x80);
            left >>= 7;
        }
        self.out.push(left as u8);
    }
}
