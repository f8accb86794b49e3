//! Writes `proto/descriptors.binpb.gz`: the descriptors of Envoy's v3 API and of all that it imports, for
//! reading and showing resources as JSON, YAML and text.
//!
//! The same inputs give the same bytes: roots are taken in the order of their names, the compressor is pinned
//! by the lock file, and the gzip header has neither time nor name.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use flate2::{Compression, GzBuilder};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage as _, Value};
use protox::{
    Compiler,
    file::{ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver},
};

const SOURCE_PACKAGE: &str = "envoy-types";
/// The folders of the package under which import paths begin; every file below them is compiled.
const INCLUDES: [&str; 8] = [
    "proto/data-plane-api",
    "proto/xds",
    "proto/googleapis",
    "proto/protoc-gen-validate",
    "proto/opentelemetry-proto",
    "proto/client_model",
    "proto/cel-spec/proto",
    "proto/ratelimit",
];
/// What resources use and the package lacks, in a folder of this one; every file below it is compiled.
const EXTRA: &str = "extra";
/// An `Any` may hold any of these, imported or not. They ship with protox, which does not list them; its
/// `compiler/plugin.proto` is left out, because no resource holds a plugin's request.
const WELL_KNOWN: [&str; 11] = [
    "google/protobuf/any.proto",
    "google/protobuf/api.proto",
    "google/protobuf/descriptor.proto",
    "google/protobuf/duration.proto",
    "google/protobuf/empty.proto",
    "google/protobuf/field_mask.proto",
    "google/protobuf/source_context.proto",
    "google/protobuf/struct.proto",
    "google/protobuf/timestamp.proto",
    "google/protobuf/type.proto",
    "google/protobuf/wrappers.proto",
];

/// References that protoc resolves by looking at direct imports only, and protox at all it has loaded: there
/// `common` finds `envoy.extensions.clusters.common` first. Written in full, they mean the same to both.
const QUALIFY: [(&str, &str, &str); 1] = [(
    "envoy/extensions/clusters/dynamic_forward_proxy/v3/cluster.proto",
    " common.dynamic_forward_proxy.v3.DnsCacheConfig ",
    " .envoy.extensions.common.dynamic_forward_proxy.v3.DnsCacheConfig ",
)];

struct Qualified {
    include: PathBuf,
}

fn main() -> Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = package_dir(here)?;
    let extra = here.join(EXTRA);
    let mut roots = BTreeSet::from(WELL_KNOWN.map(str::to_owned));
    for include in INCLUDES {
        let root = package.join(include);
        collect(&root, &root, &mut roots)?;
    }
    let mut ours = BTreeSet::new();
    collect(&extra, &extra, &mut ours)?;
    for file in ours {
        ensure!(!roots.contains(&file), "{SOURCE_PACKAGE} has {file} by now: remove it from {EXTRA}/");
        roots.insert(file);
    }

    let mut seen = BTreeSet::new();
    let mut files = Vec::new();
    for root in &roots {
        // One compiler per root: relative names are resolved against everything a compiler has loaded, so
        // fewer files mean fewer wrong matches.
        let pool = compile(&package, &extra, root).with_context(|| format!("cannot compile {root}"))?;
        for file in pool.files() {
            if seen.insert(file.name().to_owned()) {
                // As a dynamic message, because the custom options (validation, sensitive fields) survive it.
                let descriptor = prost_reflect::prost_types::FileDescriptorProto::default().descriptor();
                let mut file = DynamicMessage::decode(descriptor, file.encode_to_vec().as_slice())?;
                file.clear_field_by_name("source_code_info");
                files.push(Value::Message(file));
            }
        }
    }
    let count = files.len();
    let mut set = prost_reflect::prost_types::FileDescriptorSet::default().transcode_to_dynamic();
    set.set_field_by_name("file", Value::List(files));
    let bytes = set.encode_to_vec();
    let pool = DescriptorPool::decode(bytes.as_slice()).context("the merged set does not hold together")?;

    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    gzip.write_all(&bytes)?;
    let packed = gzip.finish()?;
    let target = here.with_file_name("descriptors.binpb.gz");
    fs::write(&target, &packed).with_context(|| format!("cannot write {}", target.display()))?;
    println!(
        "{}: {count} files, {} messages, {} bytes, {} bytes packed",
        target.display(),
        pool.all_messages().count(),
        bytes.len(),
        packed.len()
    );
    Ok(())
}

/// Where cargo has unpacked the source package.
fn package_dir(here: &Path) -> Result<PathBuf> {
    let out = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--locked", "--format-version=1", "--manifest-path"])
        .arg(here.join("Cargo.toml"))
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(out.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout)?;
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == SOURCE_PACKAGE)
        .and_then(|package| package["manifest_path"].as_str())
        .with_context(|| format!("cargo metadata does not list {SOURCE_PACKAGE}"))?;
    Ok(Path::new(manifest).parent().context("a manifest has a folder")?.to_owned())
}

/// Adds the import paths of all .proto files below `dir`.
fn collect(root: &Path, dir: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            let import = path.strip_prefix(root)?.to_str().context("a path that is not UTF-8")?;
            found.insert(import.to_owned());
        }
    }
    Ok(())
}

fn compile(package: &Path, extra: &Path, root: &str) -> Result<DescriptorPool> {
    let mut resolver = ChainFileResolver::new();
    resolver.add(Qualified { include: package.join(INCLUDES[0]) });
    for include in INCLUDES {
        resolver.add(IncludeFileResolver::new(package.join(include)));
    }
    resolver.add(IncludeFileResolver::new(extra.to_owned()));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.include_imports(true).open_file(root)?;
    Ok(compiler.descriptor_pool())
}

impl FileResolver for Qualified {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let Some((_, from, to)) = QUALIFY.iter().find(|(file, ..)| *file == name) else {
            return Err(protox::Error::file_not_found(name));
        };
        let source = fs::read_to_string(self.include.join(name)).map_err(protox::Error::new)?;
        File::from_source(name, &source.replace(from, to))
    }
}
