#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::body("against_h2")(data));
