//! Templates: texts in which `${name}` stands for a value, and `$$` for a dollar.
//!
//! Owns the notation. A template is parsed once; the caller resolves names to indexes of values.

use serde_json::{Map, Value as Json};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    Value(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree {
    Text(Template),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
    /// Number, boolean or null.
    Other(Json),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("has a `$` that stands for nothing; write ${{NAME}} for a value, $$ for a dollar")]
    Dollar,
    #[error("has a `${{` without its `}}`")]
    Unclosed,
}

/// Splits a text: `Ok` is text, `Err` a name.
fn pieces(mut rest: &str) -> Result<Vec<Result<String, &str>>, TemplateError> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    while let Some((before, after)) = rest.split_once('$') {
        text += before;
        if let Some(after) = after.strip_prefix('$') {
            text.push('$');
            rest = after;
            continue;
        }
        let after = after.strip_prefix('{').ok_or(TemplateError::Dollar)?;
        let (name, after) = after.split_once('}').ok_or(TemplateError::Unclosed)?;
        if !text.is_empty() {
            pieces.push(Ok(std::mem::take(&mut text)));
        }
        pieces.push(Err(name));
        rest = after;
    }
    text += rest;
    if !text.is_empty() {
        pieces.push(Ok(text));
    }
    Ok(pieces)
}

impl Template {
    /// `resolve` returns the index of a named value, or records an error.
    pub(super) fn parse(
        text: &str,
        mut resolve: impl FnMut(&str) -> Option<usize>,
    ) -> Result<Self, TemplateError> {
        let piece = |piece: Result<String, &str>| match piece {
            Ok(text) => Some(Piece::Text(text.into())),
            Err(name) => resolve(name).map(Piece::Value),
        };
        Ok(Self(pieces(text)?.into_iter().filter_map(piece).collect()))
    }

    pub(super) fn fill(&self, values: &[Box<str>]) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Value(at) => values.get(*at).cloned().unwrap_or_default(),
        };
        self.0.iter().map(piece).collect()
    }
}

impl Tree {
    /// Fills in the values. Recursion is bounded by the parser's depth.
    fn fill(&self, values: &[Box<str>]) -> Json {
        match self {
            Self::Text(template) => template.fill(values).into(),
            Self::List(items) => items.iter().map(|item| item.fill(values)).collect(),
            Self::Object(fields) => Self::object(fields, values).into(),
            Self::Other(json) => json.clone(),
        }
    }

    pub(super) fn object(fields: &[(String, Self)], values: &[Box<str>]) -> Map<String, Json> {
        fields.iter().map(|(key, tree)| (key.clone(), tree.fill(values))).collect()
    }
}
