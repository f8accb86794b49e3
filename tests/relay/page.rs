//! The page for people: its files as browsers get them. `make page-check` looks at it in a browser.

use http::{HeaderMap, Method, StatusCode};
use regex::Regex;

use crate::prelude::*;

/// Addresses that a file may name, and why.
const NAMED: [&str; 2] = [
    // The head of the library names its home.
    "https://github.com/leeoniya/uPlot",
    // The name of an XML namespace, which nobody fetches.
    "http://www.w3.org/2000/svg",
];

/// A file, asked for over HTTP/2.
async fn ask(relay: &Process, method: Method, path: &str) -> (StatusCode, HeaderMap, Bytes) {
    let socket = tokio::net::TcpStream::connect(relay.admin).await.unwrap();
    let (client, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = http::Request::builder().method(method).uri(format!("http://{}{path}", relay.admin));
    let (response, _) = client.send_request(request.body(()).unwrap(), true).unwrap();
    let (head, mut body) = response.await.unwrap().into_parts();
    let mut content = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        content.extend_from_slice(&chunk);
    }
    (head.status, head.headers, content.into())
}

/// All files of the page, from the first one on by what each names, with their types.
async fn files(relay: &Process) -> Vec<(String, String, String)> {
    let names = Regex::new(r#"(?:(?:href|src)="|from '\./)([^"'#]+)["']"#).unwrap();
    let (mut known, mut left) = (BTreeSet::from(["/".to_owned()]), vec!["/".to_owned()]);
    let mut files = Vec::new();
    while let Some(path) = left.pop() {
        let (status, headers, content) = ask(relay, Method::GET, &path).await;
        assert_eq!(status, 200, "{path}");
        let content = String::from_utf8(content.to_vec()).unwrap();
        for name in names.captures_iter(&content).map(|found| found[1].to_owned()) {
            let named = if path == "/" { format!("/{name}") } else { format!("/page/{name}") };
            if known.insert(named.clone()) {
                left.push(named);
            }
        }
        let kind = headers["content-type"].to_str().unwrap().to_owned();
        files.push((path, kind, content));
    }
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_and_its_files_are_served_with_headers_that_confine_them_and_name_no_other_host() {
    let relay = relay("");
    let files = files(&relay).await;
    name_no_other_host_and_make_no_html_of_texts(&files);
    assert!(files.len() > 15, "{files:?}");
    for (path, kind, _) in &files {
        let expected = match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
            _ if path == "/" => "text/html; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "text/plain; charset=utf-8",
        };
        assert_eq!(kind, expected, "{path}");
        let (_, headers, content) = ask(&relay, Method::GET, path).await;
        let policy = headers["content-security-policy"].to_str().unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.split("; ").any(|one| one == part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["cache-control"], "no-cache", "an old page would misread new answers");
        let (status, head, none) = ask(&relay, Method::HEAD, path).await;
        assert_eq!((status, none.len()), (StatusCode::OK, 0), "{path}");
        assert_eq!(head["content-length"].to_str().unwrap(), content.len().to_string());
        assert_eq!(ask(&relay, Method::POST, path).await.0, 405, "{path}");
    }
    for missing in ["/page", "/page/", "/page/none.js", "/index.html"] {
        let (status, headers, _) = ask(&relay, Method::GET, missing).await;
        assert_eq!(status, 404, "{missing}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "no answer is taken for a page");
    }
}

fn name_no_other_host_and_make_no_html_of_texts(files: &[(String, String, String)]) {
    let address = Regex::new(r#"(?:[a-z]+:)?//[a-z0-9][^\s"'`)<>]*"#).unwrap();
    let hosts = Regex::new(r"^(?:https?:|wss?:)//|^//[a-z0-9-]+\.[a-z]").unwrap();
    let dangers = Regex::new(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|createContextualFragment",
    )
    .unwrap();
    let inline = Regex::new(r#"<script(?:\s[^>]*)?>[^<]|<style|\sstyle=|\son[a-z]+=|javascript:"#).unwrap();
    for (path, _, content) in files {
        for found in
            address.find_iter(content).map(|found| found.as_str()).filter(|found| hosts.is_match(found))
        {
            assert!(NAMED.contains(&found), "{path} names {found}");
        }
        assert!(!content.contains("@import") && !content.contains("url("), "{path}");
        if !path.ends_with(".min.js") {
            assert!(dangers.find(content).is_none(), "{path}: {:?}", dangers.find(content));
        }
        if path == "/" {
            assert!(inline.find(content).is_none(), "{:?}", inline.find(content));
        }
    }
}
