//! The page for people at `/`: embedded files, with headers that restrict them in a browser.
//!
//! Reads nothing of the relay: the page asks the admin address like any script. Hostile peers may choose
//! names, node IDs and rejection texts. So the policy forbids inline scripts, strings that become HTML, and
//! requests to other hosts.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, header};
use http_body_util::Full;

/// `trusted-types 'none'` makes browsers refuse strings as HTML or code, as in `innerHTML`.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// Path, type and content of a file. All but the first are below `/page/`; relative paths work behind a proxy
/// with a prefix.
type File = (&'static str, &'static str, &'static str);

const FILES: [File; 20] = [
    ("/", HTML, include_str!("web/index.html")),
    ("/page/page.css", STYLE, include_str!("web/page.css")),
    ("/page/icon.svg", PICTURE, include_str!("web/icon.svg")),
    ("/page/clients.js", SCRIPT, include_str!("web/clients.js")),
    ("/page/dom.js", SCRIPT, include_str!("web/dom.js")),
    ("/page/format.js", SCRIPT, include_str!("web/format.js")),
    ("/page/history.js", SCRIPT, include_str!("web/history.js")),
    ("/page/main.js", SCRIPT, include_str!("web/main.js")),
    ("/page/metrics.js", SCRIPT, include_str!("web/metrics.js")),
    ("/page/nacks.js", SCRIPT, include_str!("web/nacks.js")),
    ("/page/overview.js", SCRIPT, include_str!("web/overview.js")),
    ("/page/parts.js", SCRIPT, include_str!("web/parts.js")),
    ("/page/plot.js", SCRIPT, include_str!("web/plot.js")),
    ("/page/relay.js", SCRIPT, include_str!("web/relay.js")),
    ("/page/resources.js", SCRIPT, include_str!("web/resources.js")),
    ("/page/rollout.js", SCRIPT, include_str!("web/rollout.js")),
    ("/page/samples.js", SCRIPT, include_str!("web/samples.js")),
    ("/page/uplot/uPlot.iife.min.js", SCRIPT, include_str!("web/uplot/uPlot.iife.min.js")),
    ("/page/uplot/uPlot.min.css", STYLE, include_str!("web/uplot/uPlot.min.css")),
    ("/page/uplot/LICENSE", TEXT, include_str!("web/uplot/LICENSE")),
];

/// Answers a GET or HEAD for a file of the page; `None` for other paths.
pub(super) fn answer(request: &Parts) -> Option<Response<Full<Bytes>>> {
    let (_, kind, content) = FILES.iter().find(|(path, ..)| *path == request.uri.path())?;
    let mut response = Response::new(Full::new(Bytes::from_static(content.as_bytes())));
    let headers = response.headers_mut();
    let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, kind);
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    // An old page would misread new answers.
    set(header::CACHE_CONTROL, "no-cache");
    Some(response)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use http::Request;

    use super::*;

    #[test]
    fn all_files_of_the_folder_are_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/page/web");
        let names = |folder: &Path| -> Vec<String> {
            let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
            let files = entries.filter(|entry| entry.path().is_file());
            files.map(|entry| entry.file_name().into_string().unwrap()).collect()
        };
        let own = names(&folder).into_iter().map(|name| format!("/page/{name}"));
        let library = names(&folder.join("uplot")).into_iter().map(|name| format!("/page/uplot/{name}"));
        let mut there: BTreeSet<String> = own.chain(library).collect();
        assert!(there.remove("/page/index.html") && there.remove("/page/uplot/README.md"));
        there.insert("/".to_owned());
        let served: BTreeSet<String> = FILES.iter().map(|(path, ..)| (*path).to_owned()).collect();
        assert_eq!(served, there);
    }

    #[test]
    fn other_paths_are_not_those_of_the_page() {
        for path in
            ["/page", "/page/", "/page/../mod.rs", "/page/mod.rs", "/clients", "/page/uplot/README.md"]
        {
            let request = Request::get(path).body(()).unwrap();
            assert!(answer(&request.into_parts().0).is_none(), "{path}");
        }
    }
}
