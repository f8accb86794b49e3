//! Tables for people, on a terminal.

use std::fmt::Write as _;

use crate::terminal::printable;

/// Columns are as wide as their widest cell. Control characters are escaped, so that no cell steers the
/// terminal.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<'h>(headers: impl IntoIterator<Item = &'h str>) -> Self {
        let mut table = Self { rows: Vec::new() };
        table.row(headers);
        table
    }

    /// Adds a row. Extra cells are dropped, missing ones empty.
    pub(crate) fn row<C: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<String> = cells.into_iter().map(|cell| printable(cell.as_ref())).collect();
        if let Some(header) = self.rows.first() {
            row.resize(header.len(), String::new());
        }
        self.rows.push(row);
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rows.len() <= 1
    }

    pub(crate) fn without_empty_columns(mut self) -> Self {
        let headers = self.rows.first().map_or(0, Vec::len);
        let is_empty = |at: &usize| self.rows.iter().skip(1).all(|row| row[*at].is_empty());
        let empty: Vec<usize> = (0..headers).filter(is_empty).collect();
        if !self.is_empty() {
            for row in &mut self.rows {
                let mut at = 0..;
                row.retain(|_| at.next().is_some_and(|at| !empty.contains(&at)));
            }
        }
        self
    }

    pub(crate) fn show(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            cells.max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                // Writing to a String cannot fail.
                _ = write!(line, "{cell:width$}  ");
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_leaves_the_terminal_alone() {
        let mut table = Table::new(["NAME", "VERSION"]);
        table.row(["a\u{1b}[31m\u{e9}\n", "1\r2"]);
        table.row(["b", "12345678"]);
        let rows = ["NAME            VERSION", "a\\u{1b}[31m\u{e9}\\n  1\\r2", "b               12345678"];
        assert_eq!(table.show().lines().collect::<Vec<_>>(), rows);
    }

    #[test]
    fn a_column_without_anything_is_left_out() {
        let mut table = Table::new(["NAME", "GROUP", "STATE"]);
        assert_eq!(table.clone().without_empty_columns().show(), "NAME  GROUP  STATE\n");
        table.row(["a", "", "synced"]);
        assert_eq!(table.without_empty_columns().show(), "NAME  STATE\na     synced\n");
    }
}
