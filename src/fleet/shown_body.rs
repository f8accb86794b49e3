//! Bodies of resources, as far as operators are shown them.
//!
//! Owns the largest body that is shown, and the words for one that is not.

use crate::descriptors::DescriptorError;
use crate::resource::Resource;

/// Bytes of a body above which it is not shown: as JSON it takes hundreds of times as much memory for a moment.
pub(super) const LARGEST: usize = 1 << 20;

/// The body as `show` gives it, or why there is none.
pub(super) fn shown_body<T>(
    resource: &Resource,
    show: impl FnOnce(&[u8]) -> Result<T, DescriptorError>,
) -> Result<T, String> {
    let body = resource.body();
    let shown = if body.len() > LARGEST {
        Err(format!("it has {} bytes, and more than {LARGEST} are not shown", body.len()))
    } else {
        show(body).map_err(|error| format!("{error}; `rest.descriptor_sets` adds types"))
    };
    shown.map_err(|error| format!("the relay cannot show it: {error}"))
}
